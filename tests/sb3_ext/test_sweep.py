"""The command `unity-learn sweep`: trials, pruning, the study file and the final output."""

from __future__ import annotations

import csv
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

import sb3_ext.sweep
from sb3_ext.files import locked
from sb3_ext.learn import main
from sb3_ext.plugins import StatsWriter
from sb3_ext.settings import RunSettings, SettingsError, load, loads
from sb3_ext.sweep import Sweep
from unity_gym.errors import UnityGymError

optuna = pytest.importorskip("optuna")

RATE, EPOCHS, BATCH = (
    f"behaviors.Basic.hyperparameters.{name}" for name in ("learning_rate", "num_epoch", "batch_size")
)


def sweep_file(folder: Path, **keys: Any) -> Path:
    tree = {
        "config": "ppo/Basic",
        "trials": 2,
        "steps": 200,
        "parameters": {
            RATE: {"log_uniform": [1e-4, 1e-2]},
            EPOCHS: {"int_uniform": [1, 4]},
            "behaviors.Basic.summary_freq": 100,
        },
    }
    path = folder / "basic.yaml"
    path.write_text(yaml.safe_dump(tree | keys), encoding="utf-8")
    return path


def lines(folder: Path) -> list[dict[str, str]]:
    with (folder / "trials.csv").open(newline="") as file:
        return list(csv.DictReader(file))


Train = Callable[[RunSettings, Sequence[StatsWriter]], int]


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[RunSettings]:
    """Replace the runs of trials: the mean reward is the learning rate times the seed plus one, without training."""
    runs: list[RunSettings] = []

    def train(settings: RunSettings, writers: Sequence[StatsWriter]) -> int:
        runs.append(settings)
        behavior = settings.behavior("Basic")
        reward = behavior.hyperparameters.learning_rate * (settings.env_settings.seed + 1)
        for step in range(behavior.summary_freq, behavior.max_steps + 1, behavior.summary_freq):
            for writer in writers:
                writer.write_stats("Basic", step, {"Environment/Cumulative Reward": reward})
        return 0

    monkeypatch.setattr(sb3_ext.sweep, "train", train)
    return runs


def test_a_sweep_trains_trials_and_writes_the_best_settings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parameters = {
        RATE: {"log_uniform": [1e-4, 1e-2]},
        EPOCHS: {"int_uniform": [1, 4]},
        "behaviors.Basic.summary_freq": 200,
    }
    path = sweep_file(tmp_path, seeds=[4], steps=400, parameters=parameters)
    arguments = ["sweep", str(path), "--results-dir", str(tmp_path), "--seed", "3"]
    assert main(arguments) == 0
    folder = tmp_path / "basic"
    trials = lines(folder)
    assert [(trial["trial"], trial["state"]) for trial in trials] == [("0", "complete"), ("1", "complete")]
    assert (float(trials[0][RATE]), trials[0][EPOCHS]) == (0.0003, "3")  # those of the configuration
    for trial in trials:
        run = folder / f"trial-{trial['trial']}-seed-4"
        settings = load(run / "configuration.yaml")
        assert settings.env_settings.seed == 4
        assert settings.behavior("Basic").hyperparameters.learning_rate == float(trial[RATE])
        assert settings.behavior("Basic").max_steps == 500000  # the schedules are those of a whole run
        assert (run / "Basic" / "Basic-400.zip").exists()
        with (run / "Basic" / "rewards.csv").open(newline="") as file:
            curve = [float(line["mean_reward"]) for line in csv.DictReader(file)]
        assert len(curve) == 2
        assert float(trial["value"]) == pytest.approx(sum(curve) / 2, abs=1e-6)
    best = max(trials, key=lambda trial: float(trial["value"]))
    settings = load(folder / "best.yaml")
    assert settings.behavior("Basic").hyperparameters.learning_rate == float(best[RATE])
    assert settings.behavior("Basic").summary_freq == 200
    assert settings.checkpoint_settings.run_id == "ppo"
    assert settings.env_settings.env_path == "embedded:Basic"
    assert settings.env_settings.seed == -1
    assert (folder / "trials.png").read_bytes().startswith(b"\x89PNG")
    output = capsys.readouterr().out.splitlines()
    assert output[-4].split() == ["trial", "value", "steps", "learning_rate", "num_epoch"]
    assert output[-3].split()[0] == best["trial"]
    assert output[-1] == f"Best: trial {best['trial']}. Train with its settings: unity-learn {folder / 'best.yaml'}"


def test_ctrl_c_leaves_a_study_that_can_be_resumed(tmp_path: Path, trained: list[RunSettings]) -> None:
    path = sweep_file(tmp_path, trials=2, steps=3000)
    process = subprocess.Popen(
        [sys.executable, "-m", "sb3_ext.learn", "sweep", str(path), "--results-dir", str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    for line in process.stdout:
        if "Basic. Step: " in line:
            break
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert output.splitlines()[-1] == f"Stopped; --resume continues the sweep in {tmp_path / 'basic'}"
    assert lines(tmp_path / "basic") == []
    assert list((tmp_path / "basic" / "trial-0-seed-0" / "Basic").glob("*.zip"))  # the run was saved
    assert main(["sweep", str(path), "--results-dir", str(tmp_path), "--resume"]) == 0
    rates = [run.behavior("Basic").hyperparameters.learning_rate for run in trained]
    assert len(rates) == 2
    assert rates[0] == 0.0003  # the trial that was interrupted
    assert [trial["trial"] for trial in lines(tmp_path / "basic")] == ["1", "2"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_exit_status_of_a_sweep_has_the_signal_that_ended_its_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    monkeypatch.setattr(sb3_ext.sweep, "train", lambda *_: int(number))
    assert main(["sweep", str(sweep_file(tmp_path)), "--results-dir", str(tmp_path)]) == 128 + number
    assert lines(tmp_path / "basic") == []


def test_a_trial_whose_process_was_killed_is_repeated(tmp_path: Path, trained: list[RunSettings]) -> None:
    path = sweep_file(tmp_path, trials=3)
    place = {"checkpoint_settings.results_dir": str(tmp_path)}
    killed = Sweep(path, place)
    lost = killed._study.ask()
    rate = killed.settings.varied[RATE].suggest(lost, RATE)
    killed.settings.varied[EPOCHS].suggest(lost, EPOCHS)
    lost.set_user_attr("process", killed._lock.name)
    killed._lock.parent.mkdir()
    killed._lock.touch()  # the system has released its lock
    other = Sweep(path, place | {"checkpoint_settings.resume": True})
    with locked(other._lock):  # on any machine, and with any process id
        other._study.ask().set_user_attr("process", other._lock.name)
        assert main(["sweep", str(path), "--results-dir", str(tmp_path), "--resume"]) == 0
        assert list(other._lock.parent.iterdir()) == [other._lock]
    assert len(trained) == 2  # the trial of the other process counts
    assert trained[0].behavior("Basic").hyperparameters.learning_rate == rate


def test_a_killed_sweep_repeats_its_trial(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sb3_ext.learn", "sweep", str(sweep_file(tmp_path, trials=1, steps=3000))]
    process = subprocess.Popen(
        [*command, "--results-dir", str(tmp_path)], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    for line in process.stdout:
        if "Basic. Step: " in line:
            break
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert len(list((tmp_path / "basic" / "processes").iterdir())) == 1
    assert subprocess.run([*command, "--results-dir", str(tmp_path), "--resume"], check=False).returncode == 0
    assert [trial["trial"] for trial in lines(tmp_path / "basic")] == ["1"]
    assert list((tmp_path / "basic" / "processes").iterdir()) == []


def test_each_trial_has_its_own_timesteps_and_summaries(tmp_path: Path, trained: list[RunSettings]) -> None:
    parameters = {
        "behaviors.Basic.max_steps": {"choice": [300, 100]},
        "behaviors.Basic.summary_freq": {"choice": [100, 50]},
    }
    path = sweep_file(tmp_path, trials=8, steps=None, seeds=[0, 1], parameters=parameters, prune=False)
    sweep = Sweep(path, {"checkpoint_settings.results_dir": str(tmp_path), "env_settings.seed": 0})
    assert sweep.run() == 0
    assert len(trained) == 16
    assert {trial.params["behaviors.Basic.max_steps"] for trial in sweep._study.trials} == {100, 300}
    for trial in sweep._study.trials:
        last, each = trial.params["behaviors.Basic.max_steps"], trial.params["behaviors.Basic.summary_freq"]
        own = list(range(each, last + 1, each))
        assert sorted(trial.intermediate_values) == own + [301 + step for step in own]


def test_processes_share_the_trials_of_a_study(tmp_path: Path, trained: list[RunSettings]) -> None:
    path = sweep_file(tmp_path, trials=3)
    first = Sweep(path, {"checkpoint_settings.results_dir": str(tmp_path)})
    first._run_trial()
    second = Sweep(path, {"checkpoint_settings.results_dir": str(tmp_path), "checkpoint_settings.resume": True})
    assert second.run() == 0
    assert first.run() == 0
    assert len(trained) == 3
    assert [trial["trial"] for trial in lines(tmp_path / "basic")] == ["0", "1", "2"]


def test_trials_draw_other_values_in_processes_that_share_a_seed_or_resume(
    tmp_path: Path, trained: list[RunSettings]
) -> None:
    place = {"checkpoint_settings.results_dir": str(tmp_path), "env_settings.seed": 5}
    path = sweep_file(tmp_path, trials=5)
    Sweep(path, place)._run_trial()
    for _ in range(4):
        Sweep(path, place | {"checkpoint_settings.resume": True})._run_trial()
    rates = [run.behavior("Basic").hyperparameters.learning_rate for run in trained]
    assert len(set(rates)) == 5
    trained.clear()
    sweep = Sweep(path, place | {"checkpoint_settings.force": True})
    for _ in range(5):
        sweep._run_trial()
    assert [run.behavior("Basic").hyperparameters.learning_rate for run in trained] == rates


@pytest.mark.usefixtures("trained")
def test_a_value_is_the_mean_over_seeds_and_a_target_ends_a_run(tmp_path: Path) -> None:
    parameters = {RATE: {"choice": ["1e-3", 1e-2]}, "behaviors.Basic.summary_freq": 100}
    path = sweep_file(tmp_path, seeds=[0, 2], target=0.005, trials=4, steps=300, parameters=parameters, prune=False)
    sweep = Sweep(path, {"checkpoint_settings.results_dir": str(tmp_path), "env_settings.seed": 1})
    assert sweep.run() == 0
    trials = {float(trial[RATE]): trial for trial in lines(tmp_path / "basic")}
    assert float(trials[1e-3]["value"]) == pytest.approx(0.002)
    assert trials[1e-3]["steps"] == ""
    assert float(trials[1e-2]["value"]) == pytest.approx(0.005)  # no more than the target
    assert float(trials[1e-2]["steps"]) == 100
    solved = next(trial for trial in sweep._study.trials if trial.params[RATE] == 1e-2)
    assert sorted(solved.intermediate_values) == [100, 200, 300, 401, 501, 601]  # others are compared with all of it


@pytest.mark.usefixtures("trained")
def test_the_first_trial_has_the_values_of_the_configuration_also_where_they_are_defaults(tmp_path: Path) -> None:
    workers = "env_settings.num_workers"
    varied = {workers: {"choice": [1, 0]}, RATE: {"uniform": [0, 1]}}
    path = sweep_file(tmp_path, trials=1, parameters=varied | {"behaviors.Basic.summary_freq": 100})
    sweep = Sweep(path, {"checkpoint_settings.results_dir": str(tmp_path)})
    assert sweep.run() == 0
    assert sweep._study.trials[0].params == {workers: 0, RATE: 3e-4}


@pytest.mark.usefixtures("trained")
def test_a_trial_below_the_median_is_pruned(tmp_path: Path) -> None:
    parameters = {RATE: {"choice": [1e-3, 1e-2]}, "behaviors.Basic.summary_freq": 100}
    path = sweep_file(tmp_path, trials=2, startup_trials=1, warmup_steps=150, steps=400, parameters=parameters)
    sweep = Sweep(path, {"checkpoint_settings.results_dir": str(tmp_path)})
    for rate in (1e-2, 1e-3):
        sweep._study.enqueue_trial({RATE: rate})
    assert sweep.run() == 0
    good, bad = sweep._study.trials
    assert (good.state.name, bad.state.name) == ("COMPLETE", "PRUNED")
    assert sorted(bad.intermediate_values) == [100, 200]
    assert [trial["state"] for trial in lines(tmp_path / "basic")] == ["complete", "pruned"]


@pytest.mark.usefixtures("trained")
def test_a_failed_trial_reports_its_cause_and_the_sweep_continues(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parameters = {BATCH: {"choice": [32, 512]}, RATE: {"uniform": [0.1, 0.2]}}
    path = sweep_file(tmp_path, trials=2, startup_trials=2, parameters=parameters, steps=2000)
    sweep = Sweep(path, {"checkpoint_settings.results_dir": str(tmp_path)})
    for batch in (512, 32):
        sweep._study.enqueue_trial({BATCH: batch, RATE: 0.1})
    assert sweep.run() == 0
    failed, completed = lines(tmp_path / "basic")
    assert (failed["state"], completed["state"]) == ("fail", "complete")
    assert "behaviors.Basic.hyperparameters.buffer_size is 256: give at least batch_size, 512" in failed["error"]
    assert f"Trial 0: {BATCH} 512, {RATE} 0.1\nTrial 0: failed: " in capsys.readouterr().out


@pytest.mark.usefixtures("trained")
def test_a_sweep_without_a_completed_trial_raises(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = sweep_file(tmp_path, metric="Environment/Reward")
    assert main(["sweep", str(path), "--results-dir", str(tmp_path)]) == 1
    errors = capsys.readouterr().err
    assert (
        "no trial was completed; the last error is: no summary of Basic has the metric 'Environment/Reward'" in errors
    )
    assert "its metrics are Environment/Cumulative Reward" in errors


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        (
            {"parameters": {"behaviors.Basic.hyperparameters.learning_rat": {"uniform": [0, 1]}}},
            r"basic.yaml: parameters\.behaviors\.Basic\.hyperparameters\.learning_rat is an unknown key .*did you mean",
        ),
        ({"parameters": {RATE: {"uniform": [1, 0]}}}, r"line \d+: parameters.*uniform is \[1, 0\]: give \[low, high\]"),
        ({"parameters": {RATE: {"log_uniform": [0, 1]}}}, "give bounds above 0"),
        ({"parameters": {RATE: {"int_uniform": [0.5, 1]}}}, "give whole numbers"),
        ({"parameters": {RATE: {"uniform": [0, 1], "choice": [1]}}}, "give one of uniform, "),
        ({"parameters": {RATE: 0.1}}, "vary at least one"),
        ({"objektive": "last"}, "objektive is an unknown key .*did you mean objective"),
        ({"behavior": "Basik"}, "behavior is 'Basik': give the behavior .*ppo/Basic has Basic"),
        ({"steps": 50}, "steps must be at least summary_freq, which is 100, got 50"),
        ({"config": "ppo/Basik"}, "did you mean ppo/Basic"),
    ],
)
def test_a_mistake_in_a_sweep_file_is_reported(tmp_path: Path, keys: dict[str, Any], words: str) -> None:
    path = sweep_file(tmp_path, **keys)
    with pytest.raises(SettingsError) as caught:
        Sweep(path, {"checkpoint_settings.results_dir": str(tmp_path)})
    assert re.search(words, str(caught.value)), caught.value
    assert "command line" not in str(caught.value)


@pytest.mark.usefixtures("trained")
def test_a_study_that_ends_within_a_line_is_reported_and_not_changed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = sweep_file(tmp_path)
    assert main(["sweep", str(path), "--results-dir", str(tmp_path)]) == 0
    study = tmp_path / "basic" / "study.journal"
    whole = study.read_bytes()
    count = whole.count(b"\n")
    for damaged in (whole[:-9], whole[:-9] + b"\n"):
        study.write_bytes(damaged)
        capsys.readouterr()
        assert main(["sweep", str(path), "--results-dir", str(tmp_path), "--resume"]) == 1
        errors = capsys.readouterr().err
        assert errors.endswith(
            f"{study}, line {count} is incomplete or damaged. Delete it and all later lines, then continue with "
            "--resume\n"
        )
        assert study.read_bytes() == damaged
    study.write_bytes(b"".join(whole.splitlines(keepends=True)[:-1]))
    assert main(["sweep", str(path), "--results-dir", str(tmp_path), "--resume"]) == 0


def test_a_sweep_that_runs_is_not_deleted(tmp_path: Path, trained: list[RunSettings]) -> None:
    place = {"checkpoint_settings.results_dir": str(tmp_path)}
    running = Sweep(sweep_file(tmp_path), place)
    with locked(running._lock), pytest.raises(UnityGymError, match=r"another process runs the sweep in .*--resume to"):
        Sweep(sweep_file(tmp_path), place | {"checkpoint_settings.force": True})
    running.run()
    assert len(trained) == 2


@pytest.mark.usefixtures("trained")
def test_a_process_for_which_no_trial_is_left_ends_without_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = sweep_file(tmp_path, trials=1)
    running = Sweep(path, {"checkpoint_settings.results_dir": str(tmp_path)})
    with locked(running._lock):
        running._study.ask().set_user_attr("process", running._lock.name)
        assert main(["sweep", str(path), "--results-dir", str(tmp_path), "--resume"]) == 0
    assert "No trial in " in capsys.readouterr().out


def test_two_processes_that_find_a_lost_trial_at_once_repeat_it_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, place = sweep_file(tmp_path), {"checkpoint_settings.results_dir": str(tmp_path)}
    killed = Sweep(path, place)
    killed._study.ask().set_user_attr("process", killed._lock.name)
    killed._lock.parent.mkdir()
    killed._lock.touch()
    first, second = (Sweep(path, place | {"checkpoint_settings.resume": True}) for _ in range(2))
    found = second._study.get_trials()
    monkeypatch.setattr(second._study, "get_trials", lambda **_: found)
    first._repeat_lost_trials()
    second._repeat_lost_trials()
    assert [trial.state.name for trial in first._study.trials] == ["FAIL", "WAITING"]


def test_a_folder_is_not_overwritten(tmp_path: Path, trained: list[RunSettings]) -> None:
    place = {"checkpoint_settings.results_dir": str(tmp_path)}
    path = sweep_file(tmp_path)
    with pytest.raises(UnityGymError, match="is no sweep that could be resumed"):
        Sweep(path, place | {"checkpoint_settings.resume": True})
    Sweep(path, place).run()
    with pytest.raises(UnityGymError, match=r"exists\. Give --resume to continue or to join it, --force"):
        Sweep(path, place)
    with pytest.raises(UnityGymError, match="was started with other settings than those of"):
        Sweep(sweep_file(tmp_path, objective="last"), place | {"checkpoint_settings.resume": True})
    Sweep(sweep_file(tmp_path, trials=3), place | {"checkpoint_settings.resume": True}).run()
    assert len(trained) == 3
    Sweep(path, place | {"checkpoint_settings.force": True}).run()
    assert len(trained) == 6
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    with pytest.raises(UnityGymError, match="is no sweep"):
        Sweep(path, place | {"checkpoint_settings.run_id": "other", "checkpoint_settings.force": True})


def test_without_optuna_the_error_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(UnityGymError, match=r"needs optuna: pip install 'unity-gym\[tune\]'"):
        Sweep(sweep_file(tmp_path), {"checkpoint_settings.results_dir": str(tmp_path)})
    assert not (tmp_path / "basic").exists()


def test_help_lists_no_option_that_a_sweep_rejects(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["sweep", "sweeps/Basic", "--inference"])
    assert "--inference has no effect in unity-learn sweep: leave it out" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["sweep", "--help"])
    assert "--inference" not in capsys.readouterr().out


def test_shipped_sweeps_can_be_used_and_are_no_configurations(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sweep", "--list"]) == 0
    names = capsys.readouterr().out.split()
    assert "sweeps/Basic" in names
    for name in names:
        Sweep(name, {"checkpoint_settings.results_dir": str(tmp_path)})
    assert main(["--list"]) == 0
    assert "sweeps" not in capsys.readouterr().out


def test_a_configuration_named_like_a_command_is_given_with_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("sweep").write_text("behaviors: {Basic: {max_stepz: 1}}")
    assert main([os.path.join(".", "sweep")]) == 1
    assert "behaviors.Basic.max_stepz is an unknown key" in capsys.readouterr().err
    assert loads("default_settings: {}")

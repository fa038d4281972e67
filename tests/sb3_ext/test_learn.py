"""The command `unity-learn`: complete runs on embedded scenes, and error messages."""

from __future__ import annotations

import io
import itertools
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
import yaml
from small_runs import players_of
from stable_baselines3 import PPO as PlainPPO  # noqa: N811
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from sb3_ext import PPO
from sb3_ext.checkpoints import read_checkpoint
from sb3_ext.child_processes import starting_without_signals
from sb3_ext.console import print_line
from sb3_ext.files import write
from sb3_ext.learn import main
from sb3_ext.records import BehaviorRecord
from sb3_ext.run_logs import Summary
from sb3_ext.runs import Run
from sb3_ext.settings import RunSettings, loads
from sb3_ext.training import Training
from stand_ins.ports import free_port
from unity_gym.errors import UnityGymError
from unity_gym.pool import PlayerPool

CLOSED = "unity-learn: error: stopped, as its output {}. --resume continues a run that was saved\n"
CONFIGS = Path(__file__).resolve().parents[2] / "configs" / "ppo"


def config(
    folder: Path, scene: str = "Basic", network: dict[str, Any] | None = None, algorithm: str = "ppo", **keys: Any
) -> str:
    """Write the scene's configuration with these keys in all behaviors."""
    tree = yaml.safe_load((CONFIGS.with_name(algorithm) / f"{scene}.yaml").read_text(encoding="utf-8"))
    for behavior in tree["behaviors"].values():
        behavior.update(keys)
        behavior["network_settings"].update(network or {})
    path = folder / f"{scene}.yaml"
    path.write_text(yaml.safe_dump(tree), encoding="utf-8")
    return str(path)


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """Start the command in its own process group, as a terminal does."""
    return subprocess.Popen(
        [sys.executable, "-m", "sb3_ext.learn", *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def await_line(process: subprocess.Popen[str], part: str) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if part in line:
            return line
    raise AssertionError(process.communicate())


def steps(folder: Path) -> list[int]:
    return sorted(int(path.stem.rpartition("-")[2]) for path in folder.glob("*.zip"))


def scalars(folder: Path) -> dict[str, list[int]]:
    """Return the steps of every scalar in TensorBoard's files."""
    events = EventAccumulator(str(folder))
    events.Reload()
    return {name: [event.step for event in events.Scalars(name)] for name in events.Tags()["scalars"]}


def test_a_run_of_basic_writes_the_files_of_mlagents_learn(tmp_path: Path) -> None:
    file = config(tmp_path, max_steps=1000, summary_freq=500, checkpoint_interval=300, keep_checkpoints=2)
    process = start(tmp_path, file, "--run-id", "first", "--seed", "3")
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    lines = output.splitlines()
    assert lines[0] == " Version information:"
    assert "[INFO] Connected new brain: Basic?team=0" in lines
    assert "\t  learning_rate:\t0.0003" in lines[lines.index("[INFO] Hyperparameters for behavior name Basic:") :]
    # The pattern of a log parser for mlagents-learn.
    form = r"\[INFO\] (.+?)\. Step: (\d+)\. Time Elapsed: ([\d.]+) s\. Mean Reward: (-?[\d.]+)\. "
    form += r"Std of Reward: ([\d.]+)\. Training\."
    found = [match.groups() for line in lines if (match := re.fullmatch(form, line))]
    assert [(name, int(step)) for name, step, *_ in found] == [("Basic", 500), ("Basic", 1000)]

    run = tmp_path / "results" / "first"
    settings = loads((run / "configuration.yaml").read_text(encoding="utf-8"))
    assert settings.env_settings.seed == 3
    assert settings.behavior("Basic").max_steps == 1000
    assert steps(run / "Basic") == [900, 1000]
    assert lines[-1] == "[INFO] Basic: saved results/first/Basic/Basic-1000.zip and results/first/Basic.onnx"
    assert (run / "Basic.onnx").read_bytes() == (run / "Basic" / "Basic-1000.onnx").read_bytes()
    assert len(list((run / "Basic").glob("*.onnx"))) == 2
    assert (run / "learning_curve.png").read_bytes().startswith(b"\x89PNG")
    status = json.loads((run / "run_logs" / "training_status.json").read_text(encoding="utf-8"))
    assert [entry["steps"] for entry in status["Basic"]["checkpoints"]] == [900, 1000]
    assert status["Basic"]["final_checkpoint"]["file_path"] == "results/first/Basic.onnx"
    timers = json.loads((run / "run_logs" / "timers.json").read_text(encoding="utf-8"))
    assert timers["children"]["players"]["count"] == 1000
    assert (run / "run_logs" / "Player-0.log").exists()
    assert not list(run.rglob("*.partial"))
    known = scalars(run / "Basic")
    assert known.keys() >= {
        "Environment/Cumulative Reward",
        "Environment/Episode Length",
        "Losses/Policy Loss",
        "Losses/Value Loss",
        "Policy/Entropy",
        "Policy/Learning Rate",
        "Policy/Epsilon",
        "Policy/Beta",
        "Policy/Extrinsic Reward",
        "Policy/Extrinsic Value Estimate",
    }
    assert known["Environment/Cumulative Reward"] == [500, 1000]

    model = PPO.load(run / "Basic" / "Basic-1000.zip")
    assert model.num_timesteps == 1000
    assert model.predict(np.zeros(20, np.float32), deterministic=True)[0] in range(3)


def test_a_run_writes_each_update_its_hyperparameters_and_its_times(tmp_path: Path) -> None:
    tree = yaml.safe_load(Path(config(tmp_path, max_steps=240, summary_freq=120)).read_text(encoding="utf-8"))
    tree["behaviors"]["Basic"]["hyperparameters"] |= {"buffer_size": 60, "batch_size": 30, "second_critic": "mean"}
    file = tmp_path / "run.yaml"
    file.write_text(yaml.safe_dump(tree), encoding="utf-8")
    arguments = [str(file), "--results-dir", str(tmp_path), "--run-id", "noted", "--num-areas", "1"]
    assert main(arguments) == 0

    def updates() -> list[dict[str, float]]:
        return [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]

    run = tmp_path / "noted"
    log, first = run / "Basic" / "updates.jsonl", steps(run / "Basic")[-1]
    assert [line["step"] for line in updates()][:3] == [60, 120, 180]
    assert {"train/loss", "train/value_loss", "train/n_updates", "seconds"} <= updates()[0].keys()
    assert PPO.load(run / "Basic" / f"Basic-{first}.zip").second_critic == "mean"

    events = EventAccumulator(str(run / "Basic"))
    events.Reload()
    (text,) = events.Tensors("Hyperparameters/text_summary")
    (words,) = text.tensor_proto.string_val
    assert b"second_critic: mean" in words
    timers = json.loads((run / "run_logs" / "timers.json").read_text(encoding="utf-8"))
    assert timers.keys() == {"name", "total", "count", "self", "children", "gauges", "metadata"}
    assert timers["metadata"].keys() >= {"timer_format_version", "start_time_seconds", "end_time_seconds"}
    assert timers["metadata"].keys() >= {"python_version", "command_line_arguments", "pytorch_version", "numpy_version"}
    assert timers["gauges"]["Basic.Losses.ValueLoss.mean"].keys() == {"value", "min", "max", "count"}
    assert all(part.keys() == {"total", "count", "is_parallel", "self"} for part in timers["children"].values())

    with log.open("a", encoding="utf-8") as lines:  # the state after a kill that follows a checkpoint
        lines.write('{"step": 300, "seconds": 9}\n3\n{"step": 36')
    tree["behaviors"]["Basic"]["max_steps"] = 420
    file.write_text(yaml.safe_dump(tree), encoding="utf-8")
    assert main([*arguments, "--resume"]) == 0
    assert [line["step"] for line in updates()] == [*range(60, 421, 60)]
    assert all("train/loss" in line for line in updates())


def test_the_update_log_has_the_last_gradient_steps_of_sac(tmp_path: Path) -> None:
    arguments = ["--results-dir", str(tmp_path), "--run-id", "noted"]
    file = config(tmp_path, algorithm="sac", max_steps=400, checkpoint_interval=300)
    assert main([file, *arguments]) == 0
    assert_complete_update_log(tmp_path / "noted" / "Basic", 300, 400)


def test_the_update_log_has_the_update_during_which_ctrl_c_arrives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    update = PPO._update

    def interrupted(model: PPO, *arguments: Any) -> None:
        if model._n_updates:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.5)
        update(model, *arguments)

    monkeypatch.setattr(PPO, "_update", interrupted)
    assert main([config(tmp_path, threaded=True), "--results-dir", str(tmp_path), "--run-id", "noted"]) == 130
    assert_complete_update_log(tmp_path / "noted" / "Basic")


def assert_complete_update_log(folder: Path, *checkpoints: int) -> None:
    """Check that the updates of each checkpoint, by default of the only one, are in the log."""
    lines = [json.loads(line) for line in (folder / "updates.jsonl").read_text(encoding="utf-8").splitlines()]
    for step in checkpoints or steps(folder):
        state = read_checkpoint(folder / f"{folder.name}-{step}.zip").state
        assert state is not None
        assert state["counters"]["_n_updates"] in [line["train/n_updates"] for line in lines]


def test_sac_logs_its_statistics_and_resumes_with_its_replay_buffer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = yaml.safe_load((CONFIGS.with_name("sac") / "Basic.yaml").read_text(encoding="utf-8"))
    behavior = tree["behaviors"]["Basic"]
    behavior |= {"max_steps": 400, "summary_freq": 200}
    behavior["hyperparameters"] |= {"save_replay_buffer": True, "buffer_init_steps": 100}
    behavior["reward_signals"] |= {"curiosity": {"strength": 0.1}, "rnd": {"strength": 0.1}}
    file = tmp_path / "Basic.yaml"
    run = ["--run-id", "first", "--results-dir", str(tmp_path), "--seed", "3"]
    for total in (400, 600):
        behavior["max_steps"] = total
        file.write_text(yaml.safe_dump(tree), encoding="utf-8")
        assert main([str(file), *run, *(["--resume"] if total == 600 else [])]) == 0
    assert "empty" not in capsys.readouterr().out
    buffers = np.load(tmp_path / "first" / "Basic" / "last_replay_buffer.npz")
    assert buffers["seen"] in (599, 600)  # a decision may have no outcome at the end of the first run
    known = scalars(tmp_path / "first" / "Basic")
    assert {name.removeprefix("Losses/") for name in known if name.startswith("Losses/")} == {
        *("Policy Loss", "Value Loss", "Q1 Loss", "Q2 Loss"),
        *("Curiosity Forward Loss", "Curiosity Inverse Loss", "RND Loss"),
    }
    assert {name.removeprefix("Policy/") for name in known if name.startswith("Policy/")} == {
        *(f"{signal} {figure}" for signal in ("Extrinsic", "Curiosity", "Rnd") for figure in ("Reward", "Value")),
        *("Discrete Entropy Coeff", "Entropy", "Learning Rate"),
    }
    assert known["Policy/Curiosity Reward"] == [200, 400, 600]


def test_saved_experience_of_sac_with_longer_sequences_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def settings(length: int) -> str:
        network = {"hidden_units": 16, "memory": {"memory_size": 8, "sequence_length": length}}
        return config(tmp_path, "3DBall", network, "sac", max_steps=100_000, summary_freq=300)

    process = start(tmp_path, settings(32), "--run-id", "first", "--seed", "3")
    await_line(process, "Step: 300.")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert list((tmp_path / "results" / "first" / "3DBall").glob("experience-*.npz"))
    arguments = ["--results-dir", str(tmp_path / "results"), "--run-id", "first", "--resume"]
    assert main([settings(4), *arguments]) == 1
    errors = capsys.readouterr().err
    assert "experience-" in errors
    assert errors.endswith(" decisions long, those of this model 4. Delete it; the run continues without it\n")
    assert errors.count("\n") == 1


def test_a_killed_run_resumes_from_its_last_complete_checkpoint(tmp_path: Path) -> None:
    keys = {"summary_freq": 200, "checkpoint_interval": 300}
    process = start(tmp_path, config(tmp_path, **keys), "--run-id", "killed")
    folder = tmp_path / "results" / "killed" / "Basic"
    while not steps(folder):
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    first_output = process.communicate()[0]
    saved = steps(folder)[-1]
    (folder / ".Basic-999999.zip.partial").write_bytes(b"half")
    before = PPO.load(folder / f"Basic-{saved}.zip")

    file = config(tmp_path, **keys, max_steps=saved + 450)
    process = start(tmp_path, file, "--run-id", "killed", "--resume")
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert re.findall(r"Step: (\d+)", output)[0] == str((saved // 200 + 1) * 200)
    after = PPO.load(folder / f"Basic-{saved + 450}.zip")
    assert after.num_timesteps == saved + 450
    assert after._n_updates > before._n_updates
    count = [next(iter(model.policy.optimizer.state.values()))["step"].item() for model in (before, after)]
    assert count[1] > count[0] > 0
    rewards = (folder / "rewards.csv").read_text(encoding="utf-8").splitlines()[1:]
    known = [int(line.split(",")[0]) for line in rewards]
    assert known == sorted(set(known))
    summaries = r"Step: (\d+)\..*(Mean Reward|No episode)"
    first = [(int(step), text) for step, text in re.findall(summaries, first_output) if int(step) <= saved]
    printed = first + [(int(step), text) for step, text in re.findall(summaries, output)]
    assert printed[0][0] == 200
    assert printed[-1][0] == (saved + 450) // 200 * 200
    # Rarely, no episode ends within a summary's 200 timesteps. Then it has no reward.
    assert known == [step for step, text in printed if text == "Mean Reward"]


def test_a_resumed_run_deletes_networks_without_a_checkpoint_and_no_other_files(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished / "old", tmp_path / "old")
    folder = tmp_path / "old" / "Basic"
    for name in ("Basic-999999", "Basic-200", "best", "opponent-1"):  # the second without the checkpoint, to save room
        shutil.copy(folder / "Basic-300.onnx", folder / f"{name}.onnx")
    elsewhere = tmp_path / "elsewhere" / "elsewhere-5.onnx"
    elsewhere.parent.mkdir()
    elsewhere.touch()
    status_file = tmp_path / "old" / "run_logs" / "training_status.json"
    status = json.loads(status_file.read_text(encoding="utf-8"))
    names = {str(elsewhere.parent): {}, "../elsewhere": {}}
    status_file.write_text(json.dumps(status | names), encoding="utf-8")
    assert main([config(tmp_path, max_steps=1), "--results-dir", str(tmp_path), "--run-id", "old", "--resume"]) == 0
    assert sorted(path.stem for path in folder.glob("*.onnx")) == ["Basic-200", "Basic-300", "best", "opponent-1"]
    assert elsewhere.exists()


def test_a_resumed_run_leaves_files_of_other_names_and_folders_alone(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished / "old", tmp_path / "old")
    run, network = tmp_path / "old", finished / "old" / "Basic" / "Basic-300.onnx"
    names = ["7.onnx", "kept/100.onnx", "kept/kept-5.onnx", "kept/Basic/Basic-300.onnx", "kept/.notes.partial"]
    names += ["Basic/100.onnx", "Basic/20261127.zip"]
    for name in names:
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(network, run / name)
    (run / "Basic" / ".rewards.csv.partial").touch()
    assert main([config(tmp_path, max_steps=310), "--results-dir", str(tmp_path), "--run-id", "old", "--resume"]) == 0
    assert [name for name in names if not (run / name).exists()] == []
    assert sorted(path.name for path in (run / "Basic").glob("Basic-*.zip")) == ["Basic-300.zip", "Basic-310.zip"]
    assert [path.name for path in run.rglob(".*")] == [".notes.partial"]


def test_a_resumed_run_deletes_damaged_lines_of_the_update_log(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished / "old", tmp_path / "old")
    log = tmp_path / "old" / "Basic" / "updates.jsonl"
    before = log.read_bytes()
    log.write_bytes(before + b'{"step": 2\xff\x00\n')
    file = config(tmp_path, max_steps=320, checkpoint_interval=320)
    assert main([file, "--results-dir", str(tmp_path), "--run-id", "old", "--resume"]) == 0
    lines = log.read_bytes()
    assert lines.startswith(before)
    assert [json.loads(line)["step"] for line in lines.decode().splitlines()][-1] > 300


@pytest.mark.parametrize("text", ["step;seconds\n300;2\n", "step,seconds\n300,2\n", "step\n300,2,x,0,1\n"])
def test_a_learning_curve_that_another_program_changed_is_reported(
    finished: Path, tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(finished / "old", tmp_path / "old")
    file = tmp_path / "old" / "Basic" / "rewards.csv"
    file.write_text(text)
    before = content(tmp_path / "old")
    assert main([config(tmp_path, max_steps=1), "--results-dir", str(tmp_path), "--run-id", "old", "--resume"]) == 1
    errors = capsys.readouterr().err
    assert errors.startswith(f"unity-learn: error: {file} cannot be read: ")
    assert errors.endswith(". Correct or delete it; the run continues without it\n")
    assert errors.count("\n") == 1
    assert content(tmp_path / "old") == before


@pytest.mark.parametrize(
    "content",
    [
        '{"Basic"',
        "[]",
        '{"Basic": 3}',
        '{"metadata": {"seconds": "1"}}',
        '{"Basic": {"checkpoints": null}}',
        '{"Basic": {"checkpoints": [{"reward": 1}]}}',
        '{"size": {"recent": 1}}',
        '{"size": {"episodes": "1", "measured": null}}',
    ],
)
def test_a_damaged_status_of_a_run_is_reported(
    finished: Path, tmp_path: Path, content: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(finished / "old", tmp_path / "old")
    status = tmp_path / "old" / "run_logs" / "training_status.json"
    status.write_text(content, encoding="utf-8")
    assert main([config(tmp_path), "--results-dir", str(tmp_path), "--run-id", "old", "--resume"]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"unity-learn: error: {status} ")
    assert error.endswith("Delete it; the run continues without it\n")


@pytest.mark.parametrize("name", ["球$_$", "l\udce4uf"])
def test_the_learning_curve_has_names_of_any_characters(tmp_path: Path, name: str) -> None:
    flags = {"checkpoint_settings.run_id": name, "checkpoint_settings.results_dir": str(tmp_path)}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Run(loads("behaviors: {}", flags=flags)).draw({"球$_$": [Summary(100, 1.0, 0.5, 0.1, 3)]})
    assert (tmp_path / name / "learning_curve.png").read_bytes().startswith(b"\x89PNG")


def test_an_interrupted_run_saves_and_leaves_no_process(tmp_path: Path) -> None:
    file = config(tmp_path, summary_freq=100)
    process = start(tmp_path, file, "--run-id", "stopped")
    await_line(process, "Step: 100.")
    players = psutil.Process(process.pid).children(recursive=True)
    assert players
    os.killpg(process.pid, signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert errors == ""
    last = output.splitlines()[-1]
    assert last.startswith("[INFO] Basic: saved results/stopped/Basic/Basic-")
    assert all((tmp_path / last.split()[word]).exists() for word in (3, 5))
    assert not psutil.wait_procs(players, timeout=10)[1]


@pytest.mark.parametrize("interrupted", [True, False])
def test_a_run_whose_output_pipe_is_closed_is_saved(tmp_path: Path, interrupted: bool) -> None:
    """As with Ctrl-C for `unity-learn … | tee log`, or with `| head`.."""
    process = start(tmp_path, config(tmp_path, summary_freq=100), "--run-id", "unread")
    await_line(process, "Step: 100.")
    assert process.stdout is not None
    assert process.stderr is not None
    if interrupted:
        os.killpg(process.pid, signal.SIGINT)
    process.stdout.close()
    assert process.wait(timeout=60) == (130 if interrupted else 1)
    assert process.stderr.read() == ("" if interrupted else CLOSED.format("was closed"))
    assert len(steps(tmp_path / "results" / "unread" / "Basic")) == 1


def test_an_output_that_is_closed_while_players_start_is_one_error_without_the_log_of_a_player(tmp_path: Path) -> None:
    process = start(tmp_path, config(tmp_path), "--run-id", "unread")
    await_line(process, " Version information:")
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.wait(timeout=60) == 1
    assert process.stderr.read() == CLOSED.format("was closed")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_an_output_without_room_is_named(tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "sb3_ext.learn", "--list"]
        result = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, cwd=tmp_path, check=False)
    assert result.returncode == 1
    assert result.stderr == CLOSED.format("cannot be written (No space left on device)")


class Writes(io.RawIOBase):
    """File without a buffer, as standard output is with PYTHONUNBUFFERED, that keeps what each write contained."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.parts.append(bytes(data))
        return len(data)


def test_the_reader_of_an_unbuffered_output_may_close_it_as_soon_as_it_sees_the_line() -> None:
    """As `unity-learn --list | grep -q NAME` does: a second write, even of the line's end alone, would fail."""
    out = Writes()
    print_line("two\nlines", io.TextIOWrapper(out, write_through=True))
    assert out.parts == [b"two\nlines\n"]


def test_results_are_printed_where_the_terminal_has_ascii_alone(finished: Path, tmp_path: Path) -> None:
    arguments = ["--results-dir", str(finished), "--run-id", "old", "--resume", "--inference", "--episodes", "1"]
    result = subprocess.run(
        [sys.executable, "-m", "sb3_ext.learn", config(tmp_path), *arguments],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert re.search(r"^Basic: mean reward \S+ \\xb1 ", result.stdout, re.MULTILINE)


def test_training_progress_is_saved_when_a_player_fails(tmp_path: Path) -> None:
    flags = ("--num-envs", "2", "--max-lifetime-restarts", "0")
    process = start(tmp_path, config(tmp_path, summary_freq=100), "--run-id", "failed", *flags)
    await_line(process, "Step: 100.")
    players = players_of(psutil.Process(process.pid))
    (player,) = (player for player in players if "Player-1.log" in " ".join(player.cmdline()))
    player.kill()
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert output.splitlines()[-1].startswith("[INFO] Basic: saved results/failed/Basic/Basic-")
    assert errors.startswith("unity-learn: error: Player 'embedded:Basic'")
    assert "was killed by SIGKILL" in errors
    assert steps(tmp_path / "results" / "failed" / "Basic")[-1] >= 100


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("ppo/3DBall --runid first", "unrecognized arguments: --runid first; did you mean --run-id?"),
        ("sweep sweeps/Basic --numenvs 2", "unrecognized arguments: --numenvs 2; did you mean --num-envs?"),
        ("ppo/3DBall --cpu", "unrecognized arguments: --cpu; use --torch-device cpu"),
        ("sweep sweeps/Basic other", "unrecognized arguments: other; unity-learn sweep takes one sweep"),
        (
            "train ppo/3DBall",
            "unrecognized arguments: ppo/3DBall; unity-learn takes one config. Its commands are autotune, pull, push, "
            "sweep; it trains without one",
        ),
    ],
)
def test_an_unknown_option_is_reported_with_the_nearest_or_the_present_one(
    arguments: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(arguments.split())
    assert capsys.readouterr().err.endswith(f"error: {message}\n")


def test_the_name_of_a_scene_is_answered_with_its_configurations(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pushblock"]) == 1
    assert "did you mean imitation/PushBlock or ppo/PushBlock or sac/PushBlock?" in capsys.readouterr().err


def test_debug_and_graphics_of_the_first_player_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sb3_ext.console._FIRST_PROGRESS", 0.01)
    arguments = ["--results-dir", str(tmp_path), "--num-envs", "2", "--debug", "--no-graphics-monitor", "--torch"]
    assert main([config(tmp_path, max_steps=300, summary_freq=200), *arguments]) == 0
    output, errors = capsys.readouterr()
    assert errors == "unity-learn: warning: --torch has no effect: PyTorch is the only framework\n"
    form = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d DEBUG \[player\.py:\d+\] Launched player (\d) as process \d+: (.*)"
    commands = dict(re.findall(form, output))
    assert "-nographics" not in commands["0"]
    assert "-nographics" in commands["1"]
    assert re.search(r" DEBUG \[training\.py:\d+\] Configuration for this run:\n\{\n", output)
    assert re.search(r" DEBUG \[training\.py:\d+\] Update of Basic at step \d+: .*train/value_loss", output)
    assert " INFO [training.py:" in output
    # lines before the first summary
    progress = re.findall(
        r"Timesteps until the next summary: Basic (\d+) of 200\. \d+ s\.", output.partition("Step: ")[0]
    )
    assert progress
    assert all(0 <= int(steps) <= 200 for steps in progress)


@pytest.mark.parametrize("threaded", [False, True])
def test_several_behaviors_learn_in_one_run(tmp_path: Path, capsys: pytest.CaptureFixture[str], threaded: bool) -> None:
    file = config(
        tmp_path,
        "WallJump",
        network={"hidden_units": 16},
        hyperparameters={"batch_size": 32, "buffer_size": 256},
        max_steps=1000,
        summary_freq=500,
        time_horizon=16,
        threaded=threaded,
    )
    assert main([file, "--results-dir", str(tmp_path), "--run-id", "both", "--seed", "1"]) == 0
    for name in ("SmallWallJump", "BigWallJump"):
        folder = tmp_path / "both" / name
        (last,) = steps(folder)
        assert 1000 <= last < 1024
        model = PPO.load(folder / f"{name}-{last}.zip")
        assert model.threaded == threaded
        assert model._n_updates == 12  # of four buffers, the last of which is smaller
        assert scalars(folder)["Losses/Value Loss"]
    lines = re.findall(r"\[INFO\] (\w+)\. Step: \d+\. ", capsys.readouterr().out)
    assert set(lines) == {"SmallWallJump", "BigWallJump"}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a results folder with a short run of Basic, `old`."""
    folder = tmp_path_factory.mktemp("finished")
    assert main([config(folder, max_steps=300), "--results-dir", str(folder), "--run-id", "old"]) == 0
    return folder


def test_a_resumed_run_without_timesteps_left_names_max_steps(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(finished / "old", tmp_path / "old")
    arguments = [config(tmp_path, max_steps=300), "--results-dir", str(tmp_path), "--run-id", "old", "--resume"]
    assert main(arguments) == 0
    line = "[WARNING] Basic is complete with 300 of 300 timesteps: raise max_steps to train it further\n"
    assert line in capsys.readouterr().out


def content(folder: Path) -> dict[str, bytes]:
    return {
        str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file() and "run_logs" not in path.parts
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "exists. Give --resume"),
        (["--resume", "--force"], "give one of them"),
        (["--resume", "--run-id", "lod"], "is no run that could be resumed; "),
        (["--inference"], "give --resume and the --run-id of a run, --initialize-from, or init_path"),
        (["--run-id", "new", "--env", "Unity-v0", "--num-envs", "4"], "the Editor is one player"),
        (["--run-id", "new", "--env", "Unity-v0", "--display", "xvfb"], "the Editor draws on its own screen"),
        (["--run-id", "new", "--env", "Unity-Basicc-v0"], "no environment 'Unity-Basicc-v0'"),
        (["--run-id", "new", "--env", "builds/none.x86_64"], "There is no player"),
        (["--run-id", "new", "--env", "embedded:3DBall"], "the environment has a behavior '3DBall'"),
        (["--run-id", "new", "--initialize-from", "nothing"], "has no checkpoint of Basic"),
        (["--run-id", "new", "--num-envs", "0"], "env_settings.num_envs"),
        (["--run-id", "new", "--episodes", "3"], "--episodes needs --inference"),
        (["--resume", "--inference", "--json"], "--json prints the result of --episodes"),
        (["--resume", "--inference", "--num-envs", "2", "--num-workers", "2"], "--inference acts in this process only"),
        (["--inference", "--initialize-from", "lod"], "is no run; "),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_impossible_requests_are_reported_in_one_line_and_change_nothing(
    finished: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = content(finished)
    defaults = [str(finished / "Basic.yaml"), "--results-dir", str(finished), "--run-id", "old"]
    assert main([*defaults, *arguments]) == 1
    output, errors = capsys.readouterr()
    assert errors.startswith("unity-learn: error: ")
    assert message in errors
    assert errors.count("\n") == 1
    assert "[WARNING]" not in output
    assert content(finished) == before


@pytest.mark.parametrize("name", ["../Basic", "/Basic", "run_logs", "Game/" + "Basic" * 60])
def test_a_behavior_whose_name_no_folder_can_have_is_reported(name: str, tmp_path: Path) -> None:
    settings = loads(f"behaviors: {{Basic: {{}}}}\ncheckpoint_settings: {{results_dir: {tmp_path}}}")
    model: Any = None
    with pytest.raises(UnityGymError, match=f"behavior '{name}': rename it in Unity"):
        BehaviorRecord(name, model, settings, Run(settings))


def test_a_checkpoint_of_another_network_raises(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = content(finished)
    wider = config(tmp_path, network={"hidden_units": 33})
    assert main([wider, "--results-dir", str(finished), "--run-id", "old", "--resume"]) == 1
    output, errors = capsys.readouterr()
    (changes,) = (line for line in output.splitlines() if "Settings that differ from " in line)
    assert str(finished / "old" / "configuration.yaml") in changes
    assert "behaviors.Basic.network_settings.hidden_units 33 (was " in changes
    assert "Basic-300.zip is of another network or behavior" in errors
    assert "or start from scratch with another --run-id" in errors
    assert errors.count("\n") == 1
    assert content(finished) == before


def test_a_changed_setting_that_ml_agents_lacks_is_named_and_its_default_is_no_change(tmp_path: Path) -> None:
    def settings(previous: bool, **checkpoint: object) -> RunSettings:
        memory = f"{{memory: {{use_previous_action: {str(previous).lower()}}}}}"
        given: dict[str, object] = {"checkpoint_settings.results_dir": str(tmp_path)} | {
            f"checkpoint_settings.{key}": value for key, value in checkpoint.items()
        }
        return loads(f"behaviors: {{Basic: {{trainer_type: ppo, network_settings: {memory}}}}}", flags=given)

    key = "behaviors.Basic.network_settings.memory.use_previous_action"
    for name, saved in (("without", False), ("with", True)):
        Run(settings(saved, run_id=name)).start(settings(saved))
        for given in (False, True):
            again = settings(given, run_id=name, resume=True)
            line = Run(again).changes(again)
            differ = f": {key} {json.dumps(given)} (was {json.dumps(saved)})"
            assert line is None if given == saved else line is not None and line.endswith(differ)


def test_changed_default_settings_without_named_behaviors_are_named(tmp_path: Path) -> None:
    def settings(steps: int, **checkpoint: object) -> RunSettings:
        text = f"default_settings: {{trainer_type: ppo, max_steps: {steps}}}"
        place = {"results_dir": str(tmp_path), "run_id": "first", **checkpoint}
        return loads(text, flags={f"checkpoint_settings.{key}": value for key, value in place.items()})

    Run(settings(64)).start(settings(64))
    again = settings(128, resume=True)
    line = Run(again).changes(again)
    assert line is not None
    assert line.endswith(": default_settings.max_steps 128 (was 64)")


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("missing", "there is no such checkpoint. Correct the path"),
        ("a text", "is no checkpoint that can be used: "),
        ("half a checkpoint", "is no checkpoint that can be used: "),
        ("another program's", "is of another network or behavior than the settings describe: "),
        ("another behavior's", "is of another network or behavior than the settings describe: "),
    ],
)
def test_an_initial_file_that_is_no_checkpoint_of_the_behavior_raises(
    finished: Path, tmp_path: Path, kind: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "file.zip"
    if kind == "a text":
        path.write_text("precious\n\nwords")
    elif kind == "half a checkpoint":
        path.write_bytes((finished / "old" / "Basic" / "Basic-300.zip").read_bytes()[:10_000])
    elif kind != "missing":
        ours = kind == "another behavior's"
        (PPO if ours else PlainPPO)("UnityPolicy" if ours else "MlpPolicy", "Pendulum-v1", device="cpu").save(path)
    before = content(finished)
    file = config(tmp_path, init_path=str(path))
    assert main([file, "--results-dir", str(finished), "--run-id", "new"]) == 1
    errors = capsys.readouterr().err
    assert errors.startswith(f"unity-learn: error: {path}")
    assert message in errors
    assert errors.count("\n") == 1
    assert content(finished) == before


@pytest.mark.parametrize("is_whole_path", [False, True])
def test_an_initial_checkpoint_in_settings_for_mlagents_learn_is_found(
    finished: Path, tmp_path: Path, is_whole_path: bool
) -> None:
    shutil.copytree(finished / "old", tmp_path / "old")
    folder = tmp_path / "old" / "Basic"
    shutil.copy(folder / "Basic-300.zip", folder / "Basic-4000.zip")

    def initial(name: str) -> Path | None:
        given = str(folder / name) if is_whole_path else name
        flags = {"initialize_from": "old", "results_dir": str(tmp_path), "run_id": "new"}
        settings = loads(
            yaml.safe_dump({"behaviors": {"Basic": {"init_path": given}}}),
            flags={f"checkpoint_settings.{key}": value for key, value in flags.items()},
        )
        return Run(settings).initial(settings, "Basic")

    assert initial("Basic-300.pt") == initial("Basic-300.zip") == folder / "Basic-300.zip"
    message = (
        rf"Basic-500\.pt: there is no such checkpoint\. Correct the path: {folder} has Basic-300\.zip, Basic-4000\.zip$"
    )
    with pytest.raises(UnityGymError, match=message):
        initial("Basic-500.pt")
    (folder / "Basic-300.pt").touch()
    assert initial("Basic-300.pt") == folder / "Basic-300.pt"


def test_an_unknown_behavior_name_raises(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "typo.yaml"
    file.write_text("default_settings: {}\nbehaviors: {Bsaic: {}}\nenv_settings: {env_path: embedded:Basic}\n")
    assert main([str(file), "--results-dir", str(tmp_path)]) == 1
    errors = capsys.readouterr().err
    assert "['Bsaic'], which the players do not have; they have ['Basic']" in errors
    assert errors.count("\n") == 1


def test_a_run_starts_with_the_networks_of_another(finished: Path, tmp_path: Path) -> None:
    file = config(tmp_path, max_steps=80, checkpoint_interval=50)
    arguments = ["--results-dir", str(finished), "--run-id", "next", "--initialize-from", "old"]
    assert main([file, *arguments]) == 0
    before, started, learned = (
        PPO.load(finished / run / "Basic" / f"Basic-{step}.zip").policy.state_dict()
        for run, step in (("old", 300), ("next", 50), ("next", 80))
    )
    assert all(torch.equal(before[key], started[key]) for key in before)
    # the last timesteps are used for an update
    assert not all(torch.equal(before[key], learned[key]) for key in before)


@pytest.mark.parametrize("given", ["initialize_from", "init_path"])
def test_a_run_that_is_killed_before_its_first_checkpoint_resumes_with_the_networks_of_another(
    finished: Path, tmp_path: Path, given: str
) -> None:
    arguments = ["--results-dir", str(finished), "--run-id", given]
    keys = {"init_path": str(finished / "old" / "Basic")} if given == "init_path" else {}
    arguments += [] if given == "init_path" else ["--initialize-from", "old"]
    assert main([config(tmp_path, max_steps=10, **keys), *arguments]) == 0
    shutil.rmtree(finished / given / "Basic")
    assert main([config(tmp_path, max_steps=80, checkpoint_interval=50, **keys), *arguments, "--resume"]) == 0
    before, started = (
        PPO.load(finished / run / "Basic" / f"Basic-{step}.zip").policy.state_dict()
        for run, step in (("old", 300), (given, 50))
    )
    assert all(torch.equal(before[key], started[key]) for key in before)


def test_force_on_the_command_line_overrides_resume_in_the_file(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished / "old", tmp_path / "old")
    tree = yaml.safe_load(Path(config(tmp_path, max_steps=20)).read_text(encoding="utf-8"))
    tree["checkpoint_settings"] = {"resume": True, "run_id": "old", "results_dir": str(tmp_path)}
    (tmp_path / "file.yaml").write_text(yaml.safe_dump(tree), encoding="utf-8")
    assert main([str(tmp_path / "file.yaml"), "--force"]) == 0
    assert steps(tmp_path / "old" / "Basic") == [20]


def test_a_run_that_trains_already_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    process = start(tmp_path, config(tmp_path, summary_freq=100, checkpoint_interval=50), "--run-id", "one")
    await_line(process, "Step: 100.")
    arguments = [config(tmp_path, max_steps=1), "--results-dir", str(tmp_path / "results"), "--run-id", "one"]
    for flag in ("--resume", "--force"):
        assert main([*arguments, flag]) == 1
        folder = tmp_path / "results" / "one"
        message = f"another process trains in {folder}: wait until it ends, or give another --run-id"
        assert capsys.readouterr().err == f"unity-learn: error: {message}\n"
    process.kill()
    process.communicate()
    assert main([*arguments, "--resume"]) == 0


def test_a_results_folder_that_cannot_be_written_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "results").write_text("precious")
    assert main([config(tmp_path), "--results-dir", str(tmp_path / "results")]) == 1
    errors = capsys.readouterr().err
    assert errors.startswith(f"unity-learn: error: {tmp_path / 'results'}")
    assert errors.endswith(
        "cannot be written: Not a directory. Make its folder writable, or give another --results-dir\n"
    )
    assert errors.count("\n") == 1


def test_force_starts_from_scratch(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("precious")
    arguments = [config(tmp_path, max_steps=20), "--results-dir", str(tmp_path), "--force", "--run-id"]
    assert main([*arguments, "mine"]) == 1
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "precious"
    assert main([*arguments, "twice"]) == 0
    (tmp_path / "twice" / "link").symlink_to(tmp_path / "mine")
    arguments[0] = config(tmp_path, max_steps=10)
    assert main([*arguments, "twice"]) == 0
    assert not (tmp_path / "twice" / "link").is_symlink()
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "precious"
    assert steps(tmp_path / "twice" / "Basic") == [10]


@pytest.mark.parametrize("given", ["initialize_from", "init_path"])
def test_force_does_not_delete_the_initial_weights_of_the_new_run(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], given: str
) -> None:
    shutil.copytree(finished / "old", tmp_path / "old")
    keys = {"init_path": str(tmp_path / "old" / "Basic")} if given == "init_path" else {}
    arguments = [config(tmp_path, **keys), "--results-dir", str(tmp_path), "--run-id", "old", "--force"]
    assert main([*arguments, *([] if keys else ["--initialize-from", "old"])]) == 1
    assert f"--force deletes {tmp_path / 'old'}, which has the initial weights" in capsys.readouterr().err
    assert steps(tmp_path / "old" / "Basic") == [300]


def test_force_that_is_stopped_at_any_deletion_can_be_repeated(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries, unlink, rmtree = Path.iterdir, Path.unlink, shutil.rmtree
    left = 0

    def in_another_order(folder: Path) -> Iterator[Path]:  # file systems have different ones
        return iter(sorted(entries(folder), key=lambda path: path.name != "configuration.yaml"))

    def stop_or(delete: Callable[..., None]) -> Callable[..., None]:
        def call(path: Path, **options: Any) -> None:
            nonlocal left
            left -= 1
            if not left:
                raise KeyboardInterrupt
            delete(path, **options)

        return call

    def options(name: str) -> RunSettings:
        flags = {"results_dir": str(tmp_path), "run_id": "old", name: True}
        return loads("behaviors: {Basic: {}}", flags={f"checkpoint_settings.{key}": flags[key] for key in flags})

    for number in itertools.count(1):
        shutil.copytree(finished / "old", tmp_path / "old")
        run = Run(options("force"))
        left = number
        with monkeypatch.context() as patches:
            patches.setattr(Path, "iterdir", in_another_order)
            patches.setattr(Path, "unlink", stop_or(unlink))
            patches.setattr(shutil, "rmtree", stop_or(rmtree))
            with suppress(KeyboardInterrupt):
                run.start(options("force"))
        Run(options("resume"))
        Run(options("force")).start(options("force"))
        assert [path.name for path in (tmp_path / "old").iterdir() if path.is_file()] == ["configuration.yaml"]
        rmtree(tmp_path / "old")
        if left > 0:
            break
    assert number > 4  # the status, the timers, the folder of the behavior and its network


def test_a_run_that_is_killed_while_it_writes_its_settings_can_be_started_again(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / ".configuration.yaml.partial").write_text("behav")
    arguments = ["--results-dir", str(tmp_path), "--run-id", "one"]
    assert main([config(tmp_path, max_steps=10), *arguments]) == 0
    assert not list((tmp_path / "one").glob(".*"))


def test_a_run_whose_folder_is_deleted_saves_all_that_it_needs_to_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish, arguments = Training._finish, ["--results-dir", str(tmp_path), "--run-id", "one"]

    def delete_and_finish(self: Training, failed: bool = False) -> None:
        shutil.rmtree(tmp_path / "one")
        finish(self, failed)

    with monkeypatch.context() as patches:
        patches.setattr(Training, "_finish", delete_and_finish)
        assert main([config(tmp_path, max_steps=30), *arguments]) == 0
    assert main([config(tmp_path, max_steps=40), *arguments, "--resume"]) == 0
    assert steps(tmp_path / "one" / "Basic") == [30, 40]


def test_a_run_that_is_killed_after_force_resumes_without_the_status_of_the_deleted_one(tmp_path: Path) -> None:
    flags: dict[str, object] = {"checkpoint_settings.results_dir": str(tmp_path), "checkpoint_settings.run_id": "one"}
    first_lesson = {"name": "first", "value": 1, "completion_criteria": {"behavior": "Basic"}}
    lessons = [first_lesson, {"name": "last", "value": 2}]
    tree = {"behaviors": {"Basic": {}}, "environment_parameters": {"size": {"curriculum": lessons}}}

    def open_run(option: str | None) -> Run:
        own = {} if option is None else {f"checkpoint_settings.{option}": True}
        settings = loads(yaml.safe_dump(tree), flags={**flags, **own})
        run = Run(settings)
        run.start(settings)
        return run

    first = open_run(None)
    first.lesson("size")["lesson_num"] = 1
    first.write_status(60.0, {})
    assert open_run("resume").lesson("size") == {"lesson_num": 1}
    open_run("force")  # and is killed before its first checkpoint
    resumed = open_run("resume")
    assert resumed.lesson("size") == {}
    assert resumed.seconds_before == 0


def test_sigterm_ends_a_run_as_ctrl_c_does(tmp_path: Path) -> None:
    process = start(tmp_path, config(tmp_path, summary_freq=100), "--run-id", "stopped")
    await_line(process, "Step: 100.")
    players = psutil.Process(process.pid).children(recursive=True)
    process.terminate()
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 143, errors
    assert errors == ""
    assert output.splitlines()[-1].startswith("[INFO] Basic: saved results/stopped/Basic/Basic-")
    assert not psutil.wait_procs(players, timeout=10)[1]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux reports which process connects")
def test_a_player_that_its_launcher_detaches_is_rejected_unless_it_is_trusted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    build = tmp_path / "detached.x86_64"
    player = shlex.join([sys.executable, "-m", "unity_gym.scenes", "Basic"])
    build.write_text(f'#!/bin/sh\n(setsid {player} "$@" &)\nexec sleep 300\n')
    build.chmod(0o755)
    arguments = [config(tmp_path, max_steps=100), "--results-dir", str(tmp_path), "--env", str(build)]
    assert main([*arguments, "--timeout-wait", "8"]) == 1
    assert "was rejected, because it does not belong to the player" in capsys.readouterr().err
    assert main([*arguments, "--force", "--trust-peer"]) == 0


def test_a_run_continues_when_play_is_pressed_again_in_the_editor(tmp_path: Path) -> None:
    port = str(free_port())

    def press_play() -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "unity_gym.scenes", "Basic", "--mlagents-port", port]
        return subprocess.Popen(command, stdout=subprocess.DEVNULL)

    flags = ["--run-id", "played", "--env", "Unity-v0", "--base-port", port]
    process = start(tmp_path, config(tmp_path, summary_freq=100), *flags)
    await_line(process, "pressing the Play button")
    editor = press_play()
    await_line(process, "Step: 100.")
    editor.kill()
    editor.wait()
    await_line(process, "pressing the Play button")
    editor = press_play()
    await_line(process, "Step: ")
    process.terminate()
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 143, errors
    editor.wait(10)


@pytest.mark.skipif(sys.platform != "linux", reason="virtual screens are for Linux")
def test_each_process_with_players_starts_a_virtual_screen_that_ends_with_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "bin" / "Xvfb"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho 77\nexec sleep 300\n")  # announces a screen on which these players do not draw
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    flags = ["--run-id", "drawn", "--display", "xvfb", "--num-envs", "2", "--num-workers", "2"]
    process = start(tmp_path, config(tmp_path, summary_freq=100), *flags)
    await_line(process, "Step: 100.")
    children = psutil.Process(process.pid).children(recursive=True)
    assert [child.name() for child in children].count("sleep") == 2
    assert [player.environ()["DISPLAY"] for player in players_of(psutil.Process(process.pid))] == [":77", ":77"]
    process.terminate()
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (143, "")
    assert not psutil.wait_procs(children, timeout=10)[1]


@pytest.mark.parametrize("flags", [[], ["--num-workers", "1"]], ids=["here", "worker"])
def test_a_run_whose_terminal_is_closed_is_saved(tmp_path: Path, flags: list[str]) -> None:
    import fcntl
    import termios

    def open_terminal() -> None:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # its end sends SIGHUP to the process
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # which ignores it if the tests were started with nohup

    terminal, side = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "sb3_ext.learn", config(tmp_path, summary_freq=100), "--run-id", "closed", *flags],
        cwd=tmp_path,
        stdin=side,
        stdout=side,
        stderr=side,
        start_new_session=True,
        preexec_fn=open_terminal,
    )
    os.close(side)
    shown = b""
    while b"Step: 100." not in shown:
        shown += os.read(terminal, 1000)
    players = psutil.Process(process.pid).children(recursive=True)
    os.close(terminal)
    process.send_signal(signal.SIGHUP)  # as a shell does
    assert process.wait(60) == 129
    assert not psutil.wait_procs(players, timeout=10)[1]
    saved = steps(tmp_path / "results" / "closed" / "Basic")
    assert saved[-1] >= 100
    again = [config(tmp_path, max_steps=saved[-1] + 20), "--run-id", "closed", "--resume"]
    assert main([*again, "--results-dir", str(tmp_path / "results")]) == 0


@pytest.mark.skipif(os.name != "posix", reason="sends signals")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("threads", [0, 1])
def test_a_signal_while_a_process_starts_arrives_afterwards(number: int, threads: int) -> None:
    received: list[int] = []
    end = threading.Event()
    others = [threading.Thread(target=end.wait) for _ in range(threads)]
    for other in others:
        other.start()
    before = signal.signal(number, lambda number, _: received.append(number))
    try:
        with starting_without_signals():
            os.kill(os.getpid(), number)
            assert not received
        deadline = time.monotonic() + 5
        while not received and time.monotonic() < deadline:  # another thread may get it a moment later
            time.sleep(0.01)
        assert received == [number]
    finally:
        signal.signal(number, before)
        end.set()


@pytest.mark.parametrize(
    ("number", "code", "workers"),
    [
        (signal.SIGTERM, 143, 0),
        (signal.SIGTERM, 143, 2),
        (signal.SIGINT, 130, 0),
        (signal.SIGINT, 130, 2),
        (signal.SIGKILL, -9, 2),
    ],
)
def test_a_signal_while_players_start_ends_the_run_at_once(
    tmp_path: Path, number: int, code: int, workers: int
) -> None:
    build = tmp_path / "silent.x86_64"
    build.write_text("#!/bin/sh\necho started > started\nexec sleep 300\n")
    build.chmod(0o755)
    flags = ["--num-envs", "2", "--num-workers", str(workers)] if workers else []
    process = start(tmp_path, config(tmp_path), "--env", str(build), "--timeout-wait", "120", *flags)
    try:
        deadline = time.monotonic() + 60
        while not (started := list(tmp_path.rglob("started"))) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert started, process.communicate(timeout=5)
        players = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(number)
        _, errors = process.communicate(timeout=20)
    finally:
        process.kill()
    assert process.returncode == code
    assert errors == ("" if code == -9 else "unity-learn: stopped, nothing was saved\n")
    assert not psutil.wait_procs(players, timeout=10)[1]


@pytest.mark.skipif(os.name != "posix", reason="kills a process by a signal")
def test_a_killed_command_leaves_no_semaphore_where_processes_are_spawned() -> None:
    script = """
import multiprocessing, os, signal, sys
from sb3_ext.learn import main
multiprocessing.set_start_method("spawn")  # as on macOS; with Python 3.14 "forkserver" is Linux's
sys.argv[1:] = ["--list"]
main()
os.kill(os.getpid(), signal.SIGKILL)
"""
    process = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert process.returncode == -signal.SIGKILL
    assert "ppo/3DBall" in process.stdout
    assert process.stderr == ""


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_missing_device_raises(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for device in ("cuda", "cuda:1", "mps", "cpu:3"):
        if device == "mps" and torch.backends.mps.is_available():
            continue
        assert main([config(tmp_path), "--results-dir", str(tmp_path), "--torch-device", device]) == 1
        errors = capsys.readouterr().err
        assert f"on this machine, got the device '{device}': give one of ['cpu'" in errors
        assert errors.count("\n") == 1
    assert not list(tmp_path.glob("ppo*"))


class InterruptingTerminal(io.RawIOBase):
    """Standard output that raises KeyboardInterrupt while a summary is being written."""

    def __init__(self) -> None:
        super().__init__()
        self.shown = b""

    def writable(self) -> bool:
        return True

    def write(self, content: Any) -> int:
        if b"Step: 100." in bytes(content):
            signal.raise_signal(signal.SIGINT)
        self.shown += bytes(content)
        return len(content)


def test_ctrl_c_while_a_line_is_written_saves_as_at_any_other_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = InterruptingTerminal()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BufferedWriter(terminal)))
    arguments = ["--results-dir", str(tmp_path), "--run-id", "stopped"]
    assert main([config(tmp_path, summary_freq=100), *arguments]) == 130
    assert steps(tmp_path / "stopped" / "Basic")
    assert b"Basic. Step: 100." in terminal.shown
    assert b"Basic: saved " in terminal.shown


def test_ctrl_c_while_players_end_does_not_report_that_nothing_was_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    close = PlayerPool.close

    def interrupted(pool: PlayerPool) -> None:
        close(pool)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(PlayerPool, "close", interrupted)
    arguments = ["--results-dir", str(tmp_path), "--run-id", "stopped"]
    assert main([config(tmp_path, max_steps=20), *arguments]) == 130
    assert steps(tmp_path / "stopped" / "Basic") == [20]
    assert capsys.readouterr().err == ""


def test_a_full_disk_is_reported_and_leaves_no_partial_file(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    write(tmp_path / "file", b"old")
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(
            UnityGymError, match=r"file cannot be written: .*\. Make room there, then continue with --resume"
        ):
            write(tmp_path / "file", bytes(10_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("file", b"old")]


def test_a_disk_that_is_full_at_a_checkpoint_ends_the_run_and_keeps_the_last(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    resource = pytest.importorskip("resource")
    shutil.copytree(finished / "old", tmp_path / "old")
    arguments = [config(tmp_path, max_steps=400, checkpoint_interval=320), "--results-dir", str(tmp_path), "--resume"]
    arguments += ["--run-id", "old"]
    before = content(tmp_path / "old")
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8000, limit[1]))
    try:
        assert main(arguments) == 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    errors = capsys.readouterr().err
    assert "cannot be written: File too large. Make room there, then continue with --resume" in errors
    assert errors.count("\n") == 1
    after = content(tmp_path / "old")
    assert after.keys() == before.keys()
    assert [path for path in before if after[path] != before[path]] == [str(tmp_path / "old" / "configuration.yaml")]
    assert main(arguments) == 0
    assert steps(tmp_path / "old" / "Basic") == [300, 320, 400]


def test_experience_already_used_by_the_checkpoint_is_not_kept(tmp_path: Path) -> None:
    # The checkpoint is due with the last timestep, before its outcome is used for learning.
    file = config(tmp_path, max_steps=320, checkpoint_interval=320)
    assert main([file, "--results-dir", str(tmp_path), "--run-id", "run"]) == 0
    assert steps(tmp_path / "run" / "Basic") == [320]
    assert not list(tmp_path.rglob("experience-*"))


def test_players_sample_environment_parameters(tmp_path: Path) -> None:
    def rewards(name: str, scale: Any) -> list[str]:
        file = config(tmp_path, "3DBall", max_steps=1200, summary_freq=1200)
        tree = yaml.safe_load(Path(file).read_text(encoding="utf-8"))
        tree["environment_parameters"] = {"scale": scale}
        Path(file).write_text(yaml.safe_dump(tree), encoding="utf-8")
        assert main([file, "--results-dir", str(tmp_path), "--run-id", name, "--seed", "5"]) == 0
        text = (tmp_path / name / "3DBall" / "rewards.csv").read_text(encoding="utf-8")
        return text.splitlines()[1].split(",")[2:]

    def uniform(low: float, high: float) -> dict[str, Any]:
        return {"sampler_type": "uniform", "sampler_parameters": {"min_value": low, "max_value": high}}

    constant = rewards("constant", 2.0)
    assert rewards("point", uniform(2.0, 2.0)) == constant
    assert rewards("range", uniform(2.0, 4.0)) != constant

"""The search for the fastest arrangement of players, areas and workers."""

from __future__ import annotations

import multiprocessing

import pytest

from sb3_ext import autotune, learn
from sb3_ext.autotune import Arrangement
from sb3_ext.settings import RunSettings, loads
from unity_gym.errors import PlayerError, UnityGymError

BASIC = """
behaviors:
  Basic:
    trainer_type: ppo
    max_steps: 1000
    hyperparameters: {batch_size: 32, buffer_size: 128}
    network_settings: {hidden_units: 8, num_layers: 1}
"""


def settings(env: str = "Unity-Basic-v0") -> RunSettings:
    return loads(BASIC, flags={"env_settings.env_path": env, "env_settings.seed": 1})


@pytest.mark.parametrize("arrangement", [Arrangement(num_areas=2), Arrangement(2, 1, True)])
def test_an_arrangement_is_measured_with_real_players_and_leaves_no_files(
    arrangement: Arrangement, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path_factory.mktemp("here")
    monkeypatch.chdir(folder)
    assert autotune.measure(settings(), arrangement, 0.2) > 0
    assert not list(folder.iterdir())


@pytest.mark.parametrize("key", ["initialize_from", "inference", "resume"])
def test_options_for_the_start_of_a_run_have_no_effect(key: str) -> None:
    flags = {
        "env_settings.env_path": "Unity-Basic-v0",
        f"checkpoint_settings.{key}": "first" if "from" in key else True,
    }
    assert autotune.measure(loads(BASIC, flags=flags), Arrangement(num_areas=2), 0.2) > 0


def test_measuring_prints_nothing_and_ends_the_processes_of_learners(capfd: pytest.CaptureFixture[str]) -> None:
    flags = {"env_settings.env_path": "Unity-Basic-v0", "env_settings.seed": 1, "torch_settings.device": "cpu,cpu"}
    assert autotune.measure(loads(BASIC, flags=flags), Arrangement(1, 1), 0.2) > 0
    assert capfd.readouterr() == ("", "")
    assert not [child for child in multiprocessing.active_children() if child.name.startswith("learner-")]


def search(monkeypatch: pytest.MonkeyPatch, speeds: dict[Arrangement, float], cores: int) -> Arrangement:
    def measure(settings: RunSettings, arrangement: Arrangement, seconds: float) -> float:  # noqa: ARG001
        if arrangement.num_envs > 4:
            raise PlayerError("no memory for another player")
        return speeds.get(arrangement, 1.0)

    monkeypatch.setattr(autotune, "measure", measure)
    monkeypatch.setattr(autotune, "usable_cores", lambda: cores)
    return autotune.autotune(settings(), 1.0)


def test_the_fastest_arrangement_is_found_and_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    speeds = {
        Arrangement(): 100.0,
        Arrangement(num_areas=16): 150.0,
        Arrangement(2, 0, False, 16): 160.0,
        Arrangement(2, 2, False, 16): 200.0,
        Arrangement(4, 2, False, 16): 203.0,  # too small a gain
        Arrangement(2, 2, True, 16): 300.0,
    }
    assert search(monkeypatch, speeds, 2) == Arrangement(2, 2, True, 16)
    lines = capsys.readouterr().out.splitlines()
    assert "         300  --num-envs 2 --num-workers 2 --num-areas 16, threaded: true" in lines
    assert (
        "Fastest: threaded: true for each behavior in the file, and --num-envs 2 --num-workers 2 --num-areas 16"
        in lines
    )


def test_the_search_starts_with_the_areas_of_the_settings(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(autotune, "measure", lambda *_: 1.0)
    flags = {"env_settings.env_path": "Unity-Basic-v0", "env_settings.num_areas": 6}
    assert autotune.autotune(loads(BASIC, flags=flags), 1.0) == Arrangement(num_areas=6)
    assert "Fastest: --num-envs 1 --num-areas 6\n" in capsys.readouterr().out


def test_more_players_than_the_machine_can_run_do_not_raise(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    speeds = {Arrangement(): 10.0, Arrangement(2): 20.0, Arrangement(4): 40.0}
    assert search(monkeypatch, speeds, 4) == Arrangement(4)
    output = capsys.readouterr().out
    assert "failed  --num-envs 8: no memory for another player" in output
    assert "Fastest: --num-envs 4\n" in output


def test_the_editor_raises() -> None:
    with pytest.raises(UnityGymError, match="autotune launches several players: name a build or an embedded scene"):
        autotune.autotune(loads(BASIC))


def test_the_command_reads_settings_and_options(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str | None, float]] = []
    monkeypatch.setattr(
        autotune, "autotune", lambda settings, seconds: asked.append((settings.env_settings.env_path, seconds))
    )
    assert learn.main(["autotune", "ppo/Basic", "--env", "Unity-Basic-v0", "--seconds", "2"]) == 0
    assert asked == [("Unity-Basic-v0", 2)]


@pytest.mark.parametrize("options", [["--resume"], ["--num-envs", "2"], ["--ray"], ["--track", "mlflow"]])
def test_the_command_rejects_options_without_effect(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        learn.main(["autotune", "ppo/Basic", *options])
    assert f"{options[0]} has no effect in unity-learn autotune: leave it out" in capsys.readouterr().err

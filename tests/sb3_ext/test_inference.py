"""`unity-learn --inference`: the trained policy acts, is evaluated and recorded on video; the run is not changed."""

from __future__ import annotations

import itertools
import json
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from sb3_ext import OnnxPolicy
from sb3_ext.inference import ActingTeam, EpisodeReturns
from sb3_ext.learn import main
from sb3_ext.runs import Run
from sb3_ext.settings import loads
from unity_gym.options import PlayerOptions
from unity_gym.pool import PlayerPool

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
MLAGENTS = Path(__file__).with_name("mlagents")


def config(folder: Path, scene: str = "Basic", network: dict[str, Any] | None = None, **keys: Any) -> str:
    tree = yaml.safe_load((CONFIGS / "ppo" / f"{scene}.yaml").read_text(encoding="utf-8"))
    for behavior in tree["behaviors"].values():
        behavior.update(keys)
        behavior["network_settings"].update(network or {})
    path = folder / f"{scene}.yaml"
    path.write_text(yaml.safe_dump(tree), encoding="utf-8")
    return str(path)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a results folder with a short run of Basic, `old`, and one of 3DBall by mlagents-learn, `theirs`."""
    folder = tmp_path_factory.mktemp("results")
    assert main([config(folder, max_steps=300), "--results-dir", str(folder), "--run-id", "old"]) == 0
    shutil.copytree(MLAGENTS / "3DBall", folder / "theirs")
    return folder


def content(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_policy_is_evaluated_over_episodes(results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = content(results)
    arguments = [config(tmp_path), "--results-dir", str(results), "--inference", "--episodes", "5", "--seed", "1"]
    assert main([*arguments, "--resume", "--run-id", "old"]) == 0
    line = capsys.readouterr().out
    assert line.startswith("Basic: mean reward ")
    assert line.endswith(" over 5 episodes\n")
    assert " ± " in line
    for source in (["--initialize-from", "old"], ["--initialize-from", "old", "--run-id", "another"]):
        assert main([*arguments, *source]) == 0
        assert capsys.readouterr().out == line
    arguments[0] = config(tmp_path, init_path=str(results / "old" / "Basic" / "Basic-300.zip"))
    assert main([*arguments, "--json"]) == 0
    output = capsys.readouterr()
    (evaluation,) = json.loads(output.out).values()
    assert evaluation["episodes"] == 5
    assert line == "Basic: mean reward {mean_reward:.3f} ± {std_reward:.3f} over 5 episodes\n".format(**evaluation)
    assert content(results) == before


def test_the_episodes_so_far_are_shown_meanwhile(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sb3_ext.console._FIRST_PROGRESS", 0)
    arguments = [config(tmp_path), "--results-dir", str(results), "--inference", "--episodes", "3", "--seed", "1"]
    assert main([*arguments, "--resume", "--run-id", "old"]) == 0
    output = capsys.readouterr()
    lines = re.findall(r"\[INFO\] Episodes: Basic (\d) of 3 in (\d+) timesteps\. \d+ s\.\n", output.err)
    assert lines[0] == ("0", "1")
    assert lines[-1][0] == "3"
    assert "Episodes" not in output.out


@pytest.mark.parametrize(("given", "lesson"), [({"resume": True}, 2), ({"initialize_from": "ppo"}, 2), ({}, None)])
def test_lessons_are_those_of_the_run_whose_policies_act(tmp_path: Path, given: dict[str, Any], lesson: int) -> None:
    (tmp_path / "ppo" / "run_logs").mkdir(parents=True)
    (tmp_path / "ppo" / "configuration.yaml").touch()
    (tmp_path / "ppo" / "run_logs" / "training_status.json").write_text('{"size": {"lesson_num": 2}}')
    asked = {"inference": True, "results_dir": str(tmp_path)} | given
    flags = {f"checkpoint_settings.{key}": value for key, value in asked.items()}
    run = Run(loads("behaviors: {Basic: {trainer_type: ppo, init_path: Basic.zip}}", flags=flags))
    assert run.lesson("size").get("lesson_num") == lesson


def test_progress_lines_are_printed_until_inference_is_stopped(results: Path, tmp_path: Path) -> None:
    before = content(results)
    arguments = ["--results-dir", str(results), "--run-id", "old", "--resume", "--inference", "--deterministic"]
    process = subprocess.Popen(
        [sys.executable, "-m", "sb3_ext.learn", config(tmp_path, summary_freq=100), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    lines = list(itertools.islice((line for line in process.stdout if "Step: " in line), 3))
    assert [line.split(". Time")[0] for line in lines] == [f"[INFO] Basic. Step: {step}" for step in (100, 200, 300)]
    assert all(line.endswith(". Not Training.\n") for line in lines)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors == ""
    assert content(results) == before


def test_a_policy_of_mlagents_achieves_the_return_of_its_onnx_file(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = content(results)
    arguments = [
        config(tmp_path, "3DBall", {"hidden_units": 8}),
        "--results-dir",
        str(results),
        "--inference",
        "--json",
    ]
    arguments += ["--episodes", "20", "--deterministic", "--seed", "4"]
    shown = []
    for source in (["--initialize-from", "theirs"], ["--run-id", "theirs", "--resume"]):
        assert main([*arguments, *source]) == 0
        shown.append(json.loads(capsys.readouterr().out)["3DBall"])
    assert shown[0] == shown[1]
    assert shown[0]["episodes"] == 24  # 2 of each of 12 agents
    assert content(results) == before

    pool = PlayerPool(PlayerOptions(file_name="embedded:3DBall", seed=4))
    try:
        pool.reset()
        ((name, table),) = pool.tables.items()
        onnx = OnnxPolicy(MLAGENTS / "3DBall" / "3DBall.onnx", spec=table.spec)
        team = ActingTeam(name, table, onnx, deterministic=True)  # type: ignore[arg-type]
        returns = EpisodeReturns(table, 20)
        while not returns.are_complete:
            pool.step_once({name: team.select_actions()})
            team.store_outcomes()
            returns.store_outcomes()
    finally:
        pool.close()
    assert shown[0]["mean_reward"] == pytest.approx(np.mean(returns.values), abs=1e-3)
    assert shown[0]["std_reward"] == pytest.approx(np.std(returns.values), abs=1e-3)


def test_a_video_of_a_policy_is_recorded(results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ffmpeg = pytest.importorskip("imageio_ffmpeg")
    arguments = [config(tmp_path), "--results-dir", str(results), "--initialize-from", "old", "--inference"]
    arguments += ["--episodes", "2", "--record"]
    assert main([*arguments, str(tmp_path / "run.mp4")]) == 0
    frames, _ = ffmpeg.count_frames_and_secs(str(tmp_path / "run.mp4"))
    assert frames > 10
    capsys.readouterr()
    for path, reason in {
        "missing/run.mp4": f"there is no folder {tmp_path / 'missing'}. Make it, or correct --record",
        "run": "--record must be the path of a video file such as run.mp4",
        "run.txt": "run.txt cannot be written as a video, see the lines of ffmpeg above. Give a path that ends in .mp4",
    }.items():
        assert main([*arguments, str(tmp_path / path)]) == 1
        errors = capsys.readouterr().err
        assert reason in errors.splitlines()[-1]
        assert errors.count("unity-learn: error: ") == 1


class Agents:
    """The parts of an agent table that `EpisodeReturns` reads, with the values of a test."""

    def __init__(self, groups: list[int]) -> None:
        self.group = np.array(groups)
        self.start()
        self.alive = np.ones(len(groups), bool)

    def start(self) -> None:
        n = len(self.group)
        self.reward, self.group_reward = np.zeros(n), np.zeros(n)
        self.terminated, self.truncated, self.group_ended = (np.zeros(n, bool) for _ in range(3))

    def __len__(self) -> int:
        return len(self.group)


def step(agents: Agents, returns: EpisodeReturns, ends: list[int], rewards: list[float], group_ended: bool) -> None:
    """Make one step in which these rows end, and restart unless they terminate before their group."""
    agents.start()
    agents.reward[:] = rewards
    agents.terminated[ends] = True
    agents.group_ended[ends] = group_ended
    agents.alive[ends] = group_ended
    if group_ended:
        agents.alive[:] = True
    returns.store_outcomes()


def test_every_agent_counts_as_often_whatever_the_length_of_its_episodes() -> None:
    agents = Agents([-1, -2])
    returns = EpisodeReturns(agents, 3)  # type: ignore[arg-type]
    for number in range(4):
        step(agents, returns, [0], [1.0 + number, 10.0], True)
    assert returns.values == [1.0, 2.0]
    assert not returns.are_complete
    step(agents, returns, [0, 1], [1.0, 10.0], True)
    assert not returns.are_complete
    step(agents, returns, [1], [1.0, 5.0], True)
    assert returns.are_complete
    assert returns.values == [1.0, 2.0, 50.0, 5.0]


def test_a_group_counts_once_for_its_remaining_members_when_it_ends() -> None:
    agents = Agents([7, 7, 7])
    returns = EpisodeReturns(agents, 1)  # type: ignore[arg-type]
    step(agents, returns, [0], [-1.0, 0.0, 0.0], False)
    assert returns.values == []
    assert not returns.are_complete
    step(agents, returns, [1, 2], [0.0, 2.0, 4.0], True)
    assert returns.values == [3.0]
    assert returns.are_complete

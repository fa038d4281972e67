"""Runs that are killed at random moments resume from their newest checkpoint, without partially written files.

No process of theirs is left behind.

`KILLS=40 python -m pytest tests/sb3_ext/test_kills.py` kills each of them 40 times. With more kills than a run changes
its files, one kill precedes each of these changes.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import psutil
import pytest
import yaml

from sb3_ext.checkpoints import read_checkpoint

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
KILLS = int(os.environ.get("KILLS", "2"))
SMALL = {"hidden_units": 16, "num_layers": 1}
# A configuration, changes to its behavior, and options.
RUNS: dict[str, tuple[str, dict[str, Any], tuple[str, ...]]] = {
    "PPO": ("ppo/Basic", {"hyperparameters": {"batch_size": 16, "buffer_size": 64}}, ()),
    "PPO, threaded, with a sampler process": (
        "ppo/Basic",
        {"hyperparameters": {"batch_size": 16, "buffer_size": 64}, "threaded": True},
        ("--num-workers", "1"),
    ),
    "PPO, with signals that learn in a thread": (
        "ppo/Basic",
        {
            "hyperparameters": {"batch_size": 16, "buffer_size": 64},
            "reward_signals": {name: {"network_settings": SMALL} for name in ("curiosity", "rnd")},
        },
        (),
    ),
    "SAC": (
        "sac/Basic",
        {
            "hyperparameters": {
                "batch_size": 16,
                "buffer_size": 5000,
                "buffer_init_steps": 30,
                "save_replay_buffer": True,
            }
        },
        (),
    ),
    "POCA": (
        "poca/SoccerTwos",
        {
            "hyperparameters": {"batch_size": 64, "buffer_size": 256},
            "time_horizon": 16,
            "self_play": {"save_steps": 100, "team_change": 300, "swap_steps": 50, "window": 3},
        },
        (),
    ),
}


KILLER = """
import os
import signal
import sys

from sb3_ext.learn import main

changes = 0


def count(event, arguments):
    global changes
    is_opened = event == "open" and (arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR)
    if is_opened or event in ("os.rename", "os.remove"):
        path = str(arguments[0])
        if "results" in path and "tfevents" not in path:  # whose thread writes when it likes
            changes += 1
            if changes == fatal:
                os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    fatal = int(sys.argv[1])
    sys.addaudithook(count)
    status = main(sys.argv[2:])
    print(changes)
    sys.exit(status)
"""


NAMED = ("--run-id", "killed", "--seed", "1", "--num-areas", "1")


def settings_of(name: str, changes: dict[str, Any], folder: Path, max_steps: int = 10**7) -> str:
    """Write the configuration of a run that writes a checkpoint every few hundredths of a second."""
    tree = yaml.safe_load((CONFIGS / f"{name}.yaml").read_text(encoding="utf-8"))
    (behavior,) = tree["behaviors"].values()
    for key, value in changes.items():
        behavior[key] = {**behavior.get(key, {}), **value} if isinstance(value, dict) else value
    behavior["network_settings"] |= SMALL
    behavior |= {"max_steps": max_steps, "summary_freq": 50, "checkpoint_interval": 40, "keep_checkpoints": 3}
    path = folder / "settings.yaml"
    path.write_text(yaml.safe_dump(tree), encoding="utf-8")
    return str(path)


def newest(folder: Path) -> int:
    return max((int(path.stem.rpartition("-")[2]) for path in folder.glob("*/*.zip")), default=0)


def require_whole(folder: Path) -> None:
    """Read everything that a resumed run reads."""
    for path in folder.glob("*/*.zip"):
        assert read_checkpoint(path).state is not None
        onnx.checker.check_model(onnx.load(path.with_suffix(".onnx")))
    for path in folder.glob("*/*.npz"):
        with np.load(path, allow_pickle=False) as arrays:
            assert all(arrays[name] is not None for name in arrays.files)
    for path in folder.glob("run_logs/*.json"):
        json.loads(path.read_text(encoding="utf-8"))
    for path in folder.glob("*/rewards.csv"):
        lines = path.read_text(encoding="utf-8").splitlines()
        assert {line.count(",") for line in lines} == {4}


@pytest.mark.timeout(200 * KILLS)
@pytest.mark.parametrize("kind", RUNS)
def test_a_run_that_is_killed_at_any_moment_can_be_resumed(tmp_path: Path, kind: str) -> None:
    draw = random.Random(KILLS)
    folder = tmp_path / "results" / "killed"
    config, changes, options = RUNS[kind]
    arguments = [settings_of(config, changes, tmp_path), *NAMED, *options]
    reached = 0
    for number in range(KILLS + 1):
        process = subprocess.Popen(
            [sys.executable, "-m", "sb3_ext.learn", *arguments, *(["--resume"] if number else [])],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        while newest(folder) <= reached:
            assert process.poll() is None, process.communicate()
            time.sleep(0.01)
        if number == KILLS:
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=120)
            assert process.returncode == 130, errors
            assert errors == ""
        else:
            time.sleep(draw.uniform(0, 0.5))
            others = psutil.Process(process.pid).children(recursive=True)
            process.kill()
            process.communicate()
            assert not psutil.wait_procs(others, timeout=30)[1]
        assert newest(folder) > reached
        reached = newest(folder)
        require_whole(folder)
    assert not list(folder.rglob("*.partial"))


@pytest.mark.timeout(200 * KILLS)
@pytest.mark.parametrize("kind", ["PPO", "SAC"])
def test_a_run_that_is_killed_before_any_change_of_its_files_can_be_resumed(tmp_path: Path, kind: str) -> None:
    folder, first = tmp_path / "results", tmp_path / "first"
    config, changes, options = RUNS[kind]
    (tmp_path / "killer.py").write_text(KILLER, encoding="utf-8")

    def learn(fatal: int, max_steps: int, *more: str) -> subprocess.CompletedProcess[str]:
        arguments = [settings_of(config, changes, tmp_path, max_steps), *NAMED]
        command = [sys.executable, "killer.py", str(fatal), *arguments, *options, *more]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)

    assert learn(0, 160).returncode == 0
    shutil.copytree(folder, first)
    count = int(learn(0, 240, "--resume").stdout.splitlines()[-1])
    reached = newest(folder / "killed")
    assert count > 30
    for fatal in random.Random(KILLS).sample(range(1, count + 1), min(KILLS, count)):
        shutil.rmtree(folder)
        shutil.copytree(first, folder)
        assert learn(fatal, 240, "--resume").returncode == -signal.SIGKILL
        require_whole(folder / "killed")
        resumed = learn(0, 240, "--resume")
        assert resumed.returncode == 0, (fatal, resumed.stderr)
        require_whole(folder / "killed")
        assert newest(folder / "killed") == reached
        assert not list(folder.rglob("*.part*"))

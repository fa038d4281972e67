"""Runs of `unity-learn` with small networks, in this process and in a separate one, and learners of samplers."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import torch
import yaml

from sb3_ext import PPO
from sb3_ext.checkpoints import read_checkpoint
from sb3_ext.learner import Learner
from sb3_ext.placement import PlacedSampler
from sb3_ext.sampler import plain_name

CONFIGS = Path(__file__).resolve().parents[1] / "configs"


def write(folder: Path, scene: str, algorithm: str = "ppo", **changes: Any) -> Path:
    """Return the scene's settings with small networks, buffers and other changes."""
    tree = yaml.safe_load((CONFIGS / algorithm / f"{scene}.yaml").read_text(encoding="utf-8"))
    hyperparameters, top = changes.pop("hyperparameters", {}), changes.pop("top", {})
    for behavior in tree["behaviors"].values():
        behavior["network_settings"] |= {"hidden_units": 16, "num_layers": 1}
        behavior["hyperparameters"] |= {"buffer_size": 240, "batch_size": 60} | hyperparameters
        behavior |= {"summary_freq": 10_000} | changes
    path = folder / f"{scene}.yaml"
    path.write_text(yaml.safe_dump({"behaviors": tree["behaviors"]} | top), encoding="utf-8")
    return path


def weights(folder: Path, run_id: str, behavior: str) -> dict[str, torch.Tensor]:
    """Return the policy of a run's newest checkpoint."""
    newest = max((folder / run_id / behavior).glob("*.zip"), key=lambda path: int(path.stem.rpartition("-")[2]))
    policy: dict[str, torch.Tensor] = read_checkpoint(newest).parameters["policy"]
    return policy


def learner_of(sampler: PlacedSampler, seed: int | None = None) -> Learner:
    """Return a learner of the only behavior, to which it is assigned."""
    ((team, spec),) = sampler.appeared().items()
    model = PPO.from_spec("UnityPolicy", spec, buffer_size=64, batch_size=8, device="cpu", seed=seed)
    learner = Learner(plain_name(team), spec, model, 100)
    sampler.assign(learner)
    return learner


def assert_equal(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> None:
    assert first.keys() == second.keys()
    for name, part in first.items():
        torch.testing.assert_close(part, second[name], rtol=0, atol=0, msg=name)


def run(folder: Path, file: Path, *flags: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "sb3_ext.learn", str(file), "--results-dir", str(folder), "--seed", "1", *flags]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment.pop("PYTHONUNBUFFERED", None)  # each line has to arrive at once without it
    return subprocess.Popen(
        command, cwd=folder, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def workers_of(process: psutil.Process) -> list[psutil.Process]:
    """Return the processes that multiprocessing started for a run: its samplers and the learners of other devices."""
    found = []
    for child in process.children():
        command = " ".join(child.cmdline())
        if "spawn_main" in command:
            found.append(child)
        elif "multiprocessing.forkserver" in command:
            found += child.children()
    return found


def players_of(process: psutil.Process) -> list[psutil.Process]:
    """Return the embedded players of a run, without the watchdogs, whose arguments are `-c` and a player's command."""
    lines = {child: child.cmdline() for child in process.children(recursive=True)}
    return [child for child, line in lines.items() if "unity_gym.scenes" in line and "-c" not in line]


def await_line(process: subprocess.Popen[str], part: str) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if part in line:
            return
    raise AssertionError(process.communicate())


@contextmanager
def interrupted() -> Iterator[None]:
    """Raise KeyboardInterrupt at the end of the context, as if Ctrl-C had arrived in it."""
    yield
    raise KeyboardInterrupt

"""The pages about algorithms explain every number that an algorithm logs."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3.common.logger import configure
from stable_baselines3.common.vec_env import VecMonitor

from sb3_ext import BC, POCA, PPO, RND, SAC, Curiosity, Extrinsic, UnityVecEnv
from stand_ins.toy_environments import HYBRID, make_toys

PAGES = Path(__file__).resolve().parents[2] / "docs" / "algorithms"


def documented(*names: str) -> set[str]:
    """Return the keys in the first column of the pages' tables; `<signal>` stands for each signal of the tests."""
    keys: set[str] = set()
    for name in names:
        rows = re.findall(r"^\| (`(?:train|rollout|time|validation)/.*?) \|", (PAGES / f"{name}.md").read_text(), re.M)
        for key in re.findall(r"`([\w/<>]+)`", " ".join(rows)):
            keys |= {key.replace("<signal>", signal) for signal in ("extrinsic", "curiosity", "rnd")}
    return keys


def logged_rows(model: Any, folder: Path, timesteps: int, log_interval: int = 1) -> list[dict[str, str]]:
    """Return what the model logs while it learns; values that a row lacks are empty."""
    model.set_logger(configure(str(folder), ["csv"]))
    model.learn(timesteps, log_interval=log_interval)
    with (folder / "progress.csv").open() as table:
        return list(csv.DictReader(table))


def logged(model: Any, folder: Path, timesteps: int) -> set[str]:
    return set(logged_rows(model, folder, timesteps)[0])


def test_ppo_logs_the_values_that_its_page_explains(tmp_path: Path) -> None:
    signals = [Extrinsic(), Curiosity(), RND()]
    model = PPO("UnityPolicy", make_toys(HYBRID), buffer_size=32, batch_size=16, reward_signals=signals)
    assert logged(model, tmp_path, 64) <= documented("ppo", "curiosity", "rnd")


@pytest.mark.parametrize("actions", [HYBRID, spaces.Discrete(3)], ids=["hybrid", "discrete"])
def test_sac_logs_the_values_that_its_page_explains(tmp_path: Path, actions: spaces.Space[Any]) -> None:
    model = SAC("UnitySACPolicy", make_toys(actions), buffer_size=64, batch_size=8, reward_signals=[Extrinsic(), RND()])
    assert logged(model, tmp_path, 48) <= documented("sac", "rnd")


def test_sac_logs_the_entropy_of_its_policy(tmp_path: Path) -> None:
    model = SAC("UnitySACPolicy", make_toys(spaces.Discrete(3)), 1e-9, buffer_size=64, batch_size=8, seed=0)
    entropies = [float(row["train/entropy"]) for row in logged_rows(model, tmp_path, 48)]
    assert all(0.1 < entropy <= np.log(3) for entropy in entropies)


def test_sac_logs_once_per_interval_of_episodes(tmp_path: Path) -> None:
    env = VecMonitor(make_toys(spaces.Discrete(3)))
    model = SAC("UnitySACPolicy", env, buffer_size=64, batch_size=8, seed=0)
    episodes = [int(row["time/episodes"]) for row in logged_rows(model, tmp_path, 300, log_interval=10)]
    assert len(episodes) >= 3
    assert [count // 10 for count in episodes] == list(range(1, len(episodes) + 1))


def test_poca_logs_the_values_that_its_page_explains(tmp_path: Path) -> None:
    env = UnityVecEnv("Unity-Basic-v0")
    model = POCA("UnityPOCAPolicy", env, buffer_size=32, batch_size=16, policy_kwargs={"hidden_units": 8})
    assert logged(model, tmp_path, 64) <= documented("poca", "ppo")
    env.close()


def test_bc_logs_the_values_that_its_page_explains(tmp_path: Path) -> None:
    env = UnityVecEnv("Unity-Basic-v0")
    model = BC(
        "UnityPolicy",
        env,
        teacher=lambda observations: np.full(len(observations), 2),
        teacher_steps_per_epoch=40,
        policy_kwargs={"hidden_units": 8},
    )
    keys = logged(model, tmp_path, 200)
    env.close()
    assert "train/learning_rate" in keys
    assert keys <= documented("bc")

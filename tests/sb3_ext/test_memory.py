"""Recurrent policies learn to recall a cue that is no longer observed; others can only guess it."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import DummyVecEnv, VecMonitor

from sb3_ext import POCA, PPO, SAC
from sb3_ext.algorithm import UnityAlgorithm

SEEDS = range(5)
DECISIONS = 4  # in an episode


class Recall(gym.Env):
    """The first observation is −1 or 1, the others are 0; the last action gets reward 1 if it names the first."""

    observation_space = spaces.Box(-1, 1, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self.cue, self.left = int(self.np_random.integers(2)), DECISIONS
        return np.array([2 * self.cue - 1], np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.left -= 1
        over = self.left == 0
        return np.zeros(1, np.float32), float(over and action == self.cue), over, False, {}


ON_POLICY = {"learning_rate_schedule": "constant", "buffer_size": 512}
OFF_POLICY = {"steps_per_update": 8, "tau": 0.02, "init_entcoef": 0.1}
RECIPES: dict[str, tuple[type[UnityAlgorithm], str, int, dict[str, Any]]] = {
    "PPO": (PPO, "UnityPolicy", 10_000, ON_POLICY),
    "POCA": (POCA, "UnityPOCAPolicy", 10_000, ON_POLICY),
    "SAC": (SAC, "UnitySACPolicy", 4_000, OFF_POLICY),
}


def score(recipe: str, seed: int, memory: int) -> float:
    """Return the mean return of 200 episodes after training."""
    algorithm, policy, steps, options = RECIPES[recipe]
    env = VecMonitor(DummyVecEnv([Recall] * 16))
    network = {"hidden_units": 32, "num_layers": 1, "memory_size": memory, "sequence_length": DECISIONS}
    model = algorithm(  # type: ignore[call-arg]
        policy, env, learning_rate=3e-3, batch_size=128, policy_kwargs=network, seed=seed, device="cpu", **options
    )
    model.learn(steps)
    mean, _ = evaluate_policy(model, env, 200)
    env.close()
    return float(mean)  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_cue_is_recalled_with_memory_in_every_seed_and_without_in_none(recipe: str) -> None:
    with_memory = [score(recipe, seed, memory=16) for seed in SEEDS]
    without = [score(recipe, seed, memory=0) for seed in SEEDS]
    assert min(with_memory) > 0.9, with_memory
    assert max(without) < 0.6, without

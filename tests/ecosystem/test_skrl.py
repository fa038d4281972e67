"""skrl's wrapper of Gymnasium and PettingZoo."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import unity_gym

pytestmark = pytest.mark.ecosystem
wrap_env = pytest.importorskip(
    "skrl.envs.wrappers.torch", reason="skrl is not installed: run scripts/ecosystem.sh skrl"
).wrap_env


def batch(space: gym.Space[Any], rows: int) -> torch.Tensor:
    return torch.tensor(np.stack([space.sample() for _ in range(rows)])).reshape(rows, -1)


@pytest.mark.parametrize("env_id", ["Unity-3DBall-v0", "Unity-Basic-v0", "Unity-PushBlock-v0", "Unity-SoccerTwos-v0"])
@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_vector_environments(env_id: str, mode: str) -> None:
    rows = 4
    env = wrap_env(gym.make_vec(env_id, num_envs=rows, autoreset_mode=mode))
    env.reset()
    for _ in range(20):
        observations, rewards, terminated, truncated, _ = env.step(batch(env.action_space, rows))
        assert len(observations) == rows
        assert rewards.shape == terminated.shape == truncated.shape == (rows, 1)
    env.close()


@pytest.mark.parametrize("env_id", ["Unity-SoccerTwos-v0", "Unity-3DBall-v0"])
def test_games(env_id: str) -> None:
    env = wrap_env(unity_gym.parallel_env(env_id, num_areas=1))
    observations, _ = env.reset()
    for _ in range(20):
        observations, rewards, *_ = env.step({agent: batch(env.action_space(agent), 1) for agent in env.agents})
        assert observations.keys() == rewards.keys()
    env.close()

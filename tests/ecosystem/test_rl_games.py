"""PPO of rl_games on `gymnasium.make_vec`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import unity_gym  # noqa: F401  # registers the ids

pytestmark = pytest.mark.ecosystem
torch_runner = pytest.importorskip("rl_games.torch_runner", reason="run scripts/ecosystem.sh rl_games")
env_configurations = pytest.importorskip("rl_games.common.env_configurations")
vecenv = pytest.importorskip("rl_games.common.vecenv")

SPACE = {
    "mu_activation": "None",
    "sigma_activation": "None",
    "mu_init": {"name": "default"},
    "sigma_init": {"name": "const_initializer", "val": 0},
    "fixed_sigma": True,
}
NETWORK = {
    "name": "actor_critic",
    "separate": False,
    "space": {"continuous": SPACE},
    "mlp": {"units": [32], "activation": "elu", "initializer": {"name": "default"}},
}
CONFIG = {
    **{"name": "unity", "env_name": "unity", "device": "cpu", "device_name": "cpu", "num_actors": 4, "max_epochs": 4},
    **{"ppo": True, "mixed_precision": False, "normalize_input": True, "normalize_value": True, "gamma": 0.99},
    **{"normalize_advantage": True, "value_bootstrap": True, "reward_shaper": {"scale_value": 1.0}, "tau": 0.95},
    **{"learning_rate": 3e-4, "lr_schedule": "adaptive", "kl_threshold": 0.008, "grad_norm": 1.0, "e_clip": 0.2},
    **{"entropy_coef": 0.0, "truncate_grads": True, "clip_value": True, "horizon_length": 16, "minibatch_size": 32},
    **{"mini_epochs": 2, "critic_coef": 1.0, "bounds_loss_coef": 1e-4, "score_to_win": 1e9, "save_best_after": 1000},
}


class UnityRows(vecenv.IVecEnv):  # type: ignore[misc, name-defined]
    """All agents of a scene. rl_games expects the first observation of the next episode with the end of the last."""

    def __init__(self, _: str, num_actors: int, **__: Any) -> None:
        self.env = gym.make_vec("Unity-3DBall-v0", num_envs=num_actors, autoreset_mode="SameStep")

    def reset(self) -> Any:
        return self.env.reset()[0]

    def step(self, actions: Any) -> Any:
        observations, rewards, terminated, truncated, _ = self.env.step(actions)
        return observations, rewards.astype(np.float32), terminated | truncated, {"time_outs": truncated}

    def get_env_info(self) -> dict[str, Any]:
        return {
            "observation_space": self.env.single_observation_space,
            "action_space": self.env.single_action_space,
        }


def test_ppo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "1")  # compiling takes minutes
    vecenv.register("unity", UnityRows)
    env_configurations.register("unity", {"vecenv_type": "unity", "env_creator": None})
    runner = torch_runner.Runner()
    algorithm = {"algo": {"name": "a2c_continuous"}, "model": {"name": "continuous_a2c_logstd"}}
    config = CONFIG | {"train_dir": str(tmp_path)}
    runner.load({"params": {"seed": 1, **algorithm, "network": NETWORK, "config": config}})
    runner.run({"train": True, "play": False})
    assert list(tmp_path.rglob("*.pth"))

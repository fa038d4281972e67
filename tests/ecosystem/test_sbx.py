"""SBX, Stable-Baselines3's algorithms in JAX."""

from pathlib import Path

import gymnasium as gym
import pytest

import unity_gym  # noqa: F401  # registers the ids

pytestmark = pytest.mark.ecosystem
sbx = pytest.importorskip("sbx", reason="sbx is not installed: run scripts/ecosystem.sh sbx")


@pytest.mark.parametrize(
    ("algorithm", "env_id", "arguments"),
    [("PPO", "Unity-3DBall-v0", {"n_steps": 128}), ("SAC", "Unity-3DBall-v0", {}), ("DQN", "Unity-Basic-v0", {})],
)
def test_a_saved_model_learns_on(tmp_path: Path, algorithm: str, env_id: str, arguments: dict[str, int]) -> None:
    env = gym.make(env_id)
    model = getattr(sbx, algorithm)("MlpPolicy", env, **arguments)
    model.learn(256)
    model.save(tmp_path / "model.zip")
    loaded = getattr(sbx, algorithm).load(tmp_path / "model.zip", env=env)
    assert loaded.learn(256, reset_num_timesteps=False).num_timesteps == 512
    env.close()

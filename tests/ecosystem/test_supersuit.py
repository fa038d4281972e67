"""SuperSuit's documented way from PettingZoo to Stable-Baselines3, with masks in the infos."""

import pytest
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import VecMonitor

import unity_gym

pytestmark = pytest.mark.ecosystem
supersuit = pytest.importorskip("supersuit", reason="supersuit is not installed: run scripts/ecosystem.sh supersuit")


@pytest.mark.parametrize(("env_id", "size"), [("Unity-PushBlock-v0", 210), ("Unity-SoccerTwos-v0", 336)])
def test_the_documented_way_to_sb3(env_id: str, size: int) -> None:
    env = unity_gym.parallel_env(env_id, num_areas=2, action_mask="info")
    env = supersuit.frame_stack_v2(supersuit.pad_observations_v0(supersuit.black_death_v3(env)), 4)
    envs = supersuit.pettingzoo_env_to_vec_env_v1(env)
    envs = VecMonitor(supersuit.concat_vec_envs_v1(envs, 1, num_cpus=1, base_class="stable_baselines3"))
    assert envs.observation_space.shape == (4 * size,)
    model = PPO("MlpPolicy", envs, n_steps=16, batch_size=16, n_epochs=1)
    model.learn(64)
    assert model.num_timesteps >= 64
    envs.close()

"""`gymnasium.make` with the embedded player."""

import re
import subprocess
import sys

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env as gymnasium_check_env
from stable_baselines3.common.env_checker import check_env as sb3_check_env

import unity_gym  # noqa: F401  # registers the ids
from unity_gym.errors import ActionError, InvalidValueError, NotReadyError, UnityGymError
from unity_gym.registration import MULTI_AGENT_SCENES, SCENES, environment_id

SINGLE_AGENT_IDS = [environment_id(scene) for scene in SCENES if scene not in MULTI_AGENT_SCENES]


@pytest.mark.parametrize("env_id", SINGLE_AGENT_IDS)
def test_gymnasiums_checker_passes(env_id: str) -> None:
    env = gym.make(env_id)
    gymnasium_check_env(env.unwrapped, skip_render_check=True)  # test_render.py checks the images
    env.close()


@pytest.mark.parametrize("env_id", SINGLE_AGENT_IDS)
def test_sb3s_checker_passes(env_id: str) -> None:
    env = gym.make(env_id)
    sb3_check_env(env)
    env.close()


def test_an_id_with_its_module_needs_no_import() -> None:
    script = "import gymnasium; env = gymnasium.make('unity_gym:Unity-Basic-v0'); print(env.reset()[0].argmax())"
    output = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert output.stdout.strip() == "10"


def test_the_optimal_policy_of_basic_achieves_the_documented_return() -> None:
    env = gym.make("Unity-Basic-v0")
    for _ in range(2):
        env.reset()
        total, steps, ended = 0.0, 0, False
        while not ended:
            _, reward, ended, truncated, _ = env.step(2)
            total, steps = total + reward, steps + 1
        assert not truncated
        assert (round(total, 5), steps) == (0.93, 7)
    env.close()


def transcript(env: gym.Env, seed: int, steps: int = 500) -> list[np.ndarray]:
    """Return observations, rewards and episode ends of random actions."""
    rng = np.random.default_rng(0)
    observation, _ = env.reset(seed=seed)
    rows = [np.append(observation, [0, 0, 0])]
    for _ in range(steps):
        action = rng.uniform(-1, 1, env.action_space.shape).astype(np.float32)
        observation, reward, terminated, truncated, _ = env.step(action)
        rows.append(np.append(observation, [reward, terminated, truncated]))
        if terminated or truncated:
            observation, _ = env.reset()
            rows.append(np.append(observation, [0, 0, 0]))
    return rows


def test_a_seed_determines_the_whole_course() -> None:
    env, other = gym.make("Unity-3DBall-v0"), gym.make("Unity-3DBall-v0", seed=99)
    first = transcript(env, seed=7)
    np.testing.assert_array_equal(first, transcript(env, seed=7))
    np.testing.assert_array_equal(first, transcript(other, seed=7))
    assert not np.array_equal(first, transcript(env, seed=8))
    env.close()
    other.close()


def test_a_fall_terminates_and_reset_continues_the_episode_that_unity_started() -> None:
    env = gym.make("Unity-3DBall-v0")
    env.reset(seed=1)
    reward, terminated, truncated = 0.0, False, False
    while not (terminated or truncated):
        final, reward, terminated, truncated, _ = env.step(np.ones(2, np.float32))
    assert (terminated, truncated, reward) == (True, False, -1.0)
    fallen = final[3] < -2 or abs(final[2]) > 3 or abs(final[4]) > 3
    assert fallen
    first, _ = env.reset()
    assert 2.5 < first[3] <= 4.0  # the new ball is on its way down
    env.close()


def test_the_step_limit_truncates() -> None:
    env = gym.make("Unity-3DBall-v0", environment_parameters={"gravity": 0.0})  # the ball hangs where it started
    env.reset(seed=1)
    steps, terminated, truncated = 0, False, False
    while not (terminated or truncated):
        _, reward, terminated, truncated, _ = env.step(np.zeros(2, np.float32))
        steps += 1
        assert reward == pytest.approx(0.1)
    assert (terminated, truncated, steps) == (False, True, 1000)
    env.close()


def test_a_reset_in_mid_episode_starts_another_episode() -> None:
    env = gym.make("Unity-3DBall-v0")
    first, _ = env.reset(seed=3)
    env.step(np.zeros(2, np.float32))
    second, _ = env.reset()
    assert not np.array_equal(first, second)
    assert second[3] > 3.5
    env.close()


def test_reset_options_are_environment_parameters() -> None:
    env = gym.make("Unity-3DBall-v0")
    env.reset(options={"gravity": 0.0})
    heights = [env.step(np.zeros(2, np.float32))[0][3] for _ in range(20)]
    assert max(heights) - min(heights) < 0.05
    env.close()


def test_wrong_calls_raise() -> None:
    env = gym.make("Unity-3DBall-v0").unwrapped
    with pytest.raises(NotReadyError, match="reset"):
        env.step(np.zeros(2, np.float32))
    env.reset()
    for wrong in (np.zeros(3, np.float32), np.zeros((1, 2), np.float32), 1, None):
        with pytest.raises(
            ActionError, match=rf"must fit {re.escape(str(env.action_space))}, got {re.escape(repr(wrong))}"
        ):
            env.step(wrong)
    env.close()
    env.close()
    for call in (env.reset, lambda: env.step(np.zeros(2, np.float32))):
        with pytest.raises(NotReadyError, match="closed"):
            call()


def test_a_scene_of_many_agents_raises_with_the_remedy() -> None:
    with pytest.raises(UnityGymError, match=r"12.*UnityVecEnv"):
        gym.make("Unity-3DBall-v0", num_areas=None)


def test_unknown_names_raise_with_the_available_ones() -> None:
    with pytest.raises(InvalidValueError, match=r"Basic\?team=0"):
        gym.make("Unity-Basic-v0", behavior="Elsewhere")
    with pytest.raises(UnityGymError, match="3DBall"):
        gym.make("Unity-v0", file_name="embedded:Nowhere")


@pytest.mark.parametrize("env_id", map(environment_id, MULTI_AGENT_SCENES))
def test_a_scene_with_several_agents_per_area_names_the_environments_that_support_it(env_id: str) -> None:
    with pytest.raises(UnityGymError, match=r"make_vec.*UnityVecEnv.*parallel_env"):
        gym.make(env_id)


def test_an_agent_that_changes_its_behavior_is_followed() -> None:
    env = gym.make("Unity-WallJump-v0")
    observation, _ = env.reset(seed=0)
    behaviors = set()
    for _ in range(8):
        behaviors.add(env.unwrapped.behavior_name)
        observation, _ = env.reset()
        moved, *_ = env.step(np.array([1, 0, 0, 0]))
        assert not np.array_equal(observation, moved)
    assert behaviors == {"SmallWallJump?team=0", "BigWallJump?team=0"}
    env.close()

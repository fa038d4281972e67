"""TorchRL's wrappers of Gymnasium, PettingZoo and Unity's own package, whose names `unity_gym.compat` provides."""

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import pytest
import torch

import unity_gym
import unity_gym.compat  # before TorchRL, which looks for mlagents_envs when it is imported

pytestmark = pytest.mark.ecosystem
envs = pytest.importorskip("torchrl.envs", reason="torchrl is not installed: run scripts/ecosystem.sh torchrl")


@pytest.mark.parametrize("make", [lambda env_id: envs.GymWrapper(gym.make(env_id)), envs.GymEnv])
def test_a_single_agent(make: Callable[[str], Any]) -> None:
    env = make("Unity-3DBall-v0")
    envs.check_env_specs(env)
    assert env.rollout(20)["observation"].shape[1] == 8
    env.close()


def test_a_vector_environment_with_same_step_resets() -> None:
    env = envs.GymWrapper(gym.make_vec("Unity-3DBall-v0", num_envs=4, autoreset_mode="SameStep"))
    rollout = env.rollout(60, break_when_any_done=False)
    assert rollout.batch_size == (4, 60)
    done = rollout["next", "done"].squeeze(-1)
    assert done.any()
    height = rollout["next", "observation"][done][:, 3]
    assert (height < 3.5).all(), "the observation after an episode's last step is its last one"
    env.close()


def test_next_step_resets_raise() -> None:
    vector_env = gym.make_vec("Unity-3DBall-v0", num_envs=2)
    with pytest.raises(RuntimeError, match="SAME_STEP"):
        envs.GymWrapper(vector_env)
    vector_env.close()


def test_several_teams() -> None:
    """Without masks: for branches of one size, as here, TorchRL takes masks of another shape than Gymnasium's."""
    env = envs.PettingZooWrapper(unity_gym.parallel_env("Unity-SoccerTwos-v0", action_mask=None), use_mask=True)
    envs.check_env_specs(env)
    assert env.rollout(10).batch_size == (10,)
    env.close()


@pytest.mark.parametrize(
    ("env_id", "action_mask"),
    [("Unity-3DBall-v0", None), ("Unity-GridWorld-v0", "observation"), ("Unity-DungeonEscape-v0", "info")],
)
def test_agents_that_end_one_after_the_other(env_id: str, action_mask: str | None) -> None:
    """With `done_on_any=False` TorchRL plays until the last agent ends, and acts for those that have ended, too."""
    areas = 1 if action_mask == "info" else 2  # TorchRL needs all agents at each reset; see docs/environments
    game = unity_gym.parallel_env(env_id, num_areas=areas, action_mask=action_mask)
    torch.manual_seed(0)
    env = envs.PettingZooWrapper(game, use_mask=True, done_on_any=False, seed=0)
    envs.check_env_specs(env)
    rollout = env.rollout(600, break_when_any_done=False)
    assert rollout.batch_size == (600,)
    alive = rollout[next(iter(env.group_map)), "mask"]
    assert (alive.any(dim=-1) & ~alive.all(dim=-1)).any()
    assert rollout["next", "done"].any()
    env.close()


@pytest.mark.parametrize("scene", ["3DBall", "SoccerTwos"])
def test_the_wrapper_of_unitys_package_runs_unchanged(scene: str) -> None:
    from mlagents_envs.environment import UnityEnvironment
    from torchrl.envs.libs.unity_mlagents import UnityMLAgentsEnv, UnityMLAgentsWrapper

    assert scene in UnityMLAgentsEnv.available_envs
    env = UnityMLAgentsWrapper(UnityEnvironment(f"embedded:{scene}", additional_args=["--areas", "2"]))
    assert sum(map(len, env.group_map.values())) == {"3DBall": 2, "SoccerTwos": 8}[scene]
    assert env.rollout(20, break_when_any_done=False).batch_size == (20,)
    env.close()

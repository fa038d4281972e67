"""The `Unity-…-v0` ids of Gymnasium's registry."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import gymnasium as gym
from typing_extensions import Unpack

from unity_gym.errors import InvalidValueError
from unity_gym.options import PlayerKeywords, takes_player_options
from unity_gym.player import EMBEDDED

if TYPE_CHECKING:
    from pettingzoo import AECEnv

    from unity_gym.envs.parallel import UnityParallelEnv

SCENES = (
    "3DBall",
    "3DBallHard",
    "Basic",
    "CooperativePushBlock",
    "Crawler",
    "DungeonEscape",
    "FoodCollector",
    "GridWorld",
    "Hallway",
    "Match3",
    "Match3Vector",
    "Match3Visual",
    "PushBlock",
    "PushBlockWithInput",
    "Pyramids",
    "SoccerTwos",
    "Sorter",
    "StrikersVsGoalie",
    "VisualFoodCollector",
    "Walker",
    "WallJump",
    "Worm",
)
"""The scenes of the embedded player; each is the id `Unity-<Scene>-v0`."""

MULTI_AGENT_SCENES = (
    "CooperativePushBlock",
    "DungeonEscape",
    "FoodCollector",
    "SoccerTwos",
    "StrikersVsGoalie",
    "VisualFoodCollector",
)
"""Scenes of these with several agents per area; all functions except `gymnasium.make` create their environments."""


def environment_id(scene: str) -> str:
    """Return the Gymnasium id of a scene."""
    return f"Unity-{scene}-v0"


def register() -> None:
    """Register `Unity-v0`, whose player is given by `file_name`, and an id for each embedded scene."""
    for env_id, options in _options().items():
        gym.register(
            env_id,
            entry_point="unity_gym.envs.single_agent:UnitySingleAgentEnv",
            vector_entry_point="unity_gym.envs.vector:UnityVectorEnv",
            kwargs=options,
        )


def registered_options(env_id: str) -> dict[str, Any]:
    """Return the player options of a registered id.

    :param env_id: Registered id, with or without the prefix "unity_gym:".
    :raises InvalidValueError: If the id is not one of this package; the message lists them.
    """
    options_by_id = _options()
    if not isinstance(env_id, str):
        raise InvalidValueError(
            f"env_id must be a registered id, such as 'Unity-3DBall-v0', got {type(env_id).__name__}"
        )
    name = env_id.removeprefix("unity_gym:")
    if name not in options_by_id:
        raise InvalidValueError(
            f"no environment {env_id!r}; the known ones are {sorted(options_by_id)}. Give a player of your own as "
            "file_name of 'Unity-v0'"
        )
    return options_by_id[name]


@takes_player_options
def parallel_env(
    env_id: str = "Unity-v0",
    *,
    behavior: str | Sequence[str] | None = None,
    observations: str = "split",
    wait_for: str = "all",
    action_mask: str | None = "observation",
    max_cycles: int | None = None,
    render_mode: str | None = None,
    **options: Unpack[PlayerKeywords],
) -> UnityParallelEnv:
    """Create a PettingZoo `ParallelEnv` of all agents of a scene.

    :param env_id: Registered id, such as "Unity-3DBall-v0" or, with `file_name`, "Unity-v0".
    :param options: Player options, see `PlayerOptions`; the other parameters are those of `UnityParallelEnv`.
    :raises InvalidValueError: If the id is not one of this package.
    """
    from unity_gym.envs.parallel import UnityParallelEnv  # imported on use, so that importing unity_gym stays fast

    return UnityParallelEnv(
        behavior=behavior,
        observations=observations,
        wait_for=wait_for,
        action_mask=action_mask,
        max_cycles=max_cycles,
        render_mode=render_mode,
        **{**registered_options(env_id), **options},
    )


@takes_player_options
def aec_env(
    env_id: str = "Unity-v0",
    *,
    behavior: str | Sequence[str] | None = None,
    observations: str = "split",
    action_mask: str | None = "observation",
    max_cycles: int | None = None,
    render_mode: str | None = None,
    **options: Unpack[PlayerKeywords],
) -> AECEnv[str, Any, Any]:
    """Create a PettingZoo `AECEnv` of all agents of a scene: an agent has a turn when it requests a decision.

    :param env_id: Registered id, as in `parallel_env`.
    :param options: Player options, see `PlayerOptions`; the other parameters are those of `UnityAECEnv`.
    :raises InvalidValueError: If the id is not one of this package.
    """
    from pettingzoo.utils.wrappers import OrderEnforcingWrapper

    from unity_gym.envs.aec import UnityAECEnv

    return OrderEnforcingWrapper(
        UnityAECEnv(
            behavior=behavior,
            observations=observations,
            action_mask=action_mask,
            max_cycles=max_cycles,
            render_mode=render_mode,
            **{**registered_options(env_id), **options},
        )
    )


def _options() -> dict[str, dict[str, Any]]:
    return {"Unity-v0": {}} | {environment_id(scene): {"file_name": EMBEDDED + scene} for scene in SCENES}

"""The `Unity-…-v0` ids of Gymnasium's registry."""

from __future__ import annotations

from typing import Any

import gymnasium as gym

from unity_gym.errors import UnknownNameError
from unity_gym.player import EMBEDDED

SCENES = ("3DBall", "Basic")
"""The scenes of the embedded player; each is the id `Unity-<Scene>-v0`."""


def environment_id(scene: str) -> str:
    """The Gymnasium id of a scene."""
    return f"Unity-{scene}-v0"


def register() -> None:
    """Register `Unity-v0`, whose player `file_name` names, and an id for each embedded scene."""
    entry_point = "unity_gym.envs.single_agent:UnitySingleAgentEnv"
    gym.register("Unity-v0", entry_point)
    for scene in SCENES:
        gym.register(environment_id(scene), entry_point, kwargs={"file_name": EMBEDDED + scene, "num_areas": 1})


def registered_options(env_id: str) -> dict[str, Any]:
    """The player options that an id stands for, for environments that hold all agents of a scene.

    :param env_id: with or without the prefix "unity_gym:"
    :raises UnknownNameError: no such id of ours; the message lists them
    """
    known = {environment_id(scene): {"file_name": EMBEDDED + scene} for scene in SCENES} | {"Unity-v0": {}}
    name = env_id.removeprefix("unity_gym:")
    if name not in known:
        raise UnknownNameError(f"no environment {env_id!r}; the known ones are {sorted(known)}")
    return known[name]

"""Unity ML-Agents environments as Gymnasium and PettingZoo environments.

Importing this package registers the `Unity-…-v0` ids. `gymnasium.make("unity_gym:Unity-3DBall-v0")` imports it, too.
"""

from __future__ import annotations

from importlib import import_module, metadata
from typing import TYPE_CHECKING

from unity_gym.registration import aec_env, parallel_env, register

if TYPE_CHECKING:
    from unity_gym.environment import UnityEnvironment
    from unity_gym.envs import UnityAECEnv, UnityParallelEnv, UnitySingleAgentEnv, UnityVectorEnv
    from unity_gym.specs import ActionTuple

__all__ = [
    "ActionTuple",
    "UnityAECEnv",
    "UnityEnvironment",
    "UnityParallelEnv",
    "UnitySingleAgentEnv",
    "UnityVectorEnv",
    "__version__",
    "aec_env",
    "parallel_env",
]

_MODULES = {
    "ActionTuple": "unity_gym.specs",
    "UnityEnvironment": "unity_gym.environment",
    "UnityAECEnv": "unity_gym.envs",
    "UnityParallelEnv": "unity_gym.envs",
    "UnitySingleAgentEnv": "unity_gym.envs",
    "UnityVectorEnv": "unity_gym.envs",
}

register()


def __getattr__(name: str) -> object:
    """Import a class, or read the version, on first use, so that importing the package stays fast."""
    if name == "__version__":
        return metadata.version("unity-gym")
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)

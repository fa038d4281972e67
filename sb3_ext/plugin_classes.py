"""Trainers and reward signals of plugins, checked against their base classes."""

from __future__ import annotations

from typing import Any

from sb3_ext.plugins import SIGNALS, TRAINERS, load_plugin
from sb3_ext.poca import POCA
from sb3_ext.ppo import PPO
from sb3_ext.reward_signals import RewardSignal
from sb3_ext.sac import SAC
from unity_gym.errors import UnityGymError

_ALGORITHMS = {"poca": POCA, "ppo": PPO, "sac": SAC}  # POCA is a subclass of PPO


def load_trainer(name: str) -> type[Any]:
    """Return a trainer of a plugin; see `sb3_ext.plugins`.

    :raises UnityGymError: If it is not a subclass of `PPO`, `POCA` or `SAC`.
    """
    found = load_plugin(TRAINERS, name)
    if not (isinstance(found, type) and issubclass(found, tuple(_ALGORITHMS.values()))):
        raise UnityGymError(f"{name!r} of {TRAINERS} must be a subclass of PPO, POCA or SAC, got {found!r}")
    return found


def base_trainer(trainer: type) -> tuple[str, type]:
    """Return the `trainer_type` and the class of a trainer's base."""
    return next((name, base) for name, base in _ALGORITHMS.items() if issubclass(trainer, base))


def load_signal(name: str) -> type[Any]:
    """Return a reward signal of a plugin; see `sb3_ext.plugins`.

    :raises UnityGymError: If it is not a subclass of `RewardSignal`, or has another name.
    """
    found = load_plugin(SIGNALS, name)
    if not (isinstance(found, type) and issubclass(found, RewardSignal)):
        raise UnityGymError(f"{name!r} of {SIGNALS} must be a subclass of RewardSignal, got {found!r}")
    if found.name != name:
        raise UnityGymError(f"the attribute name of {found.__name__} must be {name!r}, as in {SIGNALS}")
    return found

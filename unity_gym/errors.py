"""The errors of unity_gym. Each message names the cause, the offending value and the remedy."""

from __future__ import annotations


class UnityGymError(Exception):
    """Base class of all errors of this package."""

    worker: int | None = None
    """Index of the player that failed, if the error belongs to one."""


class PlayerError(UnityGymError):
    """Failure of a player to start, connect, answer or keep running. The message holds the end of its log."""


class PlayerQuitError(PlayerError):
    """Message of a player that it quits: its application ended or left Play mode."""


class PortInUseError(PlayerError):
    """Failure to listen on a port that is in use."""


class PlayerTimeoutError(PlayerError, TimeoutError):
    """Timeout of a player that is running but sent nothing."""


class ProtocolError(UnityGymError):
    """Invalid data from the player: an unsupported version, a broken message or NaN."""


class ActionError(UnityGymError, ValueError):
    """Action that does not fit the behavior's action specification, or is for an agent that requested none."""


class InvalidValueError(UnityGymError, ValueError):
    """Scene, behavior or option that does not exist, or an invalid value. The message lists the valid ones."""


class UnknownOptionError(UnityGymError, TypeError):
    """Keyword argument that a function does not take. The message names the nearest one."""


class NotReadyError(UnityGymError, RuntimeError):
    """Call in the wrong order: a step before the reset, or any call after close."""


class DemonstrationError(UnityGymError, ValueError):
    """Demonstration that cannot be read, written or used for a behavior."""

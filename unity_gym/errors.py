"""The errors that unity_gym raises. Each message names the cause, the offending value and the remedy."""

from __future__ import annotations


class UnityGymError(Exception):
    """The base of every error of this package."""

    worker: int | None = None
    """Index of the player that failed, where one did."""


class PlayerError(UnityGymError):
    """The player did not start, did not dial, ended or stopped answering. The message holds the tail of its log."""


class PortInUseError(PlayerError):
    """The port to listen on is taken."""


class PlayerTimeoutError(PlayerError, TimeoutError):
    """The player is there but sent nothing within the time-out."""


class ProtocolError(UnityGymError):
    """The player sent something that this package cannot accept: a wrong version, a broken message, NaN."""


class ActionError(UnityGymError, ValueError):
    """An action does not fit the behavior's action specification, or names an agent that asked for none."""


class InvalidValueError(UnityGymError, ValueError):
    """A scene, behavior or option that does not exist. The message lists the known ones."""


class UnknownOptionError(UnityGymError, TypeError):
    """A keyword argument that a function does not take. The message names the nearest one."""


class NotReadyError(UnityGymError, RuntimeError):
    """A call came in the wrong order: a step before the reset, or any call after close."""


class DemonstrationError(UnityGymError, ValueError):
    """A demonstration that cannot be read, written or used for a behavior."""

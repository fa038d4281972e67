"""The errors of unity_gym. Each message names the cause, the offending value and the remedy."""

from __future__ import annotations


class UnityGymError(Exception):
    """Base class of all errors of this package."""

    worker: int | None = None
    """Index of the player that failed, if the error belongs to one."""


class PlayerError(UnityGymError):
    """The player did not start, did not connect, ended or stopped answering. The message holds the end of its log."""


class PortInUseError(PlayerError):
    """The port to listen on is in use."""


class PlayerTimeoutError(PlayerError, TimeoutError):
    """The player is running but sent nothing within the timeout."""


class ProtocolError(UnityGymError):
    """The player sent invalid data: an unsupported version, a broken message or NaN."""


class ActionError(UnityGymError, ValueError):
    """An action does not fit the behavior's action specification, or is for an agent that requested none."""


class InvalidValueError(UnityGymError, ValueError):
    """A scene, behavior or option does not exist, or a value is invalid. The message lists the valid ones."""


class UnknownOptionError(UnityGymError, TypeError):
    """A keyword argument is not one of the function's. The message names the nearest one."""


class NotReadyError(UnityGymError, RuntimeError):
    """A call came in the wrong order: a step before the reset, or any call after close."""


class DemonstrationError(UnityGymError, ValueError):
    """A demonstration cannot be read, written or used for a behavior."""

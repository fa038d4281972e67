"""Unity's exceptions, all directly below `UnityException` as in Unity's package.

Where an error of this package is raised in the same situations as one of Unity's, Unity's name is an alias of it. The
other names have classes of their own, and `raised_as` replaces errors by them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from unity_gym.errors import (
    ActionError,
    PlayerQuitError,
    PlayerTimeoutError,
    PortInUseError,
    ProtocolError,
    UnityGymError,
)

UnityException = UnityGymError
UnityActionException = ActionError
UnityCommunicatorStoppedException = PlayerQuitError
UnityObservationException = ProtocolError
UnityTimeOutException = PlayerTimeoutError
UnityWorkerInUseException = PortInUseError


class UnityEnvironmentException(UnityException):
    """Failure to start, use or close an environment: its player ended, it is closed, or an argument is wrong."""


class UnityCommunicationException(UnityException):
    """Failure of the communication, for scripts that raise or catch it; this package does not raise it."""


class UnitySideChannelException(UnityException):
    """Incomplete setting of a side channel."""


class UnityPolicyException(UnityException):
    """Failure of a policy, for scripts that raise or catch it; this package does not raise it."""


@contextmanager
def raised_as(exception: type[UnityException], *kinds: type[UnityGymError]) -> Iterator[None]:
    """Replace errors of exactly these classes, not of their subclasses, by Unity's exception with the same message."""
    try:
        yield
    except UnityGymError as error:
        if type(error) not in kinds:
            raise
        converted = exception(str(error))
        converted.worker = error.worker
        raise converted from error

"""Unity's exceptions as aliases of this package's errors, so that a script's `except` catches them."""

from unity_gym.errors import (
    ActionError,
    PlayerError,
    PlayerTimeoutError,
    PortInUseError,
    ProtocolError,
    UnityGymError,
)

UnityException = UnityGymError
UnityEnvironmentException = UnityGymError
UnityPolicyException = UnityGymError
UnityCommunicationException = PlayerError
UnityCommunicatorStoppedException = PlayerError
UnityTimeOutException = PlayerTimeoutError
UnityWorkerInUseException = PortInUseError
UnityObservationException = ProtocolError
UnitySideChannelException = ProtocolError
UnityActionException = ActionError

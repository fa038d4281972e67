"""Networks over the sensors of a behavior."""

from sb3_ext.networks.body import NetworkBody, NetworkSettings
from sb3_ext.networks.normalization import RunningNormalization

__all__ = ["NetworkBody", "NetworkSettings", "RunningNormalization"]

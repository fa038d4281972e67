"""The engine configuration channel with the `EngineConfig` of Unity's package."""

from __future__ import annotations

from typing import NamedTuple

from unity_gym.compat.exceptions import UnitySideChannelException, raised_as
from unity_gym.errors import UnityGymError
from unity_gym.side_channels import EngineConfigurationChannel as _EngineConfigurationChannel


class EngineConfig(NamedTuple):
    """Settings of the engine; None keeps a setting unchanged."""

    width: int | None
    height: int | None
    quality_level: int | None
    time_scale: float | None
    target_frame_rate: int | None
    capture_frame_rate: int | None

    @staticmethod
    def default_config() -> EngineConfig:
        """Return the defaults of Unity's package.

        80 x 80 pixels, quality level 1, time scale 20, 60 captured frames.
        """
        return EngineConfig(80, 80, 1, 20.0, -1, 60)


class EngineConfigurationChannel(_EngineConfigurationChannel):
    """Channel that sets the engine's configuration."""

    set_configuration_parameters = raised_as(UnitySideChannelException, UnityGymError)(
        _EngineConfigurationChannel.set_configuration_parameters
    )

    def set_configuration(self, config: EngineConfig) -> None:
        """Send every setting of `config` that is not None with the next reset or step."""
        self.set_configuration_parameters(**config._asdict())

"""Side channels: messages between Python and a player in addition to observations and actions."""

from unity_gym.side_channels.channel import SideChannel, SideChannels
from unity_gym.side_channels.engine_configuration import EngineConfigurationChannel
from unity_gym.side_channels.environment_parameters import EnvironmentParametersChannel
from unity_gym.side_channels.float_properties import FloatPropertiesChannel
from unity_gym.side_channels.messages import IncomingMessage, OutgoingMessage
from unity_gym.side_channels.raw_bytes import RawBytesChannel
from unity_gym.side_channels.rendering import RenderingChannel
from unity_gym.side_channels.reseeding import ReseedingChannel
from unity_gym.side_channels.stats import EnvironmentStats, StatsAggregationMethod, StatsSideChannel
from unity_gym.side_channels.training_analytics import TrainingAnalyticsChannel

__all__ = [
    "EngineConfigurationChannel",
    "EnvironmentParametersChannel",
    "EnvironmentStats",
    "FloatPropertiesChannel",
    "IncomingMessage",
    "OutgoingMessage",
    "RawBytesChannel",
    "RenderingChannel",
    "ReseedingChannel",
    "SideChannel",
    "SideChannels",
    "StatsAggregationMethod",
    "StatsSideChannel",
    "TrainingAnalyticsChannel",
]

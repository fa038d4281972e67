"""Numbers that a scene reports, by name."""

from __future__ import annotations

import uuid
from collections import defaultdict
from enum import Enum

from unity_gym.errors import ProtocolError
from unity_gym.side_channels.channel import SideChannel
from unity_gym.side_channels.messages import IncomingMessage


class StatsAggregationMethod(Enum):
    """How the values of one key are made into one."""

    AVERAGE = 0
    MOST_RECENT = 1
    SUM = 2
    HISTOGRAM = 3


EnvironmentStats = dict[str, list[tuple[float, StatsAggregationMethod]]]


class StatsSideChannel(SideChannel):
    """Collects the statistics that the scene's `StatsRecorder` sends."""

    def __init__(self) -> None:
        super().__init__(uuid.UUID("a1d8f7b7-cec8-50f9-b78b-d3e165a78520"))
        self.stats: EnvironmentStats = defaultdict(list)

    def on_message_received(self, message: IncomingMessage) -> None:
        """Take one value of one key."""
        key, value, aggregation = message.read_string(), message.read_float32(), message.read_int32()
        try:
            self.stats[key].append((value, StatsAggregationMethod(aggregation)))
        except ValueError:
            raise ProtocolError(f"statistic {key!r} has the unknown aggregation {aggregation}") from None

    def get_and_reset_stats(self) -> EnvironmentStats:
        """The values that came since the last call, as (value, aggregation) pairs in their order."""
        collected, self.stats = self.stats, defaultdict(list)
        return collected

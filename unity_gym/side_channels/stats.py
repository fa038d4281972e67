"""Side channel for named statistics of a scene."""

from __future__ import annotations

import math
import uuid
import warnings
from collections import defaultdict
from collections.abc import Iterable
from enum import Enum

from unity_gym.errors import ProtocolError
from unity_gym.side_channels.channel import SideChannel
from unity_gym.side_channels.messages import IncomingMessage

_MOST_WARNINGS = 16  # keys that warnings report, if a scene always sends new ones


class StatsAggregationMethod(Enum):
    """Aggregation of the values of one key."""

    AVERAGE = 0
    MOST_RECENT = 1
    SUM = 2
    HISTOGRAM = 3


EnvironmentStats = dict[str, list[tuple[float, StatsAggregationMethod]]]


def aggregate(stats: Iterable[EnvironmentStats]) -> dict[str, float]:
    """Return one number per key, aggregated as the scene requests; that of a histogram is the mean.

    :param stats: Values of each player.
    """
    joined: EnvironmentStats = defaultdict(list)
    for player in stats:
        for key, pairs in player.items():
            joined[key] += pairs
    return {key: _aggregate([value for value, _ in pairs], pairs[-1][1]) for key, pairs in joined.items()}


def _aggregate(values: list[float], method: StatsAggregationMethod) -> float:
    if method is StatsAggregationMethod.MOST_RECENT:
        return values[-1]
    return sum(values) if method is StatsAggregationMethod.SUM else sum(values) / len(values)


class StatsSideChannel(SideChannel):
    """Channel that collects the statistics that the scene's `StatsRecorder` sends."""

    def __init__(self) -> None:
        super().__init__(uuid.UUID("a1d8f7b7-cec8-50f9-b78b-d3e165a78520"))
        self.stats: EnvironmentStats = defaultdict(list)
        self._dropped: set[str] = set()

    def on_message_received(self, message: IncomingMessage) -> None:
        """Store one value of one key; NaN and infinite ones are dropped, with one warning per key.

        :raises ProtocolError: If the aggregation is unknown.
        """
        key, value, aggregation = message.read_string(), message.read_float32(), message.read_int32()
        try:
            method = StatsAggregationMethod(aggregation)
        except ValueError:
            raise ProtocolError(f"statistic {key!r} has the unknown aggregation {aggregation}") from None
        if math.isfinite(value):
            self.stats[key].append((value, method))
        elif key not in self._dropped and len(self._dropped) < _MOST_WARNINGS:
            self._dropped.add(key)
            warnings.warn(
                f"the scene sends {value} as the statistic {key!r}; such values are dropped: correct the scene",
                stacklevel=2,
            )

    def get_and_reset_stats(self) -> EnvironmentStats:
        """Return the values received since the last call, as (value, aggregation) pairs in their order."""
        collected, self.stats = self.stats, defaultdict(list)
        return collected

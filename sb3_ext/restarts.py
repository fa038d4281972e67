"""Limits on restarts of failed players."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable


class RestartPolicy:
    """Limits on how often players are launched again, as in Unity's trainer.

    :param lifetime: Maximum number of restarts per player in the whole run; -1 for no limit.
    :param number: Maximum number of restarts per player within `period` seconds; -1 for no limit.
    :param period: Length of that period in seconds.
    :param clock: Function that returns the time in seconds.
    """

    def __init__(
        self, lifetime: int = 10, number: int = 1, period: float = 60, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._lifetime, self._number, self._period, self._clock = lifetime, number, period, clock
        self._times: dict[int, deque[float]] = {}

    def allows(self, player: int) -> bool:
        """Return whether the player may be launched again now; if so, count the restart."""
        times, now = self._times.setdefault(player, deque()), self._clock()
        recent = sum(now - then < self._period for then in times)
        if 0 <= self._lifetime <= len(times) or 0 <= self._number <= recent:
            return False
        times.append(now)
        return True

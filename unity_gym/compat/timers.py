"""Timers of nested sections of code, one tree per thread: `hierarchical_timer`, `timed` and `get_timer_tree`."""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, ParamSpec, TypeVar

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


@dataclass
class TimerNode:
    """One section of code inside another: its runs, their seconds together, and the sections inside it by name."""

    total: float = 0.0
    count: int = 0
    children: dict[str, TimerNode] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return total, count, the seconds outside all children ("self"), and the children if there are any."""
        children = {name: child.as_dict() for name, child in self.children.items()}
        outside = max(0.0, self.total - sum(child["total"] for child in children.values()))
        tree = {"total": self.total, "count": self.count, "self": outside}
        return tree | {"children": children} if children else tree


@dataclass
class GaugeNode:
    """The newest value of a quantity, its extremes and how often it was set."""

    value: float
    min_value: float = math.inf
    max_value: float = -math.inf
    count: int = 0

    def update(self, new_value: float) -> None:
        """Set the value."""
        self.value = new_value
        self.min_value, self.max_value = min(self.min_value, new_value), max(self.max_value, new_value)
        self.count += 1

    def as_dict(self) -> dict[str, float]:
        """Return value, min, max and count."""
        return {"value": self.value, "min": self.min_value, "max": self.max_value, "count": self.count}


class _Timers(threading.local):
    """The timers, gauges and metadata of a thread."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.root = self.current = TimerNode(count=1)
        self.started_at = time.perf_counter()
        self.gauges: dict[str, GaugeNode] = {}
        self.metadata = {
            "timer_format_version": "0.1.0",
            "start_time_seconds": str(int(time.time())),
            "python_version": sys.version,
            "command_line_arguments": " ".join(sys.argv),
        }


_timers = _Timers()


@contextmanager
def hierarchical_timer(name: str) -> Iterator[TimerNode]:
    """Measure a section of code, below the section of this thread that is being measured.

    :param name: Name of the section.
    """
    parent = _timers.current
    node = _timers.current = parent.children.setdefault(name, TimerNode())
    start = time.perf_counter()
    try:
        yield node
    finally:
        node.total += time.perf_counter() - start
        node.count += 1
        if _timers.current is node:  # no reset_timers() since
            _timers.current = parent


def timed(func: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
    """Measure every call of a function under its qualified name."""

    @wraps(func)
    def measured(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Result:
        with hierarchical_timer(func.__qualname__):
            return func(*args, **kwargs)

    return measured


def set_gauge(name: str, value: float) -> None:
    """Set the value of a quantity; NaN is skipped."""
    if not math.isnan(value):
        _timers.gauges.setdefault(name, GaugeNode(value)).update(value)


def add_metadata(key: str, value: str) -> None:
    """Add an entry to the metadata of the tree."""
    _timers.metadata[key] = value


def get_timer_root() -> TimerNode:
    """Return the node of the whole time since the first timer of this thread, or since `reset_timers`."""
    _timers.root.total = time.perf_counter() - _timers.started_at
    return _timers.root


def get_timer_tree() -> dict[str, Any]:
    """Return the sections of this thread as nested dictionaries, with the gauges and metadata at the top."""
    head: dict[str, Any] = {"name": "root"}
    if _timers.gauges:
        head["gauges"] = {name: gauge.as_dict() for name, gauge in _timers.gauges.items()}
    head["metadata"] = _timers.metadata | {"end_time_seconds": str(int(time.time()))}
    return head | get_timer_root().as_dict()


def reset_timers() -> None:
    """Remove all sections, gauges and metadata of this thread."""
    _timers.reset()

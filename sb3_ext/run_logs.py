"""What a run writes about its course: learning curve, log of the updates, and durations of the parts of the loop."""

from __future__ import annotations

import csv
import io
import json
import shlex
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from sb3_ext.files import saving, write
from unity_gym.errors import UnityGymError


class Summary(NamedTuple):
    """Line of `rewards.csv`: the episodes that ended since the last one. `seconds` counts from the run's start."""

    step: int
    seconds: float
    mean_reward: float
    std_reward: float
    episodes: int


class Curve:
    """Learning curve of one behavior, `rewards.csv`.

    :param path: Path of the file.
    :param until: Delete lines after this step, which will be repeated; None deletes all.
    :raises UnityGymError: If the file was changed and cannot be read.
    """

    def __init__(self, path: Path, until: int | None) -> None:
        self._path = path
        self.summaries: list[Summary] = []
        if until is not None and path.exists():
            try:
                with path.open(newline="", encoding="utf-8") as file:
                    rows = [*csv.reader(file)][1:]
                lines = [Summary(int(a), float(b), float(c), float(d), int(e)) for a, b, c, d, e in rows]
            except (ValueError, csv.Error) as error:
                raise UnityGymError(
                    f"{path} cannot be read: {error}. Correct or delete it; the run continues without it"
                ) from error
            self.summaries = [line for line in lines if line.step <= until]

    def add(self, summary: Summary) -> None:
        """Append a line."""
        self.summaries.append(summary)

    def save(self) -> None:
        """Write the file."""
        text = io.StringIO(newline="")
        writer = csv.writer(text)
        writer.writerow(Summary._fields)
        writer.writerows(self.summaries)
        write(self._path, text.getvalue())


class UpdateLog:
    """Log of the updates of one behavior, `updates.jsonl`: a line per update, with its step, seconds and records.

    Lines are appended during the run.

    :param path: Path of the file.
    :param until: Delete lines after this step, which will be repeated; None deletes all.
    :param every: Maximum number of gradient steps per line; a line has their means.
    """

    def __init__(self, path: Path, until: int | None, every: int = 1) -> None:
        self._path, self._until, self._every = path, until, every
        self._next = 0  # `n_updates` of the next line
        self._latest: tuple[int, float, int] = 0, 0.0, 0  # step, seconds and `n_updates` of the last records
        self._is_open = False
        self._values: dict[str, list[float]] = defaultdict(list)

    def _start_file(self) -> None:
        kept = []
        if self._until is not None and self._path.exists():
            for line in self._path.read_text(encoding="utf-8", errors="replace").splitlines():
                with suppress(ValueError, KeyError, TypeError):  # killed while it wrote the line, or not its own
                    kept += [line] if json.loads(line)["step"] <= self._until else []
        write(self._path, "".join(f"{line}\n" for line in kept))
        self._is_open = True

    def add(self, step: int, n_updates: int, seconds: float, records: Mapping[str, float]) -> None:
        """Add the records of an update.

        :param step: Timesteps of the training.
        :param n_updates: Epochs or gradient steps of the training.
        :param seconds: Seconds since the start of the run.
        :raises UnityGymError: If the file cannot be written.
        """
        if not self._is_open:
            self._start_file()
        for name, value in records.items():
            self._values[name].append(value)
        self._latest = step, seconds, n_updates
        if n_updates >= self._next:
            self.complete()

    def complete(self) -> None:
        """Write the line of the updates since the last one, if there are any.

        :raises UnityGymError: If the file cannot be written.
        """
        if not self._values:
            return
        step, seconds, n_updates = self._latest
        self._next = n_updates + self._every
        means = {name: float(np.mean(values)) for name, values in self._values.items()}
        self._values.clear()
        line = {"step": step, "seconds": round(seconds, 3)} | means | {"train/n_updates": n_updates}
        with saving(self._path), self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


class Timers:
    """Durations of the parts of the training loop."""

    def __init__(self) -> None:
        self._started, self._start = time.monotonic(), time.time()
        self._spent: dict[str, tuple[float, int]] = {}
        self.gauges: dict[str, dict[str, float]] = {}

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._started

    @contextmanager
    def __call__(self, part: str) -> Iterator[None]:
        """Add the duration of the context to this part."""
        started = time.monotonic()
        try:
            yield
        finally:
            self.add(part, time.monotonic() - started)

    def add(self, part: str, seconds: float, count: int = 1) -> None:
        """Add seconds to a part, for `count` calls."""
        total, before = self._spent.get(part, (0.0, 0))
        self._spent[part] = (total + seconds, before + count)

    def gauge(self, name: str, value: float) -> None:
        """Record the latest value of a series."""
        gauge = self.gauges.get(name, {"min": value, "max": value, "count": 0})
        self.gauges[name] = {
            "value": value,
            "min": min(gauge["min"], value),
            "max": max(gauge["max"], value),
            "count": gauge["count"] + 1,
        }

    def tree(self) -> dict[str, Any]:
        """Return the times in seconds, gauges and metadata in the form of ML-Agents' `timers.json`."""
        total = self.seconds
        inner = sum(spent for spent, _ in self._spent.values())
        return {
            "name": "root",
            "gauges": self.gauges,
            "metadata": {
                "timer_format_version": "0.1.0",
                "start_time_seconds": str(int(self._start)),
                "end_time_seconds": str(int(self._start + total)),
                "python_version": sys.version,
                "command_line_arguments": shlex.join(sys.argv),
                "unity_gym_version": version("unity-gym"),
                "pytorch_version": torch.__version__,
                "numpy_version": np.__version__,
            },
            "total": total,
            "count": 1,
            "self": total - inner,
            "children": {
                name: {"total": spent, "count": n, "is_parallel": False, "self": spent}
                for name, (spent, n) in self._spent.items()
            },
        }

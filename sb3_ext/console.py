"""Log lines of a run, in the form of mlagents-learn, for log parsers."""

from __future__ import annotations

import errno
import logging
import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import metadata
from typing import Any, TextIO

import numpy as np
from tqdm import tqdm  # type: ignore[import-untyped,unused-ignore]

from unity_gym.environment import UnityEnvironment

LOG = logging.getLogger("sb3_ext")
"""Logger of runs, which `console_logging` prints."""

_FORMAT = "[%(levelname)s] %(message)s"
_DEBUG_FORMAT = "%(asctime)s %(levelname)s [%(filename)s:%(lineno)d] %(message)s"
_FIRST_PROGRESS = 5.0  # seconds until the first line about progress; the time between lines doubles
_LONGEST_PAUSE = 300.0
_CLOSED = (errno.EPIPE, errno.EIO)  # of a pipe, and of a terminal


class OutputClosedError(Exception):
    """Raised at the first line that the output does not take; later lines are discarded.

    It is no `UnityGymError`: wherever the line comes from, no player and no trial has failed.
    """


def print_line(line: str, out: TextIO | None = None) -> None:
    """Print a line, above the progress bars if there are any.

    :param out: Output file; by default standard output.
    :raises OutputClosedError: If the output is closed or full; later lines are discarded.
    """
    out = out or sys.stdout
    try:
        with tqdm.external_write_mode(file=sys.stdout):
            # One write, so that the reader of an unbuffered pipe (`| grep -q`) has all when it sees the line.
            out.write(f"{line}\n")
            out.flush()
    except OSError as error:
        discard_output(out.fileno())
        reason = "was closed" if error.errno in _CLOSED else f"cannot be written ({error.strerror})"
        raise OutputClosedError(f"stopped, as its output {reason}. --resume continues a run that was saved") from error


def lock_bars_in_threads() -> None:
    """Let the progress bars of this process lock threads alone.

    The lock that tqdm makes otherwise has a semaphore too, which a killed process would not release.
    """
    tqdm.set_lock(threading.RLock())


def discard_output(descriptor: int) -> None:
    """Discard what is written to a file descriptor from now on."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, descriptor)
    os.close(null)


class _Lines(logging.Handler):
    """Handler that prints records; unlike other handlers, it does not catch errors."""

    def __init__(self, out: TextIO | None) -> None:
        super().__init__()
        self._out = out

    def emit(self, record: logging.LogRecord) -> None:
        print_line(self.format(record), self._out)


@contextmanager
def console_logging(debug: bool = False, out: TextIO | None = None) -> Iterator[None]:
    """Print the log of sb3_ext and unity_gym: "[INFO] …", or with `debug` also details, with time and location.

    :param out: Output file; by default standard output.
    """
    handler = _Lines(out)
    handler.setFormatter(logging.Formatter(_DEBUG_FORMAT if debug else _FORMAT, "%Y-%m-%d %H:%M:%S"))
    loggers = [LOG, logging.getLogger("unity_gym")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.addHandler(handler)
        logger.setLevel(logging.DEBUG if debug else logging.INFO)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.removeHandler(handler)
            logger.setLevel(level)


def version_text() -> str:
    """Return the versions of the packages that a run uses."""
    versions = {
        "unity-gym": metadata.version("unity-gym"),
        "Communicator API": UnityEnvironment.API_VERSION,
        "PyTorch": metadata.version("torch"),
    }
    return " Version information:\n" + ",\n".join(f"  {name}: {version}" for name, version in versions.items())


def block_text(block: Mapping[str, Any], depth: int = 0) -> str:
    """Format a block of settings as lines, with a tab before and after each key."""
    lines = []
    for key, value in block.items():
        inner = "\n" + block_text(value, depth + 1) if isinstance(value, Mapping) and value else value
        lines.append(f"\t{'  ' * depth}{key}:\t{inner}")
    return "\n".join(lines)


def reward_parts(rewards: Sequence[float], group_rewards: Sequence[float] = ()) -> list[str]:
    """Format the rewards since the last summary; for groups with a mean instead of a standard deviation."""
    if not rewards:
        return ["No episode was completed since last summary"]
    second = f"Std of Reward: {np.std(rewards):.3f}"
    if group_rewards:
        second = f"Mean Group Reward: {np.mean(group_rewards):.3f}"
    return [f"Mean Reward: {np.mean(rewards):.3f}", second]


def summary_line(name: str, step: int, seconds: float, rewards: Sequence[str], *rest: str) -> str:
    """Format the summary of a behavior.

    :param rewards: Result of `reward_parts`.
    :param rest: Parts after the rewards.
    """
    return ". ".join((name, f"Step: {step}", f"Time Elapsed: {seconds:.3f} s", *rewards, *rest)) + "."


class Progress:
    """Log lines about what has not been completed yet, at increasing intervals.

    :param is_shown: Whether lines are printed.
    """

    def __init__(self, is_shown: bool = True) -> None:
        self._is_shown = is_shown
        self._pause = _FIRST_PROGRESS
        self._started = self._last = time.monotonic()

    @property
    def is_due(self) -> bool:
        """Whether a line is due."""
        return self._is_shown and time.monotonic() - self._last >= self._pause

    def report(self, counted: str, parts: Sequence[str]) -> None:
        """Print a line with the time since the start.

        :param counted: What is counted.
        :param parts: How many of it each behavior has.
        """
        self._last = time.monotonic()
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        LOG.info("%s: %s. %.0f s.", counted, ", ".join(parts), self._last - self._started)

    def restart(self) -> None:
        """Note that a summary was printed."""
        self._last = time.monotonic()

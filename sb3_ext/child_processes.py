"""Processes that this process starts and ends: a signal to all of them reaches this one alone."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def ignore_signals() -> None:
    """Ignore Ctrl-C and SIGTERM from now on. The process that started this one ends it, when it has saved."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)


@contextmanager
def starting_without_signals() -> Iterator[None]:
    """Let a process that starts here ignore Ctrl-C and SIGTERM from its first moment, before `ignore_signals` runs.

    As this process ignores them meanwhile, too, start it with little data.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

"""Child processes whose signals only this process handles."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def ignore_signals() -> None:
    """Ignore Ctrl-C and SIGTERM from now on. The parent process ends this one after saving."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)


@contextmanager
def starting_without_signals() -> Iterator[None]:
    """Let a process that starts in this context ignore Ctrl-C and SIGTERM at once, before `ignore_signals` runs.

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

"""Child processes whose signals only this process handles."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.context import ForkServerContext, SpawnContext

SCRIPT_HINT = (
    "Its output above says why. A script that starts processes needs its code below: if __name__ == '__main__':"
)
"""What to do if a process ends before it has started."""
HANGUP = None if sys.platform == "win32" else signal.SIGHUP
"""Signal that the terminal was closed, where there is one."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM) if HANGUP is None else (signal.SIGINT, signal.SIGTERM, HANGUP)
_ORPHAN_TIMEOUT = 1  # seconds for a process to end by itself after its parent
_context: ForkServerContext | SpawnContext = multiprocessing.get_context("spawn")


def process_context() -> ForkServerContext | SpawnContext:
    """Return the context in which processes start: that of the server of `preload`, or of interpreters of their own."""
    return _context


def preload(module: str) -> None:
    """Start to import a module in a server from which later processes are forked, while this process continues.

    They start sooner and share the module's memory. They have the environment variables of now, so this is for a
    command, whose variables do not change. Without effect except on Linux.
    """
    global _context
    if sys.platform != "linux":
        return
    from multiprocessing import forkserver  # Windows does not have it

    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([module])
    # An error, such as a temporary folder whose name is too long for a socket, leaves the context as it is.
    with suppress(OSError), starting_without_signals():
        forkserver.ensure_running()
        _context = context


def first_message(connection: Connection, sentinel: int) -> Any:
    """Return the first message of a process.

    On Windows the pipe to a process stays open if the process ends before it has taken its end of it.

    :param sentinel: Handle that is ready when the process has ended.
    :raises EOFError: If it has ended without a message.
    """
    multiprocessing.connection.wait([connection, sentinel])
    if not connection.poll():
        raise EOFError
    return connection.recv()


def stop_signals() -> list[signal.Signals]:
    """Return the signals that end a training: Ctrl-C, SIGTERM and, unless it is ignored as with nohup, SIGHUP."""
    return [number for number in _SIGNALS if number != HANGUP or signal.getsignal(number) != signal.SIG_IGN]


def leave_end_to_parent() -> None:
    """Ignore Ctrl-C, SIGTERM and SIGHUP from now on: the parent process ends this one after saving.

    If the parent dies, this process ends too, also while it waits for a player or another process. The watchdogs of its
    players end them.
    """
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    if sys.platform != "win32":
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)  # of `starting_without_signals`
    parent = multiprocessing.parent_process()
    assert parent is not None, "in a process that multiprocessing has started"

    def end_after_parent() -> None:
        parent.join()
        time.sleep(_ORPHAN_TIMEOUT)
        os._exit(1)

    threading.Thread(target=end_after_parent, daemon=True).start()


@contextmanager
def starting_without_signals() -> Iterator[None]:
    """Let a process that starts in this context ignore these signals at once, before `leave_end_to_parent` runs.

    Those that this process gets meanwhile arrive afterwards.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []
    before = {number: signal.signal(number, lambda number, _: received.append(number)) for number in _SIGNALS}
    if sys.platform != "win32":
        resource_tracker.ensure_running()  # whose start would lift the block
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # which the process inherits, unlike handlers
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if sys.platform != "win32":
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        for received_number in received:  # by another thread of this process, which does not block them
            signal.raise_signal(received_number)

"""Samplers in processes of this machine; see `sb3_ext.placement`."""

from __future__ import annotations

import multiprocessing.connection
import queue
import threading
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from sb3_ext.child_processes import (
    SCRIPT_HINT,
    first_message,
    leave_end_to_parent,
    process_context,
    starting_without_signals,
)
from sb3_ext.placement import Place, SamplerLostError
from sb3_ext.served_sampler import Mailbox, SamplerArguments, serve

_END_TIMEOUT = 10  # seconds for a process to end its players


class Processes(Place):
    """Place that starts each sampler in a separate process of this machine."""

    def open(self, number: int, arguments: SamplerArguments) -> ProcessChannel:
        """See `Place`."""
        return ProcessChannel(number, arguments)

    def wait(self, channels: Sequence[ProcessChannel], seconds: float) -> list[int]:
        """See `Place`."""
        arrived = multiprocessing.connection.wait([channel.connection for channel in channels], seconds)
        return [position for position, channel in enumerate(channels) if channel.connection in arrived]


class ProcessChannel:
    """Pipe to a sampler in a separate process; see `Channel`."""

    def __init__(self, number: int, arguments: SamplerArguments) -> None:
        self._number = number
        self._has_started = False  # with the first response
        context = process_context()
        self.connection, remote_end = context.Pipe()
        name = f"sampler-{number}"
        self._process = context.Process(target=_serve, args=(remote_end, arguments), daemon=True, name=name)
        try:
            with starting_without_signals():
                self._process.start()
        except BaseException:  # such as a signal that has arrived meanwhile, which the process ignores
            self._end_at_once()
            raise
        finally:
            remote_end.close()

    def call(self, method: str, *arguments: Any) -> None:
        """See `Channel`."""
        self.notify(method, *arguments)

    def notify(self, method: str, *arguments: Any) -> None:
        """See `Channel`."""
        with suppress(OSError):  # `receive` raises the error
            self.connection.send((method, arguments))

    def poll(self, seconds: float) -> bool:
        """See `Channel`."""
        try:
            return bool(multiprocessing.connection.wait([self.connection, self._process.sentinel], seconds))
        except OSError:
            return True

    def receive(self) -> Any:
        """See `Channel`."""
        try:
            if self._has_started:
                return self.connection.recv()
            answer = first_message(self.connection, self._process.sentinel)
            self._has_started = True
            return answer
        except (EOFError, OSError) as error:
            self._process.join(_END_TIMEOUT)
            hint = "" if self._has_started else f" before it had started. {SCRIPT_HINT}"
            raise SamplerLostError(
                f"the process of sampler {self._number} ended with exit code {self._process.exitcode}{hint}"
            ) from error

    def end(self) -> None:
        """See `Channel`."""
        self.notify("stop")
        self.notify("close")

    def close(self) -> None:
        """See `Channel`."""
        try:
            if self._has_started:
                self.end()
                self._process.join(_END_TIMEOUT)
        finally:  # also after Ctrl-C
            self._end_at_once()

    def _end_at_once(self) -> None:
        """Kill the process, whose players then end by themselves."""
        if self._process.pid is not None:
            self._process.kill()
            self._process.join()
        self.connection.close()


def _serve(connection: Connection, arguments: SamplerArguments) -> None:
    leave_end_to_parent()
    serve(mailbox_of(connection), arguments)


def mailbox_of(connection: Connection) -> Mailbox:
    """Return the mailbox of a pipe.

    A thread receives the calls, also while a response is being sent: otherwise weights and samples that a pipe cannot
    hold would wait for each other.
    """
    calls: queue.SimpleQueue[tuple[str, tuple[Any, ...]] | None] = queue.SimpleQueue()

    def receive() -> None:
        with suppress(EOFError, OSError):
            while True:
                calls.put(connection.recv())
        calls.put(None)

    threading.Thread(target=receive, daemon=True).start()
    return Mailbox(calls, connection.send)

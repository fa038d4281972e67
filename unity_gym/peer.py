"""Identify the process at the other end of a local connection, where the operating system supports it (Linux)."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_ESTABLISHED = "01"
_ATTEMPTS = 5


@dataclass(frozen=True)
class Peer:
    """Owner of the client's end of a connection.

    :param user: User id of the socket's owner.
    :param process: Id of the process that holds the socket; None if it is not visible.
    """

    user: int
    process: int | None

    def __str__(self) -> str:
        if self.process is None:
            return f"A process of user {self.user}"
        return f"Process {self.process} ({_read(_PROC / str(self.process) / 'comm').strip() or 'ended'})"

    def is_same_user(self) -> bool:
        """Return whether the owner is the user of this process."""
        return self.user == os.getuid()

    def belongs_to(self, player: int) -> bool:
        """Return whether the process is this one, one of its session or one of its descendants."""
        if self.process is None:
            return False
        processes = _processes()
        if processes.get(self.process, (0, 0))[1] == player:
            return True
        process = self.process
        while process not in (0, player):
            process = processes.pop(process, (0, 0))[0]
        return process == player

    def has_ended(self) -> bool:
        """Return whether the process is known and has ended."""
        if self.process is None:
            return False
        state = _read(_PROC / str(self.process) / "stat").rpartition(")")[2].split()
        return not state or state[0] in "ZX"


def find_peer(client: int, port: int) -> Peer | None:
    """Find the process behind a connection from the loopback interface.

    :param client: Port of the client's end.
    :param port: Port of this end.
    :return: The peer; None where the operating system does not report it.
    """
    if not (_PROC / "net" / "tcp").exists():
        return None
    peer = Peer(-1, None)
    for attempt in range(_ATTEMPTS):  # while other connections come and go, the tables are read with gaps and repeats
        sockets = {entry for table in ("tcp", "tcp6") for entry in _sockets(_PROC / "net" / table, client, port)}
        if len(sockets) == 1:  # not where two processes use the same pair of ports, one in IPv4 and one in IPv6
            ((user, inode),) = sockets
            peer = Peer(user, _holder(inode))
            if peer.process is not None:
                break
        time.sleep(0.01 * 2**attempt)
    return peer


def _sockets(table: Path, client: int, port: int) -> Iterator[tuple[int, int]]:
    """Yield the user and inode of each connected socket from this port to that one."""
    for line in _read(table).splitlines()[1:]:
        fields = line.split()
        ports = [int(end.rpartition(":")[2], 16) for end in fields[1:3]]
        if ports == [client, port] and fields[3] == _ESTABLISHED:
            yield int(fields[7]), int(fields[9])


def _holder(inode: int) -> int | None:
    """Return the newest process that holds a socket: the player itself, if a launcher started it."""
    target = f"socket:[{inode}]"
    for process in sorted(_processes(), reverse=True):
        descriptors = _PROC / str(process) / "fd"
        with contextlib.suppress(OSError):  # ended, or of another user
            for descriptor in os.listdir(descriptors):
                with contextlib.suppress(OSError):
                    if os.readlink(descriptors / descriptor) == target:
                        return process
    return None


def _processes() -> dict[int, tuple[int, int]]:
    """Return the parent and the session of each process."""
    found = {}
    for name in os.listdir(_PROC):
        if name.isdecimal():
            fields = _read(_PROC / name / "stat").rpartition(")")[2].split()
            if fields:
                found[int(name)] = int(fields[1]), int(fields[3])
    return found


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""

"""Files that are never incomplete, and locks of folders."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from unity_gym.errors import UnityGymError

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def write(path: Path, content: bytes | str | Callable[[BinaryIO], None]) -> None:
    """Write a file of a run so that it is never incomplete.

    :param content: Content of the file, or a function that writes it into an open file.
    :raises UnityGymError: If the file cannot be written.
    """
    with saving(path):
        write_whole(path, content)


def write_whole(path: Path, content: bytes | str | Callable[[BinaryIO], None]) -> None:
    """Write a file so that it is never incomplete, also after a power cut; its folder is created if it does not exist.

    A link stays one, to the written file. A device or a pipe is written to.

    :param content: Content of the file, or a function that writes it into an open file.
    :raises OSError: If the file cannot be written. It has the name of the file.
    """
    target = path.resolve() if path.is_symlink() else path
    partial = target.with_name(f".{target.name}.partial")
    try:
        if target.is_char_device() or target.is_fifo():
            with target.open("wb") as file:
                _write_into(file, content)
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("wb") as file:
            _write_into(file, content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(target)
    except BaseException as error:
        with suppress(OSError):
            partial.unlink()
        if isinstance(error, OSError):
            error.filename = str(path)
        raise


def _write_into(file: BinaryIO, content: bytes | str | Callable[[BinaryIO], None]) -> None:
    if callable(content):
        content(file)
    else:
        file.write(content.encode() if isinstance(content, str) else content)


def with_suffix(path: str | os.PathLike[str], suffix: str) -> Path:
    """Return a path with this suffix if it has none."""
    given = Path(path)
    return given if given.suffix else given.with_suffix(suffix)


@contextmanager
def saving(path: Path) -> Iterator[None]:
    """Convert errors of writing a file.

    :raises UnityGymError: If the file cannot be written.
    """
    try:
        yield
    except OSError as error:
        remedy = "Make its folder writable, or give another --results-dir"
        if error.errno in _NO_ROOM:
            remedy = "Make room there, then continue with --resume"
        raise UnityGymError(f"{path} cannot be written: {error.strerror}. {remedy}") from error


def is_locked(path: Path) -> bool:
    """Return whether a process, on any machine with the same file system, has locked an existing file.

    True for a file system without locks.
    """
    try:
        with path.open("rb+") as file:
            _lock(file)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


def _lock(file: BinaryIO) -> None:
    """Lock an open file until it is closed.

    :raises OSError: If another process has locked it, or the file system has no locks.
    """
    if sys.platform == "win32":
        import msvcrt

        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
    else:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


@contextmanager
def locked(path: Path) -> Iterator[bool]:
    """Lock a file for this process, until the context or the process ends.

    :return: Whether it is locked. False if another process has locked it.
    :raises UnityGymError: If the file cannot be written.
    """
    with saving(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("wb")
    with file:
        try:
            _lock(file)
            succeeded = True
        except OSError as error:  # some network file systems have no locks
            succeeded = error.errno not in (errno.EACCES, errno.EAGAIN, errno.EDEADLK)
        yield succeeded

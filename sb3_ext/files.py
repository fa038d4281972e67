"""Files that are never incomplete."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from unity_gym.errors import UnityGymError


def write(path: Path, content: bytes | str | Callable[[BinaryIO], None]) -> None:
    """Write a file so that it is never incomplete.

    :param content: Content of the file, or a function that writes it into an open file.
    :raises UnityGymError: If the file cannot be written.
    """
    partial = path.with_name(f".{path.name}.partial")
    with saving(path):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with partial.open("wb") as file:
                if callable(content):
                    content(file)
                else:
                    file.write(content.encode() if isinstance(content, str) else content)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
        except OSError:
            with suppress(OSError):
                partial.unlink()
            raise


@contextmanager
def saving(path: Path) -> Iterator[None]:
    """Convert errors of writing a file.

    :raises UnityGymError: If the file cannot be written.
    """
    try:
        yield
    except OSError as error:
        raise UnityGymError(
            f"{path} cannot be written: {error.strerror}. Make room there, then continue with --resume"
        ) from error

"""Player processes: find, launch, monitor and end them."""

from __future__ import annotations

import errno
import logging
import os
import platform
import shlex
import signal
import sys
import tempfile
import uuid
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from unity_gym.errors import PlayerError
from unity_gym.watchdog import WatchedProcess

_log = logging.getLogger(__name__)
EMBEDDED = "embedded:"
_SUFFIXES = {"linux": (".x86_64", ".x86"), "darwin": (".app",), "win32": (".exe",)}
_TAIL_BYTES = 64 * 1024


class Player:
    """A running player. It ends with :meth:`close`, with the last reference to this object or with this process.

    :param file_name: Path of a Unity build (Linux: with or without ``.x86_64`` or ``.x86``; macOS: the ``.app`` bundle;
        Windows: the ``.exe``), or ``"embedded:<scene>"`` for a scene of the player inside this package.
    :param port: Port that it connects to.
    :param no_graphics: Whether to launch without a window and without rendering; cameras then send blank images.
    :param arguments: Additional command-line arguments of the player.
    :param log_folder: Folder of ``Player-<worker_id>.log``. By default the log is a temporary file.
    :param worker_id: Number of the player among those of one run.
    :param environment_variables: Environment variables of the process, in addition to those of this one.
    :raises PlayerError: If there is no such player or it cannot be started.
    """

    name: str
    pid: int
    log_file: Path

    def __init__(
        self,
        file_name: str,
        port: int,
        *,
        no_graphics: bool = False,
        arguments: Sequence[str] = (),
        log_folder: str | Path | None = None,
        worker_id: int = 0,
        environment_variables: Mapping[str, str] | None = None,
    ) -> None:
        self.name = file_name
        command = player_command(file_name)
        self.log_file = _new_log(log_folder, worker_id)
        if no_graphics:
            command += ["-nographics", "-batchmode"]
        command += ["-logFile", str(self.log_file), "--mlagents-port", str(port), *arguments]
        try:
            self._process = WatchedProcess(
                command,
                self.log_file,
                is_temporary=log_folder is None,
                # a web proxy cannot reach our loopback
                environment_variables={**(environment_variables or {}), "no_grpc_proxy": "localhost,127.0.0.1,::1"},
            )
        except TimeoutError as error:
            raise PlayerError(
                f"Player {file_name!r} could not be started: {error}. Start fewer players at a time, or wait until the "
                "machine is less busy"
            ) from error
        except OSError as error:
            if error.errno == errno.EMFILE:
                raise  # the caller's connection may fail with the same error
            raise PlayerError(
                f"Player {file_name!r} could not be started: {command[0]}: {error.strerror}. It has to be built for "
                f"{platform.system()} on {platform.machine()}; a script needs a '#!' line."
            ) from error
        self.pid = self._process.pid
        self._command = shlex.join(command)
        _log.debug("Launched player %d as process %d: %s", worker_id, self.pid, self._command)
        self._last_log: str | None = None
        self._ending: str | None = None

    def check(self) -> None:
        """Check that the player is running.

        :raises PlayerError: If it has ended. The message holds the exit code and the end of the log.
        """
        if self._ending is None:
            code = self._process.poll()
            if code is None:
                return
            tail = self.log_tail()
            self._ending = (
                f"Player {self.name!r} (process {self.pid}) {_ending(code)}. If its log does not say why, start it by "
                f"hand: {self._command}\n"
                + (f"The end of its log, {self.log_file}:\n{tail}" if tail else f"Its log, {self.log_file}, is empty.")
            )
            self.close(grace=0.0)
        raise PlayerError(self._ending)

    def log_tail(self, lines: int = 20) -> str:
        """Return the last lines that the player wrote to its log, its standard output or its standard error."""
        text = _read_end(self.log_file) if self._last_log is None else self._last_log
        return "\n".join(text.splitlines()[-lines:])

    def close(self, grace: float = 5.0) -> None:
        """Wait for the player to quit by itself, then end it and all that it started. Further calls do nothing.

        :param grace: Seconds that it has to quit by itself, after the quit message.
        """
        if not self._process.is_open:
            return
        self._process.wait(grace)
        self._last_log = _read_end(self.log_file)
        self._process.end()


def _imports_from_current_folder() -> bool:
    try:
        return not {"", os.getcwd()}.isdisjoint(sys.path)
    except FileNotFoundError:  # the folder was deleted
        return False


def player_command(file_name: str) -> list[str]:
    """Return the command that executes a player of this name.

    :raises PlayerError: If there is no executable.
    """
    if file_name.startswith(EMBEDDED):
        scene = file_name.removeprefix(EMBEDDED)
        # A scene of the user's own may be in the current folder. Files there that have the name of a module are not
        # imported otherwise, unless this process imports them, too. Python 3.10 has no such option.
        is_own = ":" in scene
        options = ["-P"] if sys.version_info >= (3, 11) and not (is_own or _imports_from_current_folder()) else []
        return [sys.executable, *options, "-m", "unity_gym.scenes", scene]
    path = Path(file_name).expanduser().absolute()
    candidates = [path, *(Path(f"{path}{suffix}") for suffix in _SUFFIXES.get(sys.platform, ()))]
    for candidate in candidates:
        executable = _in_bundle(candidate) if candidate.suffix == ".app" and candidate.is_dir() else candidate
        if not executable.is_file():
            continue
        if not os.access(executable, os.X_OK):
            if zipfile.is_zipfile(executable):
                raise PlayerError(
                    f"Player {file_name!r} is an archive: {executable}. Unpack it, and give the path of the executable "
                    "inside."
                )
            if executable.suffix == ".exe":
                raise PlayerError(
                    f"Player {file_name!r} is a build for Windows, and this machine has {platform.system()}: build the "
                    "scene for it, in Unity's build settings."
                )
            raise PlayerError(
                f"Player {file_name!r} is not executable: {executable}. Allow it with: "
                f"chmod +x {shlex.quote(str(executable))}"
            )
        return [str(executable)]
    tried = ", ".join(map(str, candidates))
    if path.is_dir():
        raise PlayerError(
            f"Player {file_name!r} is a folder (tried: {tried}). Give the path of the executable inside it."
        )
    raise PlayerError(
        f"There is no player {file_name!r} (tried: {tried}). Give the path of a Unity build, or '{EMBEDDED}<scene>' "
        "for a scene that this package brings."
    )


def _in_bundle(bundle: Path) -> Path:
    """Return the executable of a macOS application, which has the name of the bundle unless it was renamed."""
    folder = bundle / "Contents" / "MacOS"
    named = folder / bundle.stem
    return named if named.is_file() else next(iter(sorted(folder.glob("*"))), named)


def _new_log(folder: str | Path | None, worker_id: int) -> Path:
    try:
        if folder is None:
            return Path(tempfile.gettempdir(), f"unity-player-{worker_id}-{uuid.uuid4().hex}.log").absolute()
        path = Path(folder).absolute() / f"Player-{worker_id}.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():  # log of a player that is launched again; Unity's own logs are kept in the same way
            path.replace(path.with_name(f"Player-{worker_id}-prev.log"))
        path.write_bytes(b"")
        return path
    except (OSError, TypeError) as error:
        raise PlayerError(f"Cannot write the player's log: {error}. Choose another log_folder.") from error


def _ending(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}" if code < 256 else f"ended with exit code 0x{code:08X}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def _read_end(path: Path) -> str:
    try:
        with path.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - _TAIL_BYTES))
            return log.read().decode("utf-8", errors="replace")
    except OSError:
        return ""

"""Virtual screen for players on a machine without one: the X server Xvfb, which draws into memory."""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
import uuid
from pathlib import Path

from unity_gym.errors import PlayerError
from unity_gym.watchdog import WatchedProcess

_SECONDS_TO_START = 10.0


class VirtualDisplay:
    """A running Xvfb. It ends with `close`, with the last reference to this object or with this process.

    :raises PlayerError: If Xvfb is not installed or does not start, or on macOS and Windows.
    """

    name: str
    """Value for the environment variable DISPLAY of the players, such as ":1"."""

    def __init__(self) -> None:
        if sys.platform in ("darwin", "win32"):
            raise PlayerError(
                f"display='xvfb' is for Linux; on {sys.platform!r} players draw on the screen: leave display out"
            )
        program = shutil.which("Xvfb")
        if program is None:
            raise PlayerError(
                "display='xvfb' needs the program Xvfb, which is not installed: install it (Debian and Ubuntu: "
                "apt-get install xvfb), or leave display out on a machine with a screen"
            )
        log = Path(tempfile.gettempdir(), f"xvfb-{uuid.uuid4().hex}.log").absolute()
        # Xvfb writes the number of the free display that it uses to the descriptor 1, which is its log.
        command = [program, "-displayfd", "1", "-screen", "0", "1280x1024x24", "-nolisten", "tcp"]
        self._process = WatchedProcess(command, log, is_temporary=True)
        deadline = time.monotonic() + _SECONDS_TO_START
        while not (numbers := [line for line in log.read_text().splitlines() if line.isdigit()]):
            code = self._process.poll()
            if code is not None or time.monotonic() > deadline:
                text = log.read_text().strip()
                self.close()
                raise PlayerError(f"Xvfb did not start (exit code {code}): {text or 'its log is empty'}")
            time.sleep(0.02)
        self.name = f":{numbers[0]}"

    def close(self) -> None:
        """End the server. Further calls do nothing."""
        self._process.end()

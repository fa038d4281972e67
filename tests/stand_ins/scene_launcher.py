"""Executables that play the scenes and scripts of stand-ins, as a build would."""

from __future__ import annotations

import sys
from pathlib import Path

_TESTS = Path(__file__).resolve().parents[1]
SUFFIX = ".bat" if sys.platform == "win32" else ".sh"


def scene_launcher(module: str, folder: Path, scene: str) -> str:
    """Return the path of an executable, written into `folder`, that plays a scene of a module of the stand-ins."""
    return module_launcher(folder, scene, f"unity_gym.scenes {module}:{scene}")


def module_launcher(folder: Path, name: str, command: str) -> str:
    """Return the path of an executable, written into `folder`, that runs a module with arguments."""
    path = folder / f"{name}{SUFFIX}"
    if sys.platform == "win32":
        path.write_text(f'@set "PYTHONPATH={_TESTS};%PYTHONPATH%"\n@"{sys.executable}" -m {command} %*\n')
    else:
        path.write_text(f'#!/bin/sh\nPYTHONPATH="{_TESTS}:$PYTHONPATH" exec "{sys.executable}" -m {command} "$@"\n')
        path.chmod(0o755)
    return str(path)

"""Executables that play the scenes of stand-ins, as a build would."""

from __future__ import annotations

import sys
from pathlib import Path

_TESTS = Path(__file__).resolve().parents[1]


def scene_launcher(module: str, folder: Path, scene: str) -> str:
    """Return the path of an executable, written into `folder`, that plays a scene of a module of the stand-ins."""
    path = folder / f"{scene}.sh"
    path.write_text(
        f'#!/bin/sh\nPYTHONPATH="{_TESTS}:$PYTHONPATH" '
        f'exec "{sys.executable}" -m unity_gym.scenes {module}:{scene} "$@"\n'
    )
    path.chmod(0o755)
    return str(path)

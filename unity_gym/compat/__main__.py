"""Run a script for Unity's Python packages: `python -m unity_gym.compat [options] SCRIPT [arguments]`."""

from __future__ import annotations

import argparse
from pathlib import Path

from unity_gym.compat import install
from unity_gym.compat.launch import run_script
from unity_gym.errors import UnityGymError
from unity_gym.registration import SCENES


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        "python -m unity_gym.compat", description="Run a script for Unity's Python packages unchanged."
    )
    parser.add_argument(
        "--scene", choices=SCENES, help="embedded scene that replaces every build and Editor (default: none)"
    )
    parser.add_argument("--areas", type=int, help="training areas of embedded scenes (default: the scene's own number)")
    parser.add_argument(
        "--image-layout",
        choices=("CHW", "HWC"),
        default="CHW",
        help="layout of images in low-level steps (default: CHW)",
    )
    parser.add_argument(
        "--replace", action="store_true", help="use these modules even if Unity's own packages are installed"
    )
    parser.add_argument("script", help="file of the script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="arguments of the script")
    return parser


def main() -> None:
    """Parse the command line and run the script as `__main__`."""
    parser = make_parser()
    options = parser.parse_args()
    if not Path(options.script).is_file():
        parser.error(f"script must be a file, got {options.script}")
    install_options = {
        "replace": options.replace,
        "scene": options.scene,
        "areas": options.areas,
        "image_layout": options.image_layout,
    }
    try:
        install(**install_options)
    except UnityGymError as error:
        parser.error(str(error))
    run_script(options.script, options.arguments, install_options)


if __name__ == "__main__":
    main()

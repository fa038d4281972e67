"""`python -m unity_gym.scenes SCENE …`: run a scene for the client that listens on a port of this machine."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Sequence
from typing import NamedTuple

from unity_gym.errors import InvalidValueError, PlayerError
from unity_gym.scenes import SCENES, scene_class

_USAGE = f"""\
usage: python -m unity_gym.scenes SCENE [--mlagents-port PORT] [--areas N] [-logFile FILE] [Unity's own flags]

Plays one of Unity's example scenes for the ML-Agents client that listens on PORT (default 5004) of this machine.

  SCENE                 {", ".join(sorted(SCENES))},
                        or MODULE:CLASS for a scene of your own
  --mlagents-port PORT  where the client listens
  --areas N             copies of the scene's area; by default what the client asks for if that is more than 1,
                        otherwise as many as Unity's scene has
  -logFile FILE         append what the player prints to FILE; "-" leaves it on the console
  -nographics, -batchmode and other flags of Unity with one dash change nothing: the player has no window.
"""
_EDITOR_PORT = 5004


_REHEARSAL_TICKS = 12  # two decisions at the longest decision period


class _Options(NamedTuple):
    scene: str
    port: int = _EDITOR_PORT
    areas: int = 0  # 0: not given
    log_file: str = ""


def _parse(arguments: Sequence[str]) -> _Options:
    """Parse the command line.

    :param arguments: Arguments without the program name.
    :return: Options of the command line.
    :raises InvalidValueError: If a scene or an option does not exist, or an option has no value.
    """
    if not arguments or arguments[0].startswith("-"):
        raise InvalidValueError(f"name a scene first; the known ones are {', '.join(sorted(SCENES))}")
    options = _Options(arguments[0])
    rest = iter(arguments[1:])
    flag = ""
    for argument in rest:
        if argument in ("--mlagents-port", "--areas", "-logFile"):
            value = next(rest, "")
            if argument == "-logFile":
                options = options._replace(log_file=value)
            elif not value.isdecimal() or not int(value):
                raise InvalidValueError(f"{argument} must be a whole number of at least 1, got {value!r}")
            elif argument == "--areas":
                options = options._replace(areas=int(value))
            else:
                options = options._replace(port=int(value))
        elif argument.startswith("--") or not (argument.startswith("-") or flag):
            raise InvalidValueError(
                f"there is no option {argument!r}; the known ones are --mlagents-port, --areas and -logFile, "
                "and Unity's flags with one dash"
            )
        # The argument after one of Unity's flags may be its value.
        flag = argument if argument.startswith("-") else ""
    return options


def main(arguments: Sequence[str]) -> int:
    """Run a scene until the client closes the connection.

    :param arguments: Arguments without the program name.
    :return: Exit status: 0, 1 if there is no client, 2 for a wrong command line.
    """
    if set(arguments) & {"-h", "--help"}:
        print(_USAGE)
        return 0
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # a disconnecting client is no error
    try:
        options = _parse(arguments)
        scene_type = scene_class(options.scene)
    except InvalidValueError as error:
        print(f"unity_gym.scenes: {error}", file=sys.stderr)
        return 2
    except PlayerError as error:
        print(f"unity_gym.scenes: {error}", file=sys.stderr)
        return 1
    if options.log_file not in ("", "-"):
        log = os.open(options.log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
            os.dup2(log, stream.fileno())
    logging.basicConfig(format="%(levelname)s: %(message)s", level=logging.INFO)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # an interrupt ends the player without a traceback

    from unity_gym.scenes.academy import Academy
    from unity_gym.scenes.communicator import Communicator, Quit, Rehearsal, Reseeded

    # Compile the loops now, instead of while a client waits for an answer.
    academy = Academy(Rehearsal(), seed=0)
    scene = scene_type(academy, 1)
    for _ in range(_REHEARSAL_TICKS):
        academy.tick(scene)
    communicator = Communicator(options.port)
    try:
        seed, num_areas = communicator.connect()
        areas = options.areas or (num_areas if num_areas > 1 else scene_type.default_areas)
        print(f"{options.scene}: {areas} areas, seed {seed}, client on port {options.port}", flush=True)
        while True:
            try:
                academy = Academy(communicator, seed)
                scene = scene_type(academy, areas)
                while True:
                    academy.tick(scene)
            except Reseeded as reseeded:
                seed = reseeded.seed
    except Quit as reason:
        print(f"{options.scene}: {reason}", flush=True)
        return 0
    except PlayerError as error:
        print(f"unity_gym.scenes: {error}", file=sys.stderr)
        return 1
    finally:
        communicator.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

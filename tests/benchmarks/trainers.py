"""Time and timesteps of `unity-learn` and Unity's `mlagents-learn` until a reward, with equal settings.

python tests/benchmarks/trainers.py --peer-learn PEER/bin/mlagents-learn --seeds 0 1 2
python tests/benchmarks/trainers.py --peer-learn PEER/bin/mlagents-learn --algorithm sac --scenes 3DBall

Both read the same hyperparameters (those of `configs/ppo` or `configs/sac`), launch the same player by themselves and
are stopped at the first summary whose mean reward reaches the threshold. They run in turn, seed by seed. Time counts
from the start of the command, imports and the player's launch included. Timesteps are counted by the player, as
mlagents-learn does not count those of trajectories that have not ended. With `--worker`, unity-learn's agents act in a
process of their own while it updates (`threaded: true`, `--num-workers 1`). `PEER` needs Unity's package `mlagents`
1.1.0 on Python 3.10.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Generator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml

PLAYER = Path(__file__).with_name("counting_player.py")
CONFIGS = Path(__file__).resolve().parents[2] / "configs"
TOO_LONG = 1200  # seconds
SCENES = {"3DBall": (98.0, 6000), "Basic": (0.93, 1000), "PushBlock": (4.0, 60000)}  # threshold, summary_freq
_SUMMARY = re.compile(
    r"(?:(\S+)\. )?step:? (\d+)\b.*mean (?:group )?reward:? (-?[\d.]+\d)(?:.*ELO: (-?[\d.]+\d))?", re.IGNORECASE
)


class Summary(NamedTuple):
    """A trainer's summary of a behavior.

    The steps are timesteps as the trainer counts them, the reward is that of the groups where there are groups, the
    seconds count from the trainer's start, and the rating is not a number without self-play.
    """

    steps: int
    reward: float
    seconds: float
    behavior: str = ""
    elo: float = float("nan")


class Reached(NamedTuple):
    """Timesteps and seconds to the threshold; infinite where it was not reached."""

    steps: float
    seconds: float


def settings_of(scene: str, algorithm: str, folder: Path, threaded: bool) -> Path:
    """Return the scene's settings without keys that only one of the two trainers supports."""
    settings = yaml.safe_load((CONFIGS / algorithm / f"{scene}.yaml").read_text(encoding="utf-8"))
    behaviors = settings["behaviors"]
    for behavior in behaviors.values():
        behavior |= {"summary_freq": SCENES[scene][1], "threaded": threaded}
    path = folder / f"{scene}.yaml"
    path.write_text(yaml.safe_dump({"behaviors": behaviors}), encoding="utf-8")
    return path


def player_of(scene: str, folder: Path, python: str = sys.executable) -> Path:
    """Return the embedded player of an interpreter as an executable, like a build; it counts in the folder."""
    path = folder / f"{scene}.x86_64"
    command = shlex.join([python, str(PLAYER), str(folder), scene])
    path.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
    path.chmod(0o755)
    return path


def decisions(folder: Path) -> int:
    """Return the number of decisions that the agents of all players of a folder have requested."""
    return sum(int(np.fromfile(path, np.int64).sum()) for path in folder.glob("*.decisions"))


def accept_interrupts() -> None:
    """Let SIGINT and SIGTERM raise KeyboardInterrupt, so that a benchmark that is stopped stops its trainer.

    A shell script starts background commands with SIGINT ignored, which the trainer would inherit.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)


def interrupt(trainer: subprocess.Popen[Any]) -> None:
    """Act as Ctrl-C in a terminal, on a process that leads a session: mlagents-learn does not end its own processes."""
    if trainer.poll() is None:
        os.killpg(trainer.pid, signal.SIGINT)


def summaries(command: list[str], limit: float, folder: Path | None = None) -> Generator[Summary, None, None]:
    """Yield a trainer's summaries until it ends; it is stopped after `limit` seconds, or when the caller stops reading.

    :param folder: Working directory of the trainer.
    """
    started = time.perf_counter()
    lines = []
    accept_interrupts()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=folder, start_new_session=True
    ) as trainer:
        assert trainer.stdout is not None
        clock = threading.Timer(limit, interrupt, [trainer])
        clock.start()
        try:
            for line in trainer.stdout:
                lines.append(line)
                if found := _SUMMARY.search(line):
                    behavior, steps, reward, elo = found.groups()
                    seconds = time.perf_counter() - started
                    yield Summary(int(steps), float(reward), seconds, behavior or "", float(elo or "nan"))
        except (GeneratorExit, KeyboardInterrupt):
            interrupt(trainer)
            trainer.stdout.read()
            raise
        finally:
            clock.cancel()
    if not any(_SUMMARY.search(line) for line in lines):
        sys.exit("".join(lines[-30:]) + f"no summary came from: {shlex.join(command)}")


def run(command: list[str], threshold: float, folder: Path) -> Reached:
    """Run a trainer until its summary reaches the threshold; the players count the timesteps in the folder."""
    with closing(summaries(command, TOO_LONG)) as trainer:
        for one in trainer:
            if one.reward >= threshold:
                return Reached(decisions(folder), one.seconds)
    return Reached(float("inf"), float("inf"))


def main() -> None:
    """Run the benchmark of the command line and print the figures as a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer-learn", required=True, help="the command mlagents-learn")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--scenes", nargs="+", choices=SCENES, default=["3DBall", "Basic"])
    parser.add_argument("--algorithm", choices=("ppo", "sac"), default="ppo")
    parser.add_argument("--worker", action="store_true", help="unity-learn's agents act in another process")
    arguments = parser.parse_args()
    workers = ["--num-workers=1"] if arguments.worker else []
    commands = {"ours": [sys.executable, "-m", "sb3_ext.learn", *workers], "peer": [arguments.peer_learn]}
    print("| scene | seed | ours: timesteps, s | mlagents-learn: timesteps, s |\n|---|---|---|---|")
    for scene in arguments.scenes:
        results: dict[str, list[Reached]] = {name: [] for name in commands}
        for seed in arguments.seeds:
            for name, command in commands.items():
                with tempfile.TemporaryDirectory() as folder:
                    threaded = arguments.worker and name == "ours"
                    settings = settings_of(scene, arguments.algorithm, Path(folder), threaded)
                    files = [str(settings), f"--env={player_of(scene, Path(folder))}"]
                    rest = [f"--seed={seed}", "--run-id=run", f"--results-dir={folder}/results", "--no-graphics"]
                    one = run([*command, *files, *rest], SCENES[scene][0], Path(folder))
                    results[name].append(one)
            cells = [f"{each[-1].steps:,.0f}, {each[-1].seconds:.0f} s" for each in results.values()]
            print(f"| {scene} ≥ {SCENES[scene][0]:g} | {seed} | {' | '.join(cells)} |", flush=True)
        medians = {
            name: (statistics.median(one.steps for one in each), statistics.median(one.seconds for one in each))
            for name, each in results.items()
        }
        cells = [f"{steps:,.0f}, {seconds:.0f} s" for steps, seconds in medians.values()]
        ratio = medians["ours"][1] / medians["peer"][1]
        print(f"| {scene} | median | {' | '.join(cells)} (ours takes {ratio:.2f} of the time) |", flush=True)


if __name__ == "__main__":
    main()

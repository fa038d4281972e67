"""Timesteps per second of `unity-learn`, in each of its modes, and of Unity's `mlagents-learn`, with the same players.

    python tests/benchmarks/throughput.py --peer-learn PEER/bin/mlagents-learn [--rounds 3] [--num-envs 1]

Both read the same hyperparameters and launch the same embedded player by themselves. The players count the decisions
that their agents request; counting starts after two and a half buffers (SAC: after 2,000 decisions with updates), so
that imports, launches and first calls are excluded, and ends after a whole number of buffers, so that each has its
update. The trainers alternate in each round. The modes of `unity-learn`:

- synchronous: the learner's process steps the players, and agents act with the newest weights
- threaded: `threaded: true`, the players continue during an update
- worker: `threaded: true` and `--num-workers` equal to `--num-envs`, each player in its own sampler process

`mlagents-learn` runs with `threaded: false`, its default. `--devices cpu cuda` runs each mode of `unity-learn` with
each of these devices.

`--earlier EARLIER/bin/python` names an interpreter with an earlier version of the packages, to see what has been gained
since: the modes `earlier` and `earlier threaded` run its trainer with its own embedded player. `PEER` needs Unity's
package `mlagents` 1.1.0 on Python 3.10.
"""

from __future__ import annotations

import argparse
import math
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import yaml
from client_speed import free_port
from trainers import CONFIGS, accept_interrupts, decisions, interrupt, player_of

ROWS = (
    ("ppo", "3DBall"),
    ("ppo", "PushBlock"),
    ("ppo", "Pyramids"),
    ("ppo", "GridWorld"),
    ("poca", "CooperativePushBlock"),
    ("sac", "3DBall"),
)
TODAY, EARLIER, PEER = ("synchronous", "threaded", "worker"), ("earlier", "earlier threaded"), ("mlagents-learn",)
PATIENCE = 240  # seconds until the first updates are over


def settings_of(algorithm: str, scene: str, threaded: bool, folder: Path) -> tuple[Path, int, int]:
    """Write settings that both trainers support.

    :return: File, decisions to skip before counting, and the decisions of which a multiple is counted.
    """
    settings = yaml.safe_load((CONFIGS / algorithm / f"{scene}.yaml").read_text(encoding="utf-8"))
    (behavior,) = settings["behaviors"].values()
    behavior |= {"threaded": threaded, "max_steps": 100_000_000, "summary_freq": 10_000_000}
    path = folder / "settings.yaml"
    path.write_text(yaml.safe_dump({"behaviors": settings["behaviors"]}), encoding="utf-8")
    numbers = behavior["hyperparameters"]
    if algorithm == "sac":
        return path, numbers["buffer_init_steps"] + 2000, 500
    return path, 5 * numbers["buffer_size"] // 2, numbers["buffer_size"]


def measure(variant: str, algorithm: str, scene: str, num_envs: int, seconds: float, program: str) -> float:
    """Run one trainer, the command `mlagents-learn` or that of an interpreter, and return its timesteps per second.

    :param variant: Mode, and behind " on " a device of torch, if one was given.
    """
    mode, _, device = variant.partition(" on ")
    if mode == "mlagents-learn":
        command = [program, f"--base-port={free_port()}"]  # its default stays taken for a minute after a run
        python = sys.executable
    else:
        command, python = [program, "-m", "sb3_ext.learn"], program
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        threaded = mode in ("threaded", "worker", "earlier threaded")
        settings, warm_up, unit = settings_of(algorithm, scene, threaded, folder)
        command += [str(settings), f"--env={player_of(scene, folder, python)}", f"--num-envs={num_envs}"]
        command += ["--no-graphics", "--run-id=run", f"--results-dir={folder}/results", "--seed=1"]
        if mode == "worker":
            command.append(f"--num-workers={num_envs}")
        if device:
            command.append(f"--torch-device={device}")
        accept_interrupts()
        with open(folder / "output", "w+") as output:
            trainer = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)

            def wait_for(count: int) -> tuple[int, float]:
                """Wait for decisions of the agents, and return their number and the time."""
                started = time.monotonic()
                while (found := decisions(folder)) < count:
                    if trainer.poll() is not None or time.monotonic() - started > PATIENCE:
                        output.seek(0)
                        sys.exit(f"{variant}, {scene}: no {count} decisions in time\n{output.read()[-3000:]}")
                    time.sleep(0.02)
                return found, time.monotonic()

            try:
                before, start_time = wait_for(warm_up)
                after, end_time = before, start_time
                while end_time - start_time < seconds:
                    buffers = (after - before) // unit + 1
                    after, end_time = wait_for(warm_up + buffers * unit)
                return (after - before) / (end_time - start_time)
            finally:
                interrupt(trainer)
                try:
                    trainer.wait(60)
                except subprocess.TimeoutExpired:
                    os.killpg(trainer.pid, signal.SIGKILL)
                    trainer.wait()


def main() -> None:
    """Run the measurement of the command line and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer-learn", default="", help="the command mlagents-learn; without it, ours alone")
    parser.add_argument("--earlier", default="", help="an interpreter with an earlier version of the packages")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=15.0, help="time to count")
    parser.add_argument("--num-envs", type=int, default=1)
    modes = [*TODAY, *EARLIER, *PEER]
    parser.add_argument("--modes", nargs="+", choices=modes, help="default: all whose trainer is given")
    parser.add_argument("--devices", nargs="+", help="devices of torch for unity-learn, such as cpu cuda")
    parser.add_argument("--rows", nargs="+", default=["/".join(row) for row in ROWS], help="such as ppo/3DBall")
    arguments = parser.parse_args()
    programs = dict.fromkeys(TODAY, sys.executable) | dict.fromkeys(EARLIER, arguments.earlier)
    programs |= dict.fromkeys(PEER, arguments.peer_learn)
    modes = arguments.modes or [mode for mode in modes if programs[mode]]
    if without := [mode for mode in modes if not programs[mode]]:
        parser.error(f"--modes {' '.join(without)}: give the trainer with --earlier or --peer-learn")
    variants = [
        f"{mode} on {device}" if device else mode
        for mode in modes
        for device in (arguments.devices if arguments.devices and mode in TODAY else [""])
    ]
    compares = set(PEER) <= set(variants)
    heads = ["settings", *variants, *["best of ours / mlagents-learn"] * compares]
    print(f"| {' | '.join(heads)} |\n{'|---' * len(heads)}|")
    ratios = []
    for row in arguments.rows:
        algorithm, scene = row.split("/")
        speeds = defaultdict(list)
        for _ in range(arguments.rounds):
            for variant in variants:
                program = programs[variant.partition(" on ")[0]]
                speed = measure(variant, algorithm, scene, arguments.num_envs, arguments.seconds, program)
                speeds[variant].append(speed)
        cells = [
            f"{statistics.median(speeds[variant]):.0f} ({min(speeds[variant]):.0f} to {max(speeds[variant]):.0f})"
            for variant in variants
        ]
        medians = {variant: statistics.median(speeds[variant]) for variant in variants}
        if compares:
            best = max((medians[variant] for variant in variants if variant.startswith(TODAY)), default=math.nan)
            ratios.append(best / medians["mlagents-learn"])
            cells.append(f"{ratios[-1]:.2f}")
        print(f"| {row} | {' | '.join(cells)} |", flush=True)
    if compares:
        print(f"\ngeometric mean of the ratios: {statistics.geometric_mean(ratios):.2f}")


if __name__ == "__main__":
    main()

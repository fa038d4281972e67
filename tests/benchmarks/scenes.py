"""Timesteps per second of the embedded scenes, stepped inside their process without messages.

    python tests/benchmarks/scenes.py [SCENE ...] [--seconds 3] [--areas N] [--against CHECKOUT] [--rounds 5]

A timestep is one decision of one agent. Agents act at random; everything that the player does per tick is included
except the messages to a client and the decoding of its actions. Each measurement runs in its own process, on one
thread, and counts its processor time, so that other work on the machine has little effect. With `--against`, this
checkout and another one alternate, and the ratio of the medians is printed.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from typing_extensions import override

from unity_gym.scenes import SCENES, scene_class
from unity_gym.scenes.academy import Academy
from unity_gym.scenes.agents import Agents
from unity_gym.scenes.communicator import Communicator
from unity_gym.specs import Array

_HERE = Path(__file__).resolve().parents[2]
_WARM_UP = 100  # ticks
_REPEATS = 3  # decisions per random action


class RandomClient(Communicator):
    """A client that acts at random, without encoding, sending or decoding a message."""

    def __init__(self, seed: int) -> None:
        super().__init__(port=1)  # never used
        self._rng = np.random.default_rng(seed)
        self._tables: dict[int, tuple[Array, Array]] = {}
        self.timesteps = 0

    @override
    def exchange_messages(self) -> bool:
        for asking in self._waiting.values():
            for agents, rows in asking:
                assert isinstance(agents, Agents)
                self._act_at_random(agents, rows)
                self.timesteps += len(rows)
        for infos in self._infos.values():
            infos.clear()
        self._waiting.clear()
        self._outgoing.clear()
        self._pending = False
        return False

    decide = exchange_messages  # its name in older checkouts

    def _act_at_random(self, agents: Agents, rows: Array) -> None:
        if self.timesteps % _REPEATS == 0 or id(agents) not in self._tables:
            count, spec = len(agents), agents.actions
            branches = spec.discrete_branches
            continuous = self._rng.uniform(-1, 1, (count, spec.continuous_size))
            discrete = self._rng.integers(branches, size=(count, len(branches))) if branches else agents.discrete
            self._tables[id(agents)] = continuous, discrete
        continuous, discrete = self._tables[id(agents)]
        agents.continuous[rows] = continuous[rows]
        agents.discrete[rows] = discrete[rows]


def measure(name: str, areas: int, seconds: float) -> float:
    """Return the timesteps per second of a scene."""
    scene_type = scene_class(name)
    client = RandomClient(seed=1)
    academy = Academy(client, seed=1)
    scene = scene_type(academy, areas or scene_type.default_areas)
    for _ in range(_WARM_UP):
        academy.tick(scene)
    first, start = client.timesteps, time.process_time()
    while (passed := time.process_time() - start) < seconds:
        for _ in range(20):
            academy.tick(scene)
    return (client.timesteps - first) / passed


def measure_in(checkout: Path, name: str, areas: int, seconds: float) -> float:
    """Measure in a process that imports the packages of a checkout."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    command = [sys.executable, __file__, name, "--areas", str(areas), "--seconds", str(seconds), "--once"]
    environment = os.environ | threads | {"PYTHONPATH": str(checkout)}
    result = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    return float(result.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenes", nargs="*", default=sorted(SCENES))
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--areas", type=int, default=0, help="areas of each scene (default: as many as Unity's has)")
    parser.add_argument("--against", type=Path, help="another checkout of this repository")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--once", action="store_true", help="measure in this process and print the number alone")
    arguments = parser.parse_args()
    if arguments.once:
        print(measure(arguments.scenes[0], arguments.areas, arguments.seconds))
        return
    other = "| there | ratio " if arguments.against else ""
    print(f"| scene | timesteps/s {other}|\n|---|---{'|---|---' if other else ''}|")
    checkouts = [_HERE, *([arguments.against.resolve()] if arguments.against else [])]
    for name in arguments.scenes:
        rates: dict[Path, list[float]] = {checkout: [] for checkout in checkouts}
        for _ in range(arguments.rounds):
            for checkout, found in rates.items():
                found.append(measure_in(checkout, name, arguments.areas, arguments.seconds))
        medians = [statistics.median(found) for found in rates.values()]
        figures = [f"{median:,.0f}" for median in medians]
        if arguments.against:
            figures.append(f"{medians[0] / medians[1]:.1f}")
        print(f"| {name} | {' | '.join(figures)} |", flush=True)


if __name__ == "__main__":
    main()

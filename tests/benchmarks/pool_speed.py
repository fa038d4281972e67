"""Steps per second of a `PlayerPool` over players that sleep, as real builds do while their physics runs.

    python tests/benchmarks/pool_speed.py [--players 1 2 4 8] [--tick 5] [--seconds 3] [--rounds 3]

A player sleeps `--tick` milliseconds per step, then sends the bytes of `stand_in_player.py`. "send/receive" steps
each player as soon as it has answered; "step_once" steps all of them together. The last column compares the steps per
second of all players with those of one player, measured in the same round.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import stand_in_player

from unity_gym.options import PlayerOptions
from unity_gym.pool import PlayerPool
from unity_gym.specs import ActionTuple

WARM_UP = 0.5  # seconds


def launcher(folder: Path, workload: str, tick: float) -> str:
    """Write an executable that plays a workload and sleeps `tick` seconds per step."""
    path = folder / "sleeping_player.sh"
    path.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{__file__}" --play "{workload}" {tick} "$@"\n')
    path.chmod(0o755)
    return str(path)


def play(workload: str, tick: float, arguments: list[str]) -> None:
    """Play until the client ends."""
    port = int(arguments[arguments.index("--mlagents-port") + 1])

    def delayed_messages() -> Iterator[bytes]:
        for number, message in enumerate(stand_in_player.messages(stand_in_player.WORKLOADS[workload])):
            if number > 2:  # after the handshake and the reset
                time.sleep(tick)
            yield message

    stand_in_player.play(port, delayed_messages())


def actions(pool: PlayerPool) -> dict[str, ActionTuple]:
    """Zero actions for all rows."""
    return {name: table.spec.action_spec.empty_action(len(table)) for name, table in pool.tables.items()}


def step_once(pool: PlayerPool) -> int:
    """Step all players together; return how many steps that was."""
    pool.step_once(actions(pool))
    return len(pool.players)


def send_receive(pool: PlayerPool) -> int:
    """Step whoever has answered."""
    workers = pool.receive() if pool.under_way else list(range(len(pool.players)))
    pool.send(actions(pool), workers)
    return len(workers)


def measure(file_name: str, players: int, advance: Callable[[PlayerPool], int], seconds: float) -> float:
    """Steps per second, summed over the players."""
    pool = PlayerPool(PlayerOptions(file_name=file_name, no_graphics=False, seed=0), players)
    try:
        pool.reset()
        end = time.perf_counter() + WARM_UP
        while time.perf_counter() < end:
            advance(pool)
        steps, start = 0, time.perf_counter()
        while (now := time.perf_counter()) < start + seconds:
            steps += advance(pool)
    finally:
        pool.close()
    return steps / (now - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--players", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--tick", type=float, default=5.0, help="milliseconds that a player sleeps per step")
    parser.add_argument("--seconds", type=float, default=3.0, help="measured seconds of one run")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workload", choices=stand_in_player.WORKLOADS, default="12x8")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        file_name = launcher(Path(folder), arguments.workload, arguments.tick / 1000)
        print("| stepping | players | steps/s | of one player |\n|---|---|---|---|")
        for name, advance in (("step_once", step_once), ("send/receive", send_receive)):
            speeds: dict[int, list[float]] = {players: [] for players in arguments.players}
            for _ in range(arguments.rounds):
                for players in arguments.players:
                    speeds[players].append(measure(file_name, players, advance, arguments.seconds))
            one = speeds[arguments.players[0]]
            for players, measured in speeds.items():
                ratio = statistics.median(a / b for a, b in zip(measured, one, strict=True))
                print(f"| {name} | {players} | {statistics.median(measured):.0f} | {ratio:.2f} |", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--play"]:
        play(sys.argv[2], float(sys.argv[3]), sys.argv[4:])
    else:
        main()

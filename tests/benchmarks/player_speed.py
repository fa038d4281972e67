"""Measure what an exchange costs a player: with the embedded player's `Caller`, and with the client of grpcio.

    python tests/benchmarks/player_speed.py [--seconds 0.5] [--rounds 15]

Both players send the messages of `stand_in_player.py`, each in a process of its own, to our server in this process,
which reads nothing. They alternate in short bursts, and a ratio compares two bursts of one round.
"""

from __future__ import annotations

import argparse
import itertools
import subprocess
import sys
import time

import psutil
from client_speed import PLAYER, QUIT, TIMEOUT, Burst, client_messages, print_rows, take_turns
from stand_in_player import WORKLOADS, Workload, messages, status

from unity_gym.connection import PlayerConnection
from unity_gym.wire.caller import Caller

PLAYERS = {"caller": [__file__, "--play"], "grpcio": [PLAYER]}


class StandIn:
    """Player in a process of its own that waits for an answer between two bursts.

    :param player: Name of one of `PLAYERS`.
    :param workload: Name of one of `WORKLOADS`.
    """

    def __init__(self, player: str, workload: str) -> None:
        self._connection = PlayerConnection()
        self._connection.listen(lambda _: True)
        command = [sys.executable, *PLAYERS[player], str(self._connection.port), workload]
        self._process = subprocess.Popen(command)
        *first, self._actions = client_messages(WORKLOADS[workload])
        for reply in first:
            self._exchange(reply)

    def _exchange(self, reply: bytes) -> None:
        self._connection.receive(TIMEOUT)
        self._connection.send(reply)

    def burst(self, seconds: float) -> Burst:
        """Return the exchanges per second, and the microseconds of the player's processor time per exchange."""
        cpu, start = self._processor_time(), time.perf_counter()
        for steps in itertools.count(1):  # noqa: B007 (the number is used after the loop)
            self._exchange(self._actions)
            now = time.perf_counter()
            if now - start >= seconds:
                break
        return {"speed": steps / (now - start), "cpu": 1e6 * (self._processor_time() - cpu) / steps}

    def _processor_time(self) -> float:
        times = psutil.Process(self._process.pid).cpu_times()
        return float(times.user + times.system)

    def close(self) -> None:
        """End the player."""
        self._connection.close(QUIT)
        try:
            self._process.wait(TIMEOUT)
        finally:
            self._process.kill()


def play(port: int, workload: Workload) -> None:
    """Send the messages until the client ends."""
    caller = Caller(port)
    caller.connect(TIMEOUT)
    for message in messages(workload):
        if status(caller.call(message)) != 200:
            return


def main() -> None:
    """Run the measurement of the command line and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=0.5, help="duration of one burst")
    parser.add_argument("--rounds", type=int, default=15, help="bursts of each player on each workload")
    arguments = parser.parse_args()
    print("| workload | player | steps/s | CPU of the player per step, µs | ratio of neighboring bursts |")
    print("|---|---|---|---|---|")
    for workload in WORKLOADS:
        players = {player: StandIn(player, workload) for player in PLAYERS}
        try:
            bursts = {name: player.burst for name, player in players.items()}
            print_rows(workload, take_turns(bursts, arguments.seconds, arguments.rounds))
        finally:
            for player in players.values():
                player.close()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--play"]:
        play(int(sys.argv[2]), WORKLOADS[sys.argv[3]])
    else:
        main()

"""Whether client, player and learner keep their memory over a long time.

    PYTHONPATH=tests python tests/benchmarks/memory.py exchanges [--count 1000000]
    PYTHONPATH=tests python tests/benchmarks/memory.py updates [--count 300] [--algorithms PPO POCA SAC]

`exchanges` steps a scene whose agents come and go, and prints the resident memory of client and player ten times.
`updates` lets each algorithm learn on small buffers, and prints that of the learner. The last column is the growth
since the first line, when all first calls were over.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
from small_runs import players_of

from sb3_ext import POCA, PPO, SAC, UnityVecEnv
from stand_ins import changing_agents_player
from unity_gym.options import PlayerOptions
from unity_gym.pool import PlayerPool

_SMALL = {"hidden_units": 32}
ALGORITHMS: dict[str, Any] = {
    "PPO": lambda env: PPO("UnityPolicy", env, buffer_size=240, batch_size=60, policy_kwargs=_SMALL),
    "POCA": lambda env: POCA("UnityPOCAPolicy", env, buffer_size=240, batch_size=60, policy_kwargs=_SMALL),
    "SAC": lambda env: SAC("UnitySACPolicy", env, buffer_size=5000, batch_size=60, policy_kwargs=_SMALL),
}
SCENES = {"PPO": "Unity-3DBall-v0", "POCA": "Unity-CooperativePushBlock-v0", "SAC": "Unity-3DBall-v0"}


def resident(pid: int | None = None) -> float:
    """MiB that a process holds."""
    held: int = psutil.Process(pid).memory_info().rss
    return held / 2**20


def exchanges(count: int) -> None:
    """Print the memory of client and player over many exchanges."""
    with tempfile.TemporaryDirectory() as folder:
        pool = PlayerPool(PlayerOptions(file_name=changing_agents_player.launcher(Path(folder)), seed=1))
        try:
            pool.reset()
            (player,) = players_of(psutil.Process())
            empty = {name: table.spec.action_spec.empty_action for name, table in pool.tables.items()}
            first = None
            started = time.monotonic()
            for number in range(1, count + 1):
                pool.step_once({name: make(len(pool.tables[name])) for name, make in empty.items()})
                pool.pop_stats()  # as all environments do
                if number % (count // 10) == 0:
                    held = resident(), resident(player.pid)
                    first = held if first is None else first
                    growth = ", ".join(f"{now - then:+.1f}" for now, then in zip(held, first, strict=True))
                    speed = number / (time.monotonic() - started)
                    print(
                        f"{number:>9} exchanges: client {held[0]:.1f} MiB, player {held[1]:.1f} MiB; {growth}; ", end=""
                    )
                    print(f"{speed:.0f} per second", flush=True)
        finally:
            pool.close()


def updates(algorithm: str, count: int) -> None:
    """Print the memory of a learner over many updates."""
    env = UnityVecEnv(SCENES[algorithm], seed=1)
    try:
        model = ALGORITHMS[algorithm](env)
        first, learned = None, 0
        for tenth in range(1, 11):
            while model._n_updates == 0 or learned < tenth * count // 10:
                model.learn(240, reset_num_timesteps=False)
                learned += 1
            held = resident()
            first = held if first is None else first
            print(f"{algorithm}: {learned:>4} buffers of 240: learner {held:.1f} MiB; {held - first:+.1f}", flush=True)
    finally:
        env.close()


def main() -> None:
    """Measure what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("exchanges", "updates"))
    parser.add_argument("--count", type=int, default=0)
    parser.add_argument("--algorithms", nargs="+", choices=ALGORITHMS, default=list(ALGORITHMS))
    arguments = parser.parse_args()
    if arguments.what == "exchanges":
        exchanges(arguments.count or 1_000_000)
    else:
        for algorithm in arguments.algorithms:
            updates(algorithm, arguments.count or 300)


if __name__ == "__main__":
    main()

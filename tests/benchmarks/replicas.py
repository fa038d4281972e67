"""The time of an update in one process, and shared by two or more, on the CPU with one thread each.

python tests/benchmarks/replicas.py
python tests/benchmarks/replicas.py --configs ppo/Pyramids --devices cuda:0 cuda:1

The agents of the scene act once; then one process and several alternate in learning from the same experience. The table
shows the medians. It needs as many idle cores, or devices, as there are processes.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch
from devices import act, model_of

from sb3_ext import PPO

NAMES = ["ppo/3DBall", "ppo/PushBlock", "ppo/Pyramids", "poca/CooperativePushBlock"]


def measure(name: str, devices: list[str], rounds: int) -> str:
    """Return the table row of a configuration."""
    torch.set_num_threads(1)
    models = [model_of(name) for _ in range(2)]
    torch.set_num_threads(1)
    alone, shared = models
    assert isinstance(alone, PPO)
    alone.buffer_size = alone.batch_size * (32 if alone.batch_size < 256 else 6)
    while not alone.is_update_due:
        act(alone)
    alone._take_collected()
    parts = alone.experience()
    spent: list[list[float]] = [[], []]
    for model in models:
        assert isinstance(model, PPO)
        model.n_epochs = 3
        model.discard_experience()
    shared.learner_devices = tuple(devices[1:])
    for _ in range(rounds + 1):
        for model, times in zip(models, spent, strict=True):
            for part in parts:
                model.add(part)
            started = time.perf_counter()
            model.train()
            times.append(time.perf_counter() - started)
    shared.stop_replicas()
    for model in models:
        assert model.env is not None
        model.env.close()
    one, several = (statistics.median(times[1:]) for times in spent)
    return f"| {name} | {one * 1e3:.0f} | {several * 1e3:.0f} | {one / several:.2f} |"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--configs", nargs="+", default=NAMES)
    parser.add_argument("--devices", nargs="+", default=["cpu", "cpu"])
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    print(f"| update of | one process, ms | {len(arguments.devices)} processes, ms | speed-up |\n|---|---|---|---|")
    for name in arguments.configs:
        print(measure(name, arguments.devices, arguments.rounds), flush=True)


if __name__ == "__main__":
    main()

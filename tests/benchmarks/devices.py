"""The time of updates and decisions on the processor and on other devices, for the scenes' networks.

python tests/benchmarks/devices.py --devices cpu:1 cpu:2 cuda
python tests/benchmarks/devices.py --devices cuda --configs ppo/3DBall --where
python tests/benchmarks/devices.py --devices cpu:2 cuda --units 512 --configs ppo/Pyramids

`cpu:2` is the processor with two threads of torch. For every configuration, the agents of its scene act until there
are 10 minibatches. Then an update of three epochs runs a few times with this experience, with its estimates and reward
signals (SAC: 20 gradient steps), and the agents select actions. The devices take turns, and the table shows the minima.

*Waits* are the places per minibatch where the program waits for all work that the GPU has not done yet, such as a
number that is read, as torch's `set_sync_debug_mode` counts them; `--where` lists their lines. `--units` replaces the
width of all layers. `sb3_ext/hardware.py` has the conclusion for threads.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import yaml

from sb3_ext import POCA, PPO, SAC, UnityVecEnv
from sb3_ext.hardware import update_size
from sb3_ext.rollout import Rollout

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
ALGORITHMS: dict[str, tuple[type[PPO] | type[SAC], str]] = {
    "ppo": (PPO, "UnityPolicy"),
    "poca": (POCA, "UnityPOCAPolicy"),
    "sac": (SAC, "UnitySACPolicy"),
}
NAMES = [
    *("ppo/3DBall", "ppo/Hallway", "ppo/PushBlock", "ppo/Pyramids", "ppo/GridWorld", "poca/CooperativePushBlock"),
    *("sac/3DBall", "sac/Crawler", "ppo/Crawler", "ppo/Sorter"),
]
GRADIENT_STEPS = 20
MINIBATCHES, EPOCHS = 10, 3
DECISIONS = 50


class Measured(NamedTuple):
    """Milliseconds per minibatch and per decision of all agents, and the waits per minibatch."""

    update: float
    decision: float
    waits: float


class Task:
    """Updates and decisions of a configuration on a device.

    :param name: Configuration.
    :param device: Device of torch; behind "cpu:" the number of threads.
    :param units: Width of all layers; None for that of the configuration.
    """

    def __init__(self, name: str, device: str, units: int | None) -> None:
        kind, _, threads = device.partition(":")
        self.threads = int(threads or 1) if kind == "cpu" else 1
        self.device = torch.device(kind if kind == "cpu" else device)
        torch.set_num_threads(self.threads)
        np.random.seed(0)  # noqa: NPY002
        self.model = model_of(name, str(self.device), units)
        self.minibatches, self.update = update_of(self.model)
        self.decision = decision_of(self.model)

    def run(self, where: Counter[str]) -> Measured:
        """Measure once, and count the lines of code that wait."""
        torch.set_num_threads(self.threads)
        waits = self._waits() if self.device.type == "cuda" else []
        where.update(waits)
        update = self._seconds(self.update) / self.minibatches
        decision = min(self._seconds(self.decision) for _ in range(DECISIONS))
        return Measured(1e3 * update, 1e3 * decision, len(waits) / self.minibatches)

    def _waits(self) -> list[str]:
        """Return the lines of code that wait for the GPU during an update, each as often as it does."""
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            self.update()
            torch.cuda.set_sync_debug_mode("default")
        waits = [warning for warning in found if "synchronizing CUDA" in str(warning.message)]
        return [f"{Path(warning.filename).name}:{warning.lineno}" for warning in waits]

    def _seconds(self, task: Callable[[], object]) -> float:
        started = time.perf_counter()
        task()
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - started


def model_of(name: str, device: str = "cpu", units: int | None = None) -> PPO | SAC:
    """Return the model of a configuration on its scene, whose updates have one minibatch.

    :param device: Device of torch.
    :param units: Width of all layers; None for that of the configuration.
    """
    tree = yaml.safe_load((CONFIGS / f"{name}.yaml").read_text(encoding="utf-8"))
    behavior, settings = next(iter(tree["behaviors"].items()))
    settings = {**tree.get("default_settings", {}), **settings}
    hyperparameters, network = settings["hyperparameters"], dict(settings["network_settings"])
    network |= network.pop("memory", None) or {}
    network.pop("deterministic", None)
    network |= {} if units is None else {"hidden_units": units}
    scene = tree["env_settings"]["env_path"].removeprefix("embedded:")
    env = UnityVecEnv(f"Unity-{scene}-v0", behavior=behavior, seed=0)
    kind, policy = ALGORITHMS[settings["trainer_type"]]
    batch_size = hyperparameters["batch_size"]
    options: dict[str, Any] = {"policy_kwargs": network, "batch_size": batch_size, "seed": 0, "device": device}
    if kind is SAC:
        model: PPO | SAC = SAC(policy, env, buffer_size=50_000, steps_per_update=1e9, **options)
    else:
        options |= {"time_horizon": settings["time_horizon"], "n_epochs": 1, "learning_rate": 1e-9}
        model = kind(policy, env, buffer_size=batch_size, **options)
    model._setup_learn(10**9)
    return model


def update_of(model: PPO | SAC) -> tuple[int, Callable[[], None]]:
    """Return the number of minibatches of an update of all collected experience, and the update."""
    if isinstance(model, SAC):
        while model.replay_buffer.seen < 20 * model.batch_size:
            act(model)
        model.policy.optimizer.param_groups[0]["lr"] = 1e-9
        return GRADIENT_STEPS, lambda: model._make_updates(GRADIENT_STEPS, 0, [], 0)
    rollout = rollout_of(model, MINIBATCHES)
    model.n_epochs = EPOCHS
    return len(rollout) // model.batch_size * EPOCHS, lambda: model._update(
        rollout, statistics_are_fresh=True, progress=1.0, steps=0
    )


def rollout_of(model: PPO, minibatches: int) -> Rollout:
    """Let the agents act until an update of PPO or POCA is due, and return its experience."""
    model.buffer_size = minibatches * model.batch_size
    while not model.is_update_due:
        act(model)
    model._take_collected()
    return model._take_rollout()


def act(model: PPO | SAC) -> None:
    """Let the agents of the scene act once."""
    assert model._agents is not None
    model._agents.step(model.select_actions(model._agents.table))
    model.store_outcomes(model._agents.table)


def decision_of(model: PPO | SAC) -> Callable[[], object]:
    """Select the actions of all agents of the scene."""
    assert model._agents is not None
    table, policy = model._agents.table, model.policy
    observations = [array.copy() for array in table.observations]
    masks, memory = table.action_mask.copy(), np.zeros((len(table), policy.memory_size), np.float32)
    actor = policy.actor()
    memory = memory[:, : actor.memory_size]
    return lambda: actor.select_actions(observations, masks, memory)


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--configs", nargs="+", default=NAMES)
    parser.add_argument("--devices", nargs="+", default=["cpu:1", "cpu:2"])
    parser.add_argument("--units", type=int, help="width of all layers")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--where", action="store_true", help="list the lines that wait for a GPU")
    arguments = parser.parse_args()
    devices = arguments.devices
    counts = [" | ".join(f"{task} on {device}, ms" for device in devices) for task in ("minibatch", "decision")]
    print(f"| configuration | batch | million weights × rows | {counts[0]} | agents | {counts[1]} | waits |")
    print("|---" * (5 + 2 * len(devices)) + "|")
    for name in arguments.configs:
        tasks = [Task(name, device, arguments.units) for device in devices]
        where: Counter[str] = Counter()
        measured = [[task.run(where) for task in tasks] for _ in range(arguments.rounds + 1)][1:]
        best = [Measured(*map(min, zip(*runs, strict=True))) for runs in zip(*measured, strict=True)]
        model = tasks[0].model
        figures = [" | ".join(f"{found[place]:.2f}" for found in best) for place in range(2)]
        size = update_size(model.policy, model.batch_size) / 1e6
        agents = len(model._agents.table)  # type: ignore[union-attr]
        waits = max(found.waits for found in best)
        print(
            f"| {name} | {model.batch_size} | {size:.1f} | {figures[0]} | {agents} | {figures[1]} | {waits:.1f} |",
            flush=True,
        )
        if arguments.where:
            per_update = {line: count / (arguments.rounds + 1) for line, count in where.most_common()}
            print(f"  {tasks[0].minibatches} minibatches, waits per update: {per_update}", flush=True)
        for task in tasks:
            assert task.model.env is not None
            task.model.env.close()


if __name__ == "__main__":
    main()

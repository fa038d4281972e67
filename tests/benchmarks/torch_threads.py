"""The time of a minibatch update and of a decision on one and two torch threads, for the scenes' networks.

python tests/benchmarks/torch_threads.py
python tests/benchmarks/torch_threads.py --configs ppo/3DBall ppo/PushBlock --threads 1 2 4 --rounds 100

For every configuration, the agents of the scene act until there are a few minibatches. Then each number of threads in
turn makes one update of a minibatch and one decision of all agents, `rounds` times. The table shows the minima, which
other work on the machine changes least. `sb3_ext/hardware.py` has the conclusion.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

from sb3_ext import POCA, PPO, SAC, UnityVecEnv
from sb3_ext.hardware import update_size

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
ALGORITHMS: dict[str, tuple[type[PPO] | type[SAC], str]] = {
    "ppo": (PPO, "UnityPolicy"),
    "poca": (POCA, "UnityPOCAPolicy"),
    "sac": (SAC, "UnitySACPolicy"),
}
NAMES = [
    *("ppo/Basic", "sac/3DBall", "ppo/3DBall", "ppo/Hallway", "ppo/WallJump", "ppo/PushBlock", "sac/PushBlock"),
    *("ppo/Pyramids", "sac/Pyramids", "ppo/GridWorld", "ppo/FoodCollector", "ppo/Sorter", "poca/CooperativePushBlock"),
]


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


def update_of(model: PPO | SAC) -> Callable[[], object]:
    """One update with one minibatch."""
    size = model.batch_size
    while not (model.replay_buffer.seen >= size if isinstance(model, SAC) else model.is_update_due):
        act(model)
    if isinstance(model, SAC):
        return lambda: model._update(model.replay_buffer.sample(size, "cpu"))
    model._take_collected()
    rollout = model._take_rollout()
    model._estimate(rollout)
    length = model.policy.settings.sequence_length if model.policy.settings.memory_size else 1
    batch = next(iter(rollout.shuffled(size, length, drop_last=False)))

    def update() -> None:
        values, log_probs, distribution = model.policy.evaluate(batch)
        loss = (values - batch.returns).square().mean() - log_probs.mean() - distribution.unity_entropy().mean()
        model.policy.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        model.policy.optimizer.step()

    return update


def act(model: PPO | SAC) -> None:
    """Let the agents of the scene act once."""
    assert model._agents is not None
    model._agents.step(model.select_actions(model._agents.table))
    model.store_outcomes(model._agents.table)


def decision_of(model: PPO | SAC) -> Callable[[], object]:
    """Select the actions of all agents of the scene."""
    assert model._agents is not None
    table, policy = model._agents.table, model.policy
    observations = [column.copy() for column in table.observations]
    masks, memory = table.action_mask.copy(), np.zeros((len(table), policy.memory_size), np.float32)
    actor = policy.actor()
    memory = memory[:, : actor.memory_size]
    return lambda: actor.select_actions(observations, masks, memory)


def minima(task: Callable[[], object], threads: list[int], rounds: int) -> list[float]:
    """Return the shortest time of a task for each number of threads, in milliseconds."""
    best = [float("inf")] * len(threads)
    for round_ in range(rounds):
        for index, count in enumerate(threads):
            torch.set_num_threads(count)
            task()  # the first one after a change starts the threads
            started = time.perf_counter()
            task()
            if round_ > 2:
                best[index] = min(best[index], time.perf_counter() - started)
    return [1e3 * seconds for seconds in best]


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--configs", nargs="+", default=NAMES)
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--rounds", type=int, default=60)
    arguments = parser.parse_args()
    counts = [" | ".join(f"{task} on {count}, ms" for count in arguments.threads) for task in ("update", "decision")]
    print(f"| configuration | batch | million weights × rows | {counts[0]} | agents | {counts[1]} |")
    print("|---" * (4 + 2 * len(arguments.threads)) + "|")
    for name in arguments.configs:
        model = model_of(name)
        update = minima(update_of(model), arguments.threads, arguments.rounds)
        agents = len(model._agents.table)  # type: ignore[union-attr]
        decision = minima(decision_of(model), arguments.threads, arguments.rounds)
        figures = [" | ".join(f"{x:.2f}" for x in times) for times in (update, decision)]
        size = update_size(model.policy, model.batch_size) / 1e6
        print(f"| {name} | {model.batch_size} | {size:.1f} | {figures[0]} | {agents} | {figures[1]} |", flush=True)
        assert model.env is not None
        model.env.close()


if __name__ == "__main__":
    main()

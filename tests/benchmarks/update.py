"""What an update costs: POCA beside PPO, with the sensors, actions and numbers of CooperativePushBlock.

python tests/benchmarks/update.py                 # 32 groups of 3 agents
python tests/benchmarks/update.py --members 1 7 --rounds 3

A round lets the agents of an agent table decide until the buffer is full, on random observations and without a player,
and times `train()`: the processor's time on one thread, which other work on the machine changes little. POCA and PPO
take turns.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import numpy as np
import torch
from stable_baselines3.common.logger import Logger

from sb3_ext import POCA, PPO
from sb3_ext.agents import SpaceColumns
from unity_gym.slots import AgentTable
from unity_gym.spaces import ObservationLayout, action_space
from unity_gym.specs import (
    ActionSpec,
    BehaviorSpec,
    DecisionSteps,
    DimensionProperty,
    ObservationSpec,
    ObservationType,
    TerminalSteps,
)

GRID, VECTOR, CHOICES = (6, 20, 20), (10,), 7
NUMBERS: dict[str, Any] = {
    "buffer_size": 10240,
    "batch_size": 1024,
    "ent_coef": 0.01,
    "time_horizon": 64,
    "policy_kwargs": {"hidden_units": 256, "num_layers": 2},
    "seed": 0,
}


def behavior() -> BehaviorSpec:
    """What an agent of CooperativePushBlock sees and does."""
    plane, none = DimensionProperty.TRANSLATIONAL_EQUIVARIANCE, DimensionProperty.NONE
    grid = ObservationSpec(GRID, (none, plane, plane), ObservationType.DEFAULT, "grid")
    body = ObservationSpec(VECTOR, (none,), ObservationType.DEFAULT, "body")
    return BehaviorSpec([grid, body], ActionSpec(0, (CHOICES,)))


def make(kind: type[PPO], spec: BehaviorSpec) -> PPO:
    """A model of the behavior, without an environment."""
    policy = "UnityPocaPolicy" if kind is POCA else "UnityPolicy"
    model = kind(policy, None, **NUMBERS, device="cpu", _init_setup_model=False)
    layout = ObservationLayout(spec)
    model.observation_space, model.action_space = layout.space, action_space(spec.action_spec)
    model.columns = SpaceColumns(model.observation_space, model.action_space, (spec, layout))
    model._setup_model()
    model.set_logger(Logger(None, []))
    model.begin(spec)
    return model


def fill(model: PPO, table: AgentTable, members: int, groups: int, rng: np.random.Generator) -> None:
    """Let the agents decide until the buffer is full."""
    n = members * groups
    group = np.repeat(np.arange(1, groups + 1), members).astype(np.int32)
    while not model.is_full:
        table.begin_step()
        seen = [rng.integers(0, 2, (n, *GRID), np.uint8) * 255, rng.normal(size=(n, *VECTOR)).astype(np.float32)]
        reward = np.zeros(n, np.float32)
        forbidden = [np.zeros((n, CHOICES), bool)]
        decisions = DecisionSteps(seen, reward, np.arange(n, dtype=np.int32), forbidden, group, reward - 0.0005)
        table.update(decisions, TerminalSteps.empty(table.spec, "uint8"))
        model.observe(table)
        model.decide(table)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, default=32)
    parser.add_argument("--members", type=int, nargs="+", default=[3], help="of a group, one measurement each")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    spec = behavior()
    print("| agents | PPO: min, median s | POCA: min, median s | POCA/PPO of medians |\n|---|---|---|---|")
    for members in arguments.members:
        rng = np.random.default_rng(0)
        models = [make(kind, spec) for kind in (PPO, POCA)]
        tables = [AgentTable(spec, "uint8") for _ in models]
        spent: list[list[float]] = [[], []]
        for _ in range(arguments.rounds + 1):
            for model, table, times in zip(models, tables, spent, strict=True):
                fill(model, table, members, arguments.groups, rng)
                started = time.process_time()
                model.train()
                times.append(time.process_time() - started)
        ppo, poca = (times[1:] for times in spent)  # the first is to warm up
        told = " | ".join(f"{min(times):.2f}, {statistics.median(times):.2f}" for times in (ppo, poca))
        ratio = statistics.median(poca) / statistics.median(ppo)
        print(f"| {arguments.groups} × {members} | {told} | {ratio:.2f} |", flush=True)


if __name__ == "__main__":
    main()

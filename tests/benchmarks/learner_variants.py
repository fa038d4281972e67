"""What single decisions of the learner contribute: trainings in which one of them is different.

python tests/benchmarks/learner_variants.py poca/DungeonEscape --variants standard decisions --seeds 0 1
python tests/benchmarks/learner_variants.py ppo/PyramidsRND --variants standard buffers --steps 1000000
python tests/benchmarks/learner_variants.py --table                          # run nothing, print the table

The variants:

- standard: the learner as it is
- decisions: POCA shuffles single decisions; otherwise the members of a group stay together in a minibatch
- buffer: advantages are normalized by the newest buffer; otherwise small ones by the recent buffers, 1,024 decisions
- buffers: advantages are normalized by the mean and standard deviation of the last 8 buffers
- zeros: the value heads start with weights of 0
- cut: updates cut all trajectories; otherwise those of policies with memory wait until they are finished
- trajectories: updates wait for finished trajectories, as in Unity's trainer; otherwise only with memory

A run is `unity-learn CONFIG` in a process of its own, with `max_steps` of `--steps`. Each appends a line to
`learner_variants/runs.jsonl`: its summaries, and the mean reward of the last fifth of them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from results import commit
from trainers import CONFIGS, summaries

from sb3_ext import PPO, ppo
from sb3_ext.groups import GroupRollout
from sb3_ext.learn import main as unity_learn
from sb3_ext.networks import layers
from sb3_ext.rollout import Rollout

RUNS = Path(__file__).with_name("learner_variants") / "runs.jsonl"
BUFFERS = 8
TRAIN = "train"


def shuffle_decisions() -> None:
    """Let POCA shuffle as PPO does."""
    GroupRollout._random_order = Rollout._random_order  # type: ignore[method-assign]


def normalize_over_buffers() -> None:
    """Let advantages be normalized by the statistics of several buffers."""
    normalized = PPO._normalized

    def _normalized(self: PPO, advantages: torch.Tensor) -> torch.Tensor:
        ppo._ENOUGH_ADVANTAGES = BUFFERS * len(advantages)
        return normalized(self, advantages)

    PPO._normalized = _normalized  # type: ignore[method-assign]


def start_values_at_zero() -> None:
    """Let value heads start with weights of 0."""
    layers.xavier_rows = lambda weight: torch.nn.init.zeros_(weight)


def choose(**chosen: Any) -> None:
    """Give these options to `PPO`."""
    start = PPO.__init__

    def start_with(self: PPO, *given: Any, **options: Any) -> None:
        start(self, *given, **options | chosen)

    PPO.__init__ = start_with  # type: ignore[method-assign]


VARIANTS: dict[str, Callable[[], None]] = {
    "standard": lambda: None,
    "decisions": shuffle_decisions,
    "buffers": normalize_over_buffers,
    "zeros": start_values_at_zero,
    "buffer": partial(choose, advantage_normalization="buffer"),
    "cut": partial(choose, rollout="cut"),
    "trajectories": partial(choose, rollout="trajectories"),
}


def run(config: str, variant: str, seed: int, steps: int) -> dict[str, Any]:
    """Train, and return the line of the run."""
    settings = yaml.safe_load((CONFIGS / f"{config}.yaml").read_text(encoding="utf-8"))
    for behavior in settings["behaviors"].values():
        behavior |= {"max_steps": steps, "summary_freq": steps // 50}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "settings.yaml")
        path.write_text(yaml.safe_dump(settings), encoding="utf-8")
        flags = [f"--seed={seed}", f"--results-dir={folder}/results", "--run-id=run"]
        command = [sys.executable, __file__, TRAIN, variant, str(path), *flags]
        curve = [(each.steps, each.reward, round(each.seconds)) for each in summaries(command, 3600)]
    last = [reward for _, reward, _ in curve[-(len(curve) // 5 or 1) :]]
    record = {"config": config, "variant": variant, "seed": seed, "steps": steps, "reward": statistics.fmean(last)}
    return record | {"commit": commit(), "curve": curve}


def print_table() -> None:
    """Print the mean rewards of all recorded runs."""
    rewards: dict[tuple[str, int, str], dict[int, float]] = {}
    for line in RUNS.read_text(encoding="utf-8").splitlines():
        each = json.loads(line)
        rewards.setdefault((each["config"], each["steps"], each["variant"]), {})[each["seed"]] = each["reward"]
    print("| configuration | timesteps | variant | seeds | reward | mean |\n|---|---|---|---|---|---|")
    for (config, steps, variant), found in sorted(rewards.items()):
        seeds, values = ", ".join(map(str, sorted(found))), [found[seed] for seed in sorted(found)]
        each = ", ".join(f"{value:.2f}" for value in values)
        print(f"| `{config}` | {steps:,} | {variant} | {seeds} | {each} | {np.mean(values):.2f} |")


def main() -> None:
    """Make the runs of the command line, or one training."""
    if sys.argv[1:2] == [TRAIN]:
        VARIANTS[sys.argv[2]]()
        sys.exit(unity_learn(sys.argv[3:]))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("configs", nargs="*", metavar="CONFIG", help="such as poca/DungeonEscape")
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--steps", type=int, default=600_000, help="timesteps (600,000)")
    parser.add_argument("--table", action="store_true", help="run nothing; print the table")
    arguments = parser.parse_args()
    if "decisions" in arguments.variants and any(not config.startswith("poca/") for config in arguments.configs):
        parser.error("decisions changes POCA alone: name the other --variants for configurations of other algorithms")
    RUNS.parent.mkdir(exist_ok=True)
    for config in arguments.configs:
        for seed in arguments.seeds:
            for variant in arguments.variants:
                record = run(config, variant, seed, arguments.steps)
                print(config, variant, seed, f"{record['reward']:.3f}", flush=True)
                with RUNS.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(record) + "\n")
    print_table()


if __name__ == "__main__":
    main()

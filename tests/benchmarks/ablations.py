"""What memory, attention to entities and action masks contribute to learning on the embedded player.

python tests/benchmarks/ablations.py Hallway-forgetful
python tests/benchmarks/ablations.py gridworld-maskable --seeds 0 1 2
python tests/benchmarks/ablations.py --tables                     # only write the tables and images again

A run writes its figures to `ablations/<run>.json`, a line a seed. From all of them come the tables in
`ablations/README.md`, with the command beside each run, and an image of the learning curves, `ablations/<run>.png`.
What the shipped configurations learn is measured by `learning.py`.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import torch
import yaml
from sb3_contrib import MaskablePPO
from sb3_contrib.common.maskable.utils import get_action_masks, is_masking_supported
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.logger import configure
from stable_baselines3.common.vec_env import VecEnv, VecMonitor
from trainers import summaries

from sb3_ext import PPO, UnityVecEnv

mpl.use("Agg")
import matplotlib.pyplot as plt

RESULTS = Path(__file__).with_name("ablations")
CONFIGS = Path(__file__).resolve().parents[2] / "configs"
AN_HOUR = 3600  # seconds, of training
SORTER_AREAS, SORTER_STEPS = 32, 1_000_000
STEADY = 5  # summaries
EPISODES = 100  # that a policy is judged by, before and after

Figures = dict[str, Any]


def gridworld_maskable(seed: int) -> Figures:
    """sb3-contrib's MaskablePPO on GridWorld: camera, goal signal and action mask. Unity documents 0.8."""
    env = UnityVecEnv("Unity-GridWorld-v0", num_areas=32, seed=seed)
    model = MaskablePPO(
        "MultiInputPolicy",
        env,
        n_steps=64,
        batch_size=128,
        n_epochs=3,
        learning_rate=5e-4,
        gamma=0.9,
        ent_coef=0.02,
        policy_kwargs={"net_arch": [128, 128], "activation_fn": torch.nn.ReLU},
        seed=seed,
    )
    return learn(model, 300_000)


def unity_learn(
    config: str,
    documented: float,
    seed: int,
    change: Callable[[Any], None] | None = None,
    as_long_as: str | None = None,
) -> Figures:
    """Train with the command `unity-learn`; judge the result by sampled actions.

    Training ends when the mean of the last `STEADY` summaries is what Unity documents, when the steps that the file
    asks for are made, or after an hour.

    :param change: of the file's settings for the behavior
    :param as_long_as: end only when the steps of this run are made, which has figures of the same seed, or after an
        hour
    :return: as of `learn`; the processor's seconds are those of the learner and its player
    """
    settings = yaml.safe_load((CONFIGS / config).read_text(encoding="utf-8"))
    (behavior,) = settings["behaviors"]
    if change is not None:
        change(settings["behaviors"][behavior])
    environment = settings["env_settings"]
    steps = None
    if as_long_as is not None:
        steps = json.loads((RESULTS / f"{as_long_as}.json").read_text(encoding="utf-8"))[str(seed)]["steps"]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "settings.yaml")
        path.write_text(yaml.safe_dump(settings), encoding="utf-8")
        command = [sys.executable, "-m", "sb3_ext.learn", str(path)]
        flags = ["--seed", str(seed), "--results-dir", folder, "--run-id", "run"]
        curve: list[tuple[int, float]] = []
        started, before = time.perf_counter(), _processor_seconds()
        with closing(summaries([*command, *flags], AN_HOUR)) as told:
            for each in told:
                curve.append((each.steps, each.reward))
                print(*each, flush=True)
                if steps is not None:
                    is_over = each.steps >= steps
                else:
                    is_over = len(curve) >= STEADY and np.mean([mean for _, mean in curve[-STEADY:]]) >= documented
                if is_over:
                    break
        seconds, processor = time.perf_counter() - started, _processor_seconds() - before
        checkpoints = Path(folder, "run", behavior).glob("*.zip")
        newest = max(checkpoints, key=lambda file: int(re.findall(r"\d+", file.stem)[-1]))
        env = UnityVecEnv(
            file_name=environment["env_path"],
            num_areas=environment.get("num_areas"),
            environment_parameters=settings.get("environment_parameters", {}),
            seed=seed + 1000,
        )
        try:
            model = PPO.load(newest, env=env)
            after = judge(model, env)
            untrained = PPO(type(model.policy), env, seed=seed, policy_kwargs=model.policy_kwargs)
            first = judge(untrained, env)
        finally:
            env.close()
    return {
        "steps": model.num_timesteps,
        "seconds": round(seconds),
        "processor_seconds": round(processor),
        "before": np.round(first, 3).tolist(),
        "after": np.round(after, 3).tolist(),
        "curve": curve,
    }


def forget(behavior: dict[str, Any]) -> None:
    """Take the memory out of settings."""
    del behavior["network_settings"]["memory"]


def sorter(flat: bool, seed: int) -> Figures:
    """PPO on the first lesson of Sorter, with the numbers of `configs/ppo/Sorter_curriculum.yaml`.

    :param flat: the list of tiles is a vector like any other
    """
    env: VecEnv = UnityVecEnv(
        "Unity-Sorter-v0", environment_parameters={"num_tiles": 2.0}, num_areas=SORTER_AREAS, seed=seed
    )
    if flat:
        env = VecMonitor(env)  # it shows spaces alone, in which a list of entities is a box of numbers
    settings = yaml.safe_load((CONFIGS / "ppo/Sorter_curriculum.yaml").read_text(encoding="utf-8"))
    behavior = settings["behaviors"]["Sorter"]
    numbers, network = behavior["hyperparameters"], behavior["network_settings"]
    model = PPO(
        "UnityPolicy",
        env,
        numbers["learning_rate"],
        numbers["buffer_size"],
        numbers["batch_size"],
        time_horizon=behavior["time_horizon"],
        learning_rate_schedule=numbers["learning_rate_schedule"],
        policy_kwargs={"hidden_units": network["hidden_units"], "num_layers": network["num_layers"]},
        seed=seed,
    )
    return learn(model, SORTER_STEPS)


def judge(model: BaseAlgorithm, env: VecEnv) -> tuple[float, float]:
    """Mean and standard deviation of the return of `EPISODES` episodes, with sampled actions."""
    returns, _ = evaluate_policy(_Masked(model, env), env, EPISODES, deterministic=False, return_episode_rewards=True)
    return float(np.mean(returns)), float(np.std(returns))


class _Masked:
    """A model that is told which actions are allowed, with memory or without.

    sb3-contrib's own `evaluate_policy` gives masks, too, but loses the memory.
    """

    def __init__(self, model: BaseAlgorithm, env: VecEnv) -> None:
        self._model, self._env = model, env
        self._masked = is_masking_supported(env)

    def predict(self, *asked: Any, **named: Any) -> Any:
        """See `sb3_ext.policies.AgentPolicy.predict`."""
        masks = {"action_masks": get_action_masks(self._env)} if self._masked else {}
        return self._model.predict(*asked, **named, **masks)


def _processor_seconds() -> float:
    """What the children that have ended used."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


RUNS: dict[str, tuple[Callable[[int], Figures], str | None]] = {
    "gridworld-maskable": (gridworld_maskable, gridworld_maskable.__doc__),
    "Hallway": (
        partial(unity_learn, "ppo/Hallway.yaml", 0.7),
        "PPO with memory by `unity-learn configs/ppo/Hallway.yaml`, settings that Unity ships, for an hour at most. "
        "Who finds the goals but guesses which is right gets about 0.4. Unity documents 0.7.",
    ),
    "Hallway-forgetful": (
        partial(unity_learn, "ppo/Hallway.yaml", 0.7, change=forget, as_long_as="Hallway"),
        "The same without `memory`, for the same steps.",
    ),
    "Sorter": (
        partial(sorter, False),
        "PPO on the first lesson of Sorter, 1 or 2 tiles, with the numbers of `configs/ppo/Sorter_curriculum.yaml`. "
        "Tiles are entities to attend to. Who touches all in their order gets about 1.5, in any order about 0.7.",
    ),
    "Sorter-flat": (partial(sorter, True), "The same, but the list of tiles is a vector like any other."),
}


def learn(model: MaskablePPO | PPO, steps: int) -> Figures:
    """Train the model, judge its policy before and after by sampled actions, and close its environment.

    :param steps: of all agents together
    :return: `steps`, `seconds` of training, `processor_seconds` that the learner used of them, mean and standard
        deviation of the return of `EPISODES` episodes (`before`, `after`) and `curve`: pairs of agent-steps and the
        mean return of the last 100 training episodes
    """
    env = model.get_env()
    assert env is not None
    try:
        before = judge(model, env)
        with tempfile.TemporaryDirectory() as folder:
            model.set_logger(configure(folder, ["csv"]))
            started = time.perf_counter(), time.process_time()
            model.learn(steps)
            seconds, processor = time.perf_counter() - started[0], time.process_time() - started[1]
            with Path(folder, "progress.csv").open() as table:
                progress = [(row["time/total_timesteps"], row["rollout/ep_rew_mean"]) for row in csv.DictReader(table)]
        after = judge(model, env)
    finally:
        env.close()
    return {
        "steps": model.num_timesteps,
        "seconds": round(seconds),
        "processor_seconds": round(processor),
        "before": np.round(before, 3).tolist(),
        "after": np.round(after, 3).tolist(),
        "curve": [[int(step), round(float(mean), 3)] for step, mean in progress if mean],
    }


def write_tables() -> None:
    """Write the table of all runs that have figures, and an image for each."""
    lines = [
        "# What memory, attention and masks contribute",
        "",
        f"Returns are means of {EPISODES} episodes, ± their standard deviation, with sampled actions. Training is",
        "the time by the clock, processor the time that the learner's process worked, and under unity-learn also the",
        "player's. Each run's command stands beside it; it writes this file. Each has one seed: nothing is known about",
        "the spread over seeds.",
    ]
    for name, (_, told) in RUNS.items():
        path = RESULTS / f"{name}.json"
        if not path.exists():
            continue
        figures = {int(seed): each for seed, each in json.loads(path.read_text(encoding="utf-8")).items()}
        command = f"python tests/benchmarks/ablations.py {name} --seeds {' '.join(map(str, figures))}"
        lines += ["", f"## {name}", "", str(told), "", f"`{command}`", ""]
        lines += [
            "| seed | agent-steps | training | processor | return before | return after |",
            "|---|---|---|---|---|---|",
        ]
        for seed, each in figures.items():
            before, after = (f"{mean:.2f} ± {spread:.2f}" for mean, spread in (each["before"], each["after"]))
            seconds = f"{each['seconds']} s | {each['processor_seconds']} s"
            lines.append(f"| {seed} | {each['steps']:,} | {seconds} | {before} | {after} |")
        lines += [f"\nSeed {seed}: {each['note']}" for seed, each in figures.items() if "note" in each]
        lines += ["", f"![Learning curve of {name}]({name}.png)"]
        draw(name, figures)
    (RESULTS / "README.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def draw(name: str, figures: dict[int, Figures]) -> None:
    """Write the learning curves of all seeds as one image."""
    figure, axes = plt.subplots(figsize=(7, 3.5), layout="constrained")
    for seed, each in figures.items():
        axes.plot(*np.transpose(each["curve"]), label=f"seed {seed}")
    axes.set(xlabel="agent-steps", ylabel="mean return of 100 episodes", title=name)
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    figure.savefig(RESULTS / f"{name}.png", dpi=80)
    plt.close(figure)


def main() -> None:
    """Run what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", nargs="?", choices=RUNS)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--tables", action="store_true", help="run nothing; write tables and images from the figures")
    arguments = parser.parse_args()
    if (arguments.run is None) == (not arguments.tables):
        parser.error("name a run or say --tables")
    RESULTS.mkdir(exist_ok=True)
    torch.set_num_threads(1)  # the networks are small, and the player wants a core too
    if arguments.run:
        path = RESULTS / f"{arguments.run}.json"
        for seed in arguments.seeds:
            figures = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
            figures[str(seed)] = RUNS[arguments.run][0](seed)
            path.write_text(json.dumps(figures, sort_keys=True) + "\n", encoding="utf-8")
            print(arguments.run, "seed", seed, {key: figures[str(seed)][key] for key in ("seconds", "before", "after")})
    write_tables()


if __name__ == "__main__":
    main()

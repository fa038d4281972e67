"""Contributions of memory, attention to entities and action masks to learning with the embedded player.

python tests/benchmarks/ablations.py Hallway-forgetful
python tests/benchmarks/ablations.py gridworld-maskable --seeds 0 1 2
python tests/benchmarks/ablations.py --tables                     # only write the tables and images again

A run writes its figures to `ablations/<run>.json`, one line per seed. All of them are shown in `ablations/README.md`,
with the command of each run, and in images of the learning curves, `ablations/<run>.png`.
`learning.py` measures the results of the shipped configurations.
"""

from __future__ import annotations

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
from recorded_runs import Figures, parse, parser_of, record, train, write_page
from sb3_contrib import MaskablePPO
from sb3_contrib.common.maskable.utils import get_action_masks, is_masking_supported
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecEnv, VecMonitor
from trainers import summaries

from sb3_ext import PPO, UnityVecEnv

mpl.use("Agg")
import matplotlib.pyplot as plt

RESULTS = Path(__file__).with_name("ablations")
CONFIGS = Path(__file__).resolve().parents[2] / "configs"
AN_HOUR = 3600  # seconds of training
SORTER_AREAS, SORTER_STEPS = 32, 1_000_000
STEADY = 5  # summaries
EPISODES = 100  # per evaluation, before and after training


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
    """Train with the command `unity-learn`; evaluate the result with sampled actions.

    Training ends when the mean of the last `STEADY` summaries reaches the documented reward, at `max_steps` of the
    file, or after an hour.

    :param change: Function that changes the settings of the behavior.
    :param as_long_as: Name of a run whose timesteps of the same seed end the training, instead of the reward.
    :return: As `learn`; the processor seconds are those of the learner and its player.
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
        started, used = time.perf_counter(), _processor_seconds()
        with closing(summaries([*command, *flags], AN_HOUR)) as trainer:
            for each in trainer:
                curve.append((each.steps, each.reward))
                print(*each, flush=True)
                if steps is not None:
                    is_over = each.steps >= steps
                else:
                    is_over = len(curve) >= STEADY and np.mean([mean for _, mean in curve[-STEADY:]]) >= documented
                if is_over:
                    break
        seconds, processor = time.perf_counter() - started, _processor_seconds() - used
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
            after = evaluate(model, env)
            untrained = PPO(type(model.policy), env, seed=seed, policy_kwargs=model.policy_kwargs)
            before = evaluate(untrained, env)
        finally:
            env.close()
    return figures_of(model, seconds, processor, before, after, curve)


def remove_memory(behavior: dict[str, Any]) -> None:
    """Remove the memory from settings."""
    del behavior["network_settings"]["memory"]


def sorter(flat: bool, seed: int) -> Figures:
    """PPO on the first lesson of Sorter, with the hyperparameters of `configs/ppo/Sorter_curriculum.yaml`.

    :param flat: Whether the list of tiles is a vector instead of entities.
    """
    env: VecEnv = UnityVecEnv(
        "Unity-Sorter-v0", environment_parameters={"num_tiles": 2.0}, num_areas=SORTER_AREAS, seed=seed
    )
    if flat:
        env = VecMonitor(env)  # it exposes only the spaces, in which a list of entities is a box
    settings = yaml.safe_load((CONFIGS / "ppo/Sorter_curriculum.yaml").read_text(encoding="utf-8"))
    behavior = settings["behaviors"]["Sorter"]
    options, network = behavior["hyperparameters"], behavior["network_settings"]
    model = PPO(
        "UnityPolicy",
        env,
        options["learning_rate"],
        buffer_size=options["buffer_size"],
        batch_size=options["batch_size"],
        time_horizon=behavior["time_horizon"],
        learning_rate_schedule=options["learning_rate_schedule"],
        policy_kwargs={"hidden_units": network["hidden_units"], "num_layers": network["num_layers"]},
        seed=seed,
    )
    return learn(model, SORTER_STEPS)


def evaluate(model: MaskablePPO | PPO, env: VecEnv) -> tuple[float, float]:
    """Return mean and standard deviation of the return of `EPISODES` episodes, with sampled actions."""
    returns, _ = evaluate_policy(_Masked(model, env), env, EPISODES, deterministic=False, return_episode_rewards=True)
    return float(np.mean(returns)), float(np.std(returns))


class _Masked:
    """A model that predicts with the masks of its environment, recurrent or not.

    sb3-contrib's own `evaluate_policy` passes masks, too, but drops the recurrent state.
    """

    def __init__(self, model: MaskablePPO | PPO, env: VecEnv) -> None:
        self._model, self._env = model, env
        self._masked = is_masking_supported(env)

    def predict(
        self,
        observation: np.ndarray | dict[str, np.ndarray],
        state: tuple[np.ndarray, ...] | None = None,
        episode_start: np.ndarray | None = None,
        deterministic: bool = False,
    ) -> tuple[np.ndarray, tuple[np.ndarray, ...] | None]:
        """See `sb3_ext.policies.AgentPolicy.predict`."""
        masks = get_action_masks(self._env) if self._masked else None
        return self._model.predict(observation, state, episode_start, deterministic, masks)


def _processor_seconds() -> float:
    """Return the processor seconds of child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


RUNS: dict[str, tuple[Callable[[int], Figures], str | None]] = {
    "gridworld-maskable": (gridworld_maskable, gridworld_maskable.__doc__),
    "Hallway": (
        partial(unity_learn, "ppo/Hallway.yaml", 0.7),
        "PPO with memory by `unity-learn configs/ppo/Hallway.yaml`, settings that Unity ships, for an hour at most. "
        "A policy that finds the goals but guesses the right one achieves about 0.4. Unity documents 0.7.",
    ),
    "Hallway-forgetful": (
        partial(unity_learn, "ppo/Hallway.yaml", 0.7, change=remove_memory, as_long_as="Hallway"),
        "The same without `memory`, for the same steps.",
    ),
    "Sorter": (
        partial(sorter, False),
        "PPO on the first lesson of Sorter, 1 or 2 tiles, with the hyperparameters of "
        "`configs/ppo/Sorter_curriculum.yaml`. Tiles are entities with attention. Touching all in their order achieves "
        "about 1.5, in any order about 0.7.",
    ),
    "Sorter-flat": (partial(sorter, True), "The same, but the list of tiles is a vector."),
}


def learn(model: MaskablePPO | PPO, steps: int) -> Figures:
    """Train the model, evaluate it before and after with sampled actions, and close its environment.

    :param steps: Timesteps of all agents together.
    """
    env = model.get_env()
    assert env is not None
    try:
        before = evaluate(model, env)
        seconds, processor, rows = train(model, steps)
        after = evaluate(model, env)
    finally:
        env.close()
    returns = [(row["time/total_timesteps"], row["rollout/ep_rew_mean"]) for row in rows]
    curve = [(int(step), round(float(mean), 3)) for step, mean in returns if mean]
    return figures_of(model, seconds, processor, before, after, curve)


def figures_of(
    model: BaseAlgorithm,
    seconds: float,
    processor: float,
    before: tuple[float, float],
    after: tuple[float, float],
    curve: list[tuple[int, float]],
) -> Figures:
    """Return the figures of a run.

    :param seconds: Seconds of training.
    :param processor: Processor seconds of the learner.
    :param before: Mean and standard deviation of the return of `EPISODES` episodes before training.
    :param after: The same after training.
    :param curve: Pairs of timesteps and mean return of the newest training episodes.
    """
    return {
        "steps": model.num_timesteps,
        "seconds": round(seconds),
        "processor_seconds": round(processor),
        "before": np.round(before, 3).tolist(),
        "after": np.round(after, 3).tolist(),
        "curve": curve,
    }


def table(figures: dict[int, Figures]) -> list[str]:
    """Return the table of a run, with one row per seed."""
    lines = [
        "| seed | timesteps | training | processor | return before | return after |",
        "|---|---|---|---|---|---|",
    ]
    for seed, each in figures.items():
        before, after = (f"{mean:.2f} ± {spread:.2f}" for mean, spread in (each["before"], each["after"]))
        seconds = f"{each['seconds']} s | {each['processor_seconds']} s"
        lines.append(f"| {seed} | {each['steps']:,} | {seconds} | {before} | {after} |")
    return lines + [f"\nSeed {seed}: {each['note']}" for seed, each in figures.items() if "note" in each]


def draw(name: str, figures: dict[int, Figures]) -> None:
    """Write the learning curves of all seeds as one image."""
    figure, axes = plt.subplots(figsize=(7, 3.5), layout="constrained")
    for seed, each in figures.items():
        axes.plot(*np.transpose(each["curve"]), label=f"seed {seed}")
    axes.set(xlabel="timesteps", ylabel="mean return of 100 episodes", title=name)
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    figure.savefig(RESULTS / f"{name}.png", dpi=80)
    plt.close(figure)


def main() -> None:
    """Run the benchmark of the command line."""
    arguments = parse(parser_of(__doc__, RUNS))
    if arguments.run:
        record(RESULTS, arguments.run, arguments.seeds, RUNS[arguments.run][0])
    introduction = [
        "# Contributions of memory, attention and masks",
        "",
        f"Returns are means of {EPISODES} episodes, ± their standard deviation, with sampled actions. Training is the",
        "wall time. Processor is the processor time of the learner's process, with unity-learn also of the player.",
        "The command of each run also writes this file. Each run has one seed: the spread over seeds is not known.",
    ]
    write_page(RESULTS, introduction, {name: words for name, (_, words) in RUNS.items()}, table, draw)


if __name__ == "__main__":
    main()

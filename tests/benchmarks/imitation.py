"""What cloning and GAIL make of Unity's demonstrations and of Unity's policy as a teacher, on the embedded player.

python tests/benchmarks/imitation.py 3DBall                     # one run with seed 0
python tests/benchmarks/imitation.py PushBlock --seeds 0 1 2
python tests/benchmarks/imitation.py --tables                   # only write the tables and images again

Unity's demonstrations and models lie beside the repository, in `../shared/unity`; `--unity` names another folder with
`demonstrations` and `models`. A run writes its figures to `imitation/<run>.json`, a line a seed. From all of them come
`imitation/README.md`, with the command beside each run, and an image for each, `imitation/<run>.png`.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import torch
import yaml
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.logger import configure
from stable_baselines3.common.vec_env import VecEnv
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from trainers import summaries

from sb3_ext import BC, PPO, OnnxPolicy, UnityVecEnv
from unity_gym.demonstrations import load

mpl.use("Agg")
import matplotlib.pyplot as plt

RESULTS = Path(__file__).with_name("imitation")
UNITY = Path(__file__).resolve().parents[3] / "shared" / "unity"
CONFIGS = Path(__file__).resolve().parents[2] / "configs" / "imitation"
TOO_LONG = 1800  # seconds
EPISODES = 100  # that a policy is judged by,
JUDGED = ("likeliest", "sampled")  # acting in these two ways

Figures = dict[str, Any]


def from_demonstration(scene: str | None, name: str, unity: Path, seed: int, **how: str) -> Figures:
    """BC from one of Unity's demonstrations, with a fifth of it held out; without a scene there is no return."""
    shown = load(unity / "demonstrations" / f"{name}.demo", **how)
    env = None if scene is None else UnityVecEnv(f"Unity-{scene}-v0", seed=seed)
    model = BC(
        "UnityPolicy", env, demonstrations=shown, validation_fraction=0.2, policy_kwargs={"normalize": True}, seed=seed
    )
    chosen = shown.actions.discrete
    most = {"most_frequent": float(np.bincount(chosen[:, 0]).max() / len(shown))} if chosen.shape[1] else {}
    return learn(model, 1_000_000) | {"recorded": len(shown)} | most


def from_teacher(scene: str, name: str, unity: Path, seed: int) -> Figures:
    """BC that watches a policy of Unity's act in the scene."""
    env = UnityVecEnv(f"Unity-{scene}-v0", seed=seed)
    teacher = OnnxPolicy(unity / "models" / f"{name}.onnx", env, seed=seed)
    model = BC("UnityPolicy", env, teacher=teacher, policy_kwargs={"normalize": True}, seed=seed)
    figures = learn(model, 60_000)
    assert model.teacher is not None
    return figures | {"recorded": len(model.teacher)}


def from_discriminator(scene: str, unity: Path, seed: int) -> Figures:
    """GAIL without the scene's reward, by `unity-learn`."""
    settings = yaml.safe_load((CONFIGS / f"{scene}.yaml").read_text(encoding="utf-8"))
    gail = settings["behaviors"][scene]["reward_signals"]["gail"]
    gail["demo_path"] = str(unity / "demonstrations" / Path(gail["demo_path"]).name)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "settings.yaml")
        path.write_text(yaml.safe_dump(settings), encoding="utf-8")
        command = [sys.executable, "-m", "sb3_ext.learn", str(path), f"--seed={seed}", f"--results-dir={folder}"]
        summed = list(summaries([*command, "--run-id=run"], TOO_LONG))
        run = Path(folder, "run", scene)
        events = EventAccumulator(str(run))
        events.Reload()
        estimates = {
            who: [[event.step, round(event.value, 4)] for event in events.Scalars(f"Policy/GAIL {who} Estimate")]
            for who in ("Expert", "Policy")
        }
        env = UnityVecEnv(f"Unity-{scene}-v0", seed=seed + 1000)
        try:
            model = PPO.load(max(run.glob("*.zip"), key=lambda file: int(re.findall(r"\d+", file.stem)[-1])))
            judged = judge(model, env)
        finally:
            env.close()
    return {
        "steps": model.num_timesteps,
        "seconds": round(summed[-1].seconds),
        "recorded": len(load(gail["demo_path"])),
        "curve": [[each.steps, each.reward] for each in summed],
        "estimates": estimates,
    } | judged


RUNS: dict[str, tuple[Callable[[Path, int], Figures], str]] = {
    "3DBall": (
        partial(from_demonstration, "3DBall", "Expert3DBall"),
        "From Expert3DBall.demo alone, which is one episode.",
    ),
    "PushBlock": (
        partial(from_demonstration, "PushBlock", "ExpertPushBlock"),
        "From ExpertPushBlock.demo alone.",
    ),
    "PushBlock-late": (
        partial(from_demonstration, "PushBlock", "ExpertPushBlock", action_record="same"),
        "The same, if actions are paired as Unity's trainers pair them: with what the agent saw after it had acted.",
    ),
    "Pyramids": (
        partial(from_demonstration, "Pyramids", "ExpertPyramid"),
        "From ExpertPyramid.demo alone, which has 10 episodes.",
    ),
    "GridWorld": (
        partial(from_demonstration, None, "ExpertGridWorld"),
        "From ExpertGridWorld.demo alone, 39 decisions. It is older than the goal signal of the scene, where what it "
        "teaches therefore cannot play.",
    ),
    "3DBall-teacher": (
        partial(from_teacher, "3DBall", "3DBall"),
        "A student watches Unity's 3DBall.onnx play. What is held out is what the teacher did since the last pass.",
    ),
    "3DBall-GAIL": (
        partial(from_discriminator, "3DBall"),
        "GAIL alone, by `unity-learn configs/imitation/3DBall.yaml`: PPO, which gets the discriminator's reward and "
        "not the scene's. The discriminator's estimates are means over the last summary.",
    ),
}


def learn(model: BC, steps: int) -> Figures:
    """Train the model, judge it by its likeliest and by sampled actions, and close its environment.

    :return: `steps` learned from, `seconds` of training, `validation` scores, what `judge` returns, and `curve`:
        pairs of steps and the accuracy or mean absolute error on what was held out
    """
    env, judged = model.get_env(), {}
    try:
        with tempfile.TemporaryDirectory() as folder:
            model.set_logger(configure(folder, ["csv"]))
            started = time.perf_counter()
            model.learn(steps)
            seconds = time.perf_counter() - started
            with Path(folder, "progress.csv").open() as table:
                rows = list(csv.DictReader(table))
        if env is not None:
            judged = judge(model, env)
    finally:
        if env is not None:
            env.close()
    kind = "accuracy" if "accuracy" in model.validation_scores else "mean_absolute_error"
    return {
        "steps": model.num_timesteps,
        "seconds": round(seconds),
        "validation": {name: round(number, 4) for name, number in model.validation_scores.items()},
        "curve": [[int(row["time/total_timesteps"]), round(float(row[f"validation/{kind}"]), 4)] for row in rows],
    } | judged


def judge(model: BaseAlgorithm, env: VecEnv) -> Figures:
    """By `likeliest` and by `sampled` actions, of `EPISODES` episodes each: mean and standard deviation of the return,
    and the part of them with a return above 0.
    """
    judged = {}
    for name in JUDGED:
        returns = np.array(evaluate_policy(model, env, EPISODES, name == "likeliest", return_episode_rewards=True)[0])
        judged[name] = np.round([returns.mean(), returns.std(), (returns > 0).mean()], 3).tolist()
    return judged


def write_tables() -> None:
    """Write the table of all runs that have figures, and an image for each."""
    lines = [
        "# What is imitated",
        "",
        "Behavioral cloning is `sb3_ext.BC` with its defaults and normalised observations; the scene's reward is never",
        f"learned from. Returns are means of {EPISODES} episodes, ± their standard deviation; goals are the episodes",
        "with a return above 0. Accuracy is the part of the expert's choices that are the policy's likeliest, error",
        "the mean absolute one of actions in −1…1, both on what was held out: whole episodes, drawn anew with each",
        "seed, or the last part of the only one. Each run's command stands beside it; it writes this file, too.",
    ]
    for name, (_, words) in RUNS.items():
        path = RESULTS / f"{name}.json"
        if not path.exists():
            continue
        figures = {int(seed): each for seed, each in json.loads(path.read_text(encoding="utf-8")).items()}
        command = f"python tests/benchmarks/imitation.py {name} --seeds {' '.join(map(str, figures))}"
        first = next(iter(figures.values()))
        if "most_frequent" in first:
            words += f" Always the most frequent choice would be right in {first['most_frequent']:.1%}."
        lines += ["", f"## {name}", "", words, "", f"`{command}`", ""]
        kind = "estimates at last" if "estimates" in first else "held out"
        lines += [
            f"| seed | recorded | learned from | training | {kind} | return (likeliest) | goals | (sampled) | goals |",
            "|---|---|---|---|---|---|---|---|---|",
        ]
        for seed, each in figures.items():
            judged = ["", "", "", ""]
            if "sampled" in each:
                judged = [f"{mean:.2f} ± {std:.2f} | {goals:.0%}" for mean, std, goals in map(each.get, JUDGED)]
            lines.append(
                f"| {seed} | {each['recorded']:,} | {each['steps']:,} | {each['seconds']} s | {told(each)} | "
                f"{' | '.join(judged)} |"
            )
        lines += ["", f"![Learning curve of {name}]({name}.png)"]
        draw(name, figures)
    (RESULTS / "README.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def told(each: Figures) -> str:
    """What a run says of itself, for the table."""
    if "estimates" in each:
        return ", ".join(f"{who.lower()} {curve[-1][1]:.2f}" for who, curve in each["estimates"].items())
    scores = each["validation"]
    if "accuracy" in scores:
        return f"accuracy {scores['accuracy']:.1%}"
    return f"error {scores['mean_absolute_error']:.3f}"


def draw(name: str, figures: dict[int, Figures]) -> None:
    """Write the curves of all seeds as one image."""
    first = next(iter(figures.values()))
    two = "estimates" in first
    figure, both = plt.subplots(1, 1 + two, figsize=(7 + 3 * two, 3.5), squeeze=False, layout="constrained")
    for seed, each in figures.items():
        both[0, 0].plot(*np.transpose(each["curve"]), label=f"seed {seed}")
        for style, (who, curve) in zip(("-", "--"), each.get("estimates", {}).items(), strict=False):
            both[0, 1].plot(*np.transpose(curve), style, label=f"{who.lower()}, seed {seed}")
    if two:
        both[0, 0].set(xlabel="agent-steps", ylabel="mean return, not learned from", title=name)
        both[0, 1].set(xlabel="agent-steps", ylabel="the discriminator's estimate", ylim=(0, 1))
    else:
        kind = "accuracy" if "accuracy" in first["validation"] else "mean absolute error"
        both[0, 0].set(xlabel="decisions learned from", ylabel=f"{kind} on what was held out", title=name)
    for axes in both.flat:
        axes.grid(alpha=0.3)
        axes.legend()
    figure.savefig(RESULTS / f"{name}.png", dpi=80)
    plt.close(figure)


def main() -> None:
    """Run what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", nargs="?", choices=RUNS)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--unity", type=Path, default=UNITY, help="a folder with demonstrations and models of Unity's")
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
            figures[str(seed)] = RUNS[arguments.run][0](arguments.unity, seed)
            path.write_text(json.dumps(figures, sort_keys=True) + "\n", encoding="utf-8")
            print(
                arguments.run, "seed", seed, {key: each for key, each in figures[str(seed)].items() if key != "curve"}
            )
    write_tables()


if __name__ == "__main__":
    main()

"""Behavioral cloning and GAIL with Unity's demonstrations, and with Unity's policy as a teacher.

python tests/benchmarks/imitation.py 3DBall                     # one run with seed 0
python tests/benchmarks/imitation.py PushBlock --seeds 0 1 2
python tests/benchmarks/imitation.py --tables                   # only write the tables and images again

Unity's demonstrations and models are next to the repository, in `../shared/unity`; `--unity` names another folder with
`demonstrations` and `models`. A run writes its figures to `imitation/<run>.json`, one line per seed. All of them are
shown in `imitation/README.md`, with the command of each run, and in images, `imitation/<run>.png`.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import matplotlib as mpl
import numpy as np
import yaml
from recorded_runs import Figures, parse, parser_of, record, train, write_page
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.evaluation import evaluate_policy
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
EPISODES = 100  # per evaluation
EVALUATED = ("most_likely", "sampled")  # modes of acting, keys of the figures


def from_demonstration(scene: str | None, name: str, unity: Path, seed: int, **how: str) -> Figures:
    """BC from one of Unity's demonstrations, with a fifth of it for validation; without a scene there is no return."""
    shown = load(unity / "demonstrations" / f"{name}.demo", **how)
    env = None if scene is None else UnityVecEnv(f"Unity-{scene}-v0", seed=seed)
    model = BC(
        "UnityPolicy", env, demonstrations=shown, validation_fraction=0.2, policy_kwargs={"normalize": True}, seed=seed
    )
    chosen = shown.actions.discrete
    most = {"most_frequent": float(np.bincount(chosen[:, 0]).max() / len(shown))} if chosen.shape[1] else {}
    return learn(model, 1_000_000) | {"recorded": len(shown)} | most


def from_teacher(scene: str, name: str, unity: Path, seed: int) -> Figures:
    """BC from a policy of Unity that acts in the scene."""
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
            name: [[event.step, round(event.value, 4)] for event in events.Scalars(f"Policy/GAIL {name} Estimate")]
            for name in ("Expert", "Policy")
        }
        env = UnityVecEnv(f"Unity-{scene}-v0", seed=seed + 1000)
        try:
            model = PPO.load(max(run.glob("*.zip"), key=lambda file: int(re.findall(r"\d+", file.stem)[-1])))
            evaluated = evaluate(model, env)
        finally:
            env.close()
    return {
        "steps": model.num_timesteps,
        "seconds": round(summed[-1].seconds),
        "recorded": len(load(gail["demo_path"])),
        "curve": [[each.steps, each.reward] for each in summed],
        "estimates": estimates,
    } | evaluated


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
        "The same, if actions are paired as Unity's trainers pair them: with the observation after the action.",
    ),
    "Pyramids": (
        partial(from_demonstration, "Pyramids", "ExpertPyramid"),
        "From ExpertPyramid.demo alone, which has 10 episodes.",
    ),
    "GridWorld": (
        partial(from_demonstration, None, "ExpertGridWorld"),
        "From ExpertGridWorld.demo alone, 39 decisions. It is older than the goal signal of the scene, so the "
        "policy cannot act there.",
    ),
    "3DBall-teacher": (
        partial(from_teacher, "3DBall", "3DBall"),
        "Unity's 3DBall.onnx as the teacher. Validation data are the teacher's decisions since the last epoch.",
    ),
    "3DBall-GAIL": (
        partial(from_discriminator, "3DBall"),
        "GAIL alone, by `unity-learn configs/imitation/3DBall.yaml`: PPO, with the reward of the discriminator instead "
        "of the scene's. The discriminator's estimates are means over the last summary.",
    ),
}


def learn(model: BC, steps: int) -> Figures:
    """Train the model, evaluate it with its most likely and with sampled actions, and close its environment.

    :return: `steps` learned from, `seconds` of training, `validation` scores, results of `evaluate`, and `curve`:
        pairs of steps and the accuracy or mean absolute error on the validation set.
    """
    env, evaluated = model.get_env(), {}
    try:
        seconds, _, rows = train(model, steps)
        if env is not None:
            evaluated = evaluate(model, env)
    finally:
        if env is not None:
            env.close()
    kind = "accuracy" if "accuracy" in model.validation_scores else "mean_absolute_error"
    return {
        "steps": model.num_timesteps,
        "seconds": round(seconds),
        "validation": {name: round(number, 4) for name, number in model.validation_scores.items()},
        "curve": [[int(row["time/total_timesteps"]), round(float(row[f"validation/{kind}"]), 4)] for row in rows],
    } | evaluated


def evaluate(model: BaseAlgorithm, env: VecEnv) -> Figures:
    """Return mean and standard deviation of the return, and the fraction of returns above 0, per key of `EVALUATED`."""
    evaluated = {}
    for name in EVALUATED:
        most_likely = name == EVALUATED[0]
        returns = np.array(evaluate_policy(model, env, EPISODES, most_likely, return_episode_rewards=True)[0])
        evaluated[name] = np.round([returns.mean(), returns.std(), (returns > 0).mean()], 3).tolist()
    return evaluated


def table(figures: dict[int, Figures]) -> list[str]:
    """Return the table of a run, with one row per seed."""
    first = next(iter(figures.values()))
    kind = "last estimates" if "estimates" in first else "validation"
    lines = [
        f"| seed | recorded | learned from | training | {kind} | return (most likely) | goals | (sampled) | goals |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for seed, each in figures.items():
        evaluated = ["", "", "", ""]
        if "sampled" in each:
            results = [each[name] for name in EVALUATED]
            evaluated = [f"{mean:.2f} ± {std:.2f} | {goals:.0%}" for mean, std, goals in results]
        lines.append(
            f"| {seed} | {each['recorded']:,} | {each['steps']:,} | {each['seconds']} s | {score(each)} | "
            f"{' | '.join(evaluated)} |"
        )
    if "most_frequent" in first:
        lines += ["", f"The most frequent action alone would have an accuracy of {first['most_frequent']:.1%}."]
    return lines


def score(each: Figures) -> str:
    """Return the validation score of a run, or its last estimates."""
    if "estimates" in each:
        return ", ".join(f"{name.lower()} {curve[-1][1]:.2f}" for name, curve in each["estimates"].items())
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
        for style, (source, curve) in zip(("-", "--"), each.get("estimates", {}).items(), strict=False):
            both[0, 1].plot(*np.transpose(curve), style, label=f"{source.lower()}, seed {seed}")
    if two:
        both[0, 0].set(xlabel="timesteps", ylabel="mean return, not learned from", title=name)
        both[0, 1].set(xlabel="timesteps", ylabel="estimate of the discriminator", ylim=(0, 1))
    else:
        kind = "accuracy" if "accuracy" in first["validation"] else "mean absolute error"
        both[0, 0].set(xlabel="decisions learned from", ylabel=f"{kind} on the validation set", title=name)
    for axes in both.flat:
        axes.grid(alpha=0.3)
        axes.legend()
    figure.savefig(RESULTS / f"{name}.png", dpi=80)
    plt.close(figure)


def main() -> None:
    """Run the benchmark of the command line."""
    parser = parser_of(__doc__, RUNS)
    parser.add_argument("--unity", type=Path, default=UNITY, help="folder with demonstrations and models of Unity")
    arguments = parse(parser)
    if arguments.run:
        record(RESULTS, arguments.run, arguments.seeds, partial(RUNS[arguments.run][0], arguments.unity))
    introduction = [
        "# Imitation",
        "",
        "Behavioral cloning is `sb3_ext.BC` with its defaults and normalized observations; the scene's reward is never",
        f"used. Returns are means of {EPISODES} episodes, ± their standard deviation; goals are the episodes with a",
        "return above 0. Accuracy is the fraction of the expert's actions that are the policy's most likely ones.",
        "Error is the mean absolute error of actions in [-1, 1]. Both are validation scores: on whole episodes,",
        "sampled with each seed, or on the last part of the only episode. The command of each run writes this file.",
    ]
    write_page(RESULTS, introduction, {name: words for name, (_, words) in RUNS.items()}, table, draw)


if __name__ == "__main__":
    main()

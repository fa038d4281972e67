"""Pyramids, whose reward is sparse: PPO alone, with curiosity, with RND, and with what an expert recorded.

python tests/benchmarks/pyramids.py curiosity --seed 0
python tests/benchmarks/pyramids.py imitation --seed 0 --demonstrations FOLDER    # with Unity's ExpertPyramid.demo
python tests/benchmarks/pyramids.py --tables                                      # only write table and image again

A run is `unity-learn` with the settings of `configs`, which are Unity's, on two embedded players of 16 agents each. It
ends when the mean reward of the last 150,000 timesteps is what Unity documents, with the timesteps of `--steps` or
after `--minutes`, whichever comes first. Time counts from the start of the command. Figures go to
`pyramids/curves.json`; from them come the table in `pyramids/README.md` and the image `pyramids/curves.png`.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import yaml
from trainers import summaries

mpl.use("Agg")
import matplotlib.pyplot as plt

RESULTS = Path(__file__).with_name("pyramids")
CONFIGS = Path(__file__).resolve().parents[2] / "configs"
DEMONSTRATIONS = Path(__file__).resolve().parents[3] / "shared" / "unity" / "demonstrations"
RUNS = {
    "PPO alone": ("ppo/Pyramids.yaml", "the same without its reward signal `curiosity`"),
    "curiosity": ("ppo/Pyramids.yaml", ""),
    "RND": ("ppo/PyramidsRND.yaml", ""),
    "RND, short": ("ppo/PyramidsRND.yaml", "the same with `max_steps: 1000000`, as most published runs"),
    "imitation": ("imitation/Pyramids.yaml", "cloning, GAIL and curiosity"),
}
WINDOW = 150_000  # timesteps that a mean is taken over
GOALS = (1.0, 1.75)  # Unity documents the second

Curve = list[tuple[int, float, float]]
"""Return timesteps, mean reward and seconds of each summary."""


def learn(run: str, seed: int, demonstrations: Path, steps: int, minutes: float) -> Curve:
    """Train, and return the learning curve."""
    settings = yaml.safe_load((CONFIGS / RUNS[run][0]).read_text(encoding="utf-8"))
    behavior = settings["behaviors"]["Pyramids"]
    if run == "PPO alone":
        del behavior["reward_signals"]["curiosity"]
    if run == "RND, short":
        behavior["max_steps"] = 1_000_000
    for part in (behavior["reward_signals"].get("gail"), behavior.get("behavioral_cloning")):
        if part:
            part["demo_path"] = str(demonstrations / Path(part["demo_path"]).name)
    curve: Curve = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "settings.yaml")
        path.write_text(yaml.safe_dump(settings), encoding="utf-8")
        flags = [f"--seed={seed}", "--num-envs=2", f"--results-dir={folder}", "--run-id=run"]
        command = [sys.executable, "-m", "sb3_ext.learn", str(path), *flags]
        with closing(summaries(command, 60 * minutes)) as trainer:
            for each in trainer:
                curve.append((each.steps, each.reward, round(each.seconds, 1)))
                print(run, seed, *curve[-1], flush=True)
                if each.steps >= steps or smooth(curve)[-1] >= GOALS[-1]:
                    break
    return curve


def smooth(curve: Curve) -> Any:
    """The mean reward of the last `WINDOW` timesteps up to each summary, (summaries,); nan before that."""
    steps, rewards, _ = np.array(curve).T
    inside = (steps <= steps[:, np.newaxis]) & (steps > steps[:, np.newaxis] - WINDOW)
    return np.where(steps >= WINDOW, inside @ rewards / inside.sum(1), np.nan)


def reached(curve: Curve, rewards: Any, goal: float) -> str:
    """When one of the rewards (summaries,) was this for the first time."""
    there = np.flatnonzero(rewards >= goal)
    return f"{curve[there[0]][0]:,}, {curve[there[0]][2] / 60:.1f} min" if len(there) else "no"


def write_tables() -> None:
    """Write the table and the image of all runs that have figures."""
    runs = {name: {int(seed): curve for seed, curve in seeds.items()} for name, seeds in _figures().items()}
    lines = [
        "# Pyramids, whose reward is sparse",
        "",
        "An episode of 1000 decisions that never finds the gold pays −1, Unity documents 1.75. Rewards are means over",
        f"the summaries of the last {WINDOW:,} timesteps; the last two columns look at each summary for itself.",
        "A run ends at 1.75, or with the timesteps or the minutes that it was given. All runs used one machine with",
        "2 cores, two or three at a time.",
        "",
        "| settings | seed | timesteps | minutes | best reward | at last | 1.0 after | 1.75 after "
        "| a summary of 1.0 after | of 1.75 after |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, seeds in runs.items():
        for seed, curve in seeds.items():
            steps, _, seconds = curve[-1]
            means = smooth(curve)
            each = np.array(curve)[:, 1]
            goals = " | ".join(reached(curve, some, goal) for some in (means, each) for goal in GOALS)
            rewards = f"{np.nanmax(means):.2f} | {means[-1]:.2f}"
            lines.append(f"| {name} | {seed} | {steps:,} | {seconds / 60:.1f} | {rewards} | {goals} |")
    lines += ["", "![Learning curves](curves.png)", ""]
    for name, (config, words) in RUNS.items():
        settings_text = f"`configs/{config}`" + f", {words}" * bool(words)
        lines.append(f'- {name}: {settings_text}; `python tests/benchmarks/pyramids.py "{name}" --seed SEED`')
    (RESULTS / "README.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    draw(runs)


def draw(runs: dict[str, dict[int, Curve]]) -> None:
    """Write the learning curves against timesteps and against time as one image."""
    figure, both = plt.subplots(1, 2, figsize=(11, 4), sharey=True, layout="constrained")
    for color, (name, seeds) in enumerate(runs.items()):
        for style, (seed, curve) in zip(("-", "--", ":", "-."), seeds.items(), strict=False):
            steps, rewards, seconds = np.array(curve).T
            for axes, along in zip(both, (steps / 1e6, seconds / 60), strict=True):
                axes.plot(along, rewards, style, color=f"C{color}", label=f"{name}, seed {seed}")
    both[0].set(xlabel="million timesteps", ylabel="mean reward", title="Pyramids")
    both[1].set(xlabel="minutes")
    figure.legend(*both[0].get_legend_handles_labels(), loc="outside right center", fontsize="small")
    for axes in both:
        axes.grid(alpha=0.3)
    figure.savefig(RESULTS / "curves.png", dpi=80)
    plt.close(figure)


def _figures() -> dict[str, dict[str, Curve]]:
    """What was measured: a curve a run and seed."""
    path = RESULTS / "curves.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def main() -> None:
    """Run what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", nargs="?", choices=RUNS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=1_500_000, help="timesteps at most (1,500,000)")
    parser.add_argument("--minutes", type=float, default=30, help="at most (30)")
    parser.add_argument(
        "--demonstrations", type=Path, default=DEMONSTRATIONS, help="a folder of Unity's demonstrations"
    )
    parser.add_argument("--tables", action="store_true", help="run nothing; write table and image from the figures")
    arguments = parser.parse_args()
    if (arguments.run is None) == (not arguments.tables):
        parser.error("name a run or say --tables")
    RESULTS.mkdir(exist_ok=True)
    if arguments.run:
        curve = learn(arguments.run, arguments.seed, arguments.demonstrations, arguments.steps, arguments.minutes)
        figures = _figures()
        figures.setdefault(arguments.run, {})[str(arguments.seed)] = curve
        (RESULTS / "curves.json").write_text(json.dumps(figures, sort_keys=True) + "\n", encoding="utf-8")
    write_tables()


if __name__ == "__main__":
    main()

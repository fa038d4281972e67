"""Learning of groups with the embedded player: POCA, PPO, and POCA of Unity's `mlagents-learn`.

python tests/benchmarks/cooperation.py CooperativePushBlock POCA
python tests/benchmarks/cooperation.py CooperativePushBlock mlagents-learn --peer-learn PEER/bin/mlagents-learn
python tests/benchmarks/cooperation.py --tables                          # only write the table and images again

All trainers read the settings of `configs/poca`, PPO with another `trainer_type`, and launch the same player. A run
ends with the scene's timesteps or minutes, whichever come first. Time counts from the start of the command. Figures
go to `cooperation/<scene>.json`; from them come the table in `cooperation/README.md` and an image per scene. `PEER`
needs Unity's package `mlagents` 1.1.0 on Python 3.10.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
import yaml
from trainers import player_of, summaries

mpl.use("Agg")
import matplotlib.pyplot as plt

RESULTS = Path(__file__).with_name("cooperation")
CONFIGS = Path(__file__).resolve().parents[2] / "configs" / "poca"
TRAINERS = ("POCA", "PPO", "mlagents-learn")
LAST = 5  # summaries per mean in the table


class Budget(NamedTuple):
    """The limits of a run; `summary_freq` is about one episode of all agents."""

    agents: int
    areas: int
    steps: int
    minutes: float
    summary_freq: int


SCENES = {
    "CooperativePushBlock": Budget(agents=192, areas=64, steps=5_000_000, minutes=30, summary_freq=192_000),
    "DungeonEscape": Budget(agents=36, areas=12, steps=1_000_000, minutes=10, summary_freq=20_000),
}


def learn(scene: str, trainer: str, seed: int, peer_learn: str | None) -> list[tuple[int, float, float]]:
    """Train, and return the learning curve: timesteps, the groups' mean reward, seconds."""
    budget = SCENES[scene]
    settings = yaml.safe_load((CONFIGS / f"{scene}.yaml").read_text(encoding="utf-8"))
    for behavior in settings["behaviors"].values():
        behavior |= {"max_steps": budget.steps, "summary_freq": budget.summary_freq}
        behavior["trainer_type"] = "ppo" if trainer == "PPO" else "poca"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "settings.yaml")
        path.write_text(yaml.safe_dump({"behaviors": settings["behaviors"]}), encoding="utf-8")
        command = [str(peer_learn)] if trainer == "mlagents-learn" else [sys.executable, "-m", "sb3_ext.learn"]
        flags = [f"--env={player_of(scene, Path(folder))}", f"--num-areas={budget.areas}", f"--seed={seed}"]
        flags += ["--run-id=run", f"--results-dir={folder}/results", "--no-graphics"]
        curve = []
        for summary in summaries([*command, str(path), *flags], 60 * budget.minutes):
            curve.append((summary.steps, summary.reward, round(summary.seconds, 1)))
            print(trainer, *curve[-1], flush=True)
    return curve


def write_tables() -> None:
    """Write the table of all runs, and an image per scene."""
    lines = [
        "# How groups learn",
        "",
        "The reward is the mean of what groups got in an episode, over the episodes that ended since the summary",
        f"before; all but the first are means over {LAST} summaries. A run ends with the timesteps or minutes of its",
        "scene, whichever come first, or sooner, by hand. All runs used one machine of 2 cores, two or three at once.",
    ]
    for scene, budget in SCENES.items():
        path = RESULTS / f"{scene}.json"
        if not path.exists():
            continue
        runs = {name: np.array(run) for name, run in json.loads(path.read_text(encoding="utf-8")).items()}
        budgeted = f"{budget.agents} agents, {budget.steps:,} timesteps or {budget.minutes:g} minutes"
        lines += ["", f"## {scene}", "", f"{budgeted}: `python tests/benchmarks/cooperation.py {scene} TRAINER`", ""]
        common = min(curve[-1, 0] for name, curve in runs.items() if not name.startswith("mlagents-learn"))
        lines += [
            f"| trainer, seed | timesteps | minutes | reward at first | at {common:,.0f} timesteps | at last |",
            "|---|---|---|---|---|---|",
        ]
        for name, curve in runs.items():
            equal = f"{mean_at(curve, common):.2f}" if curve[-1, 0] >= common else "not reached"
            ends = f"{curve[-1, 0]:,.0f} | {curve[-1, 2] / 60:.1f} | {curve[0, 1]:.2f}"
            lines.append(f"| {name} | {ends} | {equal} | {mean_at(curve, curve[-1, 0]):.2f} |")
        lines += ["", f"![Learning curves of {scene}]({scene}.png)"]
        draw(scene, runs)
    (RESULTS / "README.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def mean_at(curve: Any, steps: float) -> float:
    """Return the mean reward of the last summaries of a learning curve up to `steps`."""
    mean: float = curve[curve[:, 0] <= steps][-LAST:, 1].mean()
    return mean


def draw(scene: str, runs: dict[str, Any]) -> None:
    """Write the learning curves against timesteps and against time as one image."""
    figure, both = plt.subplots(1, 2, figsize=(10.5, 3.5), sharey=True, layout="constrained")
    for name, curve in runs.items():
        trainer, seed = name.split(", ")
        style: dict[str, Any] = {
            "color": f"C{TRAINERS.index(trainer)}",
            "marker": ".^s*x"[int(seed) % 5],
            "markersize": 4,
        }
        both[0].plot(curve[:, 0] / 1e6, curve[:, 1], label=name, **style)
        both[1].plot(curve[:, 2] / 60, curve[:, 1], **style)
    both[0].set(xlabel="million timesteps", ylabel="mean reward of a group", title=scene)
    both[1].set(xlabel="minutes")
    figure.legend(loc="outside right upper")
    for axes in both:
        axes.grid(alpha=0.3)
    figure.savefig(RESULTS / f"{scene}.png", dpi=80)
    plt.close(figure)


def main() -> None:
    """Run the benchmark of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scene", nargs="?", choices=SCENES)
    parser.add_argument("trainer", nargs="?", choices=TRAINERS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--peer-learn", help="the command mlagents-learn")
    parser.add_argument("--tables", action="store_true", help="run nothing; write table and images from the figures")
    arguments = parser.parse_args()
    scene, trainer, peer = arguments.scene, arguments.trainer, arguments.peer_learn
    if (trainer is None) == (not arguments.tables):
        parser.error("name a scene and a trainer, or pass --tables")
    if trainer == "mlagents-learn" and not peer:
        parser.error("pass the path of mlagents-learn as --peer-learn")
    RESULTS.mkdir(exist_ok=True)
    if trainer:
        curve = learn(scene, trainer, arguments.seed, peer)
        path = RESULTS / f"{scene}.json"
        runs = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        runs[f"{trainer}, {arguments.seed}"] = curve
        path.write_text(json.dumps(runs, sort_keys=True) + "\n", encoding="utf-8")
    write_tables()


if __name__ == "__main__":
    main()

"""Strength of a team after self-play, on the embedded SoccerTwos.

python tests/benchmarks/self_play.py --minutes 45
python tests/benchmarks/self_play.py --minutes 45 --config tests/benchmarks/self_play/SoccerTwos-short.yaml
python tests/benchmarks/self_play.py --tables                      # only write the table and the image again

`unity-learn` trains with `configs/poca/SoccerTwos.yaml`, or the given file, for `--minutes`. One player has many
pitches, which costs less per step. Then the newest policy plays against others, half of the matches on each side: its
first snapshot, the oldest one that the run still has at its end, and random actions. Figures go to
`self_play/<run>.json`; from them come the table in `self_play/README.md` and an image of the rating.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
import torch
import yaml
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from trainers import summaries

from sb3_ext import POCA
from sb3_ext.run_checkpoints import Checkpoints
from sb3_ext.self_play import ActingPolicy
from unity_gym.options import PlayerOptions
from unity_gym.pool import PlayerPool
from unity_gym.specs import ActionTuple, Array

mpl.use("Agg")
import matplotlib.pyplot as plt

RESULTS = Path(__file__).with_name("self_play")
CONFIG = Path(__file__).resolve().parents[2] / "configs" / "poca" / "SoccerTwos.yaml"
BEHAVIOR, BRANCHES, CHOICES = "SoccerTwos", 3, 3
GAMES = 100  # on each side
PITCHES = 25  # matches at the same time


class Random:
    """A policy with random actions.

    :param seed: Seed of the actions.
    """

    memory_size = 0

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def select_actions(
        self, observations: Sequence[Array], masks: Array, memory: Array, deterministic: bool = False
    ) -> tuple[ActionTuple, Array]:
        """See `sb3_ext.policies.AgentPolicy.select_actions`."""
        del masks, deterministic
        choices = self._rng.integers(CHOICES, size=(len(observations[0]), BRANCHES))
        return ActionTuple(discrete=choices.astype(np.int32)), memory


class Score(NamedTuple):
    """Matches of one policy against another; a drawn one ended without a goal."""

    won: int
    lost: int
    drawn: int


def play(blue: ActingPolicy, purple: ActingPolicy, seed: int) -> Score:
    """Play `GAMES` matches of two policies without memory; return the results of the first.

    Each pitch plays the same number, so that short matches do not count more than long ones.
    """
    options = PlayerOptions(file_name=f"embedded:{BEHAVIOR}", num_areas=PITCHES, seed=seed)
    left = np.full(PITCHES, GAMES // PITCHES)
    won = lost = drawn = 0
    pool = PlayerPool(options)
    try:
        pool.reset()
        tables = [pool.tables[f"{BEHAVIOR}?team={team}"] for team in (0, 1)]
        while left.any():
            actions = {}
            for team, (player, table) in enumerate(zip((blue, purple), tables, strict=True)):
                rows = np.flatnonzero(table.requests_decision)
                action = table.spec.action_spec.empty_action(len(table))
                nothing = np.zeros((len(rows), 0), np.float32)
                seen = [column[rows] for column in table.observations]
                if len(rows):
                    action.discrete[rows] = player.select_actions(seen, table.action_mask[rows], nothing)[0].discrete
                actions[f"{BEHAVIOR}?team={team}"] = action
            pool.step_once(actions)
            first = tables[0]
            ended = (first.terminated | first.truncated)[::2] & (
                left > 0
            )  # two agents per pitch and team, in adjacent rows
            reward = first.group_reward[::2][ended]
            won, lost = won + int((reward > 0).sum()), lost + int((reward < 0).sum())
            drawn += int((reward == 0).sum())
            left -= ended
    finally:
        pool.close()
    return Score(won, lost, drawn)


def meet(newest: ActingPolicy, other: ActingPolicy) -> Score:
    """Play matches on both sides."""
    there, back = play(newest, other, seed=1000), play(other, newest, seed=2000)
    return Score(there.won + back.lost, there.lost + back.won, there.drawn + back.drawn)


def learn(config: Path, minutes: float, areas: int, seed: int) -> dict[str, Any]:
    """Train and evaluate.

    :return: `steps` of the learning team; `seconds`; `elo`: steps, rating at each summary; `games`: by opponent, won,
        lost and drawn; `steps_of`: when each opponent was the newest policy
    """
    settings = yaml.safe_load(config.read_text(encoding="utf-8"))
    (behavior,) = settings["behaviors"].values()
    play = behavior["self_play"]
    # The first checkpoint is kept, while its snapshots still start with the first of all.
    behavior |= {"checkpoint_interval": play["save_steps"] * (play["window"] - 1), "keep_checkpoints": 0}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "settings.yaml")
        path.write_text(yaml.safe_dump(settings), encoding="utf-8")
        flags = ["--num-areas", str(areas), "--seed", str(seed), "--results-dir", folder, "--run-id", "run"]
        seconds = 0.0
        for summary in summaries([sys.executable, "-m", "sb3_ext.learn", str(path), *flags], 60 * minutes):
            seconds = summary.seconds
            print(*summary, flush=True)
        run = Path(folder, "run", BEHAVIOR)
        events = EventAccumulator(str(run))
        events.Reload()
        rating = [(event.step, round(event.value, 1)) for event in events.Scalars("Self-play/ELO")]
        saved = Checkpoints(run).by_step()
        first, last = POCA.load(saved[min(saved)]), POCA.load(saved[max(saved)])
    opponents: dict[str, tuple[int, ActingPolicy]] = {}
    for name, model in (("the first snapshot", first), ("the oldest snapshot at the end", last)):
        assert model.self_play is not None
        model.self_play.setup(model)
        oldest = model.self_play.snapshots[0]
        opponents[name] = oldest.step or 0, oldest.get_policy()
    opponents["random actions"] = 0, Random(seed)
    games = {}
    for name, (_, other) in opponents.items():
        games[name] = meet(last.policy.actor(), other)
        print(name, games[name], flush=True)
    return {
        "config": os.path.relpath(config, CONFIG.parents[2]),
        "minutes": minutes,
        "areas": areas,
        "seed": seed,
        "steps": last.num_timesteps,
        "seconds": round(seconds),
        "elo": rating,
        "games": games,
        "steps_of": {name: step for name, (step, _) in opponents.items()},
    }


def write_tables() -> None:
    """Write the table of all runs, and an image for each."""
    lines = [
        "# Self-play on SoccerTwos",
        "",
        f"The newest policy in {2 * GAMES} matches, half of them on each side, with sampled actions. Those without",
        "goals are draws. Steps are those of the team that learns.",
    ]
    for path in sorted(RESULTS.glob("*.json")):
        figures = json.loads(path.read_text(encoding="utf-8"))
        (start, rating), (end, final) = figures["elo"][0], figures["elo"][-1]
        command = f"--config {figures['config']} --minutes {figures['minutes']:g} --areas {figures['areas']}"
        lines += [
            "",
            f"## {path.stem}",
            "",
            f"`python tests/benchmarks/self_play.py {command} --seed {figures['seed']}`: {figures['steps']:,} steps in "
            f"{figures['seconds'] / 60:.0f} minutes; rating {rating} after {start:,} steps, {final} after {end:,}.",
            "",
            "| against | of step | won | lost | drawn | won of the matches with a winner |",
            "|---|---|---|---|---|---|",
        ]
        for name, score in figures["games"].items():
            won, lost, drawn = score
            step = "" if name == "random actions" else f"{figures['steps_of'][name]:,}"
            share = f"{won / (won + lost):.0%}" if won + lost else "none was decided"
            lines.append(f"| {name} | {step} | {won} | {lost} | {drawn} | {share} |")
        lines += ["", f"![Rating]({path.stem}.png)"]
        figure, axes = plt.subplots(figsize=(7, 3.5), layout="constrained")
        axes.plot(*np.transpose(figures["elo"]))
        axes.set(xlabel="steps of the learning team", ylabel="Elo rating", title=path.stem)
        axes.grid(alpha=0.3)
        figure.savefig(path.with_suffix(".png"), dpi=80)
        plt.close(figure)
    (RESULTS / "README.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def main() -> None:
    """Run the benchmark of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, default=CONFIG)
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--areas", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tables", action="store_true", help="run nothing; write table and images from the figures")
    arguments = parser.parse_args()
    if (arguments.minutes is None) == (not arguments.tables):
        parser.error("say for how many --minutes, or --tables")
    RESULTS.mkdir(exist_ok=True)
    torch.set_num_threads(1)
    if arguments.minutes:
        figures = learn(arguments.config, arguments.minutes, arguments.areas, arguments.seed)
        path = RESULTS / f"{arguments.config.stem}.json"
        path.write_text(json.dumps(figures, sort_keys=True) + "\n", encoding="utf-8")
    write_tables()


if __name__ == "__main__":
    main()

"""The table of what each configuration in `configs/` learns, from the runs of `learning.py` and of other benchmarks."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import yaml

REPOSITORY = Path(__file__).resolve().parents[2]
CONFIGS = REPOSITORY / "configs"
RUNS = "runs.jsonl"
STEADY = 5  # summaries whose mean is a run's reward
WHOLE = ("documented reward", "max_steps")  # ends of runs that nothing cut off

DOCUMENTED = {
    "3DBall": 100.0,
    "3DBallHard": 100.0,
    "Basic": 0.93,
    "CooperativePushBlock": 11.0,
    "Crawler": 3000.0,
    "DungeonEscape": 1.0,
    "FoodCollector": 10.0,
    "GridWorld": 0.8,
    "Hallway": 0.7,
    "Match3Vector": 38.5,
    "PushBlock": 4.5,
    "Pyramids": 1.75,
    "VisualFoodCollector": 10.0,
    "Walker": 2500.0,
    "WallJump": 0.8,
    "Worm": 800.0,
}
"""The reward that Unity documents for each scene that has one."""


COLUMNS = (
    *("configuration", "documented", "unity-learn", "seeds", "timesteps", "wall time", "ended by"),
    *("mlagents-learn", "source"),
)
INTRODUCTION = """\
# Results of the shipped configurations

<!-- written by tests/benchmarks/learning.py: change it there -->

What each configuration in `configs/` learns on the embedded player. {trained} of {configurations} have been
run. The first command makes the missing runs, one at a time, and writes this page. After an interruption it continues
with the next run.

```
python tests/benchmarks/learning.py --all
python tests/benchmarks/learning.py ppo/3DBall --seeds 0 1 2
python tests/benchmarks/learning.py ppo/3DBall --peer-learn PEER/bin/mlagents-learn    # Unity's trainer
```

- **documented**: the reward that Unity documents for the scene, whatever the configuration changes in it. Those of
  Match3 belong to a board of 9 x 8.
- **unity-learn**: the mean of the last {steady} summaries of training, with sampled actions. For several seeds it is
  the range; one seed gives no spread. A run that the documented reward ended has been stopped by this
  very mean: the figure shows that the reward was reached, not where longer training ends.
  With self-play, Elo is the rating at the end against the policy's own past; it starts at 1200.
- **seeds**: the seeds with a recorded run. A newer run of a seed replaces the older one, whichever is better. Figures
  with a source are what earlier sessions recorded; unrecorded runs of that time cannot be ruled out.
- **timesteps**: decisions of all agents and behaviors up to the last summary. A run with fewer than {steady} summaries
  has the mean of those that it has.
- **wall time**: from the start of the command, on 2 cores without a GPU unless the machine is named. `~`: the machine
  had other work, or it is not recorded whether it had. These times do not compare with others.
- **ended by**: the documented reward, `max_steps` of the configuration, a limit, Ctrl-C, or the loss of the machine.
  The last three cut the run off; longer training may reach more. The line of a run that lost its machine has been made
  by hand from the summaries that it had printed.
- **mlagents-learn**: Unity's trainer on the same player with the same settings. Where a limit cut the run off, it has
  the hours to `max_steps` at the rate of the run, of the behavior that had come furthest. A machine without other
  work takes fewer hours than those marked `~`.
- **source**: empty for runs of this benchmark. *earlier*: its earlier version, with older code. Other benchmarks have
  their own numbers of players and areas, which their page names with their commands. *other
  demonstration*: not Unity's, but of the folder that the command names (`tests/benchmarks/README.md` has its origin).

Each run with its command and curve is a line of `tests/benchmarks/learning/runs.jsonl`, with the commit of the code or,
for figures with a source, the commit that recorded them. A resumed run names the commits of its earlier parts
(`resumed`).
"""


def commit() -> str:
    """Return the repository's commit, which is empty outside a repository."""
    command = ["git", "-C", str(REPOSITORY), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def settings_of(config: str) -> dict[str, Any]:
    """Return the contents of a configuration such as `ppo/3DBall`."""
    settings: dict[str, Any] = yaml.safe_load((CONFIGS / f"{config}.yaml").read_text(encoding="utf-8"))
    return settings


def configurations() -> list[str]:
    """Return the names of all configurations that train, those of fewer timesteps first."""
    names = [str(path.relative_to(CONFIGS).with_suffix("")) for path in CONFIGS.glob("*/*.yaml")]
    return sorted((name for name in names if not name.startswith("sweeps/")), key=lambda name: (max_steps(name), name))


def max_steps(config: str) -> int:
    """Return the timesteps of a configuration's longest behavior."""
    return max(int(float(behavior["max_steps"])) for behavior in settings_of(config)["behaviors"].values())


def documented_rewards(config: str) -> dict[str, float]:
    """Return the documented reward of each behavior of a configuration that has one."""
    settings = settings_of(config)
    scene = settings["env_settings"]["env_path"].removeprefix("embedded:")
    return dict.fromkeys(settings["behaviors"], DOCUMENTED[scene]) if scene in DOCUMENTED else {}


def read_runs(folder: Path) -> list[dict[str, Any]]:
    """Return the finished runs of a folder, one dictionary per line of its file."""
    path = folder / RUNS
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def write_results(folder: Path, page: Path) -> None:
    """Write the page with the table of all configurations."""
    runs = read_runs(folder)
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text("\n".join(results_page(runs)) + "\n", encoding="utf-8")


def results_page(runs: list[dict[str, Any]]) -> list[str]:
    """Return the lines of the page."""
    rows = [row(config, [run for run in runs if run["config"] == config]) for config in sorted(configurations())]
    trained = {run["config"] for run in runs if _is_ours(run)}
    return [
        INTRODUCTION.format(steady=STEADY, trained=len(trained), configurations=len(rows)),
        f"| {' | '.join(COLUMNS)} |",
        "|---" * len(COLUMNS) + "|",
        *rows,
    ]


def row(config: str, runs: list[dict[str, Any]]) -> str:
    """Return a configuration's row of the table.

    :param runs: Of this configuration, with any trainer.
    """
    goals = documented_rewards(config)
    documented = ", ".join(f"{goal:g}" for goal in dict.fromkeys(goals.values())) or "none"
    ours = [run for run in runs if _is_ours(run)]
    peer = [run for run in runs if run["trainer"] == "mlagents-learn" and "until" not in run]
    cells = [f"`{config}`", documented]
    if ours:
        ends = [run["end"] for run in ours]
        ended = ", ".join(f"{end} ({ends.count(end)})" if len(set(ends)) > 1 else end for end in dict.fromkeys(ends))
        seeds = ", ".join(str(run["seed"]) for run in sorted(ours, key=_seed))
        cells += [rewards(ours), seeds, timesteps(ours), wall_time(ours), ended]
    else:
        cells += ["not run yet", "", "", "", ""]
    peers = [f"{rewards(peer)} (seed {_seeds(peer)}; {timesteps(peer)} timesteps, {wall_time(peer)})"] if peer else []
    peers += [f"cut off: to `max_steps` {whole_hours(run):.1f} h" for run in peer if run["end"] not in WHOLE]
    cells.append("; ".join([*peers, *side_by_side(runs)]) or "not run yet")
    sources = [run["source"] for run in runs if "source" in run]
    sources += ["*other demonstration*" for run in ours if "--demonstrations" in run.get("command", "")]
    cells.append("; ".join(dict.fromkeys(sources)))
    return "| " + " | ".join(cells) + " |"


def side_by_side(runs: list[dict[str, Any]]) -> list[str]:
    """Return what both trainers took until the first summary with some reward."""
    texts = []
    for until in dict.fromkeys(run["until"] for run in runs if "until" in run):
        both = []
        for trainer in ("mlagents-learn", "unity-learn"):
            some = [run for run in runs if run.get("until") == until and run["trainer"] == trainer]
            if some:
                both.append(f"{trainer} {timesteps(some)} timesteps, {wall_time(some)} (seed {_seeds(some)})")
        texts.append(f"first summary ≥ {until:g}: {'; '.join(both)}")
    return texts


def rewards(runs: list[dict[str, Any]]) -> str:
    """Return the range of the runs' rewards, with that of their Elo ratings, by behavior where there are several."""
    behaviors = dict.fromkeys(behavior for run in runs for behavior in run["reward"])
    texts = {name: span([run["reward"][name] for run in runs if name in run["reward"]]) for name in behaviors}
    for name in behaviors:
        ratings = [run["elo"][name] for run in runs if name in run.get("elo", {})]
        texts[name] += f" (Elo {span(ratings)})" if ratings else ""
    return ", ".join(f"{name} {text}" for name, text in texts.items()) if len(texts) > 1 else "".join(texts.values())


def whole_hours(run: dict[str, Any]) -> float:
    """Return the hours that a run takes to the `max_steps` of its configuration, at the rate that it had."""
    behaviors = settings_of(run["config"])["behaviors"]
    parts = [run["steps"].get(name, 0) / float(behavior["max_steps"]) for name, behavior in behaviors.items()]
    hours: float = run["seconds"] / 3600 / max(parts)
    return hours


def timesteps(runs: list[dict[str, Any]]) -> str:
    """Return the range of the runs' timesteps, which are those of all behaviors together."""
    return span([sum(run["steps"].values()) for run in runs])


def wall_time(runs: list[dict[str, Any]]) -> str:
    """Return the range of the runs' wall times, marked unless the machine is known to have had no other work."""
    machines = dict.fromkeys(machine(run) for run in runs)
    on = "" if list(machines) == ["2 cores"] else f" ({'; '.join(machines)})"
    return "~" * any(run["shared"] is not False for run in runs) + span([run["seconds"] for run in runs]) + " s" + on


def machine(run: dict[str, Any]) -> str:
    """Return the cores and the GPU of the machine that made a run."""
    return ", ".join(filter(None, [f"{run['cores']} cores", run.get("gpu")]))


def span(values: list[float]) -> str:
    """Return the smallest and the largest value."""
    texts = [f"{value:,}" if isinstance(value, int) else f"{value:.2f}" for value in (min(values), max(values))]
    return " to ".join(dict.fromkeys(texts))


def _is_ours(run: dict[str, Any]) -> bool:
    return run["trainer"] == "unity-learn" and "until" not in run


def _seed(run: dict[str, Any]) -> int:
    seed: int = run["seed"]
    return seed


def _seeds(runs: list[dict[str, Any]]) -> str:
    return ", ".join(str(run["seed"]) for run in sorted(runs, key=_seed))

"""Timesteps to a reward with one synchronous sampler, with two sampler processes, and with `threaded: true`.

    python tests/benchmarks/parity.py [--seeds 0 1 2] [--configs ppo/3DBall ppo/PushBlock sac/3DBall] [--timesteps N]

Each run has two players and the settings of a file in `configs`, and is stopped at the first summary whose mean reward
reaches the threshold. Timesteps are those of the summary, so that other work on the machine does not matter;
`inf` if the run ended before.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import tempfile
from contextlib import closing
from pathlib import Path

import yaml
from trainers import CONFIGS, TOO_LONG, summaries

CASES = {
    "ppo/3DBall": (98.0, 6000, 0),
    "ppo/PushBlock": (4.5, 40_000, 128_000),
    "sac/3DBall": (98.0, 6000, 0),
}
"""Threshold, summary_freq, and the timesteps of the first full episodes: until then only episodes that succeed end."""
MODES = {"synchronous": (), "--num-workers 2": ("--num-workers=2",), "threaded": ()}


def timesteps(config: str, mode: str, seed: int, limit: int | None) -> float:
    """Return the timesteps to the threshold; infinite if the run ended before, because of the time or of this limit."""
    threshold, summary_freq, first = CASES[config]
    scene = config.partition("/")[2]
    settings = yaml.safe_load((CONFIGS / f"{config}.yaml").read_text(encoding="utf-8"))
    behavior = settings["behaviors"][scene]
    behavior |= {"summary_freq": summary_freq, "threaded": mode == "threaded"}
    if limit is not None:
        behavior["max_steps"] = limit
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "settings.yaml")
        path.write_text(yaml.safe_dump(settings), encoding="utf-8")
        command = [sys.executable, "-m", "sb3_ext.learn", str(path), f"--env=Unity-{scene}-v0", "--num-envs=2"]
        command += [*MODES[mode], f"--seed={seed}", "--run-id=run", f"--results-dir={folder}"]
        with closing(summaries(command, TOO_LONG)) as lines:
            reached = (line.steps for line in lines if line.reward >= threshold and line.steps > first)
            return float(next(reached, math.inf))


def main() -> None:
    """Run what the command line names and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--configs", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument(
        "--timesteps", type=int, help="limit of each run, with at least one summary (default: max_steps)"
    )
    arguments = parser.parse_args()
    print("| settings | mode | timesteps by seed | median | of synchronous |\n|---|---|---|---|---|")
    for config in arguments.configs:
        medians: dict[str, float] = {}
        for mode in MODES:
            found = [timesteps(config, mode, seed, arguments.timesteps) for seed in arguments.seeds]
            medians[mode] = statistics.median(found)
            ratio = medians[mode] / medians["synchronous"]
            each = ", ".join(f"{steps:,.0f}" for steps in found)
            name = f"{config} ≥ {CASES[config][0]:g}"
            print(f"| {name} | {mode} | {each} | {medians[mode]:,.0f} | {ratio:.2f} |", flush=True)


if __name__ == "__main__":
    main()

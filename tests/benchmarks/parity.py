"""Timesteps to a reward with one synchronous sampler, with two sampler processes, and with `threaded: true`.

    python tests/benchmarks/parity.py [--seeds 0 1 2] [--scenes 3DBall PushBlock]

Each run has two players and the settings of `configs/ppo`, and is stopped at the first summary whose mean reward
reaches the threshold. Timesteps are those of the summary, so that other work on the machine does not matter.
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

SCENES = {"3DBall": (98.0, 6000, 0), "PushBlock": (4.5, 40_000, 128_000)}
"""Threshold, summary_freq, and the timesteps of the first full episodes: until then only episodes that succeed end."""
MODES = {"synchronous": (), "--num-workers 2": ("--num-workers=2",), "threaded": ()}


def timesteps(scene: str, mode: str, seed: int) -> float:
    """Return the timesteps to the threshold; infinite where it was not reached in time."""
    threshold, summary_freq, first = SCENES[scene]
    settings = yaml.safe_load((CONFIGS / "ppo" / f"{scene}.yaml").read_text(encoding="utf-8"))
    settings["behaviors"][scene] |= {"summary_freq": summary_freq, "threaded": mode == "threaded"}
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
    parser.add_argument("--scenes", nargs="+", choices=SCENES, default=list(SCENES))
    arguments = parser.parse_args()
    print("| scene | mode | timesteps by seed | median | of synchronous |\n|---|---|---|---|---|")
    for scene in arguments.scenes:
        medians: dict[str, float] = {}
        for mode in MODES:
            found = [timesteps(scene, mode, seed) for seed in arguments.seeds]
            medians[mode] = statistics.median(found)
            ratio = medians[mode] / medians["synchronous"]
            each = ", ".join(f"{steps:,.0f}" for steps in found)
            name = f"{scene} ≥ {SCENES[scene][0]:g}"
            print(f"| {name} | {mode} | {each} | {medians[mode]:,.0f} | {ratio:.2f} |", flush=True)


if __name__ == "__main__":
    main()

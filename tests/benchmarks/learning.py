"""Train every configuration in `configs/`, one run at a time, and write the table of results in the documentation.

python tests/benchmarks/learning.py --all                # all runs that are not finished; repeat to resume
python tests/benchmarks/learning.py ppo/3DBallHard sac/Basic --seeds 0 1 2
python tests/benchmarks/learning.py ppo/Basic --peer-learn PEER/bin/mlagents-learn
python tests/benchmarks/learning.py --table              # run nothing, write the table

A run is `unity-learn CONFIG --seed SEED`, or `mlagents-learn` with the same settings on the same player. It ends when
the mean of the last `STEADY` summaries of each behavior reaches the documented reward, when the configuration's
`max_steps` are made, or with `--steps` or `--minutes`. `--all` trains each configuration with seed 0, and with seeds 1
and 2 where that took less than 30 minutes. A finished run is one line of `learning/runs.jsonl` and one learning curve,
`learning/curves/*.csv`; an interrupted run leaves neither and starts again. With `--results FOLDER`, Ctrl-C ends a run
as a limit does, and a run of `unity-learn` that either has ended resumes from its checkpoint in that folder when the
command is repeated, after a limit with a larger one; its times and curve continue. With `--worker`, the agents of
`unity-learn` act in a process of their own while it updates (`threaded: true`, `--num-workers 1`). `PEER` needs Unity's
package `mlagents` 1.1.0 on Python 3.10.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
import resource
import shlex
import statistics
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import yaml
from client_speed import free_port
from results import (
    CONFIGS,
    REPOSITORY,
    RUNS,
    STEADY,
    WHOLE,
    commit,
    configurations,
    documented_rewards,
    read_runs,
    settings_of,
    write_results,
)
from torch import cuda
from trainers import Summary, player_of, summaries

DEMONSTRATIONS = REPOSITORY.parent / "shared" / "unity" / "demonstrations"
OURS, PEER = "unity-learn", "mlagents-learn"
INTERRUPTED = "Ctrl-C"  # end of a run
SHORT = 30 * 60  # seconds; shorter runs are repeated with two more seeds
Run = tuple[dict[str, Any], dict[str, list[Summary]]]  # its line, and the summaries of each behavior


def has_reached(config: str, curves: dict[str, list[Summary]]) -> bool:
    """Return whether each behavior with a documented reward has it in its last summaries."""
    goals = documented_rewards(config)
    return bool(goals) and all(
        len(curve := curves.get(behavior, [])) >= STEADY
        and statistics.fmean(each.reward for each in curve[-STEADY:]) >= goal
        for behavior, goal in goals.items()
    )


def has_all_steps(config: str, curves: dict[str, list[Summary]]) -> bool:
    """Return whether each behavior has made its `max_steps`, of which the last summary may miss less than one."""
    settings = settings_of(config)
    blocks = {
        name: {**settings.get("default_settings", {}), **settings["behaviors"].get(name, {})}
        for name in {*settings["behaviors"], *curves}
    }
    return all(
        name in curves and curves[name][-1].steps + block.get("summary_freq", 50_000) > int(float(block["max_steps"]))
        for name, block in blocks.items()
    )


def train(
    config: str,
    seed: int,
    peer_learn: str | None,
    limits: argparse.Namespace,
    earlier: Run | None = None,
) -> Run:
    """Train, and return the line of the run and the summaries of each behavior.

    :param peer_learn: The command `mlagents-learn`; None runs `unity-learn`.
    :param limits: Timesteps per behavior (`steps`, None for those of the configuration), `minutes`, the folder that
        keeps the run (`results`, None for none), whether agents act in another process (`worker`), and the folder of
        the `.demo` files that the configuration reads (`demonstrations`).
    :param earlier: The part of the run to resume; None starts a new run.
    """
    path = CONFIGS / f"{config}.yaml"
    trainer = OURS if peer_learn is None else PEER
    cut_off, curves = earlier or ({}, {})
    spent = cut_off.get("seconds", 0)
    unseen = set(curves)  # behaviors without a new summary
    before, started, loads = _processor_seconds(), time.perf_counter(), [os.getloadavg()[0]]
    end = "max_steps"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "demonstrations").symlink_to(limits.demonstrations.resolve())
        results = (limits.results or folder / "results").resolve()
        _line_file(results, config, trainer, seed).unlink(missing_ok=True)  # a run without a line starts again
        flags = [f"--seed={seed}", f"--run-id={_name(config, trainer, seed)}", f"--results-dir={results}"]
        flags.append("--resume" if earlier else "--force")
        if peer_learn is None:
            if limits.worker:
                path, flags = _threaded(path, folder), [*flags, "--num-workers=1"]
            command = [sys.executable, "-m", "sb3_ext.learn", str(path), *flags]
        else:
            command = [peer_learn, *_peer_settings(path, folder), "--no-graphics", *flags]
        try:
            with closing(summaries(command, 60 * limits.minutes - spent, folder)) as lines:
                for each in lines:
                    each = each._replace(seconds=each.seconds + spent)
                    if each.behavior in unseen:  # from a checkpoint that may be older than the last summaries
                        unseen.remove(each.behavior)
                        curves[each.behavior] = [old for old in curves[each.behavior] if old.steps < each.steps]
                    curves.setdefault(each.behavior, []).append(each)
                    loads.append(os.getloadavg()[0])
                    print(config, each.behavior, each.steps, each.reward, f"{each.seconds:.0f} s", flush=True)
                    if has_reached(config, curves):
                        end = "documented reward"
                        break
                    if limits.steps is not None and all(curve[-1].steps >= limits.steps for curve in curves.values()):
                        end = "step limit"
                        break
        except KeyboardInterrupt:
            if limits.results is None or not curves:
                raise
            end = INTERRUPTED
    seconds = spent + time.perf_counter() - started
    loads.append(os.getloadavg()[0])
    if end == "max_steps" and not has_all_steps(config, curves):
        if seconds < 60 * limits.minutes:
            sys.exit(f"{config}, seed {seed}: the trainer ended before its steps were made and before the time limit")
        end = "time limit"
    parts = {"resumed": [*cut_off.get("resumed", []), cut_off["commit"]]} if cut_off else {}
    last = {behavior: curve[-1].elo for behavior, curve in curves.items()}
    ratings = {behavior: round(elo, 1) for behavior, elo in last.items() if not math.isnan(elo)}
    record = {
        "config": config,
        "trainer": trainer,
        "seed": seed,
        "reward": {
            behavior: round(statistics.fmean(each.reward for each in curve[-STEADY:]), 3)
            for behavior, curve in curves.items()
        },
        **({"elo": ratings} if ratings else {}),
        "steps": {behavior: curve[-1].steps for behavior, curve in curves.items()},
        "seconds": round(seconds),
        "processor_seconds": round(cut_off.get("processor_seconds", 0) + _processor_seconds() - before),
        "cores": os.cpu_count(),
        **({"gpu": cuda.get_device_name()} if cuda.is_available() else {}),
        "load": [round(load, 1) for load in (loads[0], max(loads), loads[-1])],
        "shared": cut_off.get("shared", False) or max(loads) > (os.cpu_count() or 1) + 1,
        "end": end,
        "minutes": limits.minutes,
        "command": _own_command(config, seed, peer_learn, limits),
        "commit": commit(),
        "date": time.strftime("%Y-%m-%d"),
        **parts,
    }
    return record, curves


def cut_off_run(config: str, seed: int, limits: argparse.Namespace) -> Run | None:
    """Return the line and the summaries of a run of `unity-learn` that has a checkpoint to resume from.

    :param limits: Those of the resumed run, with the folder of the runs (`results`) and that of their lines
        (`folder`).
    :return: None if there is no such run, it left no line, or its limits were as large.
    """
    path = None if limits.results is None else _line_file(limits.results, config, OURS, seed)
    if path is None or not path.exists():
        return None
    run = json.loads(path.read_text(encoding="utf-8"))
    if run not in read_runs(limits.folder) or is_finished(run, limits.minutes, limits.steps):
        return None
    return run, read_curve(limits.folder, run)


def read_curve(folder: Path, run: dict[str, Any]) -> dict[str, list[Summary]]:
    """Return the summaries of each behavior of a run."""
    curves: dict[str, list[Summary]] = {}
    with (folder / run["curve"]).open(newline="", encoding="utf-8") as file:
        for each in csv.DictReader(file):
            summary = Summary(
                int(each["steps"]),
                float(each["reward"]),
                float(each["seconds"]),
                each["behavior"],
                float(each["elo"] or "nan"),
            )
            curves.setdefault(summary.behavior, []).append(summary)
    return curves


def _name(config: str, trainer: str, seed: int) -> str:
    """Return the name of a run's files, which differs for each run."""
    return f"{config.replace('/', '-')}-{trainer}-{seed}"


def _line_file(results: Path, config: str, trainer: str, seed: int) -> Path:
    """Return the file next to a run's folder with the line that belongs to its checkpoint."""
    return results / f"{_name(config, trainer, seed)}.json"


def _own_command(config: str, seed: int, peer_learn: str | None, limits: argparse.Namespace) -> str:
    """Return the command that repeats this run, with the GPU and the number of threads that the environment sets."""
    names = ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS")
    variables = [f"{name}={os.environ[name]}" for name in names if name in os.environ]
    steps = [] if limits.steps is None else ["--steps", str(limits.steps)]
    peer = [] if peer_learn is None else ["--peer-learn", "PEER/bin/mlagents-learn"]
    worker = ["--worker"] if limits.worker and peer_learn is None else []
    shown = [] if limits.demonstrations == DEMONSTRATIONS else ["--demonstrations", "FOLDER"]
    arguments = [config, "--seeds", str(seed), *steps, "--minutes", f"{limits.minutes:g}", *worker, *peer, *shown]
    return shlex.join([*variables, "python", "tests/benchmarks/learning.py", *arguments])


def _threaded(path: Path, folder: Path) -> Path:
    """Write a configuration whose agents act during updates, and return its path."""
    settings = yaml.safe_load(path.read_text(encoding="utf-8"))
    for behavior in settings["behaviors"].values():
        behavior["threaded"] = True
    file = folder / path.name
    file.write_text(yaml.safe_dump(settings), encoding="utf-8")
    return file


def _peer_settings(path: Path, folder: Path) -> list[str]:
    """Write a configuration without the name of the embedded player; return it and the flags of player and port."""
    settings = yaml.safe_load(path.read_text(encoding="utf-8"))
    environment = settings.pop("env_settings")
    file = folder / path.name
    file.write_text(yaml.safe_dump(settings), encoding="utf-8")
    player = player_of(environment["env_path"].removeprefix("embedded:"), folder)
    areas = [f"--num-areas={environment['num_areas']}"] if "num_areas" in environment else []
    return [str(file), f"--env={player}", f"--base-port={free_port()}", *areas]


def _processor_seconds() -> float:
    """Return the processor time of the child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def save(record: dict[str, Any], curves: dict[str, list[Summary]], folder: Path, results: Path | None) -> None:
    """Write the learning curve of a finished run, then its line, which replaces that of an earlier equal run.

    :param results: Folder that keeps the run, and its line to resume it; None for none.
    """
    curve = Path("curves", f"{_name(*_key(record))}.csv")
    (folder / curve.parent).mkdir(parents=True, exist_ok=True)
    with (folder / curve).open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(("behavior", "steps", "reward", "seconds", "elo"))
        for behavior, lines in curves.items():
            for each in lines:
                elo = "" if each.elo != each.elo else each.elo
                table.writerow((behavior, each.steps, each.reward, round(each.seconds, 1), elo))
    record = {**record, "curve": str(curve)}
    runs = [run for run in read_runs(folder) if _key(run) != _key(record) or "until" in run]
    partial = folder / f"{RUNS}.partial"
    partial.write_text("".join(json.dumps(run) + "\n" for run in [*runs, record]), encoding="utf-8")
    partial.replace(folder / RUNS)
    if results is not None:
        _line_file(results, *_key(record)).write_text(json.dumps(record), encoding="utf-8")


def _key(run: dict[str, Any]) -> tuple[str, str, int]:
    return run["config"], run["trainer"], run["seed"]


def is_finished(run: dict[str, Any], minutes: float, steps: int | None) -> bool:
    """Return whether a run need not be repeated under these limits: it ended by itself, or with limits as large."""
    if "until" in run:
        return False
    if run["end"] == "time limit":
        return bool(run["minutes"] >= minutes)
    if run["end"] == "step limit":
        return steps is not None and min(run["steps"].values()) >= steps
    return run["end"] in WHOLE


def open_runs(
    configs: list[str], trainers: list[str], runs: list[dict[str, Any]], minutes: float, steps: int | None = None
) -> list[tuple[str, str, int]]:
    """Return the configuration, trainer and seed of the runs that `--all` still has to make, in their order."""
    finished = {_key(run): run for run in runs if is_finished(run, minutes, steps)}
    every = [
        (config, trainer, seed)
        for seed in range(3)
        for trainer in trainers
        for config in configs
        if seed == 0 or finished.get((config, trainer, 0), {"seconds": SHORT})["seconds"] < SHORT
    ]
    return [key for key in every if key not in finished]


def has_files(config: str, demonstrations: Path) -> bool:
    """Return whether the demonstrations that a configuration reads are there."""
    text = (CONFIGS / f"{config}.yaml").read_text(encoding="utf-8")
    names = {Path(line.split("demo_path:")[1].strip()).name for line in text.splitlines() if " demo_path: " in line}
    return all((demonstrations / name).exists() for name in names)


def main() -> None:
    """Run what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("configs", nargs="*", metavar="CONFIG", help="such as ppo/3DBall")
    parser.add_argument("--all", action="store_true", help="every configuration")
    parser.add_argument("--table", action="store_true", help="run nothing; write the table")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], help="of the configurations that are named")
    parser.add_argument("--steps", type=int, help="timesteps at most (default: max_steps of the configuration)")
    parser.add_argument("--minutes", type=float, default=120, help="of a run at most (default: 120)")
    parser.add_argument("--worker", action="store_true", help="agents of unity-learn act in another process")
    parser.add_argument("--peer-learn", metavar="COMMAND", help="run mlagents-learn, too (--all) or instead")
    parser.add_argument(
        "--demonstrations", type=Path, default=DEMONSTRATIONS, help="folder of the .demo files (default: Unity's)"
    )
    parser.add_argument("--folder", type=Path, default=Path(__file__).with_name("learning"), help="of the curves")
    parser.add_argument("--results", type=Path, help="folder that keeps the runs with their policies (default: none)")
    parser.add_argument("--page", type=Path, default=REPOSITORY / "docs" / "results.md", help="file of the table")
    arguments = parser.parse_args()
    if sum((bool(arguments.configs), arguments.all, arguments.table)) != 1:
        parser.error("give configurations, --all or --table")
    if unknown := set(arguments.configs) - set(configurations()):
        parser.error(f"no such configuration: {', '.join(sorted(unknown))}; there are {', '.join(configurations())}")
    arguments.folder.mkdir(parents=True, exist_ok=True)
    peer = arguments.peer_learn
    named = [(config, PEER if peer else OURS, seed) for seed in arguments.seeds for config in arguments.configs]
    without_files = {config for config in configurations() if not has_files(config, arguments.demonstrations)}
    if missing := sorted(without_files & set(arguments.configs)):
        parser.error(f"--demonstrations has not the .demo files of {', '.join(missing)}")
    while True:
        if arguments.all:
            configs = [config for config in configurations() if config not in without_files]
            runs = read_runs(arguments.folder)
            named = open_runs(configs, [OURS, PEER] if peer else [OURS], runs, arguments.minutes, arguments.steps)
        if not named:
            break
        config, trainer, seed = named.pop(0)
        earlier = cut_off_run(config, seed, arguments) if trainer == OURS else None
        record, curves = train(config, seed, peer if trainer == PEER else None, arguments, earlier)
        save(record, curves, arguments.folder, arguments.results)
        print(json.dumps(record), flush=True)
        if record["end"] == INTERRUPTED:
            break
    write_results(arguments.folder, arguments.page)


if __name__ == "__main__":
    main()

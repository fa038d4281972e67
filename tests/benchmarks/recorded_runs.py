"""Figures of benchmark runs: a JSON file per run with a line per seed, and a page with tables and images from them."""

from __future__ import annotations

import argparse
import csv
import json
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.logger import configure

Figures = dict[str, Any]


def train(model: BaseAlgorithm, steps: int) -> tuple[float, float, list[dict[str, str]]]:
    """Train a model.

    :param steps: Timesteps of all agents together.
    :return: Seconds, processor seconds of this process, and the rows that the model logged.
    """
    with tempfile.TemporaryDirectory() as folder:
        model.set_logger(configure(folder, ["csv"]))
        started = time.perf_counter(), time.process_time()
        model.learn(steps)
        seconds, processor = time.perf_counter() - started[0], time.process_time() - started[1]
        with Path(folder, "progress.csv").open() as table:
            return seconds, processor, list(csv.DictReader(table))


def parser_of(description: str | None, runs: Mapping[str, Any]) -> argparse.ArgumentParser:
    """Return the parser of a benchmark's command line: a run with its seeds, or `--tables`."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", nargs="?", choices=runs)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--tables", action="store_true", help="run nothing; write tables and images from the figures")
    return parser


def parse(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Parse the command line, and prepare the process for a run."""
    arguments = parser.parse_args()
    if (arguments.run is None) == (not arguments.tables):
        parser.error("name a run or pass --tables")
    torch.set_num_threads(1)  # the networks are small, and the player needs a core, too
    return arguments


def record(folder: Path, name: str, seeds: list[int], run: Callable[[int], Figures]) -> None:
    """Run each seed, and add its figures to the file of the run."""
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}.json"
    for seed in seeds:
        figures = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        figures[str(seed)] = run(seed)
        path.write_text(json.dumps(figures, sort_keys=True) + "\n", encoding="utf-8")
        print(name, "seed", seed, {key: value for key, value in figures[str(seed)].items() if key != "curve"})


def write_page(
    folder: Path,
    introduction: list[str],
    descriptions: Mapping[str, str | None],
    table: Callable[[dict[int, Figures]], list[str]],
    draw: Callable[[str, dict[int, Figures]], None],
) -> None:
    """Write the page with a section per run that has figures, and an image for each.

    :param introduction: Lines before the first section.
    :param descriptions: Description per run.
    :param table: Function from the figures per seed to the lines of a table.
    :param draw: Function that draws the figures per seed of a run to `<run>.png`.
    """
    lines = list(introduction)
    for name, description in descriptions.items():
        path = folder / f"{name}.json"
        if not path.exists():
            continue
        figures = {int(seed): each for seed, each in json.loads(path.read_text(encoding="utf-8")).items()}
        command = f"python tests/benchmarks/{folder.name}.py {name} --seeds {' '.join(map(str, figures))}"
        lines += ["", f"## {name}", "", str(description), "", f"`{command}`", "", *table(figures)]
        lines += ["", f"![Learning curve of {name}]({name}.png)"]
        draw(name, figures)
    (folder / "README.md").write_text("\n".join(lines) + "\n", encoding="utf-8")

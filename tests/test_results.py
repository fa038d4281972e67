"""The benchmark that trains the shipped configurations: its lines, its table, and the missing runs."""

from __future__ import annotations

import argparse
import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
BENCHMARKS = ROOT / "tests" / "benchmarks"
sys.path.append(str(BENCHMARKS))

import learning  # noqa: E402
import results  # noqa: E402


def run(config: str = "ppo/Basic", **changes: Any) -> dict[str, Any]:
    """Return the line of a finished run."""
    (behavior,) = results.settings_of(config)["behaviors"]
    reward, steps = changes.pop("reward", 0.9), changes.pop("steps", 20_000)
    line = {"config": config, "trainer": "unity-learn", "seed": 0, "reward": {behavior: reward}}
    line |= {
        "steps": {behavior: steps},
        "seconds": 100,
        "cores": 2,
        "shared": False,
        "end": "documented reward",
        "minutes": 120,
    }
    return line | changes


def cells(row: str) -> list[str]:
    return [cell.strip() for cell in row.strip("|").split("|")]


def test_a_run_is_written_as_a_line_a_curve_and_a_row(tmp_path: Path) -> None:
    script = [sys.executable, str(BENCHMARKS / "learning.py"), "ppo/Basic", "--steps", "2000", "--seeds", "3"]
    page = tmp_path / "page.md"
    subprocess.run([*script, "--folder", str(tmp_path), "--page", str(page)], check=True, timeout=200)
    (line,) = (tmp_path / "runs.jsonl").read_text(encoding="utf-8").splitlines()
    record = json.loads(line)
    assert (record["config"], record["trainer"], record["seed"]) == ("ppo/Basic", "unity-learn", 3)
    assert record["steps"] == {"Basic": 2000}
    assert record["end"] == "step limit"
    assert record["command"].endswith("learning.py ppo/Basic --seeds 3 --steps 2000 --minutes 120")
    assert record["seconds"] > 0
    curve = (tmp_path / record["curve"]).read_text(encoding="utf-8").splitlines()
    assert curve[0] == "behavior,steps,reward,seconds,elo"
    assert [row.split(",")[:2] for row in curve[1:]] == [["Basic", "2000"]]
    rows = [cells(row) for row in page.read_text(encoding="utf-8").splitlines() if row.startswith("| `")]
    assert [row[0] for row in rows] == [f"`{config}`" for config in sorted(results.configurations())]
    basic = next(row for row in rows if row[0] == "`ppo/Basic`")
    assert basic[1:5] == ["0.93", f"{record['reward']['Basic']:.2f}", "3", "2,000"]
    assert sum("not run yet" in row for row in rows) == len(rows)  # mlagents-learn was not run at all
    assert [row[2] for row in rows if row[2] != "not run yet"] == [basic[2]]


def test_a_run_that_a_limit_ended_resumes_from_its_checkpoint(tmp_path: Path) -> None:
    script = [sys.executable, str(BENCHMARKS / "learning.py"), "ppo/Basic", "--folder", str(tmp_path)]
    script += ["--page", str(tmp_path / "page.md"), "--results", str(tmp_path / "results")]
    parts = []
    for steps in (2000, 4000):
        subprocess.run([*script, "--steps", str(steps)], check=True, timeout=200)
        parts += results.read_runs(tmp_path)
    first, whole = parts
    assert whole["resumed"] == [first["commit"]]
    assert whole["seconds"] > first["seconds"]
    curve = learning.read_curve(tmp_path, whole)["Basic"]
    assert [each.steps for each in curve] == [2000, 4000]
    assert curve[0].seconds < first["seconds"] < curve[1].seconds < whole["seconds"] + 1
    limits = argparse.Namespace(results=tmp_path / "results", folder=tmp_path, minutes=120, steps=4000)
    assert learning.cut_off_run("ppo/Basic", 0, limits) is None
    limits.steps = 6000
    assert (found := learning.cut_off_run("ppo/Basic", 0, limits)) is not None
    assert found[0] == whole
    assert learning.cut_off_run("ppo/Basic", 1, limits) is None
    # another run of the same seed, whose checkpoint is not in this folder
    learning.save(run(steps=2000), {}, tmp_path, None)
    assert learning.cut_off_run("ppo/Basic", 0, limits) is None


def test_a_run_that_ctrl_c_ended_resumes_from_its_checkpoint(tmp_path: Path) -> None:
    script = [sys.executable, str(BENCHMARKS / "learning.py"), "ppo/Basic", "sac/Basic", "--folder", str(tmp_path)]
    script += ["--page", str(tmp_path / "page.md"), "--results", str(tmp_path / "results")]
    with subprocess.Popen(script, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("ppo/Basic Basic 2000 ")
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=100)
    assert process.returncode == 0
    (first,) = results.read_runs(tmp_path)  # sac/Basic was not started
    assert first["end"] == "Ctrl-C"
    limits = argparse.Namespace(results=tmp_path / "results", folder=tmp_path, minutes=120, steps=None)
    assert (found := learning.cut_off_run("ppo/Basic", 0, limits)) is not None
    assert found[0] == first
    script.remove("sac/Basic")
    subprocess.run([*script, "--steps", str(first["steps"]["Basic"] + 2000)], check=True, timeout=200)
    (whole,) = results.read_runs(tmp_path)
    assert whole["resumed"] == [first["commit"]]
    assert [each.steps for each in learning.read_curve(tmp_path, whole)["Basic"]][:2] == [2000, 4000]


def test_a_row_has_the_range_of_all_seeds() -> None:
    runs = [run(seed=0, reward=0.93), run(seed=2, reward=0.5, steps=500_000, end="max_steps", shared=True, seconds=900)]
    row = cells(results.row("ppo/Basic", runs))
    assert row[2:7] == [
        "0.50 to 0.93",
        "0, 2",
        "20,000 to 500,000",
        "~100 to 900 s",
        "documented reward (1), max_steps (1)",
    ]
    assert row[7] == "not run yet"


def test_a_row_names_the_machine_of_runs_on_more_than_two_cores() -> None:
    larger = run(seconds=50) | {"cores": 16, "gpu": "NVIDIA H100"}
    assert cells(results.row("ppo/Basic", [run(seed=1)]))[5] == "100 s"
    assert cells(results.row("ppo/Basic", [larger]))[5] == "50 s (16 cores, NVIDIA H100)"
    assert cells(results.row("ppo/Basic", [larger, run(seed=1)]))[5] == "50 to 100 s (16 cores, NVIDIA H100; 2 cores)"


def test_a_row_has_the_ratings_of_self_play() -> None:
    runs = [run(seed=seed) | {"elo": {"Basic": elo}} for seed, elo in enumerate((1210.5, 1190.0))]
    assert cells(results.row("ppo/Basic", [*runs, run(seed=2)]))[2] == "0.90 (Elo 1190.00 to 1210.50)"


def test_a_row_names_unitys_trainer_and_the_source_of_figures() -> None:
    peer = run(trainer="mlagents-learn", reward=0.91, seconds=300)
    until = run(trainer="mlagents-learn", until=0.93, steps=16_000, source="`elsewhere.md`")
    row = cells(results.row("ppo/Basic", [run(), peer, until]))
    expected = "0.91 (seed 0; 20,000 timesteps, 300 s); first summary ≥ 0.93: mlagents-learn 16,000 timesteps, 100 s"
    assert row[7] == f"{expected} (seed 0)"
    assert row[8] == "`elsewhere.md`"
    assert row[2] == "0.90"


def test_a_row_has_the_hours_of_a_whole_run_of_unitys_trainer_that_a_limit_cut_off() -> None:
    peer = run("ppo/Basic", trainer="mlagents-learn", steps=50_000, seconds=1800, end="time limit")
    row = cells(results.row("ppo/Basic", [run(), peer]))
    assert row[7] == "0.90 (seed 0; 50,000 timesteps, 1,800 s); cut off: to `max_steps` 5.0 h"


def test_unfinished_runs_are_repeated_and_short_ones_get_more_seeds() -> None:
    configs = ["ppo/Basic", "ppo/GridWorld", "ppo/Hallway"]
    runs = [run(seconds=60), run(seed=1), run("ppo/GridWorld", seconds=2000, end="max_steps")]
    runs.append(run("ppo/Hallway", end="time limit", minutes=30))
    ours = ["unity-learn"]
    assert learning.open_runs(configs, ours, runs, 120) == [
        ("ppo/Hallway", "unity-learn", 0),
        ("ppo/Basic", "unity-learn", 2),
    ]
    assert ("ppo/Hallway", "unity-learn", 0) not in learning.open_runs(configs, ours, runs, 30)
    cut_off = [run(end="step limit", steps=4000, seconds=5000)]
    assert learning.open_runs(["ppo/Basic"], ours, cut_off, 120) == [("ppo/Basic", "unity-learn", 0)]
    assert learning.open_runs(["ppo/Basic"], ours, cut_off, 120, steps=4000) == []
    peers = learning.open_runs(["ppo/Basic"], [*ours, "mlagents-learn"], [], 120)
    assert peers == [("ppo/Basic", "unity-learn", 0), ("ppo/Basic", "mlagents-learn", 0)]


def test_a_run_replaces_the_equal_one_and_keeps_the_others(tmp_path: Path) -> None:
    for reward, seed in ((0.1, 0), (0.2, 1), (0.3, 0)):
        learning.save(run(reward=reward, seed=seed), {}, tmp_path, None)
    assert [(line["seed"], line["reward"]["Basic"]) for line in results.read_runs(tmp_path)] == [(1, 0.2), (0, 0.3)]


def test_a_run_ends_when_every_behavior_has_the_documented_reward() -> None:
    summary = learning.Summary
    good = [summary(steps, 0.9, 1.0, "BigWallJump") for steps in range(results.STEADY)]
    bad = [summary(steps, 0.1, 1.0, "SmallWallJump") for steps in range(results.STEADY)]
    assert not learning.has_reached("ppo/WallJump", {"BigWallJump": good})
    assert not learning.has_reached("ppo/WallJump", {"BigWallJump": good, "SmallWallJump": bad})
    assert learning.has_reached("ppo/WallJump", {"BigWallJump": good, "SmallWallJump": good})
    assert not learning.has_reached("poca/SoccerTwos", {"SoccerTwos": good})  # Unity documents no reward


def test_a_trainer_that_ends_early_counts_as_unfinished() -> None:
    curve = [learning.Summary(steps, 0.1, 1.0, "Basic") for steps in (2_000, 498_500)]
    assert learning.has_all_steps("ppo/Basic", {"Basic": curve})
    assert not learning.has_all_steps("ppo/Basic", {"Basic": curve[:1]})
    assert not learning.has_all_steps("ppo/Basic", {})


def test_the_page_agrees_with_the_recorded_runs() -> None:
    recorded = results.read_runs(BENCHMARKS / "learning")
    page = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    assert page == "\n".join(results.results_page(recorded)) + "\n"


@pytest.mark.parametrize("line", results.read_runs(BENCHMARKS / "learning"), ids=lambda line: line["config"])
def test_every_recorded_run_names_its_command_and_has_its_curve(line: dict[str, Any]) -> None:
    assert re.match(r"(CUDA_VISIBLE_DEVICES=[\d,]* )?(OMP_NUM_THREADS=\d+ )?python tests/benchmarks/", line["command"])
    assert "until" in line or (BENCHMARKS / "learning" / line["curve"]).exists()

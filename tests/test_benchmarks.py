"""The benchmarks' scripts start, and the loops that they measure run."""

from __future__ import annotations

import runpy
import sys
from collections import Counter
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).with_name("benchmarks")
WITHOUT_OPTIONS = {"counting_player.py", "recorded_runs.py", "results.py", "stand_in_player.py"}
SCRIPTS = sorted({path.name for path in BENCHMARKS.glob("*.py")} - WITHOUT_OPTIONS)


@pytest.fixture(autouse=True)
def _path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the scripts import each other."""
    monkeypatch.syspath_prepend(BENCHMARKS)


@pytest.mark.parametrize("script", SCRIPTS)
def test_every_script_prints_its_options(
    script: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if script == "ray_scale.py":
        pytest.importorskip("ray", reason="the extra ray is not installed")
    monkeypatch.setattr(sys, "argv", [script, "--help"])
    with pytest.raises(SystemExit) as stopped:
        runpy.run_path(str(BENCHMARKS / script), run_name="__main__")
    assert stopped.value.code == 0
    assert f"usage: {script}" in capsys.readouterr().out


@pytest.mark.parametrize("config", ["ppo/Basic", "sac/Basic"])
def test_the_measured_updates_and_decisions_run(config: str) -> None:
    """These loops call private methods in the order of the algorithms."""
    import devices
    import update

    model = devices.model_of(config)
    try:
        loops = update.sac_loops if config.startswith("sac") else update.on_policy_loops
        count, measured, bare = loops(model)
        measured()
        bare()
        assert count > 0
    finally:
        model.env.close()


@pytest.mark.parametrize("config", ["ppo/Basic", "sac/Basic"])
def test_an_update_and_a_decision_are_measured_on_a_device(config: str) -> None:
    import devices

    task = devices.Task(config, "cpu:1", units=8)
    try:
        found = task.run(Counter())
    finally:
        task.model.env.close()
    assert found.update > 0
    assert found.decision > 0
    assert found.waits == 0


def test_the_page_of_speed_is_measured_and_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import speed

    monkeypatch.setattr(speed, "PARTS", {"options": speed.Part("Options", "Those of a script.", "scenes.py --help")})
    monkeypatch.setattr(speed, "FIGURES", tmp_path / "figures")
    monkeypatch.setattr(speed, "PAGE", tmp_path / "speed.md")
    monkeypatch.setattr(sys, "argv", ["speed.py"])
    speed.main()
    page = (tmp_path / "speed.md").read_text(encoding="utf-8")
    assert "python tests/benchmarks/scenes.py --help" in page
    assert "usage: scenes.py" in page


def test_the_memory_of_client_and_player_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    import memory

    memory.exchanges(10)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 10
    assert lines[-1].startswith("       10 exchanges: client")

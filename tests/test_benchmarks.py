"""The benchmarks' scripts start, and their work runs in small."""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).with_name("benchmarks")
REPOSITORY = BENCHMARKS.parents[1]
MODELS = REPOSITORY.parent / "shared" / "unity" / "models"
WITHOUT_OPTIONS = {"counting_player.py", "recorded_runs.py", "results.py", "stand_in_player.py"}
SMALL = {
    "ablations.py --tables": "",
    "client_speed.py --workload 1x8 --seconds 0.05 --rounds 1": "| `1x8` | vec_env |",
    "cooperation.py --tables": "",
    "critics.py --model MODELS/PushBlockCollab.onnx --buffers 2 --seeds 0 --algorithms PPO": "PPO, seed 0: explained",
    "cue.py --seeds 0 --rollouts cut --limit 500": "seed 0, cut: more than 500",
    "devices.py --configs sac/Basic --devices cpu:1 --units 8 --rounds 1": "| sac/Basic | 64 |",
    "fidelity.py PushBlockWithInput MODELS/PushBlock.onnx --areas 2 --episodes 1": "sampled actions: ",
    "gait.py Crawler --decisions 5 --areas 1": "reward per tick",
    "gallery.py Basic": "",
    "imitation.py --tables": "",
    "learner_variants.py poca/DungeonEscape --variants zeros --seeds 0 --steps 500": "| 500 | zeros | 0 |",
    "learner_variants.py --table": "| `ppo/GridWorld` |",
    "learning.py ppo/Basic --steps 2000": "ppo/Basic Basic 2000 ",
    "learning.py --table": "",
    "memory.py exchanges --count 10": "       10 exchanges: client",
    "memory.py updates --count 1 --algorithms SAC": "SAC:    1 buffers of 240: learner ",
    "parity.py --configs ppo/3DBall --seeds 0 --timesteps 6000": "| threaded | inf |",
    "plain_gymnasium.py --environments CartPole-v1 --seeds 0 --steps 200": "| CartPole-v1 | | mean |",
    "player_speed.py --seconds 0.05 --rounds 1": "| `16x84x84 camera` | grpcio |",
    "pool_speed.py --players 1 2 --seconds 0.1 --rounds 1": "| send/receive | 2 |",
    "profile_agents.py 10 --steps 2 --top 2": "| parallel | 10 |",
    "pyramids.py curiosity --steps 60000 --minutes 4": "curiosity 0 60000 ",
    "pyramids.py --tables": "",
    "ray_scale.py overhead --seconds 0.1 --rounds 1": "ray / process: median ",
    "record_expert.py 3DBall MODELS/3DBall.onnx 3DBall.demo --episodes 1": "3DBall.demo: 1 episodes, ",
    "replicas.py --configs ppo/Basic --rounds 1": "| ppo/Basic |",
    "scenes.py Basic --seconds 0.1 --rounds 1": "| Basic |",
    "self_play.py --tables": "",
    "spin.py --actions 5": "Worm: at most ",
    "throughput.py --rows ppo/Basic --modes synchronous --seconds 1 --rounds 1": "| ppo/Basic |",
    "update.py --configs ppo/Basic sac/Basic --rounds 1": "| sac/Basic | 64 |",
}
"""Commands of the scripts whose work can be made small, and parts of what they print. `MODELS` is the folder."""
OTHERS = {"fuzz.py", "learner_peer.py", "settings_peer.py", "speed.py", "trainers.py"}
"""Those that have a test of their own (fuzz, speed), or need Unity's packages."""
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


def test_every_script_runs_in_small_or_is_named() -> None:
    assert {command.split()[0] for command in SMALL} | OTHERS == set(SCRIPTS)


@pytest.mark.parametrize(
    ("command", "printed"), SMALL.items(), ids=[" ".join(command.split()[:2]) for command in SMALL]
)
def test_a_script_runs_in_small(command: str, printed: str, tmp_path: Path) -> None:
    """The script is that of a copy, as some write their figures and images next to themselves."""
    if "MODELS" in command and not MODELS.exists():
        pytest.skip("the models that Unity trained are absent")
    if command.startswith("ray_scale.py"):
        pytest.importorskip("ray", reason="the extra ray is not installed")
    shutil.copytree(BENCHMARKS, tmp_path / "tests" / "benchmarks", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(REPOSITORY / "configs", tmp_path / "configs")
    (tmp_path / "docs" / "images").mkdir(parents=True)
    script, *options = (part.replace("MODELS", str(MODELS)) for part in command.split())
    ran = subprocess.run(
        [sys.executable, str(Path("tests", "benchmarks", script)), *options],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(BENCHMARKS.parent)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert printed in ran.stdout
    if options == ["--tables"]:
        page = Path("tests", "benchmarks", Path(script).stem, "README.md")
        assert (tmp_path / page).read_text(encoding="utf-8") == (REPOSITORY / page).read_text(encoding="utf-8")


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

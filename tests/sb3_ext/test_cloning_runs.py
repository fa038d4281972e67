"""Runs with `trainer_type: bc`: from demonstrations, and from another behavior of the scene that acts meanwhile."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from sb3_ext import BC, FixedModel, MultiBehaviorTraining, OnnxPolicy, Workers
from sb3_ext.learn import main
from stand_ins.classroom_player import CHOICES, DECISIONS, launcher
from unity_gym.demonstrations import DemonstrationWriter
from unity_gym.errors import InvalidValueError
from unity_gym.specs import ActionSpec, ActionTuple, BehaviorSpec, DimensionProperty, ObservationSpec, ObservationType

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the player is started by a shell script")

SENSOR = ObservationSpec((CHOICES,), (DimensionProperty.NONE,), ObservationType.DEFAULT, "number")
SPEC = BehaviorSpec([SENSOR], ActionSpec(0, (CHOICES,)))
CLONE = {
    "trainer_type": "bc",
    "max_steps": 600,
    "summary_freq": 200,
    "checkpoint_interval": 300,
    "network_settings": {"hidden_units": 16, "num_layers": 1},
    "hyperparameters": {"learning_rate": 0.02, "batch_size": 20, "buffer_size": 100, "num_epoch": 4},
}
TEACHER = {
    "trainer_type": "ppo",
    "max_steps": 2000,
    "network_settings": {"hidden_units": 16, "num_layers": 1},
    "hyperparameters": {"learning_rate": 0.01, "batch_size": 50, "buffer_size": 200, "num_epoch": 5},
}


def demonstrate(path: Path) -> Path:
    rng = np.random.default_rng(0)
    with DemonstrationWriter(path, "Student", SPEC) as writer:
        for _ in range(20):
            for step in range(DECISIONS + 1):
                number = int(rng.integers(CHOICES))
                action = None if step == DECISIONS else ActionTuple(np.zeros((1, 0)), np.array([[number]]))
                writer.add([np.eye(CHOICES, dtype=np.float32)[number]], action, terminated=step == DECISIONS)
    return path


def write(folder: Path, **behaviors: Any) -> str:
    path = folder / "classroom.yaml"
    path.write_text(yaml.safe_dump({"behaviors": behaviors}))
    return str(path)


def run(folder: Path, file: str, *flags: str, scene: str = "Classroom") -> int:
    given = ["--results-dir", str(folder), "--run-id", "run", "--env", launcher(folder, scene), "--seed", "1"]
    return main([file, *given, *flags])


def rewards(folder: Path, name: str = "Student") -> list[float]:
    with (folder / "run" / name / "rewards.csv").open(newline="") as file:
        return [float(line["mean_reward"]) for line in csv.DictReader(file)]


@pytest.fixture
def heuristic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the observed number as the action."""
    (tmp_path / "classroom_heuristic.py").write_text("def choose(seen):\n    return seen.argmax(1)\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "classroom_heuristic", raising=False)
    return "classroom_heuristic:choose"


def test_a_behavior_is_cloned_from_demonstrations_and_the_run_resumes_and_acts(
    tmp_path: Path, heuristic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    demo = str(demonstrate(tmp_path / "student.demo"))
    fixed = {"trainer_type": "fixed", "policy": heuristic}
    file = write(tmp_path, Student=CLONE | {"demo_path": demo}, Teacher=fixed)
    assert run(tmp_path, file) == 0
    output = capsys.readouterr().out
    assert "Student. Step: 600." in output
    assert "Mean Reward" in output
    assert rewards(tmp_path)[-1] > 4
    folder = tmp_path / "run"
    assert sorted(path.name for path in folder.iterdir() if path.is_dir()) == ["Student", "run_logs"]
    assert [path.stem for path in sorted((folder / "Student").glob("*.zip"))] == ["Student-300", "Student-600"]
    board = EventAccumulator(str(folder / "Student")).Reload()
    tags = set(board.Tags()["scalars"])
    assert tags >= {"Losses/Cloning Loss", "Losses/Validation Loss", "Policy/Validation Accuracy"}
    assert "Hyperparameters/text_summary" in board.Tags()["tensors"]
    updates = [json.loads(line) for line in (folder / "Student" / "updates.jsonl").read_text().splitlines()]
    assert updates[-1]["validation/accuracy"] == 1
    policy = OnnxPolicy(folder / "Student.onnx", spec=SPEC)
    chosen, _ = policy.select_actions(
        [np.eye(CHOICES, dtype=np.float32)], np.ones((3, 3), bool), np.zeros((3, 0)), True
    )
    assert chosen.discrete[:, 0].tolist() == [0, 1, 2]
    assert isinstance(BC.load(folder / "Student" / "Student-600.zip", device="cpu"), BC)

    # The configuration of the run can be read again.
    longer = yaml.safe_load((folder / "configuration.yaml").read_text())
    assert longer["behaviors"]["Teacher"] == fixed | {"deterministic": False}
    longer["behaviors"]["Student"]["max_steps"] = 900
    Path(file).write_text(yaml.safe_dump(longer))
    assert run(tmp_path, file, "--resume") == 0
    assert (folder / "Student" / "Student-900.zip").exists()
    resumed = [json.loads(line) for line in (folder / "Student" / "updates.jsonl").read_text().splitlines()]
    assert resumed[: len(updates)] == updates
    assert len(resumed) > len(updates)
    assert resumed[len(updates)]["train/n_updates"] > updates[-1]["train/n_updates"]
    capsys.readouterr()
    assert run(tmp_path, file, "--resume", "--inference", "--episodes", "4") == 0
    shown = capsys.readouterr().out
    assert "Student: mean reward" in shown
    assert "Teacher: mean reward 5.000" in shown


def test_behaviors_that_only_act_are_evaluated_without_a_run(
    tmp_path: Path, heuristic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fixed = {"trainer_type": "fixed", "policy": heuristic}
    assert run(tmp_path, write(tmp_path, Student=fixed, Teacher=fixed), "--inference", "--episodes", "4") == 0
    shown = capsys.readouterr().out
    assert "Student: mean reward 5.000" in shown
    assert "Teacher: mean reward 5.000" in shown
    assert run(tmp_path, write(tmp_path, Student=CLONE, Teacher=fixed), "--inference", "--episodes", "4") == 1
    assert "has no checkpoint of Student" in capsys.readouterr().err


@pytest.mark.parametrize("workers", ["0", "1"])
def test_a_student_learns_from_a_function_that_acts_in_the_scene(tmp_path: Path, heuristic: str, workers: str) -> None:
    student = CLONE | {"teacher": "Teacher", "max_steps": 600}
    file = write(tmp_path, Student=student, Teacher={"trainer_type": "fixed", "policy": heuristic})
    assert run(tmp_path, file, "--num-workers", workers) == 0
    assert rewards(tmp_path)[0] < rewards(tmp_path)[-1]
    assert rewards(tmp_path)[-1] > 4


@pytest.mark.parametrize("workers", [None, Workers(1)])
def test_a_student_in_a_script_learns_from_another_behavior(tmp_path: Path, workers: Workers | None) -> None:
    with MultiBehaviorTraining(file_name=launcher(tmp_path, "Classroom"), seed=1) as training:
        small = {"hidden_units": 16, "num_layers": 1}
        student = BC.from_spec(
            "UnityPolicy", SPEC, learning_rate=0.02, batch_size=20, teacher_steps_per_epoch=100, policy_kwargs=small
        )
        models = {"Student": student, "Teacher": FixedModel(_repeat, SPEC)}
        with pytest.raises(InvalidValueError, match="got 'Student': 'Student'"):
            training.learn(models, 100, teachers={"Student": "Student"})
        with pytest.raises(InvalidValueError, match="got 'Absent'"):
            training.learn(models, 100, teachers={"Student": "Absent"})
        with pytest.raises(InvalidValueError, match="got neither"):
            training.learn(models, 100)
        training.learn(models, 1000, teachers={"Student": "Teacher"}, workers=workers)
    assert student.num_timesteps >= 1000
    assert student.validation_scores["accuracy"] == 1


def _repeat(seen: Any) -> Any:
    """Choose the number that an agent sees."""
    return seen.argmax(1)


def test_a_student_learns_from_a_behavior_that_learns_and_from_its_file_later(tmp_path: Path) -> None:
    student = CLONE | {"teacher": "Teacher", "max_steps": 2600}
    # The teacher reaches its max_steps before the student, and continues to act for it.
    assert run(tmp_path, write(tmp_path, Student=student, Teacher=TEACHER)) == 0
    assert rewards(tmp_path)[-1] > 4
    status = json.loads((tmp_path / "run" / "run_logs" / "training_status.json").read_text())
    assert 2000 <= status["Teacher"]["checkpoints"][-1]["steps"] < 2100
    teacher = tmp_path / "Teacher.onnx"
    (tmp_path / "run" / "Teacher.onnx").rename(teacher)
    fixed = {"trainer_type": "fixed", "policy": str(teacher), "deterministic": True}
    file = write(tmp_path, Student=student | {"max_steps": 600}, Teacher=fixed)
    assert run(tmp_path, file, "--force") == 0
    assert rewards(tmp_path)[-1] > 3


def test_settings_that_bc_cannot_use_raise_before_a_player_is_launched(
    tmp_path: Path, heuristic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fixed = {"trainer_type": "fixed", "policy": heuristic}
    demo = str(demonstrate(tmp_path / "student.demo"))
    for student, message in (
        ({}, "Student must have demo_path or teacher, got neither"),
        ({"demo_path": demo, "teacher": "Teacher"}, "must have demo_path or teacher, got both"),
        ({"demo_path": "gone.demo"}, "behaviors.Student.demo_path is 'gone.demo', which is not there"),
        ({"teacher": "Student"}, "behaviors.Student.teacher must be another behavior"),
        (
            {"teacher": "Techer"},
            "behaviors.Student.teacher must be another behavior under behaviors (Teacher), got 'Techer'",
        ),
        ({"demo_path": demo, "threaded": True}, "behaviors.Student.threaded must be left out"),
        ({"demo_path": demo, "self_play": {}}, "behaviors.Student.self_play must be left out"),
    ):
        assert run(tmp_path, write(tmp_path, Student=CLONE | student, Teacher=fixed)) == 1
        assert message in capsys.readouterr().err
    assert run(tmp_path, write(tmp_path, Student=CLONE | {"demo_path": demo}, Teacher=fixed | {"max_steps": 5})) == 1
    assert "delete max_steps" in capsys.readouterr().err


def test_a_teacher_of_the_wrong_type_raises(tmp_path: Path, heuristic: str, capsys: pytest.CaptureFixture[str]) -> None:
    fixed = {"trainer_type": "fixed", "policy": heuristic}
    file = write(tmp_path, Student=CLONE | {"teacher": "Teacher"}, Teacher=fixed)
    assert run(tmp_path, file, scene="Mismatch") == 1
    message = capsys.readouterr().err
    assert "behaviors.Student.teacher is 'Teacher', which has other observations or actions" in message

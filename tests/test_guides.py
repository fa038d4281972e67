"""The code of the guides runs unchanged."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from stand_ins.ports import free_port

GUIDES = Path(__file__).resolve().parents[1] / "docs" / "guides"
PEER = os.environ.get("UNITY_GYM_PEER_PYTHON", "")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with the files of the guide to scenes."""
    text = (GUIDES / "own-scene.md").read_text()
    files = dict(re.findall(r'^```\w+ title="(.+?)"\n(.*?)^```$', text, re.DOTALL | re.MULTILINE))
    assert files.keys() == {"reach.py", "use.py", "train.py", "reach.yaml"}
    for name, code in files.items():
        (tmp_path / name).write_text(code)
    return tmp_path


def run(folder: Path, *command: str) -> str:
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=280, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_the_custom_scene_has_no_more_than_60_lines(folder: Path) -> None:
    assert len((folder / "reach.py").read_text().splitlines()) <= 60


def test_a_custom_scene_is_registered_and_stepped(folder: Path) -> None:
    check = "assert image.shape == (400, 400, 3); assert observations.shape == (16, 2)"
    (folder / "use.py").write_text((folder / "use.py").read_text() + check)
    run(folder, sys.executable, "use.py")


def test_ppo_learns_the_custom_scene(folder: Path) -> None:
    output = run(folder, sys.executable, "train.py")
    before, after = map(float, re.findall(r"-?\d\.\d\d", output.splitlines()[-1]))
    assert after > 4 > before + 1  # goals are 5.2 m away on average


def test_unity_learn_trains_the_custom_scene(folder: Path) -> None:
    learn = str(Path(sys.executable).with_name("unity-learn"))
    output = run(folder, learn, "reach.yaml", "--env", "embedded:reach:Reach", "--run-id", "reach")
    assert "Reach" in output
    assert list((folder / "results" / "reach").glob("Reach*.onnx"))


@pytest.mark.skipif(not PEER, reason="UNITY_GYM_PEER_PYTHON names no Python that has mlagents")
def test_unitys_own_trainer_trains_the_custom_scene(folder: Path) -> None:
    build = folder / "reach.x86_64"  # a file that mlagents-learn accepts as a build
    build.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m unity_gym.scenes reach:Reach "$@"\n')
    build.chmod(0o755)
    learn = str(Path(PEER).with_name("mlagents-learn"))
    run(folder, learn, "reach.yaml", "--env", str(build), "--run-id", "reach", "--base-port", str(free_port()))
    assert list((folder / "results" / "reach").glob("Reach*.onnx"))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere:Reach", "There is no module nowhere"),
        ("reach:Missing", "The module reach has no class Missing"),
        ("Missing", "MODULE:CLASS"),
    ],
)
def test_a_missing_scene_is_reported(folder: Path, name: str, message: str) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "unity_gym.scenes", name], cwd=folder, capture_output=True, text=True, check=False
    )
    assert result.returncode == 2
    assert message in result.stderr

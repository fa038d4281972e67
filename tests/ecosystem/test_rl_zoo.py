"""RL Zoo's command line: training, continued training and playing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.ecosystem
pytest.importorskip("rl_zoo3", reason="rl_zoo3 is not installed: run scripts/ecosystem.sh rl_zoo")

SETTINGS = """
Unity-3DBall-v0: {n_timesteps: 512, policy: MlpPolicy, n_envs: 2, n_steps: 128, normalize: true}
Unity-Basic-v0: {n_timesteps: 512, policy: MlpPolicy, n_steps: 128}
Unity-GridWorld-v0: {n_timesteps: 256, policy: MultiInputPolicy, n_steps: 128}
"""


def run(folder: Path, module: str, env_id: str, *arguments: str) -> str:
    (folder / "settings.yaml").write_text(SETTINGS)
    common = ["--algo", "ppo", "--env", env_id, "--gym-packages", "unity_gym", "-f", "logs"]
    done = subprocess.run(
        [sys.executable, "-m", f"rl_zoo3.{module}", *common, *arguments],
        cwd=folder,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_training_is_continued_and_played(tmp_path: Path) -> None:
    run(tmp_path, "train", "Unity-3DBall-v0", "-conf", "settings.yaml", "--eval-freq", "256", "--eval-episodes", "2")
    model = tmp_path / "logs" / "ppo" / "Unity-3DBall-v0_1" / "Unity-3DBall-v0.zip"
    run(tmp_path, "train", "Unity-3DBall-v0", "-conf", "settings.yaml", "-i", str(model), "--vec-env", "subproc")
    assert model.parent.with_name("Unity-3DBall-v0_2").is_dir()
    assert "Mean reward" in run(tmp_path, "enjoy", "Unity-3DBall-v0", "--no-render", "-n", "200")


@pytest.mark.parametrize("env_id", ["Unity-Basic-v0", "Unity-GridWorld-v0"])
def test_choices_and_cameras(tmp_path: Path, env_id: str) -> None:
    limit = ["--env-kwargs", "max_episode_steps:50"]
    run(tmp_path, "train", env_id, "-conf", "settings.yaml", "--eval-freq", "128", "--eval-episodes", "2", *limit)
    assert (tmp_path / "logs" / "ppo" / f"{env_id}_1" / f"{env_id}.zip").exists()

"""`--track`: the data sent to the clients of Weights & Biases and MLflow, without a network."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from sb3_ext.learn import main
from sb3_ext.plugins import WRITERS, load_plugin, load_writers
from unity_gym.errors import UnityGymError

SETTINGS = {"behaviors": {"Basic": {"max_steps": 200, "hyperparameters": {"learning_rate": 0.5}}}}
STATS = {"Environment/Cumulative Reward": 0.5, "Losses/Value Loss": 2.0}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of a run."""
    monkeypatch.chdir(tmp_path)
    for name in ("WANDB_PROJECT", "MLFLOW_EXPERIMENT_NAME", "MLFLOW_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "results" / "first"
    folder.mkdir(parents=True)
    (folder / "configuration.yaml").write_text(yaml.safe_dump(SETTINGS))
    (folder / "Basic.onnx").write_bytes(b"network")
    return folder


def track(name: str, run: Path, summaries: Mapping[int, Mapping[str, float]]) -> None:
    (writer,) = load_writers([name], run)
    for step, stats in summaries.items():
        writer.write_stats("Basic", step, stats)
    writer.close()


def test_mlflow_gets_a_run_and_resuming_continues_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    file = tmp_path / "Basic.yaml"
    for steps in (100, 200):
        behavior = {
            "trainer_type": "ppo",
            "max_steps": steps,
            "summary_freq": 50,
            "network_settings": {"hidden_units": 8},
        }
        settings = {"behaviors": {"Basic": behavior}, "env_settings": {"env_path": "Unity-Basic-v0", "seed": 3}}
        file.write_text(yaml.safe_dump(settings))
        resume = ["--resume"] if steps == 200 else []
        assert main([str(file), "--run-id", "first", "--track", "mlflow", *resume]) == 0, capsys.readouterr().err
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{tmp_path}/mlflow.db")
    experiment = client.get_experiment_by_name("unity-gym")
    (found,) = client.search_runs([experiment.experiment_id])
    assert json.loads((tmp_path / "results" / "first" / "tracking.json").read_text()) == {"mlflow": found.info.run_id}
    assert (found.info.run_name, found.info.status) == ("first", "FINISHED")
    assert found.data.params["behaviors.Basic.network_settings.hidden_units"] == "8"
    history = client.get_metric_history(found.info.run_id, "Basic/Environment/Cumulative Reward")
    assert sorted(metric.step for metric in history) == [50, 100, 150, 200]
    assert [artifact.path for artifact in client.list_artifacts(found.info.run_id)] == ["Basic.onnx"]


def test_mlflow_takes_every_name_of_a_statistic(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{run}/mlflow.db")
    names = {"Goal/": "Goal", "Goals//Hit": "Goals/Hit", "../Wall": "Wall", "Size (m)": "Size _m_"}
    track("mlflow", run, {100: dict.fromkeys(names, 1.0)})
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{run}/mlflow.db")
    (found,) = client.search_runs([client.get_experiment_by_name("unity-gym").experiment_id])
    assert set(found.data.metrics) == {f"Basic/{name}" for name in names.values()}


def test_wandb_gets_a_run_and_resuming_continues_it(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    sent: list[dict[str, float]] = []
    artifacts: list[list[str]] = []
    log, log_artifact = wandb.Run.log, wandb.Run.log_artifact
    monkeypatch.setattr(wandb.Run, "log", lambda self, data: (sent.append(data), log(self, data)))
    monkeypatch.setattr(
        wandb.Run,
        "log_artifact",
        lambda self, artifact: (artifacts.append([*artifact.manifest.entries]), log_artifact(self, artifact)),
    )
    try:
        track("wandb", run, {100: STATS, 200: STATS})
        identifier = json.loads((run / "tracking.json").read_text())["wandb"]
        track("wandb", run, {300: STATS})
    finally:
        wandb.teardown()
    assert json.loads((run / "tracking.json").read_text()) == {"wandb": identifier}
    assert [line.pop("Basic/timesteps") for line in sent] == [100, 200, 300]
    assert sent == [{f"Basic/{tag}": value for tag, value in STATS.items()}] * 3
    assert artifacts == [["Basic.onnx"]] * 2
    files = sorted((run / "wandb").glob(f"offline-run-*-{identifier}/run-{identifier}.wandb"))
    assert files  # to be sent by `wandb sync`
    assert b"learning_rate" in files[0].read_bytes()


def test_nothing_is_tracked_before_the_first_summary(run: Path) -> None:
    pytest.importorskip("mlflow")
    track("mlflow", run, {})
    assert not (run / "tracking.json").exists()


def test_a_tracker_that_cannot_be_reached_is_named(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "nonsense://server")
    with pytest.raises(UnityGymError, match=r"mlflow cannot be written to: .*--resume continues the run"):
        track("mlflow", run, {100: STATS})


@pytest.mark.parametrize("name", ["mlflow", "wandb"])
def test_without_the_client_the_error_names_the_extra(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UnityGymError, match=rf"--track {name} needs {name}: pip install 'unity-gym\[{name}\]'"):
        load_plugin(WRITERS, name)(tmp_path)

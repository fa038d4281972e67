"""`unity-learn push` and `pull`, with the client of the Hugging Face Hub and a server on the loopback."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from sb3_ext import sharing
from sb3_ext.inference import Evaluation
from sb3_ext.learn import main
from sb3_ext.runs import Run
from sb3_ext.settings import load
from sb3_ext.settings.run import CheckpointSettings
from sb3_ext.sharing import pull, push
from stand_ins.model_hub import ModelHub, running_hub
from unity_gym.errors import UnityGymError

hub = pytest.importorskip("huggingface_hub")
constants = pytest.importorskip("huggingface_hub.constants")

MLAGENTS = Path(__file__).parent / "mlagents"


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModelHub]:
    """Start a server, and let the client of this process use it with a token."""
    monkeypatch.chdir(tmp_path)
    with running_hub() as running:
        monkeypatch.setattr(constants, "ENDPOINT", running.endpoint)
        template = f"{running.endpoint}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setenv("HF_TOKEN", "hf_test")
        yield running
        hub.close_session()


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the results folder of a run of Basic."""
    folder = tmp_path_factory.mktemp("trained")
    behavior = {"trainer_type": "ppo", "max_steps": 200, "summary_freq": 100, "network_settings": {"hidden_units": 8}}
    tree = {"behaviors": {"Basic": behavior}, "env_settings": {"env_path": "Unity-Basic-v0"}}
    (folder / "Basic.yaml").write_text(yaml.safe_dump(tree))
    assert main([str(folder / "Basic.yaml"), "--run-id", "first", "--results-dir", str(folder), "--seed", "3"]) == 0
    return folder


def test_a_run_is_pushed_to_the_hub_and_pulled_again(
    trained: Path, server: ModelHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("imageio_ffmpeg")
    (trained / "first" / "tracking.json").write_text("{}")
    arguments = ["push", "first", "--repo-id", "me/basic", "--results-dir", str(trained), "--episodes", "2"]
    assert main([*arguments, "--commit-message", "two episodes"]) == 0
    assert f"Uploaded: {server.endpoint}/me/basic/commit/" in capsys.readouterr().out
    assert server.messages == ["two episodes"]
    files = server.repositories["me/basic"]
    assert files.keys() >= {
        *("README.md", "config.json", "configuration.yaml", "learning_curve.png", "replay.mp4", "Basic.onnx"),
        *("Basic/Basic-200.zip", "Basic/Basic-200.onnx", "run_logs/training_status.json", "run_logs/timers.json"),
    }
    assert not [name for name in files if name.endswith((".log", ".npz")) or name == "tracking.json"]
    assert json.loads(files["config.json"]) == yaml.safe_load(files["configuration.yaml"])
    card = hub.ModelCard(files["README.md"].decode())
    assert card.data.library_name == "ml-agents"
    unitys = {"Basic", "deep-reinforcement-learning", "reinforcement-learning", "ML-Agents-Basic"}
    assert {"ML-Agents", *unitys} <= set(card.data.tags)
    (result,) = card.data.eval_results
    mean, _, std = result.metric_value.partition(" +/- ")
    assert -2 < float(mean) < 1
    assert float(std) >= 0
    assert f"| Basic | {result.metric_value} | 2 |" in card.text
    assert "![Learning curve](learning_curve.png)" in card.text
    assert "hidden_units: 8" in card.text
    assert "- torch " in card.text

    assert main(["pull", "me/basic"]) == 0
    folder = tmp_path / "results" / "basic"
    assert {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()} == files.keys()
    assert [path.name for path in (tmp_path / "results").iterdir()] == ["basic"]
    config = str(trained / "Basic.yaml")
    capsys.readouterr()
    assert main([config, "--run-id", "basic", "--resume", "--inference", "--episodes", "1"]) == 0
    assert "Basic: mean reward" in capsys.readouterr().out
    assert main([config, "--run-id", "second", "--initialize-from", "basic"]) == 0
    assert (tmp_path / "results" / "second" / "Basic" / "Basic-200.zip").exists()
    with pytest.raises(UnityGymError, match=r"results/basic exists\. Give another --local-dir, or delete it"):
        pull("me/basic")


def test_teams_of_a_behavior_are_results_of_one_dataset(
    trained: Path, server: ModelHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = {f"Basic?team={team}": Evaluation(2, float(team), 0.5) for team in (0, 1)}
    monkeypatch.setattr(sharing, "evaluate", lambda *_: played)
    push("first", "me/basic", results_dir=str(trained))
    card = hub.ModelCard(server.repositories["me/basic"]["README.md"].decode())
    results = {(result.dataset_type, result.metric_value) for result in card.data.eval_results}
    assert results == {("Basic", "0.000 +/- 0.500"), ("Basic", "1.000 +/- 0.500")}  # none of the training
    assert [line for line in card.text.splitlines() if line.startswith("| Basic")] == [
        "| Basic?team=0 | 0.000 +/- 0.500 | 2 |",
        "| Basic?team=1 | 1.000 +/- 0.500 | 2 |",
    ]


@contextmanager
def settings_of_copy(trained: Path, folder: Path) -> Iterator[dict[str, Any]]:
    """Copy the run to another folder, and write its settings as the context has changed them."""
    shutil.copytree(trained / "first", folder)
    tree = yaml.safe_load((folder / "configuration.yaml").read_text(encoding="utf-8"))
    yield tree
    (folder / "configuration.yaml").write_text(yaml.safe_dump(tree), encoding="utf-8")


def test_behaviors_of_default_settings_are_results_next_to_those_of_the_settings(
    trained: Path, server: ModelHub, tmp_path: Path
) -> None:
    with settings_of_copy(trained, tmp_path / "both") as tree:
        tree |= {"default_settings": tree["behaviors"]["Basic"], "behaviors": {"Later": {}}}
    push("both", "me/both", results_dir=str(tmp_path), episodes=0)
    card = hub.ModelCard(server.repositories["me/both"]["README.md"].decode())
    assert {"ML-Agents-Basic", "ML-Agents-Later"} <= set(card.data.tags)
    assert [result.dataset_type for result in card.data.eval_results] == ["Basic"]


def test_a_second_push_deletes_checkpoints_that_the_run_no_longer_has(
    trained: Path, server: ModelHub, tmp_path: Path
) -> None:
    folder = tmp_path / "again"
    shutil.copytree(trained / "first", folder)
    push("again", "me/again", results_dir=str(tmp_path), episodes=0)
    files = server.repositories["me/again"]
    files["notes/plan.md"] = b"added on the Hub"
    for suffix in ("zip", "onnx"):  # trained again with --force, for fewer steps
        (folder / "Basic" / f"Basic-200.{suffix}").rename(folder / "Basic" / f"Basic-100.{suffix}")
    push("again", "me/again", results_dir=str(tmp_path), episodes=0)
    assert {"Basic/Basic-100.zip", "Basic/Basic-100.onnx", "Basic/rewards.csv", "notes/plan.md"} <= files.keys()
    assert not [name for name in files if "Basic-200" in name]


def test_settings_of_a_pulled_run_name_its_folder_and_not_those_of_the_uploader(
    trained: Path, server: ModelHub, tmp_path: Path
) -> None:
    with settings_of_copy(trained, tmp_path / "theirs") as tree:
        tree["checkpoint_settings"] |= {"results_dir": "/home/them", "force": True, "initialize_from": "older"}
        tree["behaviors"]["Basic"]["init_path"] = "/home/them/older/Basic/checkpoint.pt"
    push("theirs", "me/mine", results_dir=str(tmp_path), episodes=0)
    assert b"results_dir: /home/them\n" in server.repositories["me/mine"]["configuration.yaml"]
    configuration = pull("me/mine") / "configuration.yaml"
    settings = load(configuration)
    expected = CheckpointSettings(run_id="mine", results_dir="results")
    assert settings.checkpoint_settings == expected
    assert settings.behavior("Basic").init_path is None
    assert settings.behavior("Basic").max_steps == 200
    flags = {"checkpoint_settings.run_id": "next", "checkpoint_settings.initialize_from": "mine"}
    next_run = load(configuration, flags)
    assert Run(next_run).initial(next_run, "Basic") == Path("results", "mine", "Basic", "Basic-200.zip")


def test_a_pulled_run_of_older_ml_agents_keeps_the_names_of_its_behaviors(server: ModelHub) -> None:
    server.repositories["me/old"] = {
        "configuration.yaml": b"""behaviors: !!python/object/apply:mlagents.trainers.settings.DefaultTrainerDict
  dictitems:
    on: {trainer_type: ppo, init_path: /home/them/model.pt}
    007: {trainer_type: sac}
checkpoint_settings: {run_id: theirs, results_dir: /home/them}
"""
    }
    settings = load(pull("me/old") / "configuration.yaml")
    assert settings.checkpoint_settings == CheckpointSettings(run_id="old", results_dir="results")
    assert settings.behaviors.keys() == {"on", "007"}
    assert settings.behavior("on").init_path is None


def test_the_hub_is_asked_before_episodes_are_played(
    trained: Path, server: ModelHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.rejects_token = True
    monkeypatch.setattr(sharing, "evaluate", lambda *_: pytest.fail("episodes are played"))
    with pytest.raises(UnityGymError, match=r"me/basic: the Hugging Face Hub answers: .*401.*hf auth login"):
        push("first", "me/basic", results_dir=str(trained))


def test_a_run_of_mlagents_is_pushed_to_the_hub_and_can_be_started_from(
    server: ModelHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(MLAGENTS / "3DBall", tmp_path / "3DBall")
    push("3DBall", "me/ball", episodes=0)
    card = hub.ModelCard(server.repositories["me/ball"]["README.md"].decode())
    assert card.data.eval_results[0].metric_value == "1.093"  # as mlagents-learn wrote it
    assert "- mlagents 1.1.0" in card.text
    assert pull("me/ball") == Path("results", "ball")
    config = str(tmp_path / "results" / "ball" / "configuration.yaml")
    arguments = [config, "--env", "Unity-3DBall-v0", "--initialize-from", "ball", "--run-id", "new", "--num-areas", "2"]
    assert main([*arguments, "--inference", "--episodes", "2"]) == 0, capsys.readouterr().err
    assert "3DBall: mean reward" in capsys.readouterr().out


def test_a_pull_that_fails_leaves_nothing_in_the_next_run_of_that_name(server: ModelHub) -> None:
    server.repositories["anna/ball"] = {"3DBall/3DBall-900.zip": b"anna", "Later.onnx": b"anna"}
    server.repositories["ben/ball"] = {"3DBall/3DBall-100.zip": b"ben"}
    server.unreadable.add("Later.onnx")
    with pytest.raises(UnityGymError, match="anna/ball: the Hugging Face Hub answers"):
        pull("anna/ball")
    folder = pull("ben/ball")
    assert [path.name for path in folder.rglob("*.*")] == ["3DBall-100.zip"]
    shutil.rmtree(folder)
    server.unreadable.clear()
    assert {path.name for path in pull("anna/ball").rglob("*.*")} == {"3DBall-900.zip", "Later.onnx"}


def test_a_repository_of_mlagents_push_to_hf_can_be_pulled(
    server: ModelHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {path.relative_to(MLAGENTS / "3DBall").as_posix(): path for path in (MLAGENTS / "3DBall").rglob("*.*")}
    repository = {name: path.read_bytes() for name, path in files.items() if path.is_file()}
    repository |= {"config.json": b"{}", "README.md": b"---\nlibrary_name: ml-agents\n---\n"}
    repository |= {"run.sh": b"rm", "a.exe": b""}
    server.repositories["unity/ball"] = repository
    assert main(["pull", "unity/ball", "--local-dir", str(tmp_path / "downloads")]) == 0
    folder = tmp_path / "downloads" / "ball"
    assert f"--initialize-from ball --results-dir {tmp_path / 'downloads'}\n" in capsys.readouterr().out
    assert (folder / "3DBall" / "checkpoint.pt").read_bytes() == repository["3DBall/checkpoint.pt"]
    assert not [*folder.glob("run.sh"), *folder.glob("a.exe")]  # no executables


def test_a_player_that_cannot_be_launched_leaves_the_results_of_the_training(
    trained: Path, server: ModelHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    push("first", "me/basic", results_dir=str(trained), env=str(tmp_path / "missing.x86_64"))
    assert "No episodes are played: " in capsys.readouterr().out
    (result,) = hub.ModelCard(server.repositories["me/basic"]["README.md"].decode()).data.eval_results
    last = (trained / "first" / "Basic" / "rewards.csv").read_text().splitlines()[-1].split(",")
    assert result.metric_value == f"{float(last[2]):.3f} +/- {float(last[3]):.3f}"


@pytest.mark.usefixtures("server")
def test_runs_that_cannot_be_shared_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnityGymError, match=r"results/nothing is no run \(it has no configuration\.yaml\)"):
        push("nothing", "me/nothing")
    with pytest.raises(UnityGymError, match=r"me/nothing: the Hugging Face Hub answers: .*hf auth login"):
        pull("me/nothing")
    (tmp_path / "results" / "new").mkdir(parents=True)
    (tmp_path / "results" / "new" / "configuration.yaml").write_text("behaviors: {Basic: {trainer_type: ppo}}")
    with pytest.raises(UnityGymError, match=r"results/new has no networks to upload"):
        push("new", "me/new", episodes=0)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    shutil.copytree(MLAGENTS / "3DBall", tmp_path / "3DBall")
    hub.close_session()
    with pytest.raises(UnityGymError, match=r"me/ball: the Hugging Face Hub answers: .*offline"):
        push("3DBall", "me/ball", episodes=0)
    (tmp_path / "3DBall" / "run_logs" / "training_status.json").write_text('{"3DBall": []}')
    with pytest.raises(UnityGymError, match=r"training_status\.json has other content than a run writes: 3DBall: "):
        push("3DBall", "me/ball", episodes=0)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    for share in (lambda: push("3DBall", "me/ball"), lambda: pull("me/ball")):
        with pytest.raises(UnityGymError, match=r"needs huggingface_hub: pip install 'unity-gym\[hub\]'"):
            share()

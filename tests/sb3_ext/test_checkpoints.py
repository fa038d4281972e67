"""Initialization of runs: checkpoints of this package and of `mlagents-learn`, and files with forged content."""

from __future__ import annotations

import base64
import io
import itertools
import json
import os
import pickle
import shutil
import sys
import time
import zipfile
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch
import yaml
from random_experience import model_of
from torch import nn

from sb3_ext import POCA, PPO, SAC, OnnxPolicy, run_checkpoints
from sb3_ext.agents import SpaceAdapter
from sb3_ext.checkpoints import pack, read_checkpoint, unpack
from sb3_ext.files import write
from sb3_ext.learn import main
from sb3_ext.mlagents_checkpoint import MLAgentsCheckpoint, load_actor, load_critic, read_mlagents_checkpoint
from sb3_ext.poca import UnityPOCAPolicy
from sb3_ext.policies import UnityPolicy
from sb3_ext.run_checkpoints import Checkpoints, resume, start_from
from sb3_ext.sac_policy import UnitySACPolicy
from unity_gym.errors import UnityGymError
from unity_gym.spaces import ObservationLayout, action_space
from unity_gym.specs import (
    ActionSpec,
    BehaviorSpec,
    DimensionProperty,
    ObservationSpec,
    ObservationType,
)

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
MLAGENTS = Path(__file__).with_name("mlagents")
"""Runs of a few thousand steps that mlagents-learn 1.1.0 made on the embedded player, without their logs."""


def config(folder: Path, scene: str = "Basic", algorithm: str = "ppo", **keys: Any) -> str:
    """Write the scene's configuration with these keys merged into its behavior."""
    tree = yaml.safe_load((CONFIGS / algorithm / f"{scene}.yaml").read_text(encoding="utf-8"))
    (behavior,) = tree["behaviors"].values()
    for key, value in keys.items():
        if isinstance(value, dict):
            behavior.setdefault(key, {}).update(value)
        else:
            behavior[key] = value
    path = folder / f"{scene}.yaml"
    path.write_text(yaml.safe_dump(tree), encoding="utf-8")
    return str(path)


def tree_of(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a results folder with short runs of Basic: `ppo`, and `sac` with its replay buffer."""
    folder = tmp_path_factory.mktemp("runs")
    assert main([config(folder, max_steps=100), "--results-dir", str(folder), "--run-id", "ppo", "--seed", "0"]) == 0
    sac = {"save_replay_buffer": True, "buffer_init_steps": 0}
    file = config(folder, algorithm="sac", max_steps=100, hyperparameters=sac)
    assert main([file, "--results-dir", str(folder), "--run-id", "sac", "--seed", "0"]) == 0
    return folder


def test_a_saved_state_is_read_back_unchanged() -> None:
    state = {
        "array": np.arange(6, dtype=np.uint32).reshape(2, 3),
        "view": np.arange(9.0)[::2],
        "flags": np.array([True, False]),
        "nothing": np.zeros((0, 3), np.float32),
        "nested": [(1, 2.5, "text", None), {"tensor": torch.ones(2)}, {3: 2**100}],
        "number": np.float32(0.5),
    }
    file = io.BytesIO()
    torch.save(pack(state), file)
    file.seek(0)
    back = unpack(torch.load(file, weights_only=True))
    for name in ("array", "view", "flags", "nothing"):
        assert back[name].dtype == state[name].dtype  # type: ignore[attr-defined]
        np.testing.assert_array_equal(back[name], state[name])
    assert back["nested"][0] == state["nested"][0]  # type: ignore[index]
    assert torch.equal(back["nested"][1]["tensor"], torch.ones(2))
    assert back["nested"][2] == {3: 2**100}
    assert back["number"] == 0.5
    with pytest.raises(TypeError, match="must consist of data, got complex"):
        pack({"number": 1j})


# ---------------------------------------------------------------------------------------------------------------------
# Files that would execute code


class Trap:
    """An object that creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def trapped(kind: str, good: Path, sprung: Path) -> bytes:
    """Return a checkpoint whose content at one place executes code when unpickled."""
    plain = pickle.dumps(Trap(sprung))
    if kind == "pickle":
        return plain
    file = io.BytesIO()
    if kind == "torch":
        torch.save({"Policy": Trap(sprung)}, file)
        return file.getvalue()
    torch.save(Trap(sprung), file)
    content = io.BytesIO()
    with zipfile.ZipFile(good) as old, zipfile.ZipFile(content, "w") as new:
        for name in old.namelist():
            part = old.read(name)
            if name == kind:
                part = file.getvalue()
                if name == "data":
                    tree = json.loads(old.read(name))
                    tree["self_play"] = {":serialized:": base64.b64encode(cloudpickle.dumps(Trap(sprung))).decode()}
                    part = json.dumps(tree).encode()
            new.writestr(name, part)
    return content.getvalue()


PLACES = ("pickle", "policy.pth", "policy.optimizer.pth", "training_state.pt")


@pytest.mark.parametrize("option", ["--resume", "--initialize-from", "init_path", "--inference"])
@pytest.mark.parametrize("kind", [*PLACES, "torch"])
def test_a_checkpoint_that_holds_code_is_not_executed(
    runs: Path, tmp_path: Path, kind: str, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    sprung, results = tmp_path / "sprung", tmp_path / "results"
    shutil.copytree(runs / "ppo", results / "old")
    file = results / "old" / "Basic" / "Basic-100.zip"
    evil = trapped(kind, file, sprung)
    if kind == "torch":
        if option == "--resume":  # the folder counts as a run of mlagents-learn and is rejected before the file is read
            return
        file.unlink()
        file = file.with_name("checkpoint.pt")
    file.write_bytes(evil)
    arguments = {
        "--resume": ["--run-id", "old", "--resume"],
        "--initialize-from": ["--run-id", "new", "--initialize-from", "old"],
        "init_path": ["--run-id", "new"],
        "--inference": ["--run-id", "old", "--resume", "--inference", "--episodes", "1"],
    }[option]
    before = tree_of(results)
    keys = {"init_path": str(file)} if option == "init_path" else {}
    code = main([config(tmp_path, **keys), "--results-dir", str(results), *arguments])
    assert not sprung.exists()
    errors = capsys.readouterr().err
    assert code == 1
    last = errors.splitlines()[-1]  # of --inference, after the line about the player
    assert last.startswith(f"unity-learn: error: {file} ")
    assert "is no checkpoint that can be used: " in last
    assert errors.count("error") == 1
    assert {path: x for path, x in tree_of(results).items() if "run_logs" not in path} == {
        path: x for path, x in before.items() if "run_logs" not in path
    }


def test_data_that_stable_baselines_would_unpickle_are_never_read(runs: Path, tmp_path: Path) -> None:
    sprung = tmp_path / "sprung"
    shutil.copytree(runs / "ppo", tmp_path / "old")
    file = tmp_path / "old" / "Basic" / "Basic-100.zip"
    file.write_bytes(trapped("data", file, sprung))
    arguments = [config(tmp_path, max_steps=120), "--results-dir", str(tmp_path), "--run-id", "old", "--resume"]
    assert main(arguments) == 0
    assert not sprung.exists()
    PPO.load(file)
    assert sprung.exists()  # the file does execute code


@pytest.mark.parametrize("kind", ["pickle", "objects", "text", "another zip"])
def test_a_replay_buffer_that_holds_code_is_not_executed(
    runs: Path, tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    sprung = tmp_path / "sprung"
    shutil.copytree(runs / "sac", tmp_path / "old")
    file = tmp_path / "old" / "Basic" / "last_replay_buffer.npz"
    if kind == "pickle":
        file.write_bytes(pickle.dumps(Trap(sprung)))
    elif kind == "objects":
        content = dict(np.load(file))
        np.savez(file, **{**content, "reward": np.array([Trap(sprung)], object)})
    elif kind == "text":
        file.write_text("precious words")
    else:
        shutil.copy(tmp_path / "old" / "Basic" / "Basic-100.zip", file)
    settings = config(tmp_path, algorithm="sac", max_steps=120, hyperparameters={"save_replay_buffer": True})
    assert main([settings, "--results-dir", str(tmp_path), "--run-id", "old", "--resume"]) == 1
    assert not sprung.exists()
    errors = capsys.readouterr().err
    assert f"{file} cannot be used as a replay buffer: " in errors
    assert errors.count("\n") == 1


# ---------------------------------------------------------------------------------------------------------------------
# Starting from another run


def test_a_run_with_curiosity_starts_with_the_actor_of_one_without(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    signals = {"curiosity": {"strength": 0.1, "network_settings": {"hidden_units": 8}}}
    file = config(tmp_path, max_steps=40, checkpoint_interval=20, reward_signals=signals)  # no update until 40
    arguments = ["--results-dir", str(tmp_path), "--run-id", "new"]
    shutil.copytree(runs / "ppo", tmp_path / "ppo")
    assert main([file, *arguments[:2], "--run-id", "ppo", "--resume"]) == 1
    assert "or give --initialize-from this run and another --run-id, which keeps the netw" in capsys.readouterr().err
    assert main([file, *arguments, "--initialize-from", "ppo"]) == 0
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "starts with" in line)
    old = tmp_path / "ppo" / "Basic" / "Basic-100.zip"
    assert line == f"[INFO] Basic: starts with {old} except for curiosity, optimizer, value_head, which do not fit"
    before = PPO.load(old).policy.state_dict()
    after = PPO.load(tmp_path / "new" / "Basic" / "Basic-20.zip").policy.state_dict()
    for name in before:
        assert name.startswith("value_head.") or torch.equal(before[name], after[name])
    assert after["value_head.weight"].shape[0] == 2


def test_another_algorithm_starts_with_the_actor(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = {"max_steps": 20, "hyperparameters": {"buffer_init_steps": 50}, "network_settings": {"num_layers": 1}}
    file = config(tmp_path, algorithm="sac", **keys)
    initial = runs / "ppo" / "Basic" / "Basic-100.zip"
    tree = yaml.safe_load(Path(file).read_text(encoding="utf-8"))
    tree["behaviors"]["Basic"]["init_path"] = str(initial)
    Path(file).write_text(yaml.safe_dump(tree), encoding="utf-8")
    assert main([file, "--results-dir", str(tmp_path), "--run-id", "new"]) == 0
    assert "except for critic, critic_target, log_ent_coef, optimizer" in capsys.readouterr().out
    before = PPO.load(initial).policy.state_dict()
    after = SAC.load(tmp_path / "new" / "Basic" / "Basic-20.zip").policy.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in ("body.layers.0.weight", "head.logits.weight"))


def test_a_model_that_a_script_saved_can_be_started_from_but_not_resumed(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(runs / "ppo", tmp_path / "old")
    file = tmp_path / "old" / "Basic" / "Basic-100.zip"
    PPO.load(file).save(file)
    arguments = ["--results-dir", str(tmp_path), "--run-id"]
    assert main([config(tmp_path, max_steps=120), *arguments, "old", "--resume"]) == 1
    assert "was saved by a script, not by a run" in capsys.readouterr().err
    assert main([config(tmp_path, max_steps=20, init_path=str(file)), *arguments, "new"]) == 0


# ---------------------------------------------------------------------------------------------------------------------
# Runs of mlagents-learn


def test_a_run_of_mlagents_is_not_resumed_and_not_changed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(MLAGENTS / "3DBall", tmp_path / "theirs")
    before = tree_of(tmp_path / "theirs")
    file = config(tmp_path, "3DBall", network_settings={"hidden_units": 8})
    assert main([file, "--results-dir", str(tmp_path), "--run-id", "theirs", "--resume"]) == 1
    errors = capsys.readouterr().err
    assert "is a run of mlagents-learn, which only mlagents-learn can resume. Give --initialize-from theirs" in errors
    assert tree_of(tmp_path / "theirs") == before


@pytest.mark.parametrize("given", ["--initialize-from", "file", "folder", "name"])
def test_a_run_starts_with_the_networks_of_one_of_mlagents(
    tmp_path: Path, given: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(MLAGENTS / "3DBall", tmp_path / "theirs")
    before = tree_of(tmp_path / "theirs")
    folder = tmp_path / "theirs" / "3DBall"
    paths = {"file": str(folder / "checkpoint.pt"), "folder": str(folder), "name": "checkpoint.pt"}
    keys = {"init_path": paths[given]} if given in paths else {}
    file = config(tmp_path, "3DBall", network_settings={"hidden_units": 8}, max_steps=60, summary_freq=60, **keys)
    arguments = ["--results-dir", str(tmp_path), "--run-id", "new"]
    arguments += ["--initialize-from", "theirs"] if given in ("--initialize-from", "name") else []
    assert main([file, *arguments]) == 0
    message = f"3DBall: starts with the actor and critic of {folder / 'checkpoint.pt'}, with the statistics of its obs"
    assert message in capsys.readouterr().out
    assert tree_of(tmp_path / "theirs") == before
    saved = torch.load(folder / "checkpoint.pt", weights_only=True)
    model = PPO.load(next((tmp_path / "new" / "3DBall").glob("*.zip")))
    heads = saved["Optimizer:critic"]["value_heads.value_heads.extrinsic.bias"]
    if model._n_updates == 0:
        assert torch.equal(model.policy.value_head.bias, heads)
    assert model.num_timesteps < 200


@pytest.mark.parametrize("scene", ["3DBall", "Hallway"])
def test_a_policy_of_mlagents_acts_as_its_onnx_file(scene: str) -> None:
    folder = MLAGENTS / scene
    onnx = OnnxPolicy(folder / f"{scene}.onnx")
    tree = yaml.safe_load((folder / "configuration.yaml").read_text(encoding="utf-8"))
    network = tree["behaviors"][scene]["network_settings"]
    network |= network.pop("memory") or {}
    del network["deterministic"]
    policy = policy_of(onnx.spec, network)
    load_actor(policy, read_mlagents_checkpoint(folder / scene / "checkpoint.pt"))
    actor, rng = policy.actor(), np.random.default_rng(0)
    memory = np.zeros((50, actor.memory_size), np.float32)
    states = [memory, memory]
    masks = np.ones((50, sum(onnx.spec.action_spec.discrete_branches)), bool)
    for _ in range(5):
        seen = [rng.normal(size=(50, *sensor.shape)).astype(np.float32) for sensor in onnx.spec.observation_specs]
        outcomes = [
            each.select_actions(seen, masks, part, True) for each, part in zip((actor, onnx), states, strict=True)
        ]
        np.testing.assert_allclose(outcomes[0][0].continuous, outcomes[1][0].continuous, atol=1e-6)
        np.testing.assert_array_equal(outcomes[0][0].discrete, outcomes[1][0].discrete)
        np.testing.assert_allclose(outcomes[0][1], outcomes[1][1], atol=1e-6)
        states = [part for _, part in outcomes]


def test_a_resumed_run_normalizes_by_the_advantages_before_its_checkpoint(tmp_path: Path) -> None:
    spec = BehaviorSpec([sensor(4)], ActionSpec(0, (2,)))
    saved, resumed = (PPO.from_spec("UnityPolicy", spec, device="cpu") for _ in range(2))
    saved._normalized(torch.arange(10, dtype=torch.float64))
    Checkpoints(tmp_path).save(saved, None)
    resume(resumed, next(tmp_path.glob("*.zip")))
    newest = torch.linspace(0, 1, 20, dtype=torch.float64)
    torch.testing.assert_close(resumed._normalized(newest), saved._normalized(newest))
    assert len(resumed._recent_advantages) == 2


def test_each_checkpoint_has_its_network_wherever_a_save_is_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = PPO.from_spec("UnityPolicy", BehaviorSpec([sensor(4)], ActionSpec(0, (2,))), device="cpu")
    checkpoints = Checkpoints(tmp_path, keep=1)
    changes_left = 0

    def interrupted(change: Callable[..., Any]) -> Callable[..., Any]:
        def change_and_interrupt(*arguments: Any, **options: Any) -> None:
            nonlocal changes_left
            change(*arguments, **options)
            changes_left -= 1
            if changes_left == 0:
                raise KeyboardInterrupt

        return change_and_interrupt

    for owner, name in ((os, "replace"), (Path, "replace"), (Path, "unlink")):
        monkeypatch.setattr(owner, name, interrupted(getattr(owner, name)))
    checkpoints.save(model, None)
    for number in itertools.count(1):
        model.num_timesteps += 10
        changes_left = number
        try:
            checkpoints.save(model, None)
        except KeyboardInterrupt:
            saved = list(tmp_path.glob("*.zip"))
            assert saved
            assert all(path.with_suffix(".onnx").exists() for path in saved), number
        else:
            break
    assert number > 4  # the network, the checkpoint, and both of the one before


@pytest.mark.parametrize(("keep", "kept"), [(-1, [0, 10, 20]), (0, [0, 10, 20]), (1, [20]), (2, [10, 20])])
def test_the_newest_checkpoints_remain(keep: int, kept: list[int], tmp_path: Path) -> None:
    model = PPO.from_spec("UnityPolicy", BehaviorSpec([sensor(4)], ActionSpec(0, (2,))), device="cpu")
    checkpoints = Checkpoints(tmp_path, keep)
    for step in (0, 10, 20):
        model.num_timesteps = step
        checkpoints.save(model, reward=step / 10)
    assert list(checkpoints.by_step()) == kept
    assert [(entry["steps"], entry["reward"]) for entry in checkpoints.status["checkpoints"]] == [
        (step, step / 10) for step in kept
    ]
    names = {f"{tmp_path.name}-{step}.{suffix}" for step in kept for suffix in ("zip", "onnx")}
    assert {path.name for path in tmp_path.iterdir()} == names


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has other devices, and links need a permission")
def test_links_and_devices_are_written_through(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    for name, target in {"model.zip": tmp_path / "disk" / "large.zip", "nothing.zip": Path("/dev/null")}.items():
        (tmp_path / name).symlink_to(target)
        write(tmp_path / name, b"content")
        assert (tmp_path / name).is_symlink()
    assert [path.name for path in (tmp_path / "disk").iterdir()] == ["large.zip"]
    assert (tmp_path / "model.zip").read_bytes() == b"content"
    assert Path("/dev/null").is_char_device()


def test_a_second_save_at_a_timestep_that_fails_keeps_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = PPO.from_spec("UnityPolicy", BehaviorSpec([sensor(4)], ActionSpec(0, (2,))), device="cpu")
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(model, None)

    def fail(*_: Any) -> None:
        raise UnityGymError("no space")

    monkeypatch.setattr(run_checkpoints, "write", fail)
    with pytest.raises(UnityGymError, match="no space"):
        checkpoints.save(model, None)
    newest = checkpoints.newest()
    assert newest is not None
    assert newest.with_suffix(".onnx").exists()


def test_a_complete_run_that_lost_its_network_exports_it_again(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "ppo", tmp_path / "ppo")
    network, published = tmp_path / "ppo" / "Basic" / "Basic-100.onnx", tmp_path / "ppo" / "Basic.onnx"
    before = network.read_bytes()
    for path in (network, published):
        path.unlink()
    assert main([config(tmp_path, max_steps=100), "--results-dir", str(tmp_path), "--run-id", "ppo", "--resume"]) == 0
    assert network.read_bytes() == published.read_bytes() == before


def test_a_checkpoint_waits_for_a_background_update(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save, saved, update = Checkpoints.save, list[tuple[int, int]](), PPO.train

    def update_slowly(model: PPO) -> None:
        time.sleep(0.2)
        update(model)

    def note(self: Checkpoints, model: PPO, *arguments: Any, **options: Any) -> None:
        assert model._running is None
        steps, updates, policy = model.num_timesteps, model._n_updates, deepcopy(model.policy.state_dict())
        save(self, model, *arguments, **options)
        saved.append((steps, updates))
        assert (model.num_timesteps, model._n_updates) == (steps, updates)
        checkpoint = read_checkpoint(self.newest())
        assert checkpoint.state["counters"]["_n_updates"] == updates
        for name, part in checkpoint.parameters["policy"].items():
            torch.testing.assert_close(part.cpu(), policy[name].cpu(), rtol=0, atol=0)

    monkeypatch.setattr(PPO, "train", update_slowly)
    monkeypatch.setattr(Checkpoints, "save", note)
    sizes = {"buffer_size": 240, "batch_size": 60}
    file = config(tmp_path, max_steps=1500, checkpoint_interval=130, threaded=True, hyperparameters=sizes)
    assert main([file, "--results-dir", str(tmp_path), "--seed", "0"]) == 0
    assert len(saved) >= 8
    assert saved[-1][1] > saved[0][1]


def policy_of(spec: BehaviorSpec, network: dict[str, Any], kind: Any = UnityPolicy) -> Any:
    layout, actions = ObservationLayout(spec), action_space(spec.action_spec)
    adapter = SpaceAdapter(layout.space, actions, (spec, layout))
    return kind(layout.space, actions, lambda _: 1e-3, adapter=adapter, **network)


def sensor(*shape: int, goal: bool = False, entities: bool = False) -> ObservationSpec:
    kind = DimensionProperty.TRANSLATIONAL_EQUIVARIANCE if len(shape) == 3 else DimensionProperty.NONE
    first = DimensionProperty.VARIABLE_SIZE if entities else DimensionProperty.NONE
    dimensions = (first, *[kind] * (len(shape) - 1))
    return ObservationSpec(shape, dimensions, ObservationType(int(goal)), "")


class UnitysNetwork:
    """Return a network with Unity's names and order and random weights, written from their description.

    :param spec: Specification of the inputs.
    :param width: Units per layer.
    :param count: Number of dense layers.
    """

    def __init__(self, spec: BehaviorSpec, width: int, count: int) -> None:
        self.spec, self.width, self.count, self.weights = spec, width, count, dict[str, torch.Tensor]()
        sensors = spec.observation_specs
        size, goal = 0, 0
        prefix = "observation_encoder.processors"
        fixed = [(index, each) for index, each in enumerate(sensors) if len(each.shape) != 2]
        for index, each in fixed:
            if len(each.shape) == 1:
                steps, mean, squares = torch.tensor(40 + index), torch.randn(each.shape[0]), torch.rand(each.shape[0])
                for name, value in (("steps", steps), ("mean", mean), ("variance", squares * 100)):
                    kind = "normalization" if name == "steps" else "running"
                    self.weights[f"{prefix}.{index}.normalizer.{kind}_{name}"] = value
            else:
                self.add(f"{prefix}.{index}.conv_layers.0", 16, each.shape[0], 8, 8)
                self.add(f"{prefix}.{index}.conv_layers.2", 32, 16, 4, 4)
                self.add(f"{prefix}.{index}.dense.0", width, 32)
            part = each.shape[0] if len(each.shape) == 1 else width
            size += part
            goal += part * (each.observation_type is ObservationType.GOAL_SIGNAL)
        entities = [(index, each) for index, each in enumerate(sensors) if len(each.shape) == 2]
        if entities:
            self.add("observation_encoder.x_self_encoder.seq_layers.0", 128, size)
            for index, each in entities:
                self.add(f"{prefix}.{index}.self_ent_encoder.seq_layers.0", 128, 128 + each.shape[1])
            for name in ("fc_q", "fc_k", "fc_v", "fc_out"):
                self.add(f"observation_encoder.rsa.{name}", 128, 128)
            size += 128
        layers = "_body_endoder.layers" if goal else "_body_endoder.seq_layers"
        for number in range(count - bool(goal)):
            self.add(f"{layers}.{2 * number}", width, width if number else size)
        if goal:
            inputs = width if count > 1 else size
            name = f"{layers}.{2 * count - 2}"
            self.add(f"{name}.hypernet.0", width, goal)
            self.add(f"{name}.hypernet.2", width, width)
            self.add(f"{name}.hypernet.5", inputs * width, width)
            self.weights[f"{name}.bias"] = torch.randn(width)

    def add(self, name: str, *shape: int) -> None:
        self.weights[f"{name}.weight"] = torch.randn(shape) / np.prod(shape[1:]) ** 0.5
        self.weights[f"{name}.bias"] = torch.randn(shape[0]) / 3

    def dense(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(x, self.weights[f"{name}.weight"], self.weights[f"{name}.bias"])

    def __call__(self, observations: list[torch.Tensor]) -> torch.Tensor:
        swish, prefix = nn.functional.silu, "observation_encoder.processors"
        parts, goals = [], []
        for index, (each, x) in enumerate(zip(self.spec.observation_specs, observations, strict=True)):
            if len(each.shape) == 2:
                continue
            if len(each.shape) == 1:
                steps, mean, squares = (
                    self.weights[f"{prefix}.{index}.normalizer.{name}"]
                    for name in ("normalization_steps", "running_mean", "running_variance")
                )
                x = ((x - mean) / (squares / steps).sqrt()).clamp(-5, 5)
            else:
                for layer, stride in (("0", 4), ("2", 2)):
                    name = f"{prefix}.{index}.conv_layers.{layer}"
                    x = nn.functional.conv2d(x, self.weights[f"{name}.weight"], self.weights[f"{name}.bias"], stride)
                    x = nn.functional.leaky_relu(x)
                x = nn.functional.leaky_relu(self.dense(f"{prefix}.{index}.dense.0", x.flatten(1)))
            parts.append(x)
            goals += [x] if each.observation_type is ObservationType.GOAL_SIGNAL else []
        x = torch.cat(parts, 1)
        entities = [(i, part) for i, part in enumerate(observations) if part.ndim == 3]
        if entities:
            own = swish(self.dense("observation_encoder.x_self_encoder.seq_layers.0", x))
            embedded = [
                swish(
                    self.dense(
                        f"{prefix}.{index}.self_ent_encoder.seq_layers.0",
                        torch.cat([own[:, None].expand(-1, part.shape[1], -1), part], 2),
                    )
                )
                for index, part in entities
            ]
            absent = torch.cat([part.square().sum(2) < 0.01 for _, part in entities], 1)
            y = nn.functional.layer_norm(torch.cat(embedded, 1), (128,))
            heads = [
                self.dense(f"observation_encoder.rsa.{name}", y).unflatten(2, (4, 32)).transpose(1, 2)
                for name in ("fc_q", "fc_k", "fc_v")
            ]
            scores = heads[0] @ heads[1].transpose(2, 3) / 128**0.5
            scores = scores.masked_fill(absent[:, None, None], -1e6)
            attended = (scores.softmax(3) @ heads[2]).transpose(1, 2).flatten(2)
            y = nn.functional.layer_norm(self.dense("observation_encoder.rsa.fc_out", attended) + y, (128,))
            present = (~absent).float()
            x = torch.cat([x, (y * present[..., None]).sum(1) / (present.sum(1, keepdim=True) + 1e-7)], 1)
        layers = "_body_endoder.layers" if goals else "_body_endoder.seq_layers"
        for number in range(self.count - bool(goals)):
            x = swish(self.dense(f"{layers}.{2 * number}", x))
        if goals:
            name = f"{layers}.{2 * self.count - 2}.hypernet"
            y = swish(self.dense(f"{name}.2", swish(self.dense(f"{name}.0", torch.cat(goals, 1)))))
            weights = self.dense(f"{name}.5", nn.functional.layer_norm(y, (self.width,)))
            bias = self.weights[f"{layers}.{2 * self.count - 2}.bias"]
            x = swish(torch.bmm(x[:, None], weights.view(len(x), -1, self.width)).squeeze(1) + bias)
        return x


VECTOR, IMAGE, ENTITIES = sensor(3), sensor(3, 20, 20), sensor(5, 4, entities=True)
GOAL, GOAL_IMAGE = sensor(2, goal=True), sensor(3, 20, 20, goal=True)


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize(
    "sensors",
    [[VECTOR], [IMAGE, VECTOR], [IMAGE, GOAL, VECTOR], [GOAL_IMAGE, VECTOR, GOAL], [IMAGE, ENTITIES, VECTOR, ENTITIES]],
    ids=["vector", "image first", "goal", "two goals", "entities"],
)
def test_actor_and_critic_of_mlagents_return_the_same_outputs(sensors: list[ObservationSpec], count: int) -> None:
    torch.manual_seed(0)
    spec, width = BehaviorSpec(sensors, ActionSpec(2, (3, 2))), 8
    nets = [UnitysNetwork(spec, width, count) for _ in range(2)]
    actor = {f"network_body.{name}": part for name, part in nets[0].weights.items()}
    for name, part in nets[0].weights.items():
        if "processors" in name:  # they are listed twice
            actor[f"network_body.{name.removeprefix('observation_encoder.')}"] = part
    head: dict[str, torch.Tensor] = {}
    discrete = "discrete_distribution.branches"
    sizes = {"continuous_distribution.mu": 2, f"{discrete}.0": 3, f"{discrete}.1": 2}
    for name, size in sizes.items():
        head[f"action_model._{name}.weight"] = torch.randn(size, width)
        head[f"action_model._{name}.bias"] = torch.randn(size)
    head["action_model._continuous_distribution.log_sigma"] = torch.randn(1, 2)
    for name, part in nets[0].weights.items():  # the statistics of the critic are those of the actor
        if ".normalizer." in name:
            nets[1].weights[name] = part
    critic = {f"network_body.{name}": part for name, part in nets[1].weights.items()}
    for signal in ("curiosity", "extrinsic"):
        critic |= {f"value_heads.value_heads.{signal}.weight": torch.randn(1, width)}
        critic |= {f"value_heads.value_heads.{signal}.bias": torch.randn(1)}
    network = {"hidden_units": width, "num_layers": count, "normalize": True}
    policy = policy_of(spec, {**network, "value_heads": ["extrinsic", "curiosity"]})
    checkpoint = MLAgentsCheckpoint(Path("checkpoint.pt"), {**actor, **head}, critic)
    load_actor(policy, checkpoint)
    assert load_critic(policy, checkpoint, ["extrinsic", "curiosity"]) is None

    seen = [torch.rand(20, *each.shape) for each in sensors]
    for index, each in enumerate(sensors):
        if len(each.shape) == 2:
            seen[index] *= torch.rand(20, 5, 1) < 0.6
    with torch.no_grad():
        expected = nets[0](seen)
        features = policy.body(seen)[0]
        torch.testing.assert_close(features, expected, atol=1e-4, rtol=1e-4)
        mean, log_std, logits = policy.head(features)
        parts = {name.removeprefix("action_model."): part for name, part in head.items()}
        continuous = "_continuous_distribution"
        assert mean is not None
        assert logits is not None
        torch.testing.assert_close(
            mean, nn.functional.linear(features, parts[f"{continuous}.mu.weight"], parts[f"{continuous}.mu.bias"])
        )
        torch.testing.assert_close(log_std, parts[f"{continuous}.log_sigma"][0])
        branch = "_discrete_distribution.branches.1"
        torch.testing.assert_close(
            logits[:, 3:], nn.functional.linear(features, parts[f"{branch}.weight"], parts[f"{branch}.bias"])
        )
        values = policy.state_values(seen, torch.zeros(20, 0))
        heads = [
            nn.functional.linear(nets[1](seen), critic[f"{name}.weight"], critic[f"{name}.bias"])
            for name in ("value_heads.value_heads.extrinsic", "value_heads.value_heads.curiosity")
        ]
        torch.testing.assert_close(values, torch.cat(heads, 1), atol=1e-4, rtol=1e-4)


def test_sac_starts_with_actor_and_critics_of_mlagents() -> None:
    folder = MLAGENTS / "3DBall_SAC"
    onnx = OnnxPolicy(folder / "3DBall.onnx")
    policy = policy_of(onnx.spec, {"hidden_units": 8, "normalize": True}, UnitySACPolicy)
    checkpoint = read_mlagents_checkpoint(folder / "3DBall" / "checkpoint.pt")
    load_actor(policy, checkpoint)
    assert load_critic(policy, checkpoint, ["extrinsic"]) is None
    rng = np.random.default_rng(0)
    observations, actions = rng.normal(size=(50, 8)).astype(np.float32), rng.uniform(-1, 1, (50, 2))
    actual, raw = (
        each.select_actions([observations], np.ones((50, 0), bool), np.zeros((50, 0)), True)[0].continuous
        for each in (policy.actor(), onnx)
    )
    # The deterministic output of Unity's file lacks the tanh, which Unity's sampled actions have.
    np.testing.assert_allclose(actual, np.tanh(raw), atol=1e-6)
    inputs = torch.from_numpy(np.concatenate([observations, actions.astype(np.float32)], 1))
    with torch.no_grad():
        for critic in (policy.critic, policy.critic_target):
            values = critic(critic.observe([inputs[:, :8]])[0], inputs[:, 8:])
            for number, value in enumerate(values, 1):
                torch.testing.assert_close(value[:, 0], unity_q_value(checkpoint.path, number, inputs))


@pytest.mark.parametrize("version", ["0.24", "0.25"])
def test_the_names_of_older_versions_of_mlagents_are_read(version: str, tmp_path: Path) -> None:
    path = MLAGENTS / "3DBall" / "3DBall" / "checkpoint.pt"
    newest = read_mlagents_checkpoint(path)
    modules = torch.load(path, weights_only=True)
    for name in ("Policy", "Optimizer:critic"):
        modules[name] = {
            key.replace("_body_endoder.", "linear_encoder."): part
            for key, part in modules[name].items()
            if not key.startswith("network_body.processors.")
        }
        if version == "0.24":
            modules[name] = {key.replace("observation_encoder.", ""): part for key, part in modules[name].items()}
    torch.save(modules, tmp_path / "checkpoint.pt")
    older = read_mlagents_checkpoint(tmp_path / "checkpoint.pt")
    network = {"hidden_units": 8, "normalize": True}
    policies = [policy_of(OnnxPolicy(MLAGENTS / "3DBall" / "3DBall.onnx").spec, network) for _ in range(2)]
    for policy, checkpoint in zip(policies, (newest, older), strict=True):
        load_actor(policy, checkpoint)
        assert load_critic(policy, checkpoint, ["extrinsic"]) is None
    for name, part in policies[0].state_dict().items():
        torch.testing.assert_close(policies[1].state_dict()[name], part, rtol=0, atol=0)


def test_networks_of_sac_start_with_the_entropy_coefficients_of_their_new_settings(tmp_path: Path) -> None:
    old, new = model_of(SAC), model_of(SAC, init_entcoef=0.5)
    with torch.no_grad():
        old.policy.log_ent_coef.fill_(-6)
        old.policy.critic.head.weight.fill_(2)
    old.save(tmp_path / "old.zip")
    assert start_from(new, tmp_path / "old.zip") is None
    assert new.policy.log_ent_coef.exp().tolist() == pytest.approx([0.5, 0.5])
    assert (new.policy.critic.head.weight == 2).all()


def test_value_heads_on_the_body_of_the_actor_are_loaded(tmp_path: Path) -> None:
    path = MLAGENTS / "3DBall" / "3DBall"
    modules = torch.load(path / "checkpoint.pt", weights_only=True)
    heads = {name: part for name, part in modules["Optimizer:critic"].items() if name.startswith("value_heads.")}
    modules["Policy"] |= heads  # with shared_critic, Unity's critic is its actor
    torch.save({**modules, "Optimizer:critic": modules["Policy"]}, tmp_path / "checkpoint.pt")
    network = {"hidden_units": 8, "normalize": True, "shared_critic": True}
    policy = policy_of(OnnxPolicy(MLAGENTS / "3DBall" / "3DBall.onnx").spec, network)
    checkpoint = read_mlagents_checkpoint(tmp_path / "checkpoint.pt")
    load_actor(policy, checkpoint)
    assert load_critic(policy, checkpoint, ["extrinsic"]) is None
    for name in ("weight", "bias"):
        expected = heads[f"value_heads.value_heads.extrinsic.{name}"]
        torch.testing.assert_close(getattr(policy.value_head, name), expected, check_stride=False)


def unity_q_value(path: Path, number: int, inputs: torch.Tensor) -> torch.Tensor:
    """Return the values (n, 1) of one of the two critics of Unity's SAC, of observations and actions (n, 10).

    The statistics are the actor's, which Unity copies to the critics in each update.
    """
    saved = torch.load(path, weights_only=True)
    part = {name.removeprefix(f"q{number}_network."): x for name, x in saved["Optimizer:q_network"].items()}
    statistics = "network_body.observation_encoder.processors.0.normalizer"
    steps, mean, squares = (
        saved["Policy"][f"{statistics}.{name}"] for name in ("normalization_steps", "running_mean", "running_variance")
    )
    normalized = ((inputs[:, :8] - mean) / (squares / steps).sqrt()).clamp(-5, 5)
    x = torch.cat([normalized, inputs[:, 8:]], 1)
    for layer in (0, 2):
        name = f"network_body._body_endoder.seq_layers.{layer}"
        x = nn.functional.silu(nn.functional.linear(x, part[f"{name}.weight"], part[f"{name}.bias"]))
    name = "value_heads.value_heads.extrinsic"
    return nn.functional.linear(x, part[f"{name}.weight"], part[f"{name}.bias"])


def test_a_network_that_differs_is_named() -> None:
    checkpoint = read_mlagents_checkpoint(MLAGENTS / "3DBall" / "3DBall" / "checkpoint.pt")
    spec = OnnxPolicy(MLAGENTS / "3DBall" / "3DBall.onnx").spec
    network = {"hidden_units": 8, "normalize": True}
    for changed, words in (
        ({"hidden_units": 9}, r"body.layers.0.bias has the shape \(8,\) there and \(9,\) here"),
        ({"num_layers": 1}, "it also has _body_endoder.seq_layers.2.weight"),
        ({"num_layers": 3}, "it has no _body_endoder.seq_layers.4.weight"),
        ({"normalize": False}, "it also has observation_encoder.processors.0.normalizer"),
        ({"memory_size": 4}, "it has no lstm.lstm.weight_ih_l0"),
    ):
        with pytest.raises(UnityGymError, match=words):
            load_actor(policy_of(spec, {**network, **changed}), checkpoint)
    policy = policy_of(spec, {**network, "value_heads": ["extrinsic", "curiosity"]})
    load_actor(policy, checkpoint)
    assert load_critic(policy, checkpoint, ["extrinsic", "curiosity"]) == (
        "its critic is of another network: it has no curiosity.weight"
    )
    shared = policy_of(spec, {**network, "shared_critic": True})
    assert (
        load_critic(shared, checkpoint, ["extrinsic"]) == "its critic is of another network: it has a body of its own"
    )
    sac = policy_of(spec, network, UnitySACPolicy)
    assert load_critic(sac, checkpoint, ["extrinsic"]) == "its critic is of another network: it is not of SAC"
    critics = read_mlagents_checkpoint(MLAGENTS / "3DBall_SAC" / "3DBall" / "checkpoint.pt")
    assert load_critic(sac, critics, ["curiosity"]) == "its critic is of another network: it has no curiosity.weight"
    shallow = policy_of(spec, {**network, "num_layers": 1}, UnitySACPolicy)
    assert "it also has _body_endoder.seq_layers.2.weight" in str(load_critic(shallow, critics, ["extrinsic"]))
    recurrent = policy_of(spec, {**network, "memory_size": 4}, UnitySACPolicy)
    assert "each critic has its own encoding" in str(load_critic(recurrent, critics, ["extrinsic"]))
    group = policy_of(spec, network, UnityPOCAPolicy)
    load_actor(group, checkpoint)
    assert load_critic(group, checkpoint, ["extrinsic"]) == "the critic of UnityPOCAPolicy is another network"
    assert POCA.policy_aliases["UnityPOCAPolicy"] is UnityPOCAPolicy

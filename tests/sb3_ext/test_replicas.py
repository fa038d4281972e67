"""Several processes share the updates of a model: equal weights, one clear error, no leftover processes."""

from __future__ import annotations

import multiprocessing
import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import psutil
import pytest
import torch
from random_experience import model_of, trajectories
from small_runs import await_line, interrupted, run, workers_of, write

from sb3_ext import PPO, SAC, replicas
from sb3_ext.learn import main
from unity_gym.errors import UnityGymError


def learners() -> list[Any]:
    return [child for child in multiprocessing.active_children() if child.name.startswith("learner-")]


def updated(kind: type[PPO] | type[SAC], devices: tuple[str, ...], change: dict[str, Any]) -> Any:
    """Return a model after three updates with the same experience; after the first one, attributes are changed."""
    if kind is PPO:
        options: dict[str, Any] = {"buffer_size": 100, "batch_size": 33, "n_epochs": 2, "max_grad_norm": 0.5}
        options |= {"advantage_normalization": "minibatch", "last_minibatch": "keep"}
        lengths = [20, 30, 50]
    else:
        options, lengths = {"buffer_size": 1000, "batch_size": 33, "steps_per_update": 25.0}, [1] * 100
    model = model_of(kind, **options)
    model.learner_devices = devices
    rng = np.random.default_rng(0)
    try:
        for _ in range(3):
            model.add(trajectories(rng, lengths))
            model.count(100)
            model.train()
            vars(model).update(change)
        assert len(learners()) == len(devices)
    finally:
        model.end_learning()
    assert not learners()
    return model


_NEW_OPTIONS: dict[type, dict[str, Any]] = {
    PPO: {"n_epochs": 3, "batch_size": 20, "ent_coef": 0.1, "clip_range": lambda _: 0.05, "vf_coef": 1.0},
    SAC: {"batch_size": 20, "tau": 0.5},
}


@pytest.mark.parametrize("is_changed", [False, True])
@pytest.mark.parametrize("kind", [PPO, SAC])
def test_two_processes_give_the_weights_of_one(kind: type[PPO] | type[SAC], is_changed: bool) -> None:
    change = _NEW_OPTIONS[kind] | {"lr_schedule": lambda _: 1e-3} if is_changed else {}
    one, two = updated(kind, (), change), updated(kind, ("cpu",), change)
    start = model_of(kind, batch_size=33, buffer_size=1000).policy.state_dict()
    for name, weights in one.policy.state_dict().items():
        torch.testing.assert_close(two.policy.state_dict()[name], weights, rtol=0, atol=1e-5)
    assert any((weights != start[name]).any() for name, weights in one.policy.state_dict().items())
    assert one.policy.body.normalization.count == 1 + 300


def test_later_processes_get_experience_from_before_their_start_once() -> None:
    model = model_of(SAC, buffer_size=1000)
    model._replicas = cast(Any, SimpleNamespace(close=lambda: None))
    model.add(trajectories(np.random.default_rng(0), [1] * 50))
    model.stop_replicas()
    assert not model.replica_state()["_unsent"]
    assert model.replay_buffer.size() == 50


def test_a_signal_during_the_start_of_a_process_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicas, "starting_without_signals", interrupted)
    model = model_of(PPO, buffer_size=100, batch_size=50)
    model.learner_devices = ("cpu",)
    model.add(trajectories(np.random.default_rng(0), [100]))
    with pytest.raises(KeyboardInterrupt):
        model.train()
    assert not learners()


def test_a_process_that_dies_ends_the_training_with_one_error() -> None:
    model = model_of(PPO, buffer_size=100, batch_size=50)
    model.learner_devices = ("cpu",)
    rng = np.random.default_rng(0)
    model.add(trajectories(rng, [100]))
    model.train()
    (learner,) = learners()
    learner.kill()
    learner.join()
    model.add(trajectories(rng, [100]))
    with pytest.raises(UnityGymError, match="learner 1 on cpu ended with exit code -9"):
        model.train()
    assert not learners()


def test_a_device_that_does_not_exist_is_reported() -> None:
    model = model_of(PPO, buffer_size=100, batch_size=50)
    model.learner_devices = ("cuda:77",)
    model.add(trajectories(np.random.default_rng(0), [100]))
    with pytest.raises(UnityGymError, match="the device 'cuda:77'"):
        model.train()
    assert not learners()


def test_several_devices_are_checked_before_a_player_is_launched(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for devices in ("cpu,cuda:77", "cpu,gpu"):
        file = write(tmp_path, "Basic")
        assert main([str(file), "--results-dir", str(tmp_path), "--torch-device", devices]) == 1
        assert "cuda" in capsys.readouterr().err


@pytest.mark.skipif(os.name != "posix", reason="sends signals")
@pytest.mark.parametrize(("number", "workers"), [(signal.SIGINT, "0"), (signal.SIGTERM, "1")])
def test_a_signal_to_all_processes_saves_once_and_ends_them(tmp_path: Path, number: int, workers: str) -> None:
    file = write(tmp_path, "3DBall", max_steps=100_000, summary_freq=120)
    flags = ["--env", "Unity-3DBall-v0", "--num-workers", workers, "--run-id", "shared", "--torch-device", "cpu,cpu"]
    process = run(tmp_path, file, *flags)
    await_line(process, "Step: 600.")
    started = psutil.Process(process.pid).children(recursive=True)
    children = workers_of(psutil.Process(process.pid))
    assert len(children) == 1 + int(workers)
    for child in (*children, psutil.Process(process.pid)):  # as a terminal and a batch system do
        child.send_signal(number)
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 128 + number, errors
    assert output.count("saved ") == 1
    assert "launched again" not in output
    assert len(list((tmp_path / "shared" / "3DBall").glob("*.zip"))) == 1
    gone, alive = psutil.wait_procs(started, timeout=20)
    assert gone
    assert not alive

"""Updates that a GPU repeats are those that it would compute; without a GPU, a stand-in replaces its graphs."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import random_experience
import torch
from random_experience import SPEC, trajectories
from torch import nn

from sb3_ext import GAIL, PPO, RND, SAC, Curiosity, Extrinsic, cuda_graphs
from sb3_ext.cuda_graphs import Repeated, Results, Tensors
from unity_gym.demonstrations import DemonstrationWriter
from unity_gym.specs import ActionTuple

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class StandIn(cuda_graphs._Graph):
    """A graph that computes the update of the first minibatch again, with the new inputs in its place."""

    def __init__(
        self, compute: Callable[[Tensors], Results], inputs: Tensors, optimizer: torch.optim.Optimizer
    ) -> None:
        self._optimizer, self._state, self._compute = optimizer, optimizer.state, compute
        self._inputs = [tensor.clone() for tensor in inputs]

    def repeat(self, inputs: Tensors) -> Results:
        for own, tensor in zip(self._inputs, inputs, strict=True):
            own.copy_(tensor)
        return {name: result.clone() for name, result in self._compute(self._inputs).items()}


@pytest.fixture
def repeats(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let updates be repeated, and list the repetitions."""
    repetitions: list[int] = []
    kind: Any = cuda_graphs._Graph if DEVICE == "cuda" else StandIn
    if kind is StandIn:
        is_active = property(lambda self: self._is_constant and not self._has_failed)
        monkeypatch.setattr(Repeated, "is_active", is_active)

    class Counted(kind):  # type: ignore[misc]
        def repeat(self, inputs: Tensors) -> Results:
            repetitions.append(len(inputs))
            results: Results = super().repeat(inputs)
            return results

    monkeypatch.setattr(cuda_graphs, "_Graph", Counted)
    return repetitions


def model_of(kind: type[PPO] | type[SAC], **options: Any) -> Any:
    return random_experience.model_of(kind, device=DEVICE, batch_size=32, **options)


def signals(folder: Path) -> list[Any]:
    path, rng = folder / "expert.demo", np.random.default_rng(1)
    with DemonstrationWriter(path, "Toy", SPEC) as writer:
        for step in range(40):
            over = step % 8 == 7
            action = ActionTuple(rng.uniform(-1, 1, (1, 2)), rng.integers(0, 3, (1, 1)).astype(np.int32))
            writer.add([rng.normal(size=5).astype(np.float32)], None if over else action, terminated=over)
    network = {"hidden_units": 8, "normalize": True}
    gail = GAIL(path, use_actions=True, use_vail=True, **network)
    return [Extrinsic(), Curiosity(**network), RND(**network), gail]


def train(model: Any, rounds: int = 4) -> None:
    """Train with random experience, a part of which has been cut early."""
    rng = np.random.default_rng(0)
    has_single_decisions = isinstance(model, SAC) and not model.policy.memory_size
    lengths = [1] * 128 if has_single_decisions else [16] * 4 + [5, 11, 16, 16, 16]
    for _ in range(rounds):
        experience = trajectories(rng, lengths)
        for arrays in (experience.decisions, experience.ends):
            arrays["memory"] = rng.normal(size=(len(arrays["memory"]), model.policy.memory_size)).astype(np.float32)
        model.add(experience)
        if isinstance(model, SAC):
            model.count(128)
        model._current_progress_remaining -= 0.1
        model.train()


def state_of(model: Any) -> dict[str, torch.Tensor]:
    state: dict[str, torch.Tensor] = {**model.policy.state_dict()}
    state |= {name: part for name, part in model.signals.state_dict().items() if isinstance(part, torch.Tensor)}
    return state


CASES: dict[str, tuple[type[PPO] | type[SAC], dict[str, Any]]] = {
    "ppo": (PPO, {"n_epochs": 2, "buffer_size": 128}),
    "ppo, schedules": (
        PPO,
        {
            "buffer_size": 128,
            "clip_range_vf": 0.2,
            "clip_range_schedule": "linear",
            "ent_coef_schedule": "linear",
            "max_grad_norm": 0.5,
            "advantage_normalization": "minibatch",
        },
    ),
    "ppo, memory": (PPO, {"buffer_size": 128, "network": {"memory_size": 8, "sequence_length": 8}}),
    "sac": (SAC, {"steps_per_update": 16.0, "learning_rate_schedule": "linear"}),
    "sac, targets": (SAC, {"steps_per_update": 16.0, "target_update_interval": 3}),
    "sac, memory": (SAC, {"steps_per_update": 16.0, "network": {"memory_size": 8, "sequence_length": 16}}),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("learns_rewards", [False, True])
def test_repeated_updates_are_those_that_are_computed(
    case: str, learns_rewards: bool, repeats: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    kind, options = CASES[case]
    states, logs, learned = [], [], signals(tmp_path)
    for is_repeated in (False, True):
        model = model_of(kind, **options, reward_signals=learned if learns_rewards else None)
        with monkeypatch.context() as patch:
            if not is_repeated:
                patch.setattr(Repeated, "is_active", False)
            train(model)
        assert bool(repeats) == is_repeated
        states.append(state_of(model))
        logs.append(dict(model.logger.name_to_value))
    assert len(repeats) > 4
    torch.testing.assert_close(states[0], states[1], rtol=1e-3, atol=1e-4)
    assert logs[0].keys() == logs[1].keys()
    np.testing.assert_allclose(list(logs[0].values()), list(logs[1].values()), rtol=1e-2, atol=1e-3)


def test_a_loaded_model_continues_with_its_own_optimizer(repeats: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    states = []
    for is_repeated in (False, True):
        model = model_of(PPO, buffer_size=128)
        with monkeypatch.context() as patch:
            if not is_repeated:
                patch.setattr(Repeated, "is_active", False)
            train(model)
            graphs = list(model._repeated._graphs.values())
            saved = copy.deepcopy((model.policy.state_dict(), model.policy.optimizer.state_dict()))
            train(model)
            model.policy.load_state_dict(saved[0])
            model.policy.optimizer.load_state_dict(saved[1])
            train(model)
        states.append(state_of(model))
        assert bool(repeats) == is_repeated == bool(graphs)
        assert not set(graphs) & set(model._repeated._graphs.values())
    torch.testing.assert_close(states[0], states[1], rtol=1e-3, atol=1e-4)


class Own(nn.ReLU):
    """A network of a user."""


def test_networks_of_users_are_computed_each_time(repeats: list[int]) -> None:
    train(model_of(PPO, buffer_size=128, network={"activation_fn": Own}))
    assert not repeats


def test_a_failure_is_reported_once_and_training_continues(repeats: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("no memory")

    monkeypatch.setattr(cuda_graphs, "_Graph", fail)
    model = model_of(SAC, steps_per_update=16.0)
    with pytest.warns(UserWarning, match="could not be recorded on the GPU: no memory") as warned:
        train(model)
    assert len(warned) == 1
    assert model._n_updates > 8
    assert not repeats


def linear_update(waits: bool = False) -> tuple[Repeated, Callable[[Tensors], Results]]:
    """Return an update of a linear layer, which may wait for the GPU, and its repetition."""
    network = nn.Linear(3, 3, device=DEVICE)
    optimizer = torch.optim.Adam(network.parameters(), fused=True)

    def compute(tensors: Tensors) -> Results:
        loss = network(tensors[0]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return {"loss": loss.detach() + loss.item() if waits else loss.detach()}

    return Repeated(network, optimizer), compute


def test_many_shapes_are_not_all_recorded(repeats: list[int]) -> None:
    repeated, compute = linear_update()
    losses = [
        repeated(compute, [torch.ones(rows, 3, device=DEVICE)])["loss"].item() for _ in range(5) for rows in range(1, 9)
    ]
    assert sorted(losses, reverse=True) == losses
    assert len(repeated._graphs) == cuda_graphs._MOST_KINDS
    assert len(repeats) == 3 * cuda_graphs._MOST_KINDS


@pytest.mark.skipif(DEVICE == "cpu", reason="needs an NVIDIA GPU")
def test_an_update_that_waits_for_the_gpu_is_computed_each_time() -> None:
    repeated, compute = linear_update(waits=True)
    with pytest.warns(UserWarning, match="could not be recorded on the GPU"):
        losses = [repeated(compute, [torch.ones(4, 3, device=DEVICE)])["loss"].item() for _ in range(6)]
    assert sorted(losses, reverse=True) == losses
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    assert torch.rand(3, device=DEVICE).isfinite().all()
    assert not repeated.is_active
    assert linear_update()[0].is_active
    model = model_of(PPO, buffer_size=128)
    train(model)
    assert model._repeated._graphs

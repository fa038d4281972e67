"""The overhead of updates: copies, and values moved from the device."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from random_experience import model_of, trajectories
from torch.utils._python_dispatch import TorchDispatchMode

from sb3_ext import PPO, RND, SAC, Extrinsic
from sb3_ext.networks import RunningNormalization, normalization
from sb3_ext.ppo import _approximate_kl
from sb3_ext.rollout import Batch, Rollout


class Moves(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A dispatch mode that counts the values that Python reads from tensors."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls[str(func)] += 1
        return func(*args, **kwargs or {})

    @property
    def numbers(self) -> int:
        return sum(count for name, count in self.calls.items() if "_local_scalar_dense" in name or "item" in name)


@pytest.mark.parametrize("kind", [PPO, SAC])
def test_more_minibatches_copy_no_more_values_from_the_device(kind: type[PPO] | type[SAC]) -> None:
    moved = {}
    for minibatches in (2, 8):
        shared = {"batch_size": 32, "buffer_size": 32 * minibatches}
        options = {"n_epochs": 1} if kind is PPO else {"steps_per_update": 32.0}
        model = model_of(kind, **shared, **options)
        lengths = [32] * minibatches if kind is PPO else [1] * 32 * minibatches
        model.add(trajectories(np.random.default_rng(0), lengths))
        model.count(32 * minibatches)
        with Moves() as moves:
            model.train()
        assert moves.calls["aten._fused_adam_.default"] == minibatches
        moved[minibatches] = moves.numbers
    assert moved[2] == moved[8]


@pytest.mark.parametrize("length", [1, 4])
def test_minibatches_are_slices_of_one_copy_with_the_rows_of_their_decisions(length: int) -> None:
    rollout = Rollout.from_trajectories(trajectories(np.random.default_rng(0), [7, 9, 16]))
    np.random.seed(0)  # noqa: NPY002
    batches = list(rollout.shuffled(8, length, drop_last=False))
    assert sum(len(batch) for batch in batches) >= 32
    for batch in batches:
        alone = Batch(rollout, batch.index.view(-1, length), batch.valid)
        for name in ("actions", "log_probs", "rewards", "action_masks", "terminated"):
            torch.testing.assert_close(getattr(batch, name), getattr(alone, name), rtol=0, atol=0)
        torch.testing.assert_close(batch.observations, alone.observations, rtol=0, atol=0)
    assert batches[0].actions.untyped_storage().data_ptr() == batches[-1].actions.untyped_storage().data_ptr()
    for batch in rollout.in_order(10):
        assert batch.actions.untyped_storage().data_ptr() == rollout.actions.untyped_storage().data_ptr()


def test_observations_are_normalized_once_per_update(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    forward = RunningNormalization.forward

    def counted(self: RunningNormalization, x: torch.Tensor) -> torch.Tensor:
        calls.append(len(x))
        return forward(self, x)

    monkeypatch.setattr(RunningNormalization, "forward", counted)
    model = model_of(PPO, batch_size=32, buffer_size=256, n_epochs=3)
    model.add(trajectories(np.random.default_rng(0), [32] * 8))
    model.train()
    # Once for all, and the states after the trajectories; the very first update also makes its log-probabilities.
    assert calls == [256, 256, 8]


def test_statistics_are_float32_on_a_device_without_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(normalization, "_WITHOUT_FLOAT64", ("meta",))
    body = model_of(PPO, batch_size=32, buffer_size=64).policy.body
    assert {buffer.dtype for buffer in body.normalization.buffers()} == {torch.float32, torch.float64}
    assert {buffer.dtype for buffer in body.to("meta").normalization.buffers()} == {torch.float32}

    exact, single = RunningNormalization(3), RunningNormalization(3)
    for name in ("count", "mean", "squares"):
        setattr(single, name, getattr(single, name).float())
    rng = torch.Generator().manual_seed(0)
    for _ in range(50):
        x = torch.randn((400, 3), generator=rng) * torch.tensor([1.0, 10.0, 0.01]) + torch.tensor([0.0, 100.0, 1.0])
        exact.update(x)
        single.update(x)
    torch.testing.assert_close(single(x), exact(x), rtol=0, atol=1e-3)


def test_the_divergences_of_the_dimensions_of_an_action_add_up() -> None:
    before, after = torch.tensor([0.7, 0.3]), torch.tensor([0.5, 0.5])
    exact = (before * (before / after).log()).sum()
    first, second = torch.multinomial(before, 2 * 100_000, replacement=True).view(2, -1)
    log_ratio = torch.stack([(after / before).log()[first], (after / before).log()[second]], 1)
    torch.testing.assert_close(_approximate_kl(log_ratio).mean(), 2 * exact, rtol=0.05, atol=0)


@pytest.mark.parametrize(("signals", "owed"), [([Extrinsic()], 0), ([Extrinsic(), RND()], 100)])
def test_updates_of_reward_signals_are_due_only_if_one_learns(signals: list[Any], owed: int) -> None:
    model = model_of(
        SAC,
        buffer_size=1000,
        batch_size=10,
        steps_per_update=20.0,
        reward_signal_steps_per_update=1.0,
        reward_signals=signals,
    )
    model.add(trajectories(np.random.default_rng(0), [1] * 100))
    model.count(100)
    assert model._signals_owed == owed

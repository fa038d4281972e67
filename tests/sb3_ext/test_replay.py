"""The replay buffer: each transition belongs to one agent, for any timing of decisions and episode ends."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
import torch

from sb3_ext.experience import TrajectoryBuffer
from sb3_ext.replay import ReplayBuffer


class Table:
    """Agents that act and end at random; observations contain row, episode and tick."""

    def __init__(self, rows: int, seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)
        self.tick = 0
        self.episode = np.zeros(rows, np.int64)
        self.observations = [np.zeros((rows, 3), np.float32), np.zeros((rows, 1, 2, 2), np.uint8)]
        self.final_observations = [array.copy() for array in self.observations]
        self.reward, self.group_reward = np.zeros(rows, np.float32), np.zeros(rows, np.float32)
        self.requests_decision, self.terminated, self.truncated = (np.zeros(rows, bool) for _ in range(3))
        self.action_mask = np.zeros((rows, 3), bool)
        self.step()

    def __len__(self) -> int:
        return len(self.requests_decision)

    def see(self, arrays: list[np.ndarray], rows: np.ndarray) -> None:
        arrays[0][rows] = np.stack([rows, self.episode[rows], np.full(len(rows), self.tick)], 1)
        arrays[1][rows] = self.rng.integers(0, 256, (len(rows), 1, 2, 2))

    def step(self) -> None:
        self.tick += 1
        chance = self.rng.random(len(self))
        self.terminated, self.truncated = chance < 0.08, (chance > 0.08) & (chance < 0.16)
        ends = self.terminated | self.truncated
        self.see(self.final_observations, np.flatnonzero(ends))
        self.episode += ends
        self.requests_decision = self.rng.random(len(self)) < np.linspace(1, 0.3, len(self))
        rows = np.flatnonzero(self.requests_decision)
        self.see(self.observations, rows)
        self.action_mask[rows] = self.rng.random((len(rows), 3)) < 0.5
        self.reward[:], self.group_reward[:] = self.rng.normal(size=(2, len(self)))


class Log:
    """The expected transitions, one by one."""

    def __init__(self) -> None:
        self.open: dict[int, dict[str, Any]] = {}
        self.closed: list[dict[str, Any]] = []

    def store_decisions(self, table: Table, rows: np.ndarray, actions: np.ndarray) -> None:
        for row, action in zip(rows.tolist(), actions, strict=True):
            self.open[row] = {
                "observation": [array[row].copy() for array in table.observations],
                "mask": table.action_mask[row].copy(),
                "action": action,
            }

    def store_outcomes(self, table: Table) -> None:
        ends = table.terminated | table.truncated
        for row in [row for row in self.open if table.requests_decision[row] or ends[row]]:
            after = table.final_observations if ends[row] else table.observations
            self.closed.append(
                self.open.pop(row)
                | {
                    "next": [array[row].copy() for array in after],
                    "next_mask": np.ones(3, bool) if ends[row] else table.action_mask[row].copy(),
                    "reward": table.reward[row],
                    "group_reward": table.group_reward[row],
                    "terminated": table.terminated[row],
                }
            )


def fill(buffer: ReplayBuffer, steps: int, rows: int = 5, table: Table | None = None) -> Log:
    """Act, and add each trajectory when it is finished; at the end, add the running ones."""
    table = table or Table(rows)
    log, rng = Log(), np.random.default_rng(1)
    agents = TrajectoryBuffer(buffer.sequence_length, buffer.memory_size)
    for step in range(steps):
        acting = np.flatnonzero(table.requests_decision)
        actions = rng.normal(size=(len(acting), 2)).astype(np.float32)
        memory = table.observations[0][acting, 2:].repeat(buffer.memory_size, 1)
        agents.store_decisions(table, acting, actions, np.zeros((len(acting), 0), np.float32), memory)
        log.store_decisions(table, acting, actions)
        table.step()
        memory = table.observations[0][:, 2:].repeat(buffer.memory_size, 1)
        agents.store_outcomes(table, memory)
        log.store_outcomes(table)
        if step == steps - 1:
            agents.cut(memory)
        if (finished := agents.take()) is not None:
            buffer.add(finished)
    return log


def transitions(buffer: ReplayBuffer) -> list[dict[str, Any]]:
    """Return all transitions that can be sampled."""
    batch = buffer.sample(200 * len(buffer))
    valid = torch.ones(len(batch), dtype=torch.bool) if batch.valid is None else batch.valid
    arrays = {
        "action": batch.actions,
        "mask": batch.action_masks,
        "next_mask": batch.next_action_masks,
        "reward": batch.rewards,
        "group_reward": batch.group_rewards,
        "terminated": batch.terminated,
    }
    found = {}
    for index in torch.nonzero(valid).squeeze(1).tolist():
        one = {name: array[index].numpy() for name, array in arrays.items()}
        one["observation"] = [array[index].numpy() for array in batch.observations]
        one["next"] = [array[index].numpy() for array in batch.next_observations]
        found[tuple(one["observation"][0].tolist())] = one
    return [found[key] for key in sorted(found)]


@pytest.mark.parametrize("length", [1, 4])
@pytest.mark.parametrize("size", [60, 10_000])
def test_the_buffer_contains_the_newest_transitions_of_each_agent(length: int, size: int) -> None:
    buffer = ReplayBuffer(size * length, length, memory_size=2)
    log = fill(buffer, 60)
    found = transitions(buffer)
    assert len(found) == len(buffer)
    assert buffer.seen == len(log.closed)
    known = {tuple(one["observation"][0].tolist()): one for one in log.closed}
    if size == 10_000:
        assert len(found) == len(log.closed)
    else:
        assert len(found) < len(log.closed)
        newest = sorted(known, key=lambda seen: seen[2])[-30:]
        assert set(newest) <= {tuple(one["observation"][0].tolist()) for one in found}
    for one in found:
        expected = known[tuple(one["observation"][0].tolist())]
        for name, value in expected.items():
            for actual, logged in zip(
                *([one[name], value] if isinstance(value, list) else [[one[name]], [value]]), strict=True
            ):
                np.testing.assert_array_equal(actual, logged, err_msg=name)


def test_sequences_are_of_one_episode_without_gaps_and_start_with_their_recurrent_state() -> None:
    buffer = ReplayBuffer(400, 4, memory_size=2)
    fill(buffer, 200)
    batch = buffer.sample(4000)
    places = batch.observations[0].view(-1, 4, 3)
    following = batch.next_observations[0].view(-1, 4, 3)
    assert batch.valid is not None
    valid = batch.valid.view(-1, 4)
    assert valid[:, 0].all()
    assert set(valid.sum(1).tolist()) == {1, 2, 3, 4}
    assert (valid[:, :-1] >= valid[:, 1:]).all()  # padded at the end only
    within = valid[:, 1:]
    assert (places[:, 1:] == following[:, :-1])[within].all()
    assert (places[:, 1:, :2] == places[:, :1, :2])[within].all()
    assert torch.equal(batch.memory, places[:, 0, 2:].repeat(1, 2))
    x = torch.arange(len(batch), dtype=torch.float32)
    assert batch.mean(x) == x[batch.valid].mean()
    assert torch.equal(batch.states[0].view(-1, 5, 3)[:, :-1], places)


def test_an_agent_that_waits_long_receives_its_own_outcome() -> None:
    buffer, agents = ReplayBuffer(8), TrajectoryBuffer(1)
    table = Table(4)
    table.requests_decision[:] = True
    table.terminated[:] = table.truncated[:] = False

    def act(rows: np.ndarray) -> None:
        zeros = np.zeros((len(rows), 2), np.float32)
        agents.store_decisions(table, rows, zeros, zeros[:, :0], zeros[:, :0])

    def end_step() -> None:
        agents.store_outcomes(table, np.zeros((4, 0), np.float32))
        buffer.add(agents.take())

    act(np.arange(4))
    waiting = table.observations[0][3].copy()
    for _ in range(20):
        table.requests_decision[:] = [True, True, True, False]
        table.see(table.observations, np.arange(3))
        end_step()
        act(np.arange(3))
    table.requests_decision[:] = True
    table.reward[3] = 7
    end_step()
    batch = buffer.sample(200)
    rows = (batch.observations[0] == torch.from_numpy(waiting)).all(1)
    assert rows.any()
    assert (batch.rewards[rows] == 7).all()


def test_of_more_sequences_than_the_capacity_the_last_ones_are_kept() -> None:
    buffer, agents = ReplayBuffer(3), TrajectoryBuffer(1)
    table = Table(5)
    table.requests_decision[:] = True
    table.see(table.observations, np.arange(5))
    zeros = np.zeros((5, 2), np.float32)
    agents.store_decisions(table, np.arange(5), zeros, zeros[:, :0], zeros[:, :0])
    agents.store_outcomes(table, zeros[:, :0])
    buffer.add(agents.take())
    assert (len(buffer), buffer.seen) == (3, 5)
    assert set(buffer.sample(100).observations[0][:, 0].tolist()) == {2, 3, 4}


@pytest.mark.parametrize("length", [1, 4])
@pytest.mark.parametrize("size", [60, 200, 20])
def test_a_saved_buffer_continues(length: int, size: int) -> None:
    buffer = ReplayBuffer(60 * length, length, memory_size=2)
    fill(buffer, 50)
    file = io.BytesIO()
    buffer.save(file)
    file.seek(0)
    loaded = ReplayBuffer(size * length, length, memory_size=2)
    shapes = loaded.load(file)
    assert shapes["observation_1"] == (1, 2, 2)
    assert shapes["action"] == (2,)
    assert loaded.seen == buffer.seen
    before, after = transitions(buffer), transitions(loaded)
    assert len(after) == len(loaded)
    if size < 60:
        assert 0 < len(after) < len(before)
        newest = max(one["observation"][0][2] for one in before)
        assert newest in {one["observation"][0][2] for one in after}
    else:
        np.testing.assert_equal(after, before)
    for other in (buffer, loaded) if size == 60 else ():
        np.random.seed(0)  # noqa: NPY002
        fill(other, 30, table=Table(5, seed=3))
    if size == 60:
        np.random.seed(0)  # noqa: NPY002
        actual = loaded.sample(40)
        np.random.seed(0)  # noqa: NPY002
        expected = buffer.sample(40)
        assert torch.equal(actual.observations[0], expected.observations[0])
        assert torch.equal(actual.rewards, expected.rewards)


def test_in_the_padding_of_sequences_all_actions_are_allowed() -> None:
    buffer = ReplayBuffer(400, 4, memory_size=2)
    fill(buffer, 30)
    file = io.BytesIO()
    buffer.save(file)
    file.seek(0)
    loaded = ReplayBuffer(800, 4, memory_size=2)
    loaded.load(file)
    fill(loaded, 60, table=Table(5, seed=3))
    for one in (buffer, loaded):
        batch = one.sample(4000)
        assert batch.valid is not None
        assert not batch.valid.all()
        assert not batch.action_masks[batch.valid].all()
        states = one._arrays["mask"][: one._filled]
        behind = np.arange(5) > one._length[: one._filled, np.newaxis]
        assert behind.any()
        assert states[behind].all()


def test_a_file_that_is_no_replay_buffer_raises() -> None:
    file = io.BytesIO()
    np.savez(file, arrays=np.zeros(3))
    file.seek(0)
    with pytest.raises(ValueError, match="no replay buffer"):
        ReplayBuffer(10).load(file)
    filled = ReplayBuffer(100, 4, memory_size=2)
    fill(filled, 5)
    file = io.BytesIO()
    filled.save(file)
    file.seek(0)
    with pytest.raises(ValueError, match="4 decisions long with 2 numbers"):
        ReplayBuffer(100).load(file)

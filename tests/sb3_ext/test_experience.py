"""The array-based rollout compared with loops over single agents."""

from dataclasses import dataclass

import numpy as np
import pytest

from sb3_ext.experience import Trajectories, TrajectoryBuffer
from sb3_ext.rollout import Rollout, advantages


def slow_advantages(rewards: list, values: list, end_value: float, gamma: float, gae_lambda: float) -> list[float]:
    """Compute one trajectory backwards."""
    following, carried, result = end_value, 0.0, []
    for reward, value in zip(reversed(rewards), reversed(values), strict=True):
        carried = reward + gamma * following - value + gamma * gae_lambda * carried
        following = value
        result.append(carried)
    return result[::-1]


def slow_lambda_returns(rewards: list, values: list, end_value: float, gamma: float, gae_lambda: float) -> list[float]:
    """Compute one trajectory backwards."""
    result = [rewards[-1] + gamma * end_value]
    for step in reversed(range(len(rewards) - 1)):
        mixed = (1 - gae_lambda) * values[step + 1] + gae_lambda * result[-1]
        result.append(rewards[step] + gamma * mixed)
    return result[::-1]


@pytest.mark.parametrize(("gamma", "gae_lambda"), [(0.99, 0.95), (0.9, 1.0), (0.995, 0.0)])
def test_advantages_and_lambda_returns_agree_with_the_recursions(gamma: float, gae_lambda: float) -> None:
    rng = np.random.default_rng(0)
    lengths = np.array([1, 7, 30, 1, 12])
    rewards, values, ends = rng.normal(size=51), rng.normal(size=51), rng.normal(size=5)
    ends[2] = 0  # a terminal state
    found = advantages(rewards, values, ends, lengths, gamma, gae_lambda)
    start = 0
    for length, end in zip(lengths, ends, strict=True):
        part = slice(start, start + length)
        r, v = rewards[part].tolist(), values[part].tolist()
        np.testing.assert_allclose(found[part], slow_advantages(r, v, end, gamma, gae_lambda), atol=1e-12)
        np.testing.assert_allclose(
            found[part] + values[part], slow_lambda_returns(r, v, end, gamma, gae_lambda), atol=1e-12
        )
        start += length


@dataclass
class Scene:
    """Agents that act, end and pause at random; observations contain row, episode and time."""

    rows: int
    seed: int = 0

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)
        n = self.rows
        self.observations = [np.zeros((n, 3), np.float32)]
        self.final_observations = [np.zeros((n, 3), np.float32)]
        self.reward, self.group_reward = np.zeros(n, np.float32), np.zeros(n, np.float32)
        self.requests_decision, self.terminated, self.truncated = np.ones(n, bool), np.zeros(n, bool), np.zeros(n, bool)
        self.action_mask = np.ones((n, 2), bool)
        self.acting = np.zeros(n, bool)
        self.observations[0][:, 0] = np.arange(n)

    def __len__(self) -> int:
        return self.rows

    def step(self) -> None:
        self.acting |= self.requests_decision
        answers = self.acting & (self.rng.random(self.rows) < 0.6)
        ends = answers & (self.rng.random(self.rows) < 0.1)
        self.truncated = ends & (self.rng.random(self.rows) < 0.5)
        self.terminated = ends & ~self.truncated
        self.reward = np.where(answers, self.rng.normal(size=self.rows), 0).astype(np.float32)
        self.group_reward = np.where(answers, 1, 0).astype(np.float32)
        self.observations[0] = self.observations[0].copy()
        self.observations[0][answers, 2] += 1
        self.final_observations[0][ends] = self.observations[0][ends]
        self.observations[0][ends, 1] += 1
        self.observations[0][ends, 2] = 0
        self.action_mask = self.rng.random((self.rows, 2)) < 0.5
        self.requests_decision = answers
        self.acting &= ~answers


def play(scene: Scene, experience: TrajectoryBuffer, steps: int, log: dict) -> None:
    """Act, and log every decision with its outcome in `log[row]` by a loop over agents."""
    for _ in range(steps):
        rows = np.flatnonzero(scene.requests_decision)
        actions = scene.rng.normal(size=(len(rows), 2)).astype(np.float32)
        memory = scene.observations[0][rows, 1:] + 0.5
        experience.store_decisions(scene, rows, actions, -actions, memory)
        for position, row in enumerate(rows):
            log.setdefault(row, []).append([scene.observations[0][row].copy(), actions[position]])
        scene.step()
        done = scene.terminated | scene.truncated
        for row in np.flatnonzero(scene.requests_decision | done):
            after = (scene.final_observations if done[row] else scene.observations)[0][row].copy()
            log[row][-1] += [scene.reward[row], after, scene.terminated[row], done[row]]
        now = np.where(done[:, np.newaxis], scene.final_observations[0], scene.observations[0])
        experience.store_outcomes(scene, now[:, 1:] + 0.5)


def taken(experience: TrajectoryBuffer) -> Rollout:
    trajectories = experience.take()
    assert trajectories is not None
    return Rollout.from_trajectories(trajectories)


def compare(rollout: Rollout, log: dict, horizon: int | None, cut: bool = False) -> dict[int, int]:
    """Check the rollout against the log; return how many decisions of each row it had."""
    batch = next(rollout.in_order(len(rollout)))
    used: dict[int, int] = {}
    start = 0
    for trajectory, length in enumerate(rollout.lengths):
        for index in range(start, start + length):
            row = int(rollout.observations[0][index, 0])
            entry = log[row][used.get(row, 0)]
            used[row] = used.get(row, 0) + 1
            observation, action, reward, after, terminated, done = entry
            np.testing.assert_array_equal(rollout.observations[0][index], observation)
            np.testing.assert_array_equal(rollout.actions[index], action)
            np.testing.assert_array_equal(rollout.log_probs[index], -action)
            np.testing.assert_array_equal(rollout.memory[index], observation[1:] + 0.5)
            assert rollout.rewards[index] == reward
            assert rollout.group_rewards[index] == 1
            np.testing.assert_array_equal(batch.next_observations[0][index], after)
            assert batch.terminated[index] == terminated
            is_last = index == start + length - 1
            assert rollout.is_last[index] == is_last
            assert not done or is_last
            if is_last:
                assert done or cut or length == horizon
                np.testing.assert_array_equal(rollout.end_observations[0][trajectory], after)
                assert rollout.terminated[trajectory] == terminated
        assert horizon is None or length <= horizon
        start += length
    return used


@pytest.mark.parametrize("horizon", [None, 4])
def test_finished_trajectories_are_whole_and_the_rest_waits(horizon: int | None) -> None:
    scene, experience, log = Scene(7), TrajectoryBuffer(horizon, memory_size=2), {}
    for _ in range(3):
        play(scene, experience, 60, log)
        finished, closed = experience.finished, experience.closed
        rollout = taken(experience)
        assert len(rollout) == finished == rollout.lengths.sum()
        used = compare(rollout, log, horizon)
        log = {row: entries[used.get(row, 0) :] for row, entries in log.items()}
        assert experience.closed == closed - finished == sum(len(e) == 6 for es in log.values() for e in es)


def test_cutting_takes_all_outcomes_and_leaves_the_open_decisions() -> None:
    scene, experience, log = Scene(9, seed=1), TrajectoryBuffer(None, memory_size=2), {}
    for _ in range(3):
        play(scene, experience, 41, log)
        closed = experience.closed
        experience.cut(scene.observations[0][:, 1:] + 0.5)
        rollout = taken(experience)
        assert len(rollout) == closed
        used = compare(rollout, log, None, cut=True)
        log = {row: entries[used.get(row, 0) :] for row, entries in log.items()}
        assert all(len(entries) <= 1 for entries in log.values())  # the open one
        assert experience.closed == 0
        np.testing.assert_array_equal(rollout.end_memory, rollout.end_observations[0][:, 1:] + 0.5)


def test_sequences_start_with_their_trajectory_and_are_filled_at_the_end() -> None:
    scene, experience = Scene(5), TrajectoryBuffer(None, memory_size=2)
    play(scene, experience, 80, {})
    rollout = taken(experience)
    decisions, valid = rollout.sequences(4)
    assert sorted(decisions[valid].tolist()) == list(range(len(rollout)))
    trajectory = rollout.trajectory[decisions]
    assert (trajectory == trajectory[:, :1]).all()
    starts = np.cumsum(rollout.lengths) - rollout.lengths
    offset = decisions[:, 0].numpy() - starts[trajectory[:, 0].numpy()]
    assert (offset % 4 == 0).all()
    assert (valid.int().diff(dim=1) <= 0).all()


def test_an_epoch_contains_each_decision_once_and_omits_small_remainders() -> None:
    scene, experience = Scene(5), TrajectoryBuffer(None, memory_size=2)
    play(scene, experience, 80, {})
    rollout = taken(experience)
    n = len(rollout)
    kept = [batch.index for batch in rollout.shuffled(16, drop_last=False)]
    assert sorted(np.concatenate(kept).tolist()) == list(range(n))
    assert {len(batch) for batch in rollout.shuffled(16)} == {16}
    assert len(list(rollout.shuffled(16))) == n // 16
    assert len(list(rollout.shuffled(n + 1))) == 1  # the only one is kept
    assert all(len(batch) == 12 for batch in rollout.shuffled(15, length=4))


def test_joined_parts_are_the_trajectories_in_the_order_of_rows_and_time() -> None:
    scene, experience, log = Scene(7), TrajectoryBuffer(4, memory_size=2), {}
    parts = []
    for _ in range(3):
        play(scene, experience, 30, log)
        parts.append(experience.take())
    whole = Trajectories.join(parts)
    assert len(whole) == sum(len(part) for part in parts)
    assert (np.diff(whole.ends["row"]) >= 0).all()
    compare(Rollout.from_trajectories(whole), log, 4)
    copied = Trajectories.from_arrays(whole.arrays())
    compare(Rollout.from_trajectories(copied), log, 4)


def test_the_pieces_of_an_episode_are_merged() -> None:
    scene, experience, log = Scene(7), TrajectoryBuffer(4, memory_size=2), {}
    play(scene, experience, 50, log)
    cut = experience.take()
    whole = cut.merged()
    assert len(whole) == len(cut)
    assert len(whole.lengths) < len(cut.lengths)
    assert whole.ends["is_episode_end"].sum() == cut.ends["is_episode_end"].sum()
    compare(Rollout.from_trajectories(whole), log, None, cut=True)


def test_peeking_returns_all_outcomes_and_changes_nothing() -> None:
    scene, experience, log = Scene(7), TrajectoryBuffer(4, memory_size=2), {}
    play(scene, experience, 50, log)
    finished, closed, memory = experience.finished, experience.closed, scene.observations[0][:, 1:] + 0.5
    shown = experience.peek(memory)
    assert len(shown) == closed
    compare(Rollout.from_trajectories(shown), log, 4, cut=True)
    assert (experience.finished, experience.closed) == (finished, closed)
    compare(taken(experience), log, 4)


def test_a_decision_is_open_until_it_has_its_outcome() -> None:
    scene, experience = Scene(1), TrajectoryBuffer(4, memory_size=2)
    assert not experience.has_open_decisions
    action = np.zeros((1, 2), np.float32)
    experience.store_decisions(scene, np.zeros(1, int), action, action, action)
    assert experience.has_open_decisions
    experience.store_outcomes(scene, action)
    assert not experience.has_open_decisions


def test_decisions_that_are_not_stored_leave_no_gap_in_a_trajectory() -> None:
    scene, experience, log = Scene(3), TrajectoryBuffer(None, memory_size=2), {}
    play(scene, experience, 20, log)
    memory = scene.observations[0][:, 1:] + 0.5
    rows = np.flatnonzero(scene.requests_decision)
    before = experience.closed
    experience.cut_rows(scene, rows, memory)
    assert experience.closed == before
    rollout = taken(experience)
    last = {int(rollout.observations[0][end, 0]): end for end in np.cumsum(rollout.lengths) - 1}
    for row in rows:
        np.testing.assert_array_equal(
            rollout.end_observations[0][list(np.cumsum(rollout.lengths) - 1).index(last[row])],
            scene.observations[0][row],
        )

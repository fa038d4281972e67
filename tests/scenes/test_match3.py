"""Match3: its rules against a slow implementation, returns of reference policies, and messages of its agents."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product

import numpy as np
import pytest

from stand_ins.raw_client import parameter
from unity_gym.environment import UnityEnvironment
from unity_gym.errors import PlayerError
from unity_gym.scenes.academy import Academy
from unity_gym.scenes.communicator import Communicator
from unity_gym.scenes.match3 import MOVES, Boards, Match3
from unity_gym.side_channels import EnvironmentParametersChannel
from unity_gym.specs import ActionTuple, Array, DecisionSteps

VECTOR, VISUAL = "Match3VectorObs?team=0", "Match3VisualObs?team=0"
SMART, SIMPLE = "Match3SmartHeuristic?team=0", "Match3SimpleHeuristic?team=0"
BEHAVIORS = {VECTOR: 4, VISUAL: 4, SMART: 2, SIMPLE: 2}
SENSORS = ["Match3 Sensor (cells)", "Match3 Sensor (special)"]
FULL = {"minRows": 9, "minColumns": 8}

SWAPS = [((r, c), (r, c + 1)) for r in range(9) for c in range(7)]
SWAPS += [((r, c), (r + 1, c)) for r in range(8) for c in range(8)]


@contextmanager
def playing(scene: str = "Match3", areas: int = 12, seed: int = 1, **parameters: float) -> Iterator[UnityEnvironment]:
    channel = EnvironmentParametersChannel()
    for name, value in parameters.items():
        channel.set_float_parameter(name, value)
    arguments = ["--areas", str(areas)]
    with UnityEnvironment(
        f"embedded:{scene}", seed=seed, additional_args=arguments, side_channels=[channel], visual_dtype="uint8"
    ) as env:
        env.reset()
        yield env


def lines(color: Array) -> set[tuple[int, int]]:
    """Return the cells of a board (rows, columns; -1 outside) that are in lines of three or more."""
    found = set()
    for r, c in product(range(9), range(8)):
        for dr, dc in ((0, 1), (1, 0)):
            three = [(r + i * dr, c + i * dc) for i in range(3)]
            if three[2][0] < 9 and three[2][1] < 8 and color[r, c] >= 0 and len({color[cell] for cell in three}) == 1:
                found |= set(three)
    return found


def after(cells: Array, move: int) -> Array:
    first, second = SWAPS[move]
    swapped = cells.copy()
    swapped[first], swapped[second] = cells[second], cells[first]
    return swapped


def points(color: Array, special: Array, move: int) -> int:
    """Return the points of the lines that a move makes on a settled board; 0 if it is not allowed."""
    first, second = SWAPS[move]
    if min(color[first], color[second]) < 0:
        return 0
    worth = after(special, move)
    return sum(1 + int(worth[cell]) for cell in lines(after(color, move)))


def boards_of(steps: DecisionSteps) -> tuple[Array, Array]:
    """Return colors and special types (n, 9, 8) in the observations, -1 outside the board."""

    def cells(observation: Array) -> Array:
        visual = observation.ndim == 4
        one_hot = (
            observation.transpose(0, 2, 3, 1) == 255 if visual else observation.reshape(len(observation), 9, 8, -1)
        )
        assert observation.max() == (255 if visual else 1)
        count = one_hot.sum(axis=-1)
        assert set(np.unique(count)) <= {0, 1}
        return np.where(count == 1, one_hot.argmax(axis=-1), -1)

    color, special = map(cells, steps.obs)
    np.testing.assert_array_equal(color == -1, special == -1)
    return color, special


def random_allowed(decisions: DecisionSteps, rng: np.random.Generator) -> ActionTuple:
    (forbidden,) = decisions.action_mask
    return ActionTuple(discrete=(rng.random(forbidden.shape) * ~forbidden).argmax(axis=1)[:, np.newaxis])


def act(env: UnityEnvironment, rng: np.random.Generator) -> None:
    for behavior in env.behavior_specs:
        decisions, _ = env.get_steps(behavior)
        if len(decisions):
            env.set_actions(behavior, random_allowed(decisions, rng))
    env.step()


def new_boards(count: int, rng: np.random.Generator, rows: int = 9, columns: int = 8) -> Boards:
    boards = Boards(count, rng)
    boards.lay_out(np.arange(count), np.full(count, rows), np.full(count, columns))
    return boards


@pytest.mark.parametrize(("rows", "columns"), [(9, 8), (6, 7)])
def test_moves_and_their_points_follow_the_rules(rows: int, columns: int) -> None:
    boards, every = new_boards(20, np.random.default_rng(0), rows, columns), np.arange(20)
    valid, worth = boards.valid_moves(every), boards.move_points(every)
    assert len(SWAPS) == MOVES == valid.shape[1] == 127
    for board in every:
        color, special = boards.color[board], boards.special[board]
        np.testing.assert_array_equal(np.argwhere(color >= 0).max(axis=0) + 1, [rows, columns])
        assert not lines(color)
        expected = [points(color, special, move) for move in range(MOVES)]
        np.testing.assert_array_equal(worth[board], expected)
        np.testing.assert_array_equal(valid[board], np.array(expected) > 0)


def test_a_move_clears_drops_and_fills_until_nothing_is_in_line() -> None:
    rng = np.random.default_rng(0)
    boards, every = new_boards(200, rng, rows=7), np.arange(200)
    moves = (rng.random((200, MOVES)) * boards.valid_moves(every)).argmax(axis=1)
    first = boards.move_points(every)[every, moves]
    before, special = boards.color.copy(), boards.special.copy()
    boards.swap(every, moves)
    points = boards.resolve(every)
    assert (points >= first).all()
    assert 0.6 < (points == first).mean() < 1  # the others got additional points from falling cells
    for board in np.flatnonzero(points == first):
        cleared = lines(after(before[board], moves[board]))
        for cells, now in ((before, boards.color), (special, boards.special)):
            swapped = after(cells[board], moves[board])
            for column in range(8):
                kept = [swapped[row, column] for row in range(7) if (row, column) not in cleared]
                assert now[board, : len(kept), column].tolist() == kept
    assert (boards.color[:, 7:] == -1).all()
    assert boards.color[:, :7].min() == 0


def test_new_cells_have_the_documented_frequencies() -> None:
    boards = new_boards(500, np.random.default_rng(0))
    shares = np.bincount(boards.special.ravel()) / boards.special.size
    np.testing.assert_allclose(shares, [0.7, 0.2, 0.1], atol=0.01)
    np.testing.assert_allclose(np.bincount(boards.color.ravel()) / boards.color.size, 1 / 6, atol=0.01)


@pytest.mark.parametrize(
    ("choose", "documented"),
    [(Boards.valid_moves, 34.2), (Boards.move_points, 37.0)],
    ids=["random valid player", "greedy player"],
)
def test_reference_policies_achieve_the_documented_return(
    choose: Callable[[Boards, Array], Array], documented: float
) -> None:
    """Return the mean of 200 episodes on full boards; policies take one of the moves that `choose` rates highest."""
    rng, every = np.random.default_rng(0), np.arange(200)
    boards, total = new_boards(200, rng), np.zeros(200)
    for _ in range(499):
        while len(stuck := np.flatnonzero(~boards.valid_moves(every).any(axis=1))):
            boards.shuffle(stuck)
        rating = choose(boards, every)
        best = rating == rating.max(axis=1, keepdims=True)
        boards.swap(every, (rng.random(best.shape) * best).argmax(axis=1))
        total += 0.01 * boards.resolve(every)
    assert total.mean() == pytest.approx(documented, abs=1)


def test_twelve_boards_have_unitys_four_behaviors() -> None:
    with playing() as env:
        assert {name: len(env.get_steps(name)[0]) for name in env.behavior_specs} == BEHAVIORS
        for name, spec in env.behavior_specs.items():
            shapes = [(6, 9, 8), (3, 9, 8)] if name == VISUAL else [(432,), (216,)]
            assert [sensor.name for sensor in spec.observation_specs] == SENSORS
            assert [sensor.shape for sensor in spec.observation_specs] == shapes
            assert spec.action_spec.discrete_branches == (127,)


@pytest.mark.parametrize(("scene", "behavior"), [("Match3Vector", VECTOR), ("Match3Visual", VISUAL)])
def test_a_scene_of_one_behavior(scene: str, behavior: str) -> None:
    with playing(scene, areas=3) as env:
        assert list(env.behavior_specs) == [behavior]
        assert len(env.get_steps(behavior)[0]) == 3


@pytest.mark.parametrize("behavior", [VECTOR, VISUAL])
def test_masks_and_rewards_follow_from_the_observation(behavior: str) -> None:
    rng = np.random.default_rng(0)
    with playing(areas=8) as env:
        for _ in range(15):
            decisions, _ = env.get_steps(behavior)
            color, special = boards_of(decisions)
            rated = np.array([[points(*b, move) for move in range(MOVES)] for b in zip(color, special, strict=True)])
            np.testing.assert_array_equal(~decisions.action_mask[0], rated > 0)
            chosen = random_allowed(decisions, rng)
            env.set_actions(behavior, chosen)
            env.step()
            earned = 100 * env.get_steps(behavior)[0].reward
            np.testing.assert_allclose(earned, np.rint(earned), atol=1e-3)
            assert (np.rint(earned) >= rated[np.arange(len(rated)), chosen.discrete[:, 0]]).all()


def test_a_forbidden_move_changes_nothing() -> None:
    with playing("Match3Vector") as env:
        before, _ = env.get_steps(VECTOR)
        env.set_actions(VECTOR, ActionTuple(discrete=before.action_mask[0].argmax(axis=1)[:, np.newaxis]))
        env.step()
        now, _ = env.get_steps(VECTOR)
    for old, new in zip(before.obs, now.obs, strict=True):
        np.testing.assert_array_equal(old, new)
    assert not now.reward.any()


def test_an_episode_has_499_moves_and_is_interrupted_with_the_last_reward() -> None:
    rng, points = np.random.default_rng(0), dict.fromkeys(BEHAVIORS, 0.0)
    with playing(**FULL) as env:
        for _ in range(2):
            for _ in range(499):
                for behavior, count in BEHAVIORS.items():
                    decisions, terminals = env.get_steps(behavior)
                    assert (len(decisions), len(terminals)) == (count, 0)
                    points[behavior] += decisions.reward.mean()
                act(env, rng)
            for behavior, count in BEHAVIORS.items():
                decisions, terminals = env.get_steps(behavior)
                assert (len(decisions), len(terminals)) == (0, count)
                assert terminals.interrupted.all()
                assert terminals.reward.min() >= 0.03
                points[behavior] += terminals.reward.mean()
            env.step()
            assert not any(env.get_steps(behavior)[0].reward.any() for behavior in BEHAVIORS)
    # Two episodes per board: the heuristics are greedy and ignore the actions.
    assert np.mean([points[SMART], points[SIMPLE]]) > np.mean([points[VECTOR], points[VISUAL]]) + 2


def test_each_episode_samples_a_board_size_between_minimum_and_maximum() -> None:
    seen = set()
    with playing("Match3Vector", areas=200) as env:
        color, _ = boards_of(env.get_steps(VECTOR)[0])
        for board in color:
            rows, columns = (board[:, 0] >= 0).sum(), (board[0] >= 0).sum()
            assert ((board >= 0).sum(), (board[:rows, :columns] >= 0).all()) == (rows * columns, True)
            seen.add((int(rows), int(columns)))
    assert seen == set(product(range(6, 10), range(6, 9)))
    with playing("Match3Visual", **FULL) as env:
        color, _ = boards_of(env.get_steps(VISUAL)[0])
        assert color.min() == 0


def test_boards_without_a_move_are_shuffled_before_a_decision_is_requested() -> None:
    rng = np.random.default_rng(0)
    with playing("Match3Vector", areas=50, minRows=3, minColumns=3) as env:
        for _ in range(30):
            decisions, _ = env.get_steps(VECTOR)
            assert not decisions.action_mask[0].all(axis=1).any()
            act(env, rng)


def test_impossible_sizes_raise() -> None:
    with pytest.raises(PlayerError, match="minRows from 3 to 9, got 10"), playing(minRows=10):
        pass


def test_a_reset_in_mid_episode_starts_new_boards_of_499_moves(launch) -> None:
    client = launch("Match3", "--areas", "1")
    client.start(side_channel=parameter("minRows", 9))
    for _ in range(5):
        client.step(VECTOR, [])
    client.reset()
    for _ in range(499):
        message = client.step(VECTOR, [])
    (agent,) = message.agents[VECTOR]
    assert (agent.done, agent.interrupted) == (True, True)


def test_an_image_shows_the_board() -> None:
    scene = Match3(Academy(Communicator(port=1), seed=1), areas=1)
    scene.kinds[0][0].reset()
    image = scene.render(0)
    assert (image.shape, image.dtype) == ((444, 400, 3), np.uint8)
    assert len(np.unique(image.reshape(-1, 3), axis=0)) > 6

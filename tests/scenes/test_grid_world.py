"""GridWorld, with policies that act on its images."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from stand_ins.raw_client import discrete
from unity_gym.demonstrations import load
from unity_gym.environment import UnityEnvironment
from unity_gym.errors import PlayerError
from unity_gym.scenes.academy import Academy
from unity_gym.scenes.communicator import Communicator, Rehearsal
from unity_gym.scenes.grid_world import Camera, GridWorld
from unity_gym.side_channels import EnvironmentParametersChannel
from unity_gym.specs import ActionTuple, Array, ObservationType
from unity_gym.wire.png import encode_images

GRID = "GridWorld?team=0"
DEMONSTRATION = Path(__file__).resolve().parents[2] / "../shared/unity/demonstrations/ExpertGridWorld.demo"
WALL, FLOOR, AGENT, PLUS, EX = range(5)
COLORS = np.array([(137, 139, 143), (70, 73, 78), (62, 195, 255), (140, 238, 151), (238, 92, 75)])
MOVES = [(0, 0), (0, 1), (0, -1), (-1, 0), (1, 0)]  # stay, up, down, left, right


@contextmanager
def playing(areas: int, **parameters: float) -> Iterator[UnityEnvironment]:
    channel = EnvironmentParametersChannel()
    for name, value in parameters.items():
        channel.set_float_parameter(name, value)
    with UnityEnvironment(
        "embedded:GridWorld",
        seed=1,
        additional_args=["--areas", str(areas)],
        side_channels=[channel],
        visual_dtype="uint8",
    ) as env:
        env.reset()
        yield env


def things(images: Array) -> Array:
    """Return which object each pixel of (n, 3, 64, 84) shows, by the nearest color."""
    distance = np.abs(images.astype(int).transpose(0, 2, 3, 1)[..., np.newaxis, :] - COLORS).sum(axis=-1)
    return distance.argmin(axis=-1)


def read(images: Array, size: int = 5) -> tuple[Array, Array, Array]:
    """Return which cells, bool (n, x, z), show a plus, an ex, the agent."""
    seen, scale = things(images), 64 / size
    i, j = np.indices((size, size))

    def at(x: float, z: float) -> Array:
        """Return the pixels at an offset in the cells, which have width and height 1 around (0, 0)."""
        return seen[:, (64 - scale * (j + 0.5 + z)).astype(int), (42 + scale * (i + 0.5 + x - size / 2)).astype(int)]

    return at(0, 0) == PLUS, at(0, 0) == EX, (at(0.4, 0.4) == AGENT) & (at(-0.4, -0.4) == AGENT)


@cache
def moves_to(goal: int, avoid: int, size: int = 5) -> dict[int, tuple[int, int]]:
    """Return, per cell (x · size + z), the number of moves to the goal and the first of them."""
    found, queue = {goal: (0, 0)}, deque([goal])
    while queue:
        cell = queue.popleft()
        for action, (dx, dz) in enumerate(MOVES[1:], start=1):
            x, z = cell // size - dx, cell % size - dz
            before = x * size + z
            if 0 <= x < size and 0 <= z < size and before != avoid and before not in found:
                found[before] = found[cell][0] + 1, action
                queue.append(before)
    return found


def best_actions(images: Array, signals: Array, towards_wanted: bool = True) -> Array:
    plus, ex, agent = (cells.reshape(len(cells), -1).argmax(axis=1) for cells in read(images))
    to_plus = (signals[:, 0] == 1) == towards_wanted
    goals, others = np.where(to_plus, plus, ex), np.where(to_plus, ex, plus)
    return np.array([moves_to(g, o)[a][1] for g, o, a in zip(goals, others, agent, strict=True)], np.int32)[:, None]


def play(env: UnityEnvironment, steps: int, towards_wanted: bool) -> tuple[Array, list[int], set[float]]:
    """Return the returns, lengths and last rewards of the episodes that end within these steps."""
    n = len(env.get_steps(GRID)[0])
    total, length = np.zeros(n), np.zeros(n, int)
    returns, lengths, last = [], [], set()
    for _ in range(steps):
        decisions, _ = env.get_steps(GRID)
        env.set_actions(GRID, ActionTuple(discrete=best_actions(*decisions.obs, towards_wanted)))
        env.step()
        decisions, terminals = env.get_steps(GRID)
        assert len(decisions) == n  # agents that ended request a decision at once
        length += 1
        total[decisions.agent_id] += decisions.reward
        total[terminals.agent_id] += terminals.reward
        assert not terminals.interrupted.any()
        last |= set(terminals.reward.tolist())
        returns += total[terminals.agent_id].tolist()
        lengths += length[terminals.agent_id].tolist()
        total[terminals.agent_id] = length[terminals.agent_id] = 0
    return np.array(returns), lengths, last


def test_nine_agents_observe_an_image_and_a_goal(launch) -> None:
    message = launch("GridWorld").start()
    agents = message.agents[GRID]
    assert [agent.id for agent in agents] == list(range(9))
    assert [agent.sensors for agent in agents] == [
        *[["CameraSensor", "VectorSensor"]] * 8,
        ["RenderTextureSensor", "VectorlSensor"],
    ]
    for agent in agents:
        assert agent.kinds == [ObservationType.DEFAULT.value, ObservationType.GOAL_SIGNAL.value]
        (signal,) = agent.observations
        assert sorted(signal) == [0, 1]
        assert len(agent.mask) == 5
    (parameters,) = message.initialization.brain_parameters
    assert list(parameters.action_spec.discrete_branch_sizes) == [5]


def test_the_optimal_policy_achieves_the_return_of_shortest_paths() -> None:
    cells = range(25)
    paths = [moves_to(g, o)[a][0] for g in cells for o in cells for a in cells if len({g, o, a}) == 3]
    assert np.mean(paths) == pytest.approx(3.362, abs=5e-4)
    with playing(areas=36) as env:
        returns, lengths, last = play(env, 250, towards_wanted=True)
    assert last == {1.0}
    assert len(returns) > 2000
    np.testing.assert_allclose(returns, 1 - 0.01 * (np.array(lengths) - 1), atol=1e-6)
    assert returns.mean() == pytest.approx(1 - 0.01 * (np.mean(paths) - 1), abs=3 * returns.std() / len(returns) ** 0.5)


def test_the_wrong_goal_sets_the_reward_to_minus_one() -> None:
    with playing(areas=9) as env:
        returns, lengths, last = play(env, 30, towards_wanted=False)
    assert last == {-1.0}
    np.testing.assert_allclose(returns, -1 - 0.01 * (np.array(lengths) - 1), atol=1e-6)


def test_the_last_image_shows_the_agent_on_its_goal() -> None:
    with playing(areas=9) as env:
        ended = 0
        while ended < 5:
            decisions, terminals = env.get_steps(GRID)
            if len(terminals):
                plus, ex, agent = read(terminals.obs[0])
                reached = np.where(terminals.obs[1][:, 0, np.newaxis, np.newaxis] == 1, plus, ex)
                np.testing.assert_array_equal(reached, agent)
                ended += len(terminals)
            env.set_actions(GRID, ActionTuple(discrete=best_actions(*decisions.obs)))
            env.step()


def test_an_idle_agent_is_interrupted_after_100_steps_with_minus_one(launch) -> None:
    client = launch("GridWorld", "--areas", "2")
    client.start()
    rewards = []
    for _ in range(100):
        message = client.step(GRID, discrete(0) * 2)
        rewards.append(message.agents[GRID][0].reward)
    first, _ = message.ended(GRID)
    assert (first.done, first.interrupted) == (True, True)
    np.testing.assert_allclose(rewards, -0.01, rtol=1e-6)
    assert sum(rewards) == pytest.approx(-1.00)
    assert [agent.reward for agent in message.deciding(GRID)] == [0, 0]


@pytest.mark.parametrize("size", [3, 5, 8])
def test_the_mask_forbids_the_moves_into_walls_and_these_change_nothing(size: int) -> None:
    rng, seen = np.random.default_rng(0), set()
    with playing(areas=18, gridSize=size) as env:
        for _ in range(150):
            decisions, _ = env.get_steps(GRID)
            _, x, z = np.nonzero(read(decisions.obs[0], size)[2])
            expected = np.stack([x < 0, z == size - 1, z == 0, x == 0, x == size - 1], axis=1)
            np.testing.assert_array_equal(decisions.action_mask[0], expected)
            seen |= set(map(tuple, expected.tolist()))
            actions = rng.integers(0, 5, len(x))
            env.set_actions(GRID, ActionTuple(discrete=actions[:, np.newaxis]))
            env.step()
            after, terminals = env.get_steps(GRID)
            _, new_x, new_z = np.nonzero(read(after.obs[0], size)[2])
            going = ~np.isin(after.agent_id, terminals.agent_id)
            dx, dz = np.array(MOVES)[actions].T * ~expected[np.arange(len(x)), actions]
            np.testing.assert_array_equal(new_x[going], (x + dx)[going])
            np.testing.assert_array_equal(new_z[going], (z + dz)[going])
            assert (after.reward[going] == np.float32(-0.01)).all()
    assert len(seen) == 9  # inside, at each side, in each corner


def test_parameters_set_the_grid_and_the_number_of_goals_from_the_next_episode_on() -> None:
    channel = EnvironmentParametersChannel()
    with UnityEnvironment("embedded:GridWorld", seed=3, side_channels=[channel], visual_dtype="uint8") as env:
        for size, pluses, exes in ((5, 1, 1), (9, 3, 2), (4, 0, 1), (2, 1, 2)):
            channel.set_float_parameter("gridSize", size)
            channel.set_float_parameter("numPlusGoals", pluses)
            channel.set_float_parameter("numExGoals", exes)
            env.reset()
            decisions, _ = env.get_steps(GRID)
            assert len(decisions) == 9
            for cells, count in zip(read(decisions.obs[0], size), (pluses, exes, 1), strict=True):
                assert (cells.sum(axis=(1, 2)) == count).all()


def test_more_goals_than_cells_raise() -> None:
    raises = pytest.raises(PlayerError, match=r"30 plus goals.*5 × 5 cells.*gridSize")
    with raises, playing(areas=1, numPlusGoals=30):
        pass


@pytest.mark.skipif(not DEMONSTRATION.exists(), reason="Unity's demonstrations are not next to the repository")
def test_the_camera_equals_images_of_unitys_camera_to_the_pixel() -> None:
    (recorded,) = load(DEMONSTRATION).record_observations
    plus, ex, agent = (cells.reshape(len(cells), -1) for cells in read(recorded))
    assert (plus.sum(axis=1) == 1).all()
    drawn = Camera(5).take(plus + 2 * ex, agent.argmax(axis=1)).transpose(0, 3, 1, 2)
    np.testing.assert_array_equal(things(drawn), things(recorded))
    assert np.abs(drawn.astype(int) - recorded).mean() < 1.5  # Unity's walls throw shadows


def test_an_image_shows_the_whole_grid() -> None:
    scene = GridWorld(Academy(Communicator(port=1), seed=1), areas=2)
    for agents in scene.kinds:
        agents.reset()
    image = scene.render(1)
    assert (image.shape, image.dtype) == ((400, 400, 3), np.uint8)
    assert len(np.unique(image.reshape(-1, 3), axis=0)) > 5


def test_cached_images_equal_the_view_of_the_camera() -> None:
    academy = Academy(Rehearsal(), seed=1)
    scene = GridWorld(academy, 9)
    rng = np.random.default_rng(1)
    for tick in range(250):
        if tick == 120:
            academy.parameters._parameters["gridSize"] = 4.0  # from the next episodes on
        for agents in scene.kinds:
            agents.discrete[:] = rng.integers(5, size=agents.discrete.shape)
        academy.tick(scene)
        if tick % 10 == 0:
            for agents, areas in zip(scene.kinds, (np.arange(8), np.arange(8, 9)), strict=True):
                camera = next(sensor for sensor in agents._sensors if sensor.compressed)
                assert camera.observe(agents.rows) == encode_images(scene.see(areas))
    assert set(scene.size) == {4}

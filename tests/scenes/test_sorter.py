"""Sorter: observations, rewards, episode ends and resets."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from stand_ins.in_process_scene import held_scene
from unity_gym.environment import UnityEnvironment
from unity_gym.scenes.sorter import Sorter
from unity_gym.side_channels import EnvironmentParametersChannel
from unity_gym.specs import ActionTuple, Array, DimensionProperty

NAME = "Sorter?team=0"
TICK = 0.02
FORWARD, BACK, RIGHT, LEFT = (1, 0, 0), (2, 0, 0), (0, 1, 0), (0, 2, 0)
NOTHING, TURN_LEFT, TURN_RIGHT = (0, 0, 0), (0, 0, 1), (0, 0, 2)


@pytest.fixture
def held() -> Iterator[tuple[UnityEnvironment, Sorter]]:
    with held_scene(Sorter) as (env, scene):
        yield env, scene


def put(scene: Sorter, x: float, z: float, degrees: float = 0, height: float = 0.5 - 2e-5) -> None:
    """Place the agent of the first area, at rest."""
    scene.shapes.center[:, 0, 0] = x, height, z
    scene.shapes.yaw[0, 0] = np.radians(degrees)
    scene.bodies.velocity[:, 0, 0] = 0


def lay(scene: Sorter, tiles: dict[int, float]) -> None:
    """Place these tiles in the first area: their numbers, and their yaw around the room in degrees."""
    shapes = scene.shapes
    scene.present[0] = scene.visited[0] = False
    shapes.center[1, 0, 1:21] = -1000
    for number, degrees in tiles.items():
        angle = np.radians(degrees)
        scene.present[0, number - 1] = True
        shapes.center[:, 0, number] = 20.5 * np.sin(angle), 2.05, 20.5 * np.cos(angle)
        shapes.yaw[0, number] = angle


def step(env: UnityEnvironment, actions: Array | tuple[int, int, int]) -> None:
    """Make one decision of all requesting agents, with one action per agent or one for all."""
    n = len(env.get_steps(NAME)[0])
    env.set_actions(NAME, ActionTuple(discrete=np.broadcast_to(np.asarray(actions, np.int32), (n, 3))))
    env.step()


def walk(env: UnityEnvironment, action: tuple[int, int, int], decisions: int = 20) -> tuple[float, bool]:
    """Repeat an action; return the reward of the first agent, and whether an episode has terminated."""
    total = 0.0
    for _ in range(decisions):
        step(env, action)
        deciding, ended = env.get_steps(NAME)
        if len(ended):
            return total + float(ended.reward[0]), not ended.interrupted[0]
        total += float(deciding.reward[0])
    return total, False


def test_8_agents_observe_tiles_velocity_and_position_and_act_in_three_branches() -> None:
    with UnityEnvironment("embedded:Sorter") as env:
        env.reset()
        spec = env.behavior_specs[NAME]
        assert [(sensor.name, sensor.shape) for sensor in spec.observation_specs] == [
            ("BufferSensor", (20, 23)),
            ("RBSensor", (10,)),
            ("StackingSensor_size2_VectorSensor_size4", (8,)),
        ]
        assert spec.observation_specs[0].dimension_property == (
            DimensionProperty.VARIABLE_SIZE,
            DimensionProperty.NONE,
        )
        assert (spec.action_spec.continuous_size, spec.action_spec.discrete_branches) == (0, (3, 3, 3))
        assert len(env.get_steps(NAME)[0]) == 8


def test_tiles_are_sent_in_the_order_of_their_numbers_and_20_without_its_flag(held) -> None:
    env, scene = held
    put(scene, 4, -2)
    lay(scene, {20: 90, 3: 0, 7: 180})
    step(env, NOTHING)
    x, _, z = scene.shapes.center[:, 0, 0]
    tiles = env.get_steps(NAME)[0].obs[0][0]
    for row, (number, place) in enumerate([(3, (0, 20.5)), (7, (0, -20.5)), (20, (20.5, 0))]):
        flags = np.zeros(20)
        flags[number % 20] = number < 20
        assert tiles[row, :20].tolist() == flags.tolist()
        assert tiles[row, 20:22] * 20 == pytest.approx([place[0] - x, place[1] - z], abs=1e-4)
    assert not tiles[:, 22].any()
    assert not tiles[3:].any()


def test_an_agent_observes_its_velocity_and_its_current_and_previous_position(held) -> None:
    env, scene = held
    assert scene.agents.decision_period == 5
    step(env, NOTHING)
    put(scene, 4, -2, 90, height=10)
    scene.bodies.velocity[:, 0, 0] = 3, 0, 1  # to the agent's front and left
    was = env.get_steps(NAME)[0].obs[2][0, 4:]
    step(env, NOTHING)
    _, velocity, place = (column[0] for column in env.get_steps(NAME)[0].obs)
    slowed = (1 - 4 * TICK) ** 5
    assert velocity[:7].tolist() == [0, 0, 0, 0, 0, 0, 1]
    assert velocity[[7, 9]] == pytest.approx([-slowed, 3 * slowed], rel=1e-4)
    assert velocity[8] < 0
    x, _, z = scene.shapes.center[:, 0, 0]
    assert place[:4].tolist() == was.tolist()
    assert place[4:] == pytest.approx([x / 20, z / 20, 1, 0], abs=1e-6)


def test_episodes_start_in_the_middle_with_some_tiles_anywhere_around_it() -> None:
    channel = EnvironmentParametersChannel()
    with held_scene(Sorter, areas=500, side_channels=(channel,)) as (env, scene):
        shapes = scene.shapes
        assert shapes.yaw[:, 0] == pytest.approx(np.pi)
        counts = scene.present.sum(axis=1)
        assert set(counts) == set(range(1, 21))
        assert (np.bincount(counts)[1:] > 8).all()
        channel.set_float_parameter("num_tiles", 2.0)
        shapes.yaw[:, 0] = 1
        env.reset()
        counts = scene.present.sum(axis=1)
        assert 200 < (counts == 1).sum() < 300
        assert (counts == 2).sum() == 500 - (counts == 1).sum()
        assert (scene.present.sum(axis=0) > 20).all()  # every number
        assert shapes.yaw[:, 0] == pytest.approx(1)  # it is unchanged
        x, height, z = shapes.center[:, :, 0]
        assert not x.any()
        assert not z.any()
        assert ((height > 1.19) & (height <= 1.21)).all()
        x, height, z = shapes.center[:, :, 1:21]
        slots = np.degrees(np.arctan2(x, z)) / 18
        assert slots == pytest.approx(np.round(slots), abs=1e-9)
        assert (np.sort(np.round(slots).astype(int) % 20, axis=1) == np.arange(20)).all()
        assert np.hypot(x, z) == pytest.approx(20.5)
        assert ((height == 2.05) == scene.present).all()
        assert (height[~scene.present] < -900).all()


@pytest.mark.parametrize(
    ("action", "ahead", "right", "degrees"),
    [
        (NOTHING, 0, 0, 0),
        (FORWARD, 2, 0, 0),
        (BACK, -2, 0, 0),
        (RIGHT, 0, 2, 0),
        (LEFT, 0, -2, 0),
        ((1, 2, 0), 0, -2, 0),  # a step aside replaces one ahead
        (TURN_LEFT, 0, 0, -20),
        (TURN_RIGHT, 0, 0, 20),
    ],
)
def test_actions_push_and_turn_in_each_of_five_ticks(held, action, ahead, right, degrees) -> None:
    env, scene = held
    lay(scene, {1: 0})
    put(scene, 0, 0, 30, height=8)
    speed = moved = 0.0
    for _ in range(5):
        speed = (speed + 1) * (1 - 4 * TICK)
        moved += speed * TICK
    step(env, action)
    x, _, z = scene.shapes.center[:, 0, 0]
    sin, cos = np.sin(np.radians(30)), np.cos(np.radians(30))
    assert (x, z) == pytest.approx((moved * (ahead * sin + right * cos), moved * (ahead * cos - right * sin)))
    assert np.degrees(scene.shapes.yaw[0, 0]) == pytest.approx(30 + degrees)


def test_gravity_changes_at_once() -> None:
    channel = EnvironmentParametersChannel()
    with held_scene(Sorter, side_channels=(channel,)) as (env, scene):
        channel.set_float_parameter("gravity", 0.0)
        put(scene, 0, 0, height=2)
        step(env, NOTHING)
        fallen = scene.shapes.center[1, 0, 0]
        step(env, NOTHING)
        assert scene.shapes.center[1, 0, 0] == fallen


def test_tiles_in_their_order_give_a_reward_and_the_last_ends_the_episode(held) -> None:
    env, scene = held
    lay(scene, {4: 0, 9: 180})
    put(scene, 0, 18)
    reward, over = walk(env, FORWARD, 5)
    assert reward == pytest.approx(1 - 25 / 5000)
    assert not over
    tiles = env.get_steps(NAME)[0].obs[0][0]
    assert tiles[:2, 22].tolist() == [1, 0]
    put(scene, 0, 18)
    assert walk(env, FORWARD, 5) == (pytest.approx(-25 / 5000), False)  # another touch has no effect
    put(scene, 0, -18)
    reward, over = walk(env, BACK, 5)
    assert reward == pytest.approx(1, abs=25 / 5000)
    assert over
    assert scene.agents.step_count[0] <= 5
    assert not scene.visited.any()


def test_a_tile_out_of_order_gives_minus_one_and_ends_the_episode(held) -> None:
    env, scene = held
    lay(scene, {4: 180, 9: 0})
    put(scene, 0, 18)
    reward, over = walk(env, FORWARD, 5)
    assert reward == pytest.approx(-1, abs=25 / 5000)
    assert over


def test_every_tick_has_a_penalty_and_5000_ticks_interrupt_the_episode(held) -> None:
    env, scene = held
    scene.agents.step_count[:] = 4951  # one tick has passed
    total = 0.0
    for _ in range(11):
        step(env, NOTHING)
        decisions, terminals = env.get_steps(NAME)
        if len(terminals):
            break
        total += float(decisions.reward.sum())
    assert terminals.interrupted[0]
    assert total + terminals.reward[0] == pytest.approx(-50 / 5000)


def test_nothing_passes_walls_and_tiles() -> None:
    with held_scene(Sorter, areas=16) as (env, scene):
        rng = np.random.default_rng(0)
        for _ in range(100):
            n = len(env.get_steps(NAME)[0])
            actions = rng.integers(0, 3, (n, 3)).astype(np.int32)
            actions[:, 0] = rng.choice([1, 1, 1, 2], n)
            actions[:, 1] *= rng.random(n) < 0.2
            step(env, actions)
            x, height, z = scene.shapes.center[:, :, 0]
            assert (np.hypot(x, z) < 21).all()
            assert (height > 0.4).all()


@pytest.mark.parametrize("degrees", [0, 7.5, 90, 187.5])
def test_the_wall_has_48_sides(held, degrees) -> None:
    env, scene = held
    lay(scene, {})
    put(scene, 0, 0, degrees)
    for _ in range(30):
        step(env, FORWARD)
    x, _, z = scene.shapes.center[:, 0, 0]
    assert np.hypot(x, z) == pytest.approx(19.943 - 0.5, abs=0.01)


def walks(scene: Sorter, sorts: bool) -> Array:
    """Return actions that walk in front of the next tile, or of the nearest remaining one, then touch it."""
    shapes, rows = scene.shapes, np.arange(scene.areas)
    places, agents = shapes.center[::2, :, 1:21], shapes.center[::2, :, 0]
    left = scene.present & ~scene.visited
    distances = np.where(left, ((places - agents[..., np.newaxis]) ** 2).sum(axis=0), np.inf)
    tile = places[:, rows, left.argmax(axis=1) if sorts else distances.argmin(axis=1)]
    in_front = (np.abs(agents[0] * tile[1] - agents[1] * tile[0]) < 20.5 * 1.5) & ((agents * tile).sum(axis=0) > 0)
    velocity, yaw = scene.bodies.velocity[::2, :, 0], shapes.yaw[:, 0]
    to_x, to_z = np.where(in_front, 1, 0.7) * tile - agents - 0.2 * velocity
    error = (np.arctan2(to_x, to_z) - yaw + np.pi) % (2 * np.pi) - np.pi
    actions = np.zeros((scene.areas, 3), np.int32)
    actions[:, 0] = np.abs(error) < np.radians(30)
    actions[:, 2] = np.where(np.abs(error) < np.radians(10), 0, np.where(error > 0, 2, 1))
    return actions


def test_policies_that_sort_touch_all_tiles_and_others_end_soon() -> None:
    for sorts, low, high in ((True, 0.95, 1.0), (False, -0.2, 0.2)):
        with held_scene(Sorter, areas=16) as (env, scene):
            running, shares = np.zeros(16), []
            count = scene.present.sum(axis=1)
            for _ in range(500):
                decisions, terminals = env.get_steps(NAME)
                running[terminals.agent_id] += terminals.reward
                shares += (running / count)[terminals.agent_id].tolist()
                running[terminals.agent_id] = 0
                count[decisions.agent_id] = scene.present.sum(axis=1)[decisions.agent_id]
                running[decisions.agent_id] += decisions.reward
                step(env, walks(scene, sorts)[decisions.agent_id])
        assert len(shares) > 15
        assert low < np.mean(shares) < high

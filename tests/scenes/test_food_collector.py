"""FoodCollector: observations, actions and rewards."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from stand_ins.in_process_scene import held_scene
from unity_gym.environment import UnityEnvironment
from unity_gym.scenes.food_collector import FoodCollector
from unity_gym.side_channels import EnvironmentParametersChannel
from unity_gym.specs import ActionTuple, Array

NAME = "GridFoodCollector?team=0"
FOOD, AGENT, WALL, BAD_FOOD, FROZEN = range(5)  # channels
GOOD, BAD = 0, 25  # the first piece of each kind
TICKS = 5  # a decision


@pytest.fixture
def held() -> Iterator[tuple[UnityEnvironment, FoodCollector]]:
    """Start one area: food and four agents are far up in the air, the first agent is at rest in the middle."""
    with held_scene(FoodCollector) as (env, scene):
        scene.food[1] = 1e6
        put(scene, 0, 0, 0)
        for agent in range(1, 5):
            put(scene, agent, 10 * agent - 25, -45)
            scene.shapes.center[1, 0, agent] = 1e6
        yield env, scene


def put(scene: FoodCollector, agent: int, x: float, z: float, degrees: float = 0) -> None:
    scene.shapes.center[:, 0, agent] = x, 0.5, z
    scene.shapes.yaw[0, agent] = np.radians(degrees)
    scene.bodies.velocity[:, 0, agent] = 0


def put_food(scene: FoodCollector, piece: int, x: float, z: float, height: float = 0.75) -> None:
    scene.food[:, 0, piece] = x, height, z
    scene.food_velocity[:, 0, piece] = 0


def position(scene: FoodCollector, agent: int = 0) -> Array:
    return scene.shapes.center[::2, 0, agent].copy()


def step(
    env: UnityEnvironment, *, forward: float = 0, right: float = 0, turn: float = 0, shoot: int = 0, agent: int = 0
) -> None:
    """Make one decision; all agents except one do nothing."""
    n = len(env.get_steps(NAME)[0])
    action = ActionTuple(np.zeros((n, 3), np.float32), np.zeros((n, 1), np.int32))
    action.continuous[agent] = forward, right, turn
    action.discrete[agent] = shoot
    env.set_actions(NAME, action)
    env.step()


def image(env: UnityEnvironment, agent: int = 0) -> Array:
    return env.get_steps(NAME)[0].obs[0][agent]


def cells(env: UnityEnvironment, channel: int, agent: int = 0) -> set[tuple[int, int]]:
    return set(map(tuple, np.argwhere(image(env, agent)[channel]).tolist()))


def test_twenty_agents_have_one_image_and_a_hybrid_action() -> None:
    env = UnityEnvironment("embedded:FoodCollector")
    env.reset()
    spec = env.behavior_specs[NAME]
    (sensor,) = spec.observation_specs
    assert (sensor.name, sensor.shape, sensor.is_visual) == ("GridSensor-OneHot", (5, 40, 40), True)
    assert (spec.action_spec.continuous_size, spec.action_spec.discrete_branches) == (3, (2,))
    decisions, _ = env.get_steps(NAME)
    assert len(decisions) == 20
    assert not any(mask.any() for mask in decisions.action_mask)
    (images,) = decisions.obs
    assert set(np.unique(images)) == {0, 1}
    assert images.sum(axis=1).max() == 1
    assert all(images[:, channel].any() for channel in (FOOD, AGENT, WALL, BAD_FOOD))
    assert not images[:, FROZEN].any()
    assert not images[:, :, 19:21, 19:21].any(axis=(1, 2, 3)).all()  # the agents themselves are not seen
    env.close()


@pytest.mark.parametrize("degrees", [0, 90, 213])
@pytest.mark.parametrize(("piece", "channel"), [(GOOD, FOOD), (BAD, BAD_FOOD)])
def test_row_0_is_the_right_edge_and_columns_increase_forward(held, degrees: float, piece: int, channel: int) -> None:
    env, scene = held
    put(scene, 0, 4, -7, degrees)
    right, ahead = 3.2, 7.1
    cos, sin = np.cos(np.radians(degrees)), np.sin(np.radians(degrees))
    put_food(scene, piece, 4 + cos * right + sin * ahead, -7 - sin * right + cos * ahead)
    step(env)
    # A disc of radius 0.71 at the agent's height, over the cells from 2 to 4 m right and 6 to 8 m ahead.
    assert cells(env, channel) == {(16, 26), (16, 27), (17, 26), (17, 27)}
    assert image(env).astype(bool).sum() == 4


def test_walls_and_other_agents_are_seen(held) -> None:
    env, scene = held
    put(scene, 0, 40.3, 0, 90)
    put(scene, 1, 35, 0)
    step(env)
    walls = np.zeros((40, 40), bool)
    walls[:, [29, 30]] = True  # ahead, between 9.7 and 10.7 m
    np.testing.assert_array_equal(image(env)[WALL] == 255, walls)
    assert {column for _, column in cells(env, AGENT)} == {14, 15}  # 4.8 to 5.8 m behind
    assert {row for row, _ in cells(env, AGENT)} == {19, 20}


def test_food_is_not_seen_before_it_has_landed(held) -> None:
    env, scene = held
    put_food(scene, GOOD, 0, 5, height=2.5)
    seen = []
    for _ in range(8):
        step(env)
        seen.append(bool(cells(env, FOOD)))
    assert seen == [False] * 4 + [True] * 4  # 1.24 m of fall to the agent's plane take 25 ticks
    assert scene.food[1, 0, GOOD] == pytest.approx(0.75, abs=0.01)


@pytest.mark.parametrize(
    ("degrees", "forward", "right", "direction"),
    [(0, 1, 0, (0, 1)), (0, -1, 0, (0, -1)), (0, 0, 1, (1, 0)), (90, 1, 0, (1, 0)), (90, 0, 1, (0, -1))],
)
def test_agents_accelerate_along_their_own_axes(held, degrees, forward, right, direction) -> None:
    env, scene = held
    put(scene, 0, 0, 0, degrees)
    step(env, forward=forward, right=right)
    moved = position(scene)
    assert moved @ direction > 0.4
    assert abs(moved @ direction[::-1]) < 1e-3


def test_actions_are_clipped_and_not_normalized(held) -> None:
    env, scene = held
    step(env, forward=7)
    far = position(scene)[1]
    put(scene, 0, 0, 0)
    step(env, forward=1)
    assert position(scene)[1] == pytest.approx(far)
    put(scene, 0, 0, 0)
    step(env, forward=1, right=1)
    assert np.hypot(*position(scene)) > 1.3 * far


def test_speed_is_limited_softly(held) -> None:
    env, scene = held
    put(scene, 0, 0, -49)
    for _ in range(8):
        step(env, forward=1)
    free = scene.bodies.velocity[2, 0, 0]
    assert 15 < free < 35
    for _ in range(8):
        step(env)
    assert scene.bodies.velocity[2, 0, 0] < 5
    put(scene, 0, 0, -49)
    for _ in range(10):
        step(env, forward=1, shoot=1)
    assert 2 < scene.bodies.velocity[2, 0, 0] < 6


@pytest.mark.parametrize(("action", "degrees"), [(1, -30), (0.1, -30), (-0.4, 30), (0.002, 0), (0, 0)])
def test_only_the_sign_of_a_turn_counts(held, action: float, degrees: float) -> None:
    env, scene = held
    step(env, turn=action)
    assert np.degrees(scene.shapes.yaw[0, 0]) == pytest.approx(degrees)  # clockwise; positive actions turn left


def test_the_laser_freezes_for_four_seconds(held) -> None:
    env, scene = held
    put(scene, 1, 1.5, 15, 180)
    step(env, shoot=1)
    assert cells(env, FROZEN)
    assert not cells(env, AGENT)
    for _ in range(40):
        assert scene.shapes.tag[0, 1] == scene.shapes.tags.index("frozenAgent")
        step(env, agent=1, forward=1, turn=1, shoot=1)
    assert position(scene, 1) == pytest.approx([1.5, 15], abs=0.2)  # the first tick used the previous action
    step(env, agent=1, forward=1)
    assert np.abs(position(scene, 1) - [1.5, 15]).max() > 0.4
    assert cells(env, AGENT)
    assert not cells(env, FROZEN)


@pytest.mark.parametrize(
    ("x", "z", "hit"),
    [(0, 10, True), (2.3, 10, True), (2.8, 10, False), (0, 27, True), (0, 28, False), (0, 1.9, False), (0, -10, False)],
)
def test_the_laser_is_a_beam_of_2_by_25_meters(held, x: float, z: float, hit: bool) -> None:
    env, scene = held
    put(scene, 1, x, z)
    step(env, shoot=1)
    assert (scene.shapes.tag[0, 1] == scene.shapes.tags.index("frozenAgent")) == hit


def test_food_stops_the_laser(held) -> None:
    env, scene = held
    put(scene, 1, 0, 15)
    put_food(scene, BAD, 1, 8)
    step(env, shoot=1)
    assert scene.shapes.tag[0, 1] == scene.shapes.tags.index("agent")


def test_of_two_agents_that_shoot_each_other_the_first_is_not_frozen(held) -> None:
    env, scene = held
    put(scene, 1, 0, 10, 180)
    action = ActionTuple(np.zeros((5, 3), np.float32), np.ones((5, 1), np.int32))
    action.discrete[2:] = 0
    env.set_actions(NAME, action)
    env.step()
    tags = [scene.shapes.tags[tag] for tag in scene.shapes.tag[0, :2]]
    assert tags == ["agent", "frozenAgent"]
    assert scene.shooting[0, :2].tolist() == [True, False]


@pytest.mark.parametrize(("piece", "reward"), [(GOOD, 1), (BAD, -1)])
def test_touched_food_gives_its_reward_and_respawns_elsewhere(held, piece: int, reward: float) -> None:
    env, scene = held
    put_food(scene, piece, 0, 1.8)
    step(env)
    assert env.get_steps(NAME)[0].reward.tolist() == [0, 0, 0, 0, 0]
    for _ in range(2):
        step(env, forward=1)
        if env.get_steps(NAME)[0].reward.any():
            break
    assert env.get_steps(NAME)[0].reward.tolist() == [reward, 0, 0, 0, 0]
    assert np.hypot(*(scene.food[::2, 0, piece] - position(scene))) > 2
    assert scene.food_velocity[2, 0, piece] > 0  # pushed before it respawned
    assert scene.food[1, 0, piece] > 0.75


def test_food_that_is_hit_rolls_to_the_wall(held) -> None:
    env, scene = held
    put_food(scene, GOOD, 30, 0)
    scene.food_velocity[0, 0, GOOD] = 7
    put_food(scene, BAD, 40, 0.3)
    for _ in range(100):
        step(env)
    assert scene.food[0, 0, BAD] == pytest.approx(49.25, abs=0.01)
    assert scene.food_velocity[0, 0, BAD] == pytest.approx(0, abs=1e-6)
    assert np.hypot(*(scene.food[::2, 0, GOOD] - scene.food[::2, 0, BAD])) > 1.49
    assert np.abs(scene.food[1, 0, [GOOD, BAD]] - 0.75).max() < 0.01


def test_friction_slows_fast_food_as_its_spin_is_limited_to_7_radians_per_second(held) -> None:
    env, scene = held
    put_food(scene, GOOD, -40, -30)
    scene.food_velocity[0, 0, GOOD] = 20
    for _ in range(30):
        step(env)
    assert scene.food_velocity[0, 0, GOOD] == pytest.approx(7 * 0.75, abs=0.1)


def test_agents_stay_in_the_arena(held) -> None:
    env, scene = held
    for _ in range(30):
        step(env, forward=1, right=0.5)
    assert np.abs(position(scene)).max() < 50.5
    assert position(scene)[1] > 49


def test_episodes_are_interrupted_after_5000_ticks_and_food_stays(held) -> None:
    env, scene = held
    step(env)
    put_food(scene, GOOD, 20, 20)
    scene.agents.step_count[:] = 5000 - 7
    step(env)
    assert not len(env.get_steps(NAME)[1])
    ends = []
    while not ends:
        step(env)
        ends += env.get_steps(NAME)[1].interrupted.tolist()
    assert ends == [True] * 5
    assert scene.food[::2, 0, GOOD].tolist() == [20, 20]
    assert np.abs(scene.shapes.center[::2, 0, :5]).max() < 45
    env.reset()
    assert scene.food[::2, 0, GOOD].tolist() != [20, 20]
    assert scene.food[1, 0].max() < 1


def test_agents_grow_with_the_parameter() -> None:
    parameters = EnvironmentParametersChannel()
    parameters.set_float_parameter("agent_scale", 2)
    with held_scene(FoodCollector, side_channels=(parameters,)) as (env, scene):
        scene.food[1] = 1e6
        for _ in range(20):
            step(env)
        assert scene.shapes.center[1, 0, :5] == pytest.approx([1] * 5, abs=0.01)
        scene.shapes.center[:, 0, :2] = [[0, 0], [1, 1], [0, 30]]
        scene.shapes.center[1, 0, 2:5] = 1e6
        scene.shapes.yaw[0, :2] = 0
        step(env)
        assert {column for _, column in cells(env, AGENT)} == {34, 35}  # cells of 1 m, 2 m apart: 28.5 to 31.5 m ahead


def towards_food(images: Array) -> ActionTuple:
    """Return actions that walk to the nearest good food in sight, away from bad food, and otherwise straight on."""
    n = len(images)
    right, ahead = 19.5 - np.arange(40)[:, np.newaxis], np.arange(40) - 19.5
    distance = np.hypot(right, ahead)
    action = ActionTuple(np.zeros((n, 3), np.float32), np.zeros((n, 1), np.int32))
    for row, image in enumerate(images > 0):
        goal = np.zeros(2)
        if image[FOOD].any():
            nearest = np.where(image[FOOD], distance, np.inf).argmin()
            goal = np.array([19.5 - nearest // 40, nearest % 40 - 19.5])
            goal /= np.hypot(*goal)
        else:
            goal[1] = 1.0
            if (image[WALL] & (distance < 6)).any():
                action.continuous[row, 2] = 1
        for place in np.argwhere(image[BAD_FOOD] & (distance < 4)):
            away = np.array([19.5 - place[0], place[1] - 19.5])
            goal -= 0.5 * away / np.hypot(*away) ** 2
        action.continuous[row, :2] = 0.25 * goal[1], 0.25 * goal[0]
    return action


def total_reward(scripted: bool, decisions: int = 250) -> float:
    env = UnityEnvironment("embedded:FoodCollector", seed=3, visual_dtype="uint8")
    env.reset()
    spec, rng, total = env.behavior_specs[NAME], np.random.default_rng(0), 0.0
    for _ in range(decisions):
        (images,) = env.get_steps(NAME)[0].obs
        n = len(images)
        random = ActionTuple(rng.uniform(-1, 1, (n, 3)).astype(np.float32), rng.integers(0, 2, (n, 1), dtype=np.int32))
        spec.action_spec.validate(random, n, NAME)
        env.set_actions(NAME, towards_food(images) if scripted else random)
        env.step()
        total += float(env.get_steps(NAME)[0].reward.sum())
    env.close()
    return total / 20


def test_walking_to_food_in_the_image_collects_more_than_walking_at_random() -> None:
    assert total_reward(scripted=True) > max(0.0, total_reward(scripted=False)) + 5

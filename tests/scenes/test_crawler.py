"""Crawler: observations, actions and rewards."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from stand_ins.in_process_scene import held_scene
from stand_ins.raw_client import continuous
from unity_gym.environment import UnityEnvironment
from unity_gym.scenes import drawing
from unity_gym.scenes.crawler import Crawler
from unity_gym.scenes.rotations import about_y
from unity_gym.side_channels import EnvironmentParametersChannel
from unity_gym.specs import ActionTuple, Array

NAME = "Crawler?team=0"
ALL = np.arange(1)
STAND = np.array([*[1.0, 0.0] * 4, *[0.13] * 4, *[1.0] * 8])  # forelegs straight down


@pytest.fixture
def held() -> Iterator[tuple[UnityEnvironment, Crawler]]:
    with held_scene(Crawler) as (env, scene):
        yield env, scene


@pytest.fixture
def floating() -> Iterator[tuple[UnityEnvironment, Crawler]]:
    """Start a weightless crawler that faces its target, 20 m ahead along z."""
    channel = EnvironmentParametersChannel()
    with held_scene(Crawler, side_channels=(channel,)) as (env, scene):
        channel.set_float_parameter("gravity", 0)
        put(scene)
        step(env, 0 * STAND)
        put(scene)
        yield env, scene


def put(scene: Crawler, yaw: float = 0, speed: float = 0, vertical: float = 0) -> None:
    """Place the crawler at its start position, with this velocity along z and upwards."""
    bodies = scene.bodies
    bodies.put(ALL, np.asarray(scene.start), about_y(np.array([yaw])))
    velocity = 1 + bodies.models[0].nq
    bodies.state[0, velocity + 1 : velocity + 3] = speed, vertical
    bodies.place_target(ALL, np.array([[0, 2.506, 20.0]]))
    scene.cube_position[0] = scene.start


def step(env: UnityEnvironment, action: Array) -> None:
    n = len(env.get_steps(NAME)[0])
    env.set_actions(NAME, ActionTuple(np.tile(action.astype(np.float32), (n, 1))))
    env.step()


def observation(env: UnityEnvironment) -> tuple[Array, Array]:
    body, goal = env.get_steps(NAME)[0].obs
    return body[0], goal[0]


def test_ten_agents_have_two_sensors_and_twenty_actions(launch) -> None:
    agents = launch("Crawler").start().agents[NAME]
    assert [agent.id for agent in agents] == list(range(10))
    for agent in agents:
        assert agent.sensors == ["PhysicsBodySensor:Body", "VectorSensor_size32"]
        assert [values.shape for values in agent.observations] == [(126,), (32,)]
        assert (agent.reward, agent.group_id, len(agent.mask)) == (0, 0, 0)
    goals = np.stack([agent.observations[1] for agent in agents])
    assert len(set(goals[:, 6])) == 10
    assert (goals[:, 6] > 0.1).all()
    assert (goals[:, 6] < 15).all()
    assert goals[:, 0] == pytest.approx(goals[:, 6])  # at rest, the whole speed is missing
    assert goals[:, 12] == pytest.approx(-0.15, abs=1e-5)  # the target appears below the body's center
    assert goals[:, 14] == pytest.approx(0.2156)  # 2.156 m above the ground, of 10


def test_a_crawler_starts_with_straight_legs_and_unitys_rotations(held) -> None:
    env, scene = held
    body, goal = observation(env)
    poses, velocities, joints = body[:63].reshape(9, 7), body[63:90], body[90:].reshape(9, 4)
    assert not velocities.any()
    assert np.linalg.norm(poses[1::2, [0, 2]], axis=1) == pytest.approx(0.9)
    assert np.linalg.norm(poses[2::2, [0, 2]], axis=1) == pytest.approx(1.98)
    assert poses[1:, 1] == pytest.approx(-0.15)
    assert joints[1] == pytest.approx([-0.653, -0.271, -0.271, 0.653], abs=1e-3)
    assert joints[2::2] == pytest.approx(np.tile([0, 0, 0, 1], (4, 1)), abs=1e-6)
    assert poses[0, 3:] == pytest.approx(joints[0])  # the body's rotation, twice, as seen from the cube
    # The goal's rotation turns the body's forward axis to the cube's.
    look = scene.bodies.rotation[0, 0]
    cosine = np.clip(scene.cube_forward[0] @ forward(look), -1, 1)
    assert np.degrees(2 * np.arccos(goal[10])) == pytest.approx(np.degrees(np.arccos(cosine)), abs=0.1)


def forward(rotation: Array) -> Array:
    x, y, z, w = rotation
    return np.array([2 * (x * z + w * y), 2 * (y * z - w * x), 1 - 2 * (x * x + y * y)])


def test_the_first_leg_is_right_behind_and_the_third_left_ahead(floating) -> None:
    _, scene = floating
    places = scene.bodies.position[0] - scene.bodies.position[0, 0]
    signs = np.sign(places[1::2][:, [0, 2]]).tolist()
    assert signs == [[1, -1], [-1, -1], [-1, 1], [1, 1]]


def test_actions_aim_joints_between_their_limits(floating) -> None:
    env, scene = floating
    action = np.zeros(20)
    action[[0, 2]], action[[1, 3]] = (1, -1), (-1, 1)  # x and y of the first two legs
    action[8:12] = 1, -1, 0, 5  # forelegs; values outside the range are clipped
    action[12:] = np.linspace(-1, 1, 8)
    action[12] = 1
    put(scene)
    for _ in range(12):
        step(env, action)
    angles = np.degrees(scene.bodies.state[0, 8:20]).reshape(4, 3)
    assert angles[0] == pytest.approx([0, -20, 150], abs=4)
    assert angles[1] == pytest.approx([-60, 20, 0], abs=4)
    assert angles[2:] == pytest.approx(np.array([[-30, 0, 75], [-30, 0, 150]]), abs=4)
    goal = observation(env)[1]
    assert goal[17:32:4] == pytest.approx((action[12:16] + 1) / 2)
    assert goal[19:32:4] == pytest.approx((action[16:20] + 1) / 2)


def test_a_positive_foreleg_action_folds_it_down_and_a_negative_leg_action_raises_the_leg(floating) -> None:
    env, scene = floating
    for _ in range(10):
        step(env, np.array([*[-1, 0] * 4, *[0.6] * 4, *[1] * 8]))
    body, *parts = scene.bodies.position[0, :, 1]
    assert (np.array(parts[::2]) > body + 0.1).all()
    assert (np.array(parts[1::2]) < np.array(parts[::2])).all()


def test_the_full_reward_needs_the_goal_speed_and_a_look_at_the_target(floating) -> None:
    _, scene = floating
    for speed, yaw, expected in ((5.0, 0.0, 1.0), (5.0, np.pi / 2, 0.5), (0.0, 0.0, 0.0), (2.5, 0.0, 0.5625)):
        put(scene, yaw, speed)
        scene.speed[0] = 5
        scene.angles[:] = 0
        scene.bodies.drive(ALL, np.zeros((1, 12)), np.ones((1, 12)))
        scene.agents.reward[:] = 0
        for _ in range(4):
            scene.after_step()
            scene.simulate()
        assert scene.agents.reward[0] == pytest.approx(4 * expected, abs=0.02)


def test_observations_have_the_cube_of_the_previous_tick(floating) -> None:
    env, scene = floating
    put(scene, speed=3)
    scene.speed[0] = 5
    step(env, np.array([*[1.0, 0] * 4, *[-1] * 4, *[1] * 8]))
    body, goal = observation(env)
    assert body[:3] == pytest.approx([0, 0, 3 / 75], abs=1e-3)
    assert body[63:66] == pytest.approx([0, 0, 3], abs=0.05)
    assert goal[:7] == pytest.approx([2, 0, 0, 3, 0, 0, 5], abs=0.05)
    assert goal[13] == pytest.approx(20 - 3 * 4 / 75, abs=1e-3)


def test_a_body_on_the_ground_gives_minus_one_and_ends_the_episode(held) -> None:
    env, scene = held
    for _ in range(20):  # with straight legs the body comes down on them
        height = scene.bodies.position[0, 0, 1]
        step(env, np.array([*[1.0, 0] * 4, *[-1] * 4, *[1] * 8]))
        terminals = env.get_steps(NAME)[1]
        if len(terminals):
            break
    assert terminals.reward.tolist() == [-1]
    assert not terminals.interrupted[0]
    assert height < 1.6
    goal = terminals.obs[1][0]
    assert goal[[16, 20, 24, 28]].any() or goal[15]  # the contact shows
    assert scene.bodies.position[0, 0, 1] > 2.5
    assert not scene.touching.any()


def test_ground_contacts_start_one_tick_of_motion_ahead(floating) -> None:
    _, scene = floating
    for speed, height, touches in ((-3.0, 0.05, True), (-3.0, 0.07, False), (0.0, 0.01, True), (0.0, 0.03, False)):
        put(scene, vertical=speed)
        scene.bodies.state[0, 3] = 0.5 + height + 0.5  # MuJoCo's third axis points upwards; the radius is 0.5
        scene.bodies.refresh(ALL)
        scene.touching[:] = False
        scene.simulate()
        assert bool(scene.bodies.position[0, 0, 1] > 2.6) == touches  # the next episode has started


def test_an_episode_is_interrupted_after_1000_decisions(floating) -> None:
    env, scene = floating
    scene.agents.step_count[:] = 4990
    for _ in range(3):
        step(env, 0 * STAND)
        terminals = env.get_steps(NAME)[1]
        if len(terminals):
            break
    assert terminals.interrupted.tolist() == [True]


def test_a_crawler_can_stand_and_its_target_survives_a_reset(held) -> None:
    env, scene = held
    for _ in range(40):
        step(env, STAND)
        assert not len(env.get_steps(NAME)[1])
    goal = observation(env)[1]
    assert scene.bodies.position[0, 0, 1] == pytest.approx(2.1, abs=0.1)
    assert goal[15:32].tolist() == [0, *[0, 1, 1, 1] * 4]  # only the forelegs touch the ground
    target, angles = scene.bodies.target[0].copy(), scene.angles.copy()
    assert target[1] == pytest.approx(1.0, abs=0.02)
    env.reset()
    assert scene.bodies.target[0] == pytest.approx(target, abs=1e-3)
    assert scene.angles != pytest.approx(angles)  # a reset is followed by zero actions


def test_a_touched_target_moves_and_the_episode_continues(floating) -> None:
    env, scene = floating
    put(scene, speed=4)
    scene.bodies.place_target(ALL, np.array([[0, 2.5, 3.0]]))
    rest = np.array([*[1.0, 0] * 4, *[-1] * 4, *[1] * 8])
    step(env, rest)
    assert scene.bodies.target[0] == pytest.approx([0, 2.5, 3], abs=1e-3)
    for _ in range(6):
        step(env, rest)
        assert not len(env.get_steps(NAME)[1])
    target = scene.bodies.target[0]
    assert np.abs(target - [0, 2.5, 3]).max() > 0.1
    assert target[1] == pytest.approx(2.506, abs=1e-3)
    assert np.hypot(target[0], target[2]) < 40


def test_cubes_turn_as_unity_signs_their_rotation() -> None:
    with held_scene(Crawler, areas=8) as (_, scene):
        yaws = np.radians([0, 90, 119, 121, 180, -90, -119, -121])
        scene.cube_position[:] = scene.start
        scene.bodies.place_target(np.arange(8), np.stack([9 * np.sin(yaws), 0 * yaws, 9 * np.cos(yaws)], axis=1))
        scene._turn_cubes(np.arange(8))
        expected = np.stack([np.sin(yaws / 2), np.cos(yaws / 2)], axis=1)
        expected[7] *= -1
        assert scene.cube_rotation[:, [1, 3]] == pytest.approx(expected, abs=1e-6)


def test_a_seed_determines_the_course_with_any_number_of_threads(launch) -> None:
    messages = []
    for _ in range(2):
        client = launch("Crawler", "--areas", "4")
        message, rng = client.start(seed=3), np.random.default_rng(0)
        for _ in range(30):
            message = client.step(NAME, continuous(rng.uniform(-1, 1, (len(message.deciding(NAME)), 20))))
        messages.append(message.raw)
    assert messages[0] == messages[1]


def test_the_image_shows_the_body_its_forelegs_on_the_ground_and_the_target(held) -> None:
    env, scene = held
    for _ in range(20):
        step(env, STAND)
    image = scene.render(0)
    assert image.shape == (320, 480, 3)

    def share(color: drawing.Color) -> float:
        pixel = image.astype(float) + 1
        direction = pixel / np.linalg.norm(pixel, axis=2, keepdims=True)
        return float((direction @ (np.array(color) / np.linalg.norm(color)) > 0.995).mean())

    assert 0.005 < share(drawing.BLUE) < 0.1
    assert 0.002 < share(drawing.ORANGE) < 0.1
    assert 0 < share(drawing.GREEN) < 0.05

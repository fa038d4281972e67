"""Worm: observations, actions and rewards."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from stand_ins.in_process_scene import held_scene
from unity_gym.environment import UnityEnvironment
from unity_gym.scenes.rotations import about_y
from unity_gym.scenes.worm import Worm
from unity_gym.side_channels import EnvironmentParametersChannel
from unity_gym.specs import ActionTuple, Array

NAME = "Worm?team=0"
ALL = np.arange(1)
STRAIGHT = np.array([0.0] * 6 + [1.0] * 3)
HEAD, FIRST, SECOND, THIRD = slice(12, 20), slice(20, 35), slice(35, 50), slice(50, 64)


@pytest.fixture
def floating() -> Iterator[tuple[UnityEnvironment, Worm]]:
    """Start a weightless worm that faces its target, 20 m ahead along z."""
    channel = EnvironmentParametersChannel()
    with held_scene(Worm, side_channels=(channel,)) as (env, scene):
        channel.set_float_parameter("gravity", 0)
        put(scene)
        step(env, STRAIGHT)
        put(scene)
        yield env, scene


def put(scene: Worm, yaw: float = 0, speed: float = 0, target: float = 20) -> None:
    bodies = scene.bodies
    bodies.put(ALL, np.asarray(scene.start), about_y(np.array([yaw])))
    bodies.state[0, 1 + bodies.models[0].nq + 1] = speed  # along MuJoCo's second axis, Unity's z
    bodies.place_target(ALL, np.array([[0, 1.65, target]]))
    scene.cube_position[0] = scene.start


def step(env: UnityEnvironment, action: Array) -> None:
    n = len(env.get_steps(NAME)[0])
    env.set_actions(NAME, ActionTuple(np.tile(action.astype(np.float32), (n, 1))))
    env.step()


def observation(env: UnityEnvironment) -> Array:
    return env.get_steps(NAME)[0].obs[0][0]


def test_ten_agents_have_one_sensor_and_nine_actions(launch) -> None:
    agents = launch("Worm").start().agents[NAME]
    assert len(agents) == 10
    for agent in agents:
        (values,) = agent.observations
        assert agent.sensors == ["VectorSensor_size64"]
        assert values[0] == pytest.approx(0.115)
        assert values[1:4].tolist() == [0, 0, 10]
        assert values[27:30] == pytest.approx(values[27:30])
        assert np.linalg.norm(values[27:30]) == pytest.approx(1.316)
        assert values[30:34] == pytest.approx([0.7071, 0, 0, 0.7071], abs=1e-4)
        assert np.linalg.norm(values[42:45]) == pytest.approx(2.441)
        assert values[45:49] == pytest.approx([0, 0, 0, 1], abs=1e-6)
        assert np.linalg.norm(values[57:60]) == pytest.approx(3.557)
        assert values[60:64] == pytest.approx([0, 0, 0, 1], abs=1e-6)


def test_values_are_in_the_order_of_unitys_sensor(floating) -> None:
    env, scene = floating
    step(env, np.array([0.0] * 6 + [1, 0, -1]))
    put(scene, yaw=np.pi / 2, speed=3)
    scene.after_step()
    scene.touching[0] = True
    values = scene._observe(ALL)[0]
    assert values[4] == pytest.approx(0.5)  # 90 of 180 degrees
    assert values[5:9] == pytest.approx([0, -np.sqrt(0.5), 0, np.sqrt(0.5)])
    assert values[9:12] == pytest.approx([0, 0, 20])
    for segment, strength in ((HEAD, 1.0), (FIRST, 0.5), (SECOND, 0.0)):
        assert values[segment][0] == 1
        assert values[segment][1:4] == pytest.approx([0, 0, 3])
        assert values[segment][4:7] == pytest.approx([0, 0, 0])
        assert values[segment][-1] == pytest.approx(strength)
    assert values[THIRD][7:10] == pytest.approx([-3.557, 0, 0])


def test_joints_bend_up_and_to_the_side_by_up_to_60_degrees(floating) -> None:
    env, scene = floating
    for x, y in ((1, 0), (0, 1)):
        put(scene)
        for _ in range(40):
            step(env, np.array([x, y, 0, 0, 0, 0, 1, 1, 1]))
        relative = scene.bodies.position[0, 1] - scene.bodies.position[0, 0]
        head = about(scene.bodies.rotation[0, 0], relative)
        # The joint's angles turn the segment behind about x and y, with Unity's signs: +x lifts it,
        # +y carries it to the left.
        angle = np.degrees(np.arctan2(*((head[1], -head[2] - 0.8) if x else (-head[0], -head[2] - 0.8))))
        assert angle == pytest.approx(60, abs=8)


def about(rotation: Array, vector: Array) -> Array:
    """Return the vector in the rotated frame."""
    x, y, z, w = rotation
    axis = -np.array([x, y, z])
    return vector + 2 * np.cross(axis, np.cross(axis, vector) + w * vector)


def test_the_full_reward_needs_10_meters_per_second_and_a_look_at_the_target(floating) -> None:
    _, scene = floating
    for speed, yaw, expected in ((10, 0, 1.0), (5, 0, 0.5625), (0, 0, 0), (10, 20, 1 - 20 / 180), (10, 31, 0)):
        put(scene, np.radians(yaw), speed)
        scene.after_step()
        assert scene._rewards()[0] == pytest.approx(expected, abs=1e-3)


def test_only_the_mouth_moves_the_target_and_other_parts_push_it(floating) -> None:
    env, scene = floating
    put(scene, speed=3, target=2.2)
    step(env, STRAIGHT)
    step(env, STRAIGHT)
    assert np.abs(scene.bodies.target[0] - [0, 1.65, 2.2]).max() > 0.5
    assert scene.bodies.target[0, 1] == pytest.approx(1.65, abs=1e-2)
    scene.bodies.place_target(ALL, np.array([[0, 1.65, -5.3]]))  # behind the tail, which moves into it
    scene.bodies.put(ALL, np.asarray(scene.start), about_y(np.zeros(1)))
    scene.bodies.state[0, 1 + scene.bodies.models[0].nq + 1] = -3
    scene.bodies.refresh(ALL)
    for _ in range(6):
        step(env, STRAIGHT)
    assert scene.bodies.target[0] == pytest.approx([0, 1.65, -6], abs=0.7)
    assert scene.bodies.target[0, 2] < -5.4


def test_a_worm_lands_touches_the_ground_and_is_not_punished() -> None:
    with held_scene(Worm) as (env, scene):
        for _ in range(30):
            step(env, STRAIGHT)
        values = observation(env)
        assert len(env.get_steps(NAME)[1]) == 0
        assert [values[segment][0] for segment in (HEAD, FIRST, SECOND, THIRD)].count(1) >= 2
        assert 0.5 < scene.bodies.position[0, 0, 1] < 1


def test_ground_contacts_start_one_tick_of_motion_ahead(floating) -> None:
    """`Worm.prefab` gives all segments speculative collision detection, as the prefabs of Crawler and Walker do."""
    _, scene = floating
    for speed, touches in ((0, False), (-3, True)):
        put(scene)
        scene.bodies.state[0, 3] = 0.5 + 0.37 + 0.05  # the head is 5 cm above the ground
        scene.bodies.state[0, 1 + scene.bodies.models[0].nq + 2] = speed  # along MuJoCo's third axis, Unity's y
        scene.bodies.refresh(ALL)
        scene.simulate()
        assert scene.touching[0, 0] == touches


def test_a_head_far_below_the_start_ends_the_episode_at_a_decision(floating) -> None:
    env, scene = floating
    scene.bodies.state[0, 3] = -0.5
    scene.bodies.refresh(ALL)
    step(env, STRAIGHT)
    terminals = env.get_steps(NAME)[1]
    assert terminals.interrupted.tolist() == [False]
    assert scene.bodies.position[0, 0, 1] == pytest.approx(1.65, abs=0.1)

"""Walker: observations, actions and rewards."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from stand_ins.in_process_scene import held_scene
from unity_gym.environment import UnityEnvironment
from unity_gym.scenes.rotations import about_y
from unity_gym.scenes.walker import SKELETON, Walker
from unity_gym.side_channels import EnvironmentParametersChannel
from unity_gym.specs import ActionTuple, Array

NAME = "Walker?team=0"
ALL = np.arange(1)
OFFSETS = {
    "hips": 18,
    "chest": 28,
    "spine": 43,
    "head": 58,
    "thighL": 73,
    "shinL": 88,
    "footL": 103,
    "thighR": 118,
    "shinR": 133,
    "footR": 148,
    "armL": 163,
    "forearmL": 178,
    "handL": 193,
    "armR": 203,
    "forearmR": 218,
    "handR": 233,
}
STRENGTHS = ("chest", "spine", "head", "thighL", "shinL", "footL", "thighR", "shinR", "footR")
STRENGTHS += ("armL", "forearmL", "armR", "forearmR")


@pytest.fixture
def floating() -> Iterator[tuple[UnityEnvironment, Walker]]:
    """Start a weightless walker that faces its target, 20 m ahead along z."""
    channel = EnvironmentParametersChannel()
    with held_scene(Walker, side_channels=(channel,)) as (env, scene):
        channel.set_float_parameter("gravity", 0)
        put(scene)
        step(env, straight())
        put(scene)
        yield env, scene


def put(scene: Walker, yaw: float = 0, speed: float = 0) -> None:
    bodies = scene.bodies
    bodies.put(ALL, np.add(scene.start, (0, 1, 0)), about_y(np.array([yaw])))
    bodies.state[0, 1 + bodies.models[0].nq + 1] = speed  # along MuJoCo's second axis, Unity's z
    bodies.place_target(ALL, np.array([[0, 1.0, 20]]))
    scene.cube_position[0] = scene.bodies.position[0, 0]


def straight() -> Array:
    """Return the action that keeps the initial pose, at full strength."""
    action = np.zeros(39)
    action[[6, 8]], action[[10, 11]], action[[18, 20]], action[[22, 23]], action[24] = 0.2, -1, -1 / 3, -1, 0.5
    action[26:] = 1
    return action


def step(env: UnityEnvironment, action: Array) -> None:
    n = len(env.get_steps(NAME)[0])
    env.set_actions(NAME, ActionTuple(np.tile(action.astype(np.float32), (n, 1))))
    env.step()


def place(scene: Walker, name: str) -> Array:
    """Return the center of a part relative to the hips, which have hardly turned."""
    index = SKELETON.names.index(name)
    return scene.bodies.position[0, index] - scene.bodies.position[0, 0]


def test_ten_agents_have_one_sensor_and_39_actions(launch) -> None:
    agents = launch("Walker").start().agents[NAME]
    assert len(agents) == 10
    for agent in agents:
        (values,) = agent.observations
        assert agent.sensors == ["VectorSensor_size243"]
        assert 0.1 < values[6] < 10
        assert values[16] == pytest.approx(-2)
        for name, offset in OFFSETS.items():
            assert values[offset : offset + 7].tolist() == [0] * 7
            expected = next(part.center for part in SKELETON.parts if part.name == name)
            assert np.linalg.norm(values[offset + 7 : offset + 10]) == pytest.approx(
                np.linalg.norm(np.array(expected) - [0, 3, 0]), abs=1e-5
            )
            if name not in ("hips", "handL", "handR"):
                assert values[offset + 10 : offset + 14] == pytest.approx([0, 0, 0, 1], abs=1e-6)


def test_the_whole_body_weighs_100_kg_and_stands_upright_at_the_start(floating) -> None:
    _, scene = floating
    model = scene.bodies.models[0]
    assert model.body_mass[1:-1].sum() == pytest.approx(100)
    assert place(scene, "head") == pytest.approx([0, 2.85, 0], abs=1e-6)
    assert place(scene, "handL") == pytest.approx([-2.95, 1.488, 0], abs=1e-6)
    assert place(scene, "footR") == pytest.approx([0.4, -2.4, 0.1], abs=1e-6)


@pytest.mark.parametrize(
    ("dimension", "value", "part", "axis", "sign"),
    [
        (6, -1, "shinL", 2, 1),  # the left thigh swings forward
        (8, 1, "shinR", 2, -1),
        (10, 1, "footL", 2, -1),  # the knee bends backward
        (18, 1, "handL", 2, 1),  # arms swing forward
        (20, 1, "handR", 2, 1),
        (22, 1, "handL", 2, 1),
        (24, -1, "head", 1, -1),  # the head nods
    ],
)
def test_each_action_moves_its_body_part(
    floating, dimension: int, value: float, part: str, axis: int, sign: int
) -> None:
    env, scene = floating
    before = place(scene, part)
    action = straight()
    action[dimension] = value
    if part == "head":  # its center is above the joint, so that a nod carries it forward and down
        axis, sign = 2, 1
    for _ in range(5):
        step(env, action)
    assert sign * (place(scene, part) - before)[axis] > 0.05


def test_strengths_are_observed_with_their_body_parts(floating) -> None:
    env, _ = floating
    action = straight()
    action[26:] = np.linspace(-1, 1, 13)
    step(env, action)
    values = env.get_steps(NAME)[0].obs[0][0]
    shown = [values[OFFSETS[part] + 14] for part in STRENGTHS]
    assert shown == pytest.approx((action[26:] + 1) / 2, abs=1e-6)


def test_the_reward_needs_the_head_to_look_at_the_target(floating) -> None:
    _, scene = floating
    for speed, yaw, expected in ((4, 0, 1.0), (4, 180, 0.0), (2, 0, 0.5625)):
        put(scene, np.radians(yaw), speed)
        scene.speed[0] = 4
        scene.after_step()
        assert scene._rewards()[0] == pytest.approx(expected, abs=1e-3)


def test_a_fall_gives_minus_one_and_ends_the_episode_but_feet_and_shins_may_touch_the_ground() -> None:
    with held_scene(Walker) as (env, scene):
        limp = straight()
        limp[26:] = -1
        for _ in range(40):
            touching = dict(zip(SKELETON.names, scene.touching[0], strict=True))
            step(env, limp)
            terminals = env.get_steps(NAME)[1]
            if len(terminals):
                break
        assert touching["footL"] or touching["footR"]
        assert terminals.reward.tolist() == [-1]
        assert not terminals.interrupted[0]


def test_masses_are_read_when_episodes_start() -> None:
    channel = EnvironmentParametersChannel()
    with held_scene(Walker, side_channels=(channel,)) as (env, scene):
        body = scene.bodies.models[0].body
        inertia = body("chest").inertia.copy()
        for name in ("chest_mass", "spine_mass", "hip_mass"):
            channel.set_float_parameter(name, 16)
        step(env, straight())
        assert body("chest").mass[0] == 8
        env.reset()
        assert [body(name).mass[0] for name in ("chest", "spine", "hips", "head")] == [16, 16, 16, 6]
        assert body("chest").inertia == pytest.approx(2 * inertia)

"""Articulated bodies: poses, drives and the simulation of several ticks at once."""

from __future__ import annotations

import math
import subprocess
import sys

import mujoco
import numpy as np
import pytest

from unity_gym.errors import PlayerError
from unity_gym.scenes import crawler, walker, worm
from unity_gym.scenes.articulated import contacts
from unity_gym.scenes.articulated.physics import ArticulatedBodies
from unity_gym.scenes.articulated.skeleton import (
    GRAVITY,
    GROUND,
    TICK,
    Drive,
    Part,
    Shape,
    Skeleton,
    capsule,
    driven_part,
    sphere,
)
from unity_gym.scenes.rotations import about_y
from unity_gym.specs import Array

ALL = np.arange(1)
HARD = crawler.SKELETON.drive
SPRING = worm.SKELETON.drive


def arm(drive: Drive, *limits: tuple[float, float]) -> ArticulatedBodies:
    """An arm of 4 kg and 1 m that hangs on a block of 100 t, which stands on the ground."""
    block = Part("block", Shape((1, 2, 1), 0.0), mass=1e5, center=(0, GROUND + 2, 0))
    hinges = driven_part((1, 0, 0), (0, 1, 0), limits or [(-90, 90)])
    hanging = Part("arm", capsule("y", 0.1, 1.0), 4, (1.5, 3, 0), parent="block", anchor=(0, 0.5, 0), hinges=hinges)
    return ArticulatedBodies(Skeleton((block, hanging), drive), 1, 5)


def turn_arm(bodies: ArticulatedBodies, degrees: float) -> None:
    bodies.state[0, 8] = np.radians(degrees)
    bodies.refresh(ALL)


def arm_angles(bodies: ArticulatedBodies, ticks: int) -> Array:
    """Return the angle of the arm after each tick, in radians."""
    angles = []
    for _ in range(ticks):
        bodies.step(1)
        angles.append(bodies.state[0, 8])
    return np.array(angles)


def inertia(bodies: ArticulatedBodies) -> float:
    """Return the arm's moment of inertia about its joint, kg m²."""
    body = bodies.models[0].body("arm")
    return body.inertia[0] + body.mass[0] * 0.5**2


def period(angles: Array) -> float:
    """Return the period: twice the mean time between zero crossings, in seconds."""
    crossed = np.flatnonzero(angles[:-1] * angles[1:] < 0)
    exact = crossed + angles[crossed] / (angles[crossed] - angles[crossed + 1])
    return 2 * TICK * float(np.diff(exact).mean())


@pytest.mark.parametrize("skeleton", [crawler.SKELETON, worm.SKELETON, walker.SKELETON])
def test_poses_and_velocities_equal_those_of_mujoco(skeleton: Skeleton) -> None:
    bodies = ArticulatedBodies(skeleton, 2, 5)
    model = bodies.models[1]
    data, rng = mujoco.MjData(model), np.random.default_rng(0)
    data.qpos, data.qvel = rng.normal(size=model.nq), rng.normal(size=model.nv)
    for start in (3, model.nq - 4):
        data.qpos[start : start + 4] /= np.linalg.norm(data.qpos[start : start + 4])
    mujoco.mj_forward(model, data)
    bodies.state[1, 1:] = np.concatenate([data.qpos, data.qvel])
    bodies.refresh(np.array([1]))
    swapped, velocity = [0, 2, 1], np.empty(6)
    for index, part in enumerate(skeleton.parts):
        body = data.body(part.name)
        assert bodies.position[1, index] == pytest.approx(body.xpos[swapped])
        w, x, y, z = body.xquat
        assert bodies.rotation[1, index] == pytest.approx([-x, -z, -y, w])
        mujoco.mj_objectVelocity(model, data, mujoco.mjtObj.mjOBJ_XBODY, body.id, velocity, 0)
        assert bodies.angular_velocity[1, index] == pytest.approx(-velocity[:3][swapped])
        if part.shape.center == (0, 0, 0):
            assert bodies.velocity[1, index] == pytest.approx(velocity[3:][swapped])
    assert bodies.target[1] == pytest.approx(data.body("target").xpos[swapped])


def test_bodies_fall_with_gravity_and_come_to_rest_on_their_feet() -> None:
    bodies = ArticulatedBodies(crawler.SKELETON, 1, 5)
    hinges = len(crawler.SKELETON.hinges)
    folded = np.radians([[-30, 0, 85] * 4])
    bodies.drive(ALL, folded, np.ones((1, hinges)))
    center = (bodies.position[0, :, 1] * [20, *[2, 1] * 4]).sum() / 32
    for _ in range(15):
        bodies.step(1)
    fallen = center - (bodies.position[0, :, 1] * [20, *[2, 1] * 4]).sum() / 32
    assert fallen == pytest.approx(GRAVITY * TICK**2 * 15 * 16 / 2, rel=1e-3)
    for _ in range(150):
        bodies.step(1)
    assert bodies.position[0, 0, 1] == pytest.approx(GROUND + 1.4, abs=0.1)  # the height of the forelegs
    assert np.abs(bodies.velocity[0]).max() < 0.05
    lowest = bodies.position[0, 2::2, 1]
    assert (lowest > GROUND).all()


@pytest.mark.parametrize("strength", [1.0, 0.5, 0.02])
def test_a_hard_drive_reaches_its_target_with_the_rate_of_spring_and_damper(strength: float) -> None:
    assert pytest.approx(7.23, abs=0.01) == HARD.rate  # 40000 / (5000 + 40000 / 75)
    bodies = arm(HARD)
    bodies.set_gravity(0)
    bodies.drive(ALL, np.array([[1.0]]), np.array([[strength]]))
    missing = 1 - arm_angles(bodies, 30)
    time = TICK * np.arange(1, 31)
    slope = np.polyfit(time[3:], np.log(missing[3:]), 1)[0]
    assert -slope == pytest.approx(HARD.rate, rel=0.06)
    assert missing[np.searchsorted(time, 1 / HARD.rate)] == pytest.approx(np.exp(-1), abs=0.05)


def test_a_hard_drive_holds_against_gravity_and_a_limp_joint_falls() -> None:
    for strength, held in ((1.0, True), (0.0, False)):
        bodies = arm(HARD)
        turn_arm(bodies, 60)
        bodies.drive(ALL, np.radians([[60.0]]), np.array([[strength]]))
        angles = np.degrees(arm_angles(bodies, 60))
        assert (np.abs(angles - 60).max() < 3) == held
        assert (angles.min() < -50) == (not held)


def test_a_limp_joint_is_a_pendulum() -> None:
    bodies = arm(HARD)
    turn_arm(bodies, 5)
    bodies.drive(ALL, np.zeros((1, 1)), np.zeros((1, 1)))
    expected = 2 * np.pi * np.sqrt(inertia(bodies) / (4 * GRAVITY * 0.5))
    assert period(arm_angles(bodies, 400)) == pytest.approx(expected, rel=0.01)


def test_a_soft_drive_swings_with_a_quarter_of_its_spring_and_damper() -> None:
    assert SPRING.stiffness == 750
    assert pytest.approx((30 + TICK * 3000) / 4) == SPRING.damping
    bodies = arm(SPRING)
    bodies.set_gravity(0)
    turn_arm(bodies, 10)
    bodies.drive(ALL, np.zeros((1, 1)), np.ones((1, 1)))
    angles = arm_angles(bodies, 40)
    decay = 17.5 / (2 * inertia(bodies))
    expected = np.sqrt(750 / inertia(bodies) - decay**2)
    assert 2 * np.pi / period(angles) == pytest.approx(expected, rel=0.05)


def test_a_soft_drive_pulls_with_no_more_than_half_of_its_force() -> None:
    bodies = arm(SPRING)
    bodies.set_gravity(0)
    bodies.drive(ALL, np.array([[1.5]]), np.array([[0.001]]))
    bodies.step(1)
    torque = 0.001 * SPRING.max_force / 2
    assert bodies.angular_velocity[0, 1, 0] == pytest.approx(-torque / inertia(bodies) * TICK, rel=0.02)


def test_joints_stop_at_their_limits() -> None:
    bodies = arm(HARD)
    turn_arm(bodies, 0)
    bodies.state[0, -12] = 30.0  # rad/s, of the arm
    bodies.refresh(ALL)
    bodies.drive(ALL, np.zeros((1, 1)), np.zeros((1, 1)))
    assert np.degrees(arm_angles(bodies, 60).max()) < 100


@pytest.mark.parametrize("shares", [(1, 0), (0, 1), (1, 1), (-1, 1), (0.5, -1), (0.5, 0.5)])
def test_a_cone_limits_two_swings_together(shares: tuple[float, float]) -> None:
    limits = np.array([10, 20])
    bodies = arm(HARD, (-20, 20), (-20, 20), (-10, 10))
    bodies.set_gravity(0)
    z, y = np.radians(limits * shares)
    bodies.drive(ALL, np.array([[z, 0, y]]), np.ones((1, 3)))
    for _ in range(150):
        bodies.step(1)
    reached = np.degrees(bodies.state[0, [8, 10]]) / limits
    inside = min(1, 1 / math.hypot(*shares))  # the share of the way that is inside the cone
    assert math.hypot(*reached) == pytest.approx(inside * math.hypot(*shares), abs=0.08)
    assert (reached * shares >= -1e-3).all()


def test_several_ticks_at_once_equal_single_ticks() -> None:
    ahead, stepwise = (ArticulatedBodies(crawler.SKELETON, 3, 5) for _ in range(2))
    rng, rows = np.random.default_rng(0), np.arange(3)
    for decision in range(8):
        angles, strength = rng.uniform(-0.3, 0.3, (3, 12)), rng.random((3, 12))
        for bodies in (ahead, stepwise):
            bodies.drive(rows, angles, strength)
        for left in (5, 4, 3, 2, 1):
            ahead.step(left)
            stepwise.step(1)
            assert ahead.position == pytest.approx(stepwise.position)
            assert ahead.velocity == pytest.approx(stepwise.velocity)
            if (decision, left) == (4, 3):  # an end between two decisions
                for bodies in (ahead, stepwise):
                    bodies.put(np.array([1]), np.array([0, 3.0, 0]), about_y(np.array([1.0])))
            if (decision, left) == (5, 2):
                for bodies in (ahead, stepwise):
                    bodies.place_target(np.array([2]), np.array([[4.0, 2, 1]]))
            assert ahead.target == pytest.approx(stepwise.target, abs=1e-6)
    assert ahead.state == pytest.approx(stepwise.state, abs=1e-6)


def test_a_sleeping_distant_target_is_not_simulated_and_the_body_moves_equally() -> None:
    holding, pushing = (ArticulatedBodies(worm.SKELETON, 2, 5) for _ in range(2))
    pushing._far = np.inf
    rng, rows = np.random.default_rng(0), np.arange(2)
    for bodies in (holding, pushing):
        bodies.place_target(rows, np.array([[0, 1.65, 20.0], [0, 1.65, 2.5]]))  # the second is ahead of the mouth
    for decision in range(16):
        angles, strength = rng.uniform(-0.3, 0.3, (2, 6)), rng.random((2, 6))
        for bodies in (holding, pushing):
            bodies.drive(rows, angles, strength)
            for left in (5, 4, 3, 2, 1):
                bodies.step(left)
        assert holding._is_held[0] == (decision > 6)  # it has fallen by then
        assert not holding._is_held[1]
    assert holding.position == pytest.approx(pushing.position, abs=1e-4)
    assert holding.target[0] == pytest.approx(pushing.target[0], abs=1e-3)
    assert holding.target[1] == pytest.approx(pushing.target[1], abs=1e-3)
    at_rest = holding.target[0].copy()
    holding.put(rows[:1], np.array([0, 1.65, 16.0]), about_y(np.zeros(1)))
    holding.state[0, 1 + holding.models[0].nq + 1] = 8.0  # m/s towards it
    holding.refresh(rows[:1])
    for _ in range(60):
        holding.step(1)
    assert holding.target[0, 2] > at_rest[2] + 0.5


@pytest.mark.parametrize(("speculative", "deepest"), [(True, 0.01), (False, 0.04)])
def test_a_speculative_contact_stops_a_fast_part_at_the_ground(speculative: bool, deepest: float) -> None:
    ball = Part("ball", sphere(0.15), mass=1, center=(0, 2.65, 0))
    bodies = ArticulatedBodies(Skeleton((ball,), HARD, speculative), 1, 5)
    bodies.place_target(ALL, np.array([[20.0, 1, 0]]))
    heights = []
    for _ in range(60):  # it falls to 7.7 m/s
        bodies.step(1)
        heights.append(bodies.position[0, 0, 1] - GROUND - 0.15)
    assert min(heights) == pytest.approx(-deepest, abs=8e-3)
    assert heights[-1] == pytest.approx(0, abs=3e-3)  # it rests on the surface, not at the margin


def test_another_layout_of_mujocos_data_raises_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contacts, "_matches_description", lambda: False)
    with pytest.raises(PlayerError, match=r"MuJoCo .* does not keep its contacts .*: install another release"):
        ArticulatedBodies(crawler.SKELETON, 1, 5)


def test_a_missing_mujoco_raises_one_error_that_names_the_extra() -> None:
    code = (
        "import sys; sys.modules['mujoco'] = None; from unity_gym.scenes.__main__ import main; "
        "sys.exit(main(['Crawler']))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 1
    assert "The scene Crawler needs the package mujoco" in result.stderr
    assert "unity-gym[scenes]" in result.stderr
    assert "Traceback" not in result.stderr

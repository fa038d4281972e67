"""Bodies that contacts turn: off-center pushes, ground friction and angular velocity."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from unity_gym.scenes.bodies import Bodies
from unity_gym.scenes.shapes import Box, Shapes, contact_edge, separation

TICK = 0.02
GRAVITY = 14.715
PUSHERS = 3


def pushers_behind(mass: float, edge: float, count: int, offset: float = 0.0, **options) -> Bodies:
    """Place `count` pushers side by side, flush with the near side of a block, and the others far away."""
    shapes = Shapes(1, [*(f"pusher {i}" for i in range(PUSHERS)), "block", "wall"], [""] * (PUSHERS + 2))
    for i in range(PUSHERS):
        shapes.half[:, 0, i] = 0.5
        shapes.center[:, 0, i] = 50 + 5 * i, 0.5, 0
    for i in range(count):
        shapes.center[:, 0, i] = offset + 1.01 * (i - (count - 1) / 2), 0.5, -(edge + 1) / 2
    shapes.half[:, 0, PUSHERS] = edge / 2, 0.375, edge / 2
    shapes.center[1, 0, PUSHERS] = 0.375
    shapes.place("wall", (-20, 0, 30), (20, 5, 31))
    masses, drags = [10] * PUSHERS + [mass], [4] * PUSHERS + [0.5]
    return Bodies(shapes, masses, drags, ["wall"], **{"gravity": GRAVITY, "turning": ["block"]} | options)


def push(bodies: Bodies, count: int, ticks: int) -> float:
    """Let the first pushers push; return how far the block has moved."""
    for _ in range(ticks):
        bodies.velocity[2, 0, :count] += 3
        bodies.simulate()
    return float(bodies.shapes.center[2, 0, PUSHERS])


@pytest.mark.parametrize(("mass", "edge", "needed"), [(10, 1, 1), (100, 2, 2), (150, 3, 3)])
def test_larger_blocks_need_more_pushers(mass: float, edge: float, needed: int) -> None:
    for count in range(1, PUSHERS + 1):
        moved = push(pushers_behind(mass, edge, count), count, 50)
        if count < needed:
            assert abs(moved) < 0.02
        else:
            assert moved > 1


def test_an_off_center_push_turns_a_block_and_a_centered_one_does_not() -> None:
    for offset, sign in ((0.0, 0), (1.2, -1), (-1.2, 1)):
        bodies = pushers_behind(10, 3, 1, offset)
        push(bodies, 1, 10)
        turned = np.degrees(bodies.shapes.yaw[0, PUSHERS])  # clockwise as seen from above: +z turns to +x
        assert np.sign(np.round(turned)) == sign
        assert abs(turned) > 10 if sign else turned == pytest.approx(0, abs=1e-9)
        assert bodies.shapes.center[2, 0, PUSHERS] > 0.3


def test_an_off_center_impact_turns_and_keeps_momentum() -> None:
    bodies = pushers_behind(20, 2, 1, 0.8, gravity=0, on_ground=False)
    bodies.velocity[2, 0, 0] = 5
    bodies.drag[:] = 0
    bodies.simulate()
    pusher, block = bodies.velocity[2, 0, [0, PUSHERS]]
    spin = bodies.spin[0, PUSHERS]
    assert 10 * pusher + 20 * block == pytest.approx(50)
    assert spin < 0
    for x in (0.3, 1.0):  # the ends of the shared edge part or touch
        assert block - spin * x >= pusher - 1e-3


def test_the_ground_stops_turning_blocks() -> None:
    bodies = pushers_behind(100, 2, 0)
    bodies.spin[0, PUSHERS] = 3
    bodies.velocity[0, 0, PUSHERS] = 1
    spins = []
    for _ in range(20):
        bodies.simulate()
        spins.append(bodies.spin[0, PUSHERS])
    assert all(a > b or b == pytest.approx(0, abs=1e-3) for a, b in pairwise(spins))
    assert spins[-1] == pytest.approx(0, abs=1e-3)
    assert bodies.velocity[0, 0, PUSHERS] == pytest.approx(0, abs=1e-3)


def test_nothing_turns_faster_than_seven_radians_per_second() -> None:
    bodies = pushers_behind(10, 3, 0, gravity=0)
    bodies.spin[0, PUSHERS] = 30
    bodies.simulate()
    assert bodies.spin[0, PUSHERS] == 7


def test_a_turned_block_aligns_with_the_wall_that_it_is_pushed_against() -> None:
    bodies = pushers_behind(10, 1, 0)
    bodies.shapes.center[:, 0, PUSHERS] = 0, 0.375, 29.2
    bodies.shapes.yaw[0, PUSHERS] = 0.3
    for _ in range(40):
        bodies.velocity[2, 0, PUSHERS] += 1
        bodies.simulate()
    assert bodies.shapes.yaw[0, PUSHERS] == pytest.approx(0, abs=0.02)
    assert bodies.shapes.center[2, 0, PUSHERS] == pytest.approx(29.5, abs=0.02)


def test_a_contact_has_the_ends_of_the_shared_piece_of_an_edge() -> None:
    """A box with edges of 2 m touches others on its far side: face to face, near a corner, with a corner."""
    ends = {
        (0.5, 2.0, 0.0): [(-0.5, 1, 0), (1, 1, 0)],
        (-1.5, 2.0, 0.0): [(-1, 1, 0), (-0.5, 1, 0)],
        (0.2, 2.0, np.pi / 2): [(-0.8, 1, 0), (1, 1, 0)],
        (0.0, 1 + np.sqrt(2), np.pi / 4): [(0, 1, 0)],
    }
    for (x, z, yaw), expected in ends.items():
        boxes = [
            Box(0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 0.0),
            Box(x, 0.0, z, 1.0, 1.0, 1.0, float(np.cos(yaw)), float(np.sin(yaw))),
        ]
        for first, second in (boxes, boxes[::-1]):  # as seen from either box
            gap, normal_x, _, normal_z = separation(first, second)
            found = np.transpose(contact_edge(first, second, normal_x, normal_z))
            found[:, :2] += first.x, first.z
            for end in expected:
                assert np.abs(found - end).max(axis=1).min() < 1e-6
            assert found[:, 2].min() == pytest.approx(gap, abs=1e-9)

"""Bodies: falls, contacts and friction, one tick at a time."""

from __future__ import annotations

import numpy as np
import pytest

from unity_gym.scenes.bodies import GROUND, TICK, Bodies
from unity_gym.scenes.shapes import Shapes

LEFT, RIGHT = 0, 1


def pair(gap: float, masses: tuple[float, float] = (10, 10), **options) -> Bodies:
    """Two boxes with edges of 1 m side by side far above a table, and a wall 5 m to the right of the right one."""
    shapes = Shapes(1, ["left", "right", "wall", "table"], ["", "", "", ""])
    shapes.place("left", (-1, 9.5, -0.5), (0, 10.5, 0.5))
    shapes.place("right", (gap, 9.5, -0.5), (1 + gap, 10.5, 0.5))
    shapes.place("wall", (6 + gap, 0, -5), (7 + gap, 20, 5))
    shapes.place("table", (-50, 0, -50), (50, 1, 50))
    return Bodies(shapes, masses, [0, 0], ["wall", "table"], **{"gravity": 0, "on_ground": False} | options)


def gap(bodies: Bodies) -> float:
    left, right = bodies.shapes.center[0, 0, :2]
    return right - left - 1


def test_a_contact_ahead_stops_the_approach_where_the_surfaces_meet() -> None:
    bodies = pair(0.01)
    bodies.velocity[0, 0, LEFT] = 2
    bodies.simulate()
    assert gap(bodies) == pytest.approx(0, abs=1e-12)
    # The approach speed that closes the gap is left; the rest is shared.
    assert bodies.velocity[0, 0, :2] == pytest.approx([1.25, 0.75])
    bodies.simulate()
    assert bodies.velocity[0, 0, :2] == pytest.approx([1, 1])


def test_a_fast_body_enters_what_it_hits_and_is_pushed_out_without_a_bounce() -> None:
    bodies = pair(0.03)
    bodies.velocity[0, 0, LEFT] = 5
    depths = []
    for _ in range(4):
        bodies.simulate()
        depths.append(-gap(bodies))
    assert depths == pytest.approx([0.07, 0.014, 0.0028, 0.00056])
    assert bodies.velocity[0, 0, :2] == pytest.approx([2.5, 2.5])


def test_nothing_is_pushed_out_faster_than_ten_meters_per_second() -> None:
    bodies = pair(-0.4)
    bodies.simulate()
    assert gap(bodies) == pytest.approx(-0.2)


def test_impacts_share_momentum_by_mass() -> None:
    bodies = pair(0.0, masses=(30, 10))
    bodies.velocity[0, 0, LEFT] = 4
    bodies.simulate()
    assert bodies.velocity[0, 0, :2] == pytest.approx([3, 3])


def test_a_body_between_another_and_a_wall_stays() -> None:
    bodies = pair(0.0)
    bodies.shapes.center[0, 0, :2] += 5
    for _ in range(20):
        bodies.velocity[0, 0, LEFT] += 3
        bodies.simulate()
    assert bodies.shapes.center[0, 0, :2] == pytest.approx([4.5, 5.5], abs=0.03)


def test_boxes_have_twice_the_friction_coefficient() -> None:
    for sideways, expected in ((10.0, 10 - 2 * 0.6 * 2), (1.0, 0.5)):
        bodies = pair(0.0)
        bodies.velocity[0, 0, LEFT] = 4  # an impulse of 2 m/s for each
        bodies.velocity[2, 0, LEFT] = sideways
        bodies.simulate()
        assert bodies.velocity[2, 0, LEFT] == pytest.approx(expected)
        assert bodies.velocity[2, 0, :2].sum() == pytest.approx(sideways)


def test_a_contact_is_reported_once() -> None:
    bodies = pair(0.05)
    bodies.velocity[0, 0, LEFT] = 2
    entered = []
    for _ in range(4):
        bodies.simulate()
        entered.append(bool(bodies.entered("left", "right")[0]))
    assert entered == [False, True, False, False]
    bodies.shapes.center[0, 0, LEFT] -= 3
    bodies.simulate()
    bodies.shapes.center[0, 0, LEFT] += 3
    bodies.simulate()
    assert bodies.entered("left", "right")[0]


def test_turned_boxes_meet_at_their_corners() -> None:
    bodies = pair(0.0)
    bodies.shapes.yaw[0, RIGHT] = np.pi / 4
    bodies.shapes.center[0, 0, RIGHT] = 0.5 * np.sqrt(2) + 0.01
    bodies.velocity[0, 0, LEFT] = 2
    bodies.simulate()
    assert bodies.velocity[0, 0, :2] == pytest.approx([1.25, 0.75])


def test_bodies_fall_onto_things_and_slide_on_them() -> None:
    bodies = pair(3.0, gravity=10)
    for _ in range(150):
        bodies.simulate()
    assert bodies.shapes.center[1, 0, :2] == pytest.approx([1.5, 1.5], abs=1e-6)
    bodies.velocity[0, 0, RIGHT] = -1
    bodies.simulate()
    assert bodies.velocity[0, 0, RIGHT] == pytest.approx(-1 + 2 * 0.6 * 10 * TICK)


def test_bodies_stand_on_the_ground() -> None:
    bodies = pair(3.0, gravity=10, on_ground=True)
    bodies.shapes.center[1, 0] = 2
    bodies.shapes.center[1, 0, 2:] = -20
    for _ in range(100):
        bodies.simulate()
    assert bodies.shapes.center[1, 0, :2] == pytest.approx([0.5 + GROUND] * 2)
    assert not bodies.velocity.any()


def test_a_floating_body_keeps_its_height() -> None:
    bodies = pair(3.0, gravity=10, floating=["right"])
    bodies.shapes.center[1, 0] = 1.5
    bodies.velocity[0, 0, RIGHT] = 2
    for _ in range(10):
        bodies.simulate()
    assert bodies.shapes.center[1, 0, RIGHT] == 1.5
    assert bodies.velocity[:, 0, RIGHT] == pytest.approx([2, 0, 0])  # and has no friction with the object below


def test_a_heavy_body_plows_through_a_light_anchored_one() -> None:
    bodies = pair(-0.1, masses=(25, 1), anchored=["right"])
    before = bodies.shapes.center[0, 0, RIGHT]
    bodies.velocity[0, 0, LEFT] = 20
    for tick in range(1, 3):
        bodies.simulate()
        assert bodies.velocity[:, 0, LEFT] == pytest.approx([20 * (25 / 26) ** tick, 0, 0])
        assert (bodies.shapes.center[0, 0, RIGHT], bodies.velocity[0, 0, RIGHT]) == (before, 0)
    assert gap(bodies) < -0.7


def test_what_lies_below_stops_a_spin_at_two_points() -> None:
    bodies = pair(3.0, gravity=10, turning=["right"])
    for _ in range(150):
        bodies.simulate()
    bodies.spin[0, RIGHT] = 3
    for _ in range(10):
        bodies.simulate()
    assert bodies.spin[0, RIGHT] == pytest.approx(0, abs=1e-3)
    assert bodies.shapes.yaw[0, RIGHT] > 0.02


def test_the_ground_carries_a_body_with_another_one_on_top() -> None:
    bodies = pair(3.0, masses=(10, 10), gravity=25, on_ground=True)
    bodies.shapes.center[:, 0, :2] = [[0, 0], [1.5, 0.5], [0, 0]]  # the left one on the right one
    bodies.shapes.center[1, 0, 2:] = -20
    for _ in range(50):
        bodies.simulate()
        assert bodies.shapes.center[1, 0, RIGHT] > 0.495
    assert bodies.shapes.center[1, 0, LEFT] == pytest.approx(1.5, abs=0.01)

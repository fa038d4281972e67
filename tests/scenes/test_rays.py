"""Ray sensors: hits of their spheres, and the encoding of hits."""

from __future__ import annotations

import numpy as np
import pytest

from unity_gym.scenes.sensors import StackingSensor
from unity_gym.scenes.sensors.rays import Pose, RayPerceptionSensor, sphere_cast
from unity_gym.scenes.shapes import Shapes
from unity_gym.specs import Array

ROWS = np.arange(1)


def sensor(shapes: Shapes, degrees: float = 0.0, **options: float) -> RayPerceptionSensor:
    """Five rays of 10 m from (0, 1, 0), every 45 degrees, that detect red and blue things."""
    pose = Pose(ROWS, np.array([[0.0], [1.0], [0.0]]), np.radians([degrees]))
    return RayPerceptionSensor(
        "rays", shapes, lambda _: pose, ("red", "blue"), rays_per_direction=2, max_degrees=90, length=10, **options
    )


def see(shapes: Shapes, degrees: float = 0.0, **options: float) -> Array:
    """Return one row per ray: red, blue, nothing, fraction of the length."""
    return sensor(shapes, degrees, **options).observe(ROWS).reshape(5, 4)


def cube(x: float, z: float, *, tag: str = "red", y: float = 1.0) -> Shapes:
    """Return a cube with edges of 2 m."""
    shapes = Shapes(1, ["cube"], [tag])
    shapes.place("cube", (x - 1, y - 1, z - 1), (x + 1, y + 1, z + 1))
    return shapes


@pytest.mark.parametrize(("x", "z", "ray"), [(0, 5, 0), (4, 4, 1), (-4, 4, 2), (5, 0, 3), (-5, 0, 4)])
def test_rays_are_ordered_from_the_middle_outwards_right_before_left(x: float, z: float, ray: int) -> None:
    seen = see(cube(x, z))
    assert list(np.flatnonzero(seen[:, 0])) == [ray]
    # Straight ahead the sphere's center stops half a meter before the face; diagonally it meets the edge.
    center = 3.5 if ray in (0, 3, 4) else np.hypot(3, 3) - 0.5
    assert seen[ray] == pytest.approx([1, 0, 0, center / 10], abs=1e-6)
    assert (np.delete(seen, ray, axis=0) == [0, 0, 1, 1]).all()


def test_rays_turn_clockwise_with_the_agent() -> None:
    assert list(np.flatnonzero(see(cube(5, 0), degrees=90)[:, 0])) == [0]
    assert list(np.flatnonzero(see(cube(5, 0), degrees=45)[:, 0])) == [1]


def test_an_object_without_a_detectable_tag_is_hit_without_a_flag() -> None:
    assert see(cube(0, 5, tag="green"))[0] == pytest.approx([0, 0, 0, 0.35])


def test_the_nearest_object_hides_those_behind_it() -> None:
    shapes = Shapes(1, ["far", "near"], ["red", "blue"])
    shapes.place("far", (-3, 0, 8), (3, 2, 9))
    shapes.place("near", (-3, 0, 4), (3, 2, 5))
    assert see(shapes)[0] == pytest.approx([0, 1, 0, 0.35])
    shapes.visible[0, 1] = False
    assert see(shapes)[0] == pytest.approx([1, 0, 0, 0.75])


def test_objects_can_change_their_tags() -> None:
    shapes = Shapes(1, ["switch", "lamp"], ["red", "blue"])
    shapes.place("switch", (-1, 0, 4), (1, 2, 6))
    shapes.place("lamp", (20, 0, 20), (21, 1, 21))
    shapes.tag[0, 0] = shapes.tags.index("blue")
    assert see(shapes)[0] == pytest.approx([0, 1, 0, 0.35])


def test_an_object_that_overlaps_the_sphere_at_its_start_is_not_hit() -> None:
    shapes = cube(0, 1.4)  # the cube's face is 0.4 m away
    assert (see(shapes) == [0, 0, 1, 1]).all()


def test_an_object_that_touches_the_sphere_is_hit_at_once_unless_the_ray_leads_away_or_along_it() -> None:
    seen = see(cube(0, 1.5))
    assert (seen[:3] == [1, 0, 0, 0]).all()
    assert (seen[3:] == [0, 0, 1, 1]).all()


def test_ground_under_the_sphere_is_not_hit() -> None:
    for sunk in (0.0, 2e-5):
        assert (see(cube(0, 0, y=-0.5 + sunk)) == [0, 0, 1, 1]).all()


def test_a_rising_ray_passes_over_what_a_level_one_hits() -> None:
    wall = Shapes(1, ["wall"], ["red"])
    wall.place("wall", (-5, 0, 6), (5, 2, 7))
    assert see(wall)[0, 0] == 1
    assert see(wall, start_offset=0.0, end_offset=5.0)[0, 2] == 1
    assert see(wall, start_offset=1.4, end_offset=1.4)[0] == pytest.approx([1, 0, 0, 0.57])
    assert see(wall, start_offset=1.6, end_offset=1.6)[0, 2] == 1


def test_the_sphere_of_a_rising_ray_grows_with_the_rays_length() -> None:
    # Length √200 instead of 10 makes the radius √2 / 2. The cube's lower edge lies on the middle ray, at (6, 7).
    rising = see(cube(0, 7, y=8), start_offset=0.0, end_offset=10.0)[0]
    assert rising == pytest.approx([1, 0, 0, 0.55])


def test_a_box_without_edges_is_a_sphere() -> None:
    shapes = Shapes(1, ["ball"], ["blue"])
    shapes.place("ball", (0, 0.5, 5), (0, 0.5, 5))
    shapes.rounding[:] = 0.6
    apart = np.sqrt((0.5 + 0.6) ** 2 - 0.5**2)
    assert see(shapes)[0] == pytest.approx([0, 1, 0, (5 - apart) / 10])


def test_casts_equal_a_march_in_small_steps() -> None:
    rng = np.random.default_rng(0)
    k, rays, n = 30, 5, 6
    start, path = rng.uniform(-5, 5, (3, k)), rng.uniform(-12, 12, (3, k, rays))
    center, half = rng.uniform(-6, 6, (3, k, n)), rng.uniform(0, 3, (3, k, n))
    rounding, yaw = rng.choice([0, 0.5], (k, n)), rng.uniform(0, 7, (k, n))
    found = np.empty((k, rays, n))
    for i, ray, thing in np.ndindex(found.shape):
        turn_cos, turn_sin = np.cos(yaw[i, thing]), np.sin(yaw[i, thing])
        turned = np.array([[turn_cos, 0, -turn_sin], [0, 1, 0], [turn_sin, 0, turn_cos]])
        origin, way = turned @ (start[:, i] - center[:, i, thing]), turned @ path[:, i, ray]
        found[i, ray, thing] = sphere_cast(
            tuple(origin), tuple(way), tuple(half[:, i, thing]), 0.5 + rounding[i, thing]
        )

    shares = np.linspace(0, 1, 2001)
    place = (start[:, :, np.newaxis, np.newaxis, np.newaxis] + path[..., np.newaxis, np.newaxis] * shares)[:, :, :, 0]
    x, y, z = place[:, :, :, np.newaxis] - center[:, :, np.newaxis, :, np.newaxis]
    cos, sin = np.cos(yaw)[:, np.newaxis, :, np.newaxis], np.sin(yaw)[:, np.newaxis, :, np.newaxis]
    local = np.stack([cos * x - sin * z, y, sin * x + cos * z])
    outside = np.maximum(np.abs(local) - half[:, :, np.newaxis, :, np.newaxis], 0)
    gap = np.sqrt((outside**2).sum(axis=0)) - 0.5 - rounding[:, np.newaxis, :, np.newaxis]
    met = (gap <= 0).any(axis=-1) & (gap[..., 0] > 0)
    walked = np.where(met, shares[(gap <= 0).argmax(axis=-1)], np.inf)
    grazed = (np.abs(gap.min(axis=-1)) < 1e-3) & ~np.isfinite(walked)  # the walk's steps may miss those
    assert met.sum() > 50
    assert (np.isfinite(found) == met)[~grazed].all()
    assert np.abs(found[met] - walked[met]).max() < 1e-3


def test_stacked_rays_are_sent_oldest_first() -> None:
    shapes = cube(0, 5)
    stack = StackingSensor(sensor(shapes), 3, 1)
    stack.observe(ROWS)
    shapes.center[2] = 6
    observed = stack.observe(ROWS).reshape(3, 5, 4)
    assert stack.name == "StackingSensor_size3_rays"
    assert not observed[0].any()
    assert observed[1:, 0, 3] == pytest.approx([0.35, 0.45])

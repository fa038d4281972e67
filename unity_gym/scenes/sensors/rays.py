"""The ray perception sensor: what spheres meet that fly out of an agent in a fan of directions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from unity_gym.scenes.sensors.sensor import VectorSensor
from unity_gym.scenes.shapes import Shapes
from unity_gym.specs import Array

_TOUCH = 1e-5  # m; a start that overlaps a thing by less only touches it
_CLOSE = 1e-9  # m², of the squares of distances
_NEWTON_STEPS = 24  # a tangent root is neared by half a step; most rays end after three


class Pose(NamedTuple):
    """Where agents are: `area` (int, k), `position` (3, k), `yaw` (radians, k)."""

    area: Array
    position: Array
    yaw: Array


class RayPerceptionSensor(VectorSensor):
    """A fan of sphere casts against all things of the agent's area.

    An observation holds for each ray a flag per detectable tag, a flag that nothing was hit, and the share of the
    ray's length that the sphere has passed, 1 if nothing was hit. The middle ray comes first, then by turns the next to
    the right and to the left. As in Unity a thing that overlaps the sphere at its start is not there for the cast; that
    takes the agent's own box out, and what the agent is pressed into. A thing that is touched and not left is hit at 0.

    :param name: as Unity sends it
    :param shapes: what there is to hit
    :param pose: where the agents with the given indices are
    :param tags: detectable tags in the order of their flags
    :param rays_per_direction: rays on each side of the middle one
    :param max_degrees: angle between the middle ray and the outermost ones
    :param length: horizontal length of a ray, m
    :param radius: of the sphere, m; it grows with a ray that is longer than `length` because it rises
    :param start_offset: height of the ray's start above the agent's centre, m
    :param end_offset: height of the ray's end above the agent's centre, m
    """

    def __init__(
        self,
        name: str,
        shapes: Shapes,
        pose: Callable[[Array], Pose],
        tags: Sequence[str],
        *,
        rays_per_direction: int,
        max_degrees: float,
        length: float,
        radius: float = 0.5,
        start_offset: float = 0.0,
        end_offset: float = 0.0,
    ) -> None:
        steps = np.arange(1, rays_per_direction + 1)
        turns = np.append(0.0, np.stack([steps, -steps], axis=1) * (max_degrees / rays_per_direction))
        self._turns = np.radians(turns)  # from the middle ray, + to the right, as yaw
        self._width = len(tags) + 2
        super().__init__(name, len(turns) * self._width, self._cast)
        self._shapes = shapes
        self._pose = pose
        self._length, self._rise, self._start = length, end_offset - start_offset, start_offset
        self._radius = radius * float(np.hypot(length, self._rise)) / length
        # One row a tag of the shapes, the last for a miss.
        self._flags = np.zeros((len(shapes.tags) + 1, self._width - 1), np.float32)
        for row, tag in enumerate(shapes.tags):
            if tag in tags:
                self._flags[row, tags.index(tag)] = 1
        self._flags[-1, -1] = 1

    def _cast(self, rows: Array) -> Array:
        area, position, yaw = self._pose(rows)
        directions = yaw[:, np.newaxis] + self._turns
        path = np.empty((3, *directions.shape))
        path[0], path[1], path[2] = self._length * np.sin(directions), self._rise, self._length * np.cos(directions)
        start = position.copy()
        start[1] += self._start

        shapes = self._shapes
        fractions = sphere_casts(
            start,
            path,
            self._radius,
            shapes.center[:, area],
            shapes.half[:, area],
            shapes.rounding[area],
            shapes.yaw[area],
            shapes.visible[area],
        )
        nearest = fractions.argmin(axis=2)
        fraction = np.take_along_axis(fractions, nearest[..., np.newaxis], axis=2)[..., 0]
        tag = np.where(fraction <= 1, shapes.tag[area[:, np.newaxis], nearest], -1)
        observation = np.empty((*tag.shape, self._width), np.float32)
        observation[..., :-1] = self._flags[tag]
        observation[..., -1] = np.minimum(fraction, 1)
        return observation.reshape(len(rows), -1)


def sphere_casts(
    start: Array,
    path: Array,
    radius: float,
    center: Array,
    half: Array,
    rounding: Array,
    yaw: Array,
    visible: Array | bool = True,
) -> Array:
    """How far spheres fly until they meet upright rounded boxes.

    A sphere meets a box where the distance between the sphere's centre and the box without its rounding is the sum of
    both radii. The square of that distance is convex along a straight path, so Newton's method from the side of the
    start finds the first such point and never passes it. Circles around the boxes, as seen from above, and then a slab
    test leave only the paths that it is needed for.

    :param start: (3, k), one start an agent
    :param path: (3, k, rays), from start to end
    :param radius: of all spheres
    :param center: (3, k, n); also `half` (3, k, n), `rounding` and `yaw` (k, n): the boxes that an agent's rays may hit
    :param visible: bool (k, n), of which the others are not there
    :return: (k, rays, n), share of the path; inf where a box is not met within it or overlaps the sphere at its start
    """
    x, y, z = start[..., np.newaxis] - center  # k, n
    reach = radius + rounding
    circle = np.where(visible, np.sqrt(half[0] ** 2 + half[2] ** 2) + reach, -np.inf)[:, np.newaxis]
    length = np.sqrt(path[0] ** 2 + path[2] ** 2)
    ahead_x, ahead_z = path[::2] / np.maximum(length, 1e-12)
    turns = np.array([[ahead_x, ahead_z], [-ahead_z, ahead_x]]).transpose(0, 2, 3, 1)  # 2, k, rays, 2
    ahead, aside = turns @ np.array([x, z]).transpose(1, 0, 2)  # k, rays, n
    near = (np.abs(aside) <= circle) & (ahead <= circle) & (ahead + circle >= -length[..., np.newaxis])

    # From here on one column a path and a box that it may hit, in the axes of the box.
    n = near.shape[2]
    lines = np.flatnonzero(near)
    rays = lines // n
    boxes = rays // near.shape[1] * n + lines % n
    cos, sin = np.cos(yaw), np.sin(yaw)
    columns = np.array([cos * x - sin * z, y, sin * x + cos * z, *half, reach, cos, sin]).reshape(9, -1)[:, boxes]
    origin, half, reach, cos, sin = columns[:3], columns[3:6], columns[6], columns[7], columns[8]
    x, y, z = path.reshape(3, -1)[:, rays]
    step = np.array([cos * x - sin * z, y, sin * x + cos * z])
    step[np.abs(step) < 1e-12] = 1e-12
    grown = (half + reach) / np.abs(step)
    middle = -origin / step
    entry = np.maximum((middle - grown).max(axis=0), 0)
    possible = np.flatnonzero((entry <= (middle + grown).min(axis=0)) & (entry <= 1))
    lines = lines[possible]
    columns = np.concatenate([half, step, origin, [reach, entry]]).take(possible, axis=1)

    half, step, origin, reach, t = _cast_columns(columns)
    outside = np.maximum(np.abs(origin) - half, 0)
    distance = np.sqrt(_dot(outside, outside))
    leaving = _dot(np.copysign(outside, origin), step) >= -1e-9 * distance
    met = (distance >= reach - _TOUCH) & ~((distance < reach + _TOUCH) & leaving)

    # Where the slab test found a face, Newton's method has nothing left to do.
    fractions = np.full(near.size, np.inf)
    columns, lines = columns[:, met], lines[met]
    fractions[lines] = columns[-1]
    for _ in range(_NEWTON_STEPS):
        half, step, origin, reach, t = _cast_columns(columns)
        place = origin + t * step
        outside = np.maximum(np.abs(place) - half, 0)
        excess = _dot(outside, outside) - reach * reach
        slope = 2 * _dot(np.copysign(outside, place), step)
        far = excess > _CLOSE
        fractions[lines[far & (slope >= 0)]] = np.inf
        rows = np.flatnonzero(far & (slope < 0))
        if not len(rows):
            break
        columns, lines = columns.take(rows, axis=1), lines[rows]
        columns[-1] -= excess[rows] / slope[rows]
        fractions[lines] = columns[-1]
    fractions[fractions > 1] = np.inf
    return np.asarray(fractions.reshape(near.shape))


def _cast_columns(columns: Array) -> tuple[Array, Array, Array, Array, Array]:
    """Half edges, steps and origins (3, m), reaches and shares of the path (m)."""
    return columns[:3], columns[3:6], columns[6:9], columns[9], columns[10]


def _dot(first: Array, second: Array) -> Array:
    return np.asarray(np.einsum("cm,cm->m", first, second))

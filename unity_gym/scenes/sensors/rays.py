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
    apart = start[..., np.newaxis] - center  # 3, k, n
    reach = radius + rounding
    circle = np.where(visible, np.hypot(half[0], half[2]) + reach, -np.inf)[:, np.newaxis]
    length = np.hypot(path[0], path[2])
    ahead_x, ahead_z = path[::2] / np.maximum(length, 1e-12)
    level = np.stack([apart[0], apart[2]], axis=1)  # k, 2, n
    ahead = np.stack([ahead_x, ahead_z], axis=2) @ level
    aside = np.stack([-ahead_z, ahead_x], axis=2) @ level
    near = (np.abs(aside) <= circle) & (ahead <= circle) & (ahead + circle >= -length[..., np.newaxis])

    fractions = np.full(near.shape, np.inf)
    agent, ray, box = np.nonzero(near)
    cos, sin = np.cos(yaw)[agent, box], np.sin(yaw)[agent, box]
    (origin_x, y, origin_z), (path_x, path_y, path_z) = apart[:, agent, box], path[:, agent, ray]
    origin = np.stack([cos * origin_x - sin * origin_z, y, sin * origin_x + cos * origin_z])
    step = np.stack([cos * path_x - sin * path_z, path_y, sin * path_x + cos * path_z])
    step[np.abs(step) < 1e-12] = 1e-12
    half, reach = half[:, agent, box], reach[agent, box]
    grown = (half + reach) / np.abs(step)
    middle = -origin / step
    t = np.maximum((middle - grown).max(axis=0), 0)
    possible = np.flatnonzero((t <= (middle + grown).min(axis=0)) & (t <= 1))

    agent, ray, box, t, reach = (column[possible] for column in (agent, ray, box, t, reach))
    half, step, origin = (column[:, possible] for column in (half, step, origin))
    outside = np.maximum(np.abs(origin) - half, 0)
    distance = np.sqrt((outside * outside).sum(axis=0))
    leaving = (outside * np.sign(origin) * step).sum(axis=0) >= -1e-9 * distance
    met = (distance >= reach - _TOUCH) & ~((distance < reach + _TOUCH) & leaving)
    fractions[agent, ray, box] = np.where(met, t, np.inf)

    # Where the slab test found a face, Newton's method has nothing left to do.
    rows = np.flatnonzero(met)
    for _ in range(_NEWTON_STEPS):
        half, step, origin, reach, t = half[:, rows], step[:, rows], origin[:, rows], reach[rows], t[rows]
        agent, ray, box = agent[rows], ray[rows], box[rows]
        place = origin + t * step
        outside = np.maximum(np.abs(place) - half, 0)
        excess = (outside * outside).sum(axis=0) - reach * reach
        slope = 2 * (outside * np.sign(place) * step).sum(axis=0)
        missed = (excess > _CLOSE) & (slope >= 0)
        fractions[agent[missed], ray[missed], box[missed]] = np.inf
        rows = np.flatnonzero((excess > _CLOSE) & (slope < 0))
        if not len(rows):
            break
        t[rows] -= excess[rows] / slope[rows]
        fractions[agent[rows], ray[rows], box[rows]] = t[rows]
    fractions[fractions > 1] = np.inf
    return fractions

"""The ray perception sensor: casts spheres from an agent in a fan of directions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import copysign, cos, hypot, inf, sin, sqrt
from typing import NamedTuple

import numpy as np

from unity_gym.scenes.kernels import inner_kernel
from unity_gym.scenes.sensors.sensor import VectorSensor
from unity_gym.scenes.shapes import Shapes, cos_sin
from unity_gym.specs import Array

_TOUCH = 1e-5  # m; a start that overlaps a thing by less only touches it
_CLOSE = 1e-9  # m², of the squares of distances
_NEWTON_STEPS = 24  # Newton's method halves the distance to a tangent root per step; most rays need three steps


class Pose(NamedTuple):
    """Pose of agents: `area` (int, k), `position` (3, k, in m), `yaw` (k, in radians)."""

    area: Array
    position: Array
    yaw: Array


class RayPerceptionSensor(VectorSensor):
    """A fan of sphere casts against all things of the agent's area.

    An observation contains per ray one flag per detectable tag, a flag that nothing was hit, and the hit fraction. The
    hit fraction is the share of the ray's length that the sphere has passed, 1 if nothing was hit. The middle ray comes
    first, then alternately the next ones to the right and to the left.

    As in Unity, the cast ignores a thing that overlaps the sphere at its start. So it ignores the agent's own box and
    things that the agent is pressed into. A thing that the sphere touches and does not move away from is hit at 0.

    :param name: Name as Unity sends it.
    :param shapes: Things that rays can hit.
    :param pose: Function that returns the poses of the agents with the given indices.
    :param tags: Detectable tags in the order of their flags.
    :param rays_per_direction: Number of rays on each side of the middle one.
    :param max_degrees: Angle between the middle ray and the outermost ones in degrees.
    :param length: Horizontal length of a ray in m.
    :param radius: Radius of the sphere in m. It grows with a ray that is longer than `length` because it rises.
    :param start_offset: Height of the ray's start above the agent's center in m.
    :param end_offset: Height of the ray's end above the agent's center in m.
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
        self._length, self._rise, self._start = float(length), float(end_offset - start_offset), float(start_offset)
        self._radius = radius * float(np.hypot(length, self._rise)) / length
        # flag index of each tag of the shapes, -1: none
        self._flags = np.array([tags.index(tag) if tag in tags else -1 for tag in shapes.tags])

    def _cast(self, rows: Array) -> Array:
        area, position, yaw = self._pose(rows)
        start = np.array(position, order="C")
        start[1] += self._start
        shapes = self._shapes
        observation = np.zeros((len(rows), len(self._turns), self._width), np.float32)
        scenery = shapes.center, shapes.half, shapes.rounding, shapes.yaw, shapes.visible, shapes.tag
        fan = self._turns, self._length, self._rise, self._radius, self._flags
        _cast_fans(*scenery, area, start, yaw, *fan, observation)
        return observation.reshape(len(rows), -1)


@inner_kernel
def _cast_fans(
    center: Array,
    half: Array,
    rounding: Array,
    yaw: Array,
    visible: Array,
    tag: Array,
    area: Array,
    start: Array,
    heading: Array,
    turns: Array,
    length: float,
    rise: float,
    radius: float,
    flags: Array,
    observation: Array,
) -> None:
    """Write the observations of the agents to `observation` (agents, rays, width), which contains zeros.

    :param heading: Yaws of the agents, (k).
    :param flags: Flag index of each tag, -1: none.
    """
    scenery = Scenery(center, half, rounding, yaw, visible)
    for k in range(len(area)):
        origin = start[0, k], start[1, k], start[2, k]
        for ray in range(len(turns)):
            turn = heading[k] + turns[ray]
            seen = observation[k, ray]
            share, thing = first_hit(scenery, area[k], origin, (length * sin(turn), rise, length * cos(turn)), radius)
            if thing < 0:
                seen[-2:] = 1
            else:
                seen[-1] = share
                flag = flags[tag[area[k], thing]]
                if flag >= 0:
                    seen[flag] = 1


_Vector = tuple[float, float, float]


class Scenery(NamedTuple):
    """The arrays of `Shapes` that rays need."""

    center: Array
    half: Array
    rounding: Array
    yaw: Array
    visible: Array


@inner_kernel
def first_hit(scenery: Scenery, area: int, start: _Vector, path: _Vector, radius: float) -> tuple[float, int]:
    """Return the share of a path until a sphere hits a thing, and the index of the thing.

    They are inf and -1 if it hits nothing.
    """
    nearest, found = inf, -1
    length = hypot(path[0], path[2])
    for thing in range(scenery.visible.shape[1]):
        half = scenery.half[0, area, thing], scenery.half[1, area, thing], scenery.half[2, area, thing]
        reach = radius + scenery.rounding[area, thing]
        x, z = start[0] - scenery.center[0, area, thing], start[2] - scenery.center[2, area, thing]
        # Seen from above, the path must come close to a circle around the box.
        circle = half[0] + half[2] + reach
        ahead, aside = -(x * path[0] + z * path[2]), x * path[2] - z * path[0]
        if (
            scenery.visible[area, thing]
            and abs(aside) <= circle * length
            and -circle * length <= ahead <= (length + circle) * length
        ):
            turn_cos, turn_sin = cos_sin(scenery.yaw[area, thing])
            origin = turn_cos * x - turn_sin * z, start[1] - scenery.center[1, area, thing], turn_sin * x + turn_cos * z
            way = turn_cos * path[0] - turn_sin * path[2], path[1], turn_sin * path[0] + turn_cos * path[2]
            share = sphere_cast(origin, way, half, reach, nearest)
            if share < nearest:
                nearest, found = share, thing
    return nearest, found


@inner_kernel
def sphere_cast(origin: _Vector, path: _Vector, half: _Vector, reach: float, most: float = inf) -> float:
    """Return the share of its path until a sphere hits a rounded box.

    It hits the box where the distance between the sphere's center and the box without its rounding is the sum of both
    radii. The square of that distance is convex along a straight path. So Newton's method from the side of the start
    finds the first such point and never passes it. The search starts where the path enters the box that is enlarged by
    the sum on all sides. If this point is on a face, it is the result.

    :param origin: Center of the sphere at its start, from the center of the box along its axes, in m.
    :param path: Vector from the start to the end along the axes of the box, in m.
    :param half: Half the edge lengths of the box without rounding, in m.
    :param reach: Sum of both radii in m.
    :param most: Share of the path beyond which the result does not matter.
    :return: Share of the path; inf if the sphere does not hit the box within it or overlaps it at its start.
    """
    entry, exit_ = 0.0, 1.0
    outside_square = leaving = 0.0
    for axis in range(3):
        step = path[axis] if abs(path[axis]) >= 1e-12 else 1e-12
        per_step = 1 / step
        middle, grown = -origin[axis] * per_step, (half[axis] + reach) * abs(per_step)
        entry, exit_ = max(entry, middle - grown), min(exit_, middle + grown)
        outside = max(abs(origin[axis]) - half[axis], 0.0)
        outside_square += outside * outside
        leaving += copysign(outside, origin[axis]) * step
    if entry > exit_ or entry >= most:
        return inf
    distance = sqrt(outside_square)
    if distance < reach - _TOUCH or (distance < reach + _TOUCH and leaving >= -1e-9 * distance):
        return inf

    share = entry
    for _ in range(_NEWTON_STEPS):
        excess, slope = -reach * reach, 0.0
        for axis in range(3):
            step = path[axis] if abs(path[axis]) >= 1e-12 else 1e-12
            place = origin[axis] + share * step
            outside = max(abs(place) - half[axis], 0.0)
            excess += outside * outside
            slope += 2 * copysign(outside, place) * step
        if excess <= _CLOSE:
            break
        if slope >= 0:
            return inf
        share -= excess / slope
    return share if share <= 1 else inf

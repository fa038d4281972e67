"""The solid things of a scene, which rays hit and bodies collide with.

Axes are Unity's: x right, y up, z forward, in meters. A yaw is clockwise seen from above, in radians: yaw 0 looks
along +z, yaw 90° along +x.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import copysign, cos, inf, sin
from typing import NamedTuple

import numpy as np

from unity_gym.scenes.kernels import inner_kernel
from unity_gym.specs import Array


class Shapes:
    """Upright boxes in arrays (areas, things), the same things in every area.

    Arrays: `center` (3, areas, things), `half` (3, areas, things: half the edge lengths before rounding), `rounding`
    (areas, things: enlargement of a box in all directions, so that a sphere is a box without edges), `yaw`
    (areas, things), `tag` (int, areas × things, index into `tags`), `visible` (bool, areas × things: rays hit it).

    :param areas: Number of areas.
    :param names: Names of the things in the order of the arrays.
    :param tags: Tags of the things in the same order; "" for none.
    """

    def __init__(self, areas: int, names: Sequence[str], tags: Sequence[str]) -> None:
        self.names = tuple(names)
        self.tags = tuple(dict.fromkeys(tags))
        size = (areas, len(self.names))
        self.center = np.zeros((3, *size))
        self.half = np.zeros((3, *size))
        self.rounding = np.zeros(size)
        self.yaw = np.zeros(size)
        self.tag = np.broadcast_to([self.tags.index(tag) for tag in tags], size).copy()
        self.visible = np.ones(size, bool)

    def index(self, name: str) -> int:
        """Return the index of a thing."""
        return self.names.index(name)

    def place(self, name: str, low: Sequence[float], high: Sequence[float], yaw: float = 0.0) -> None:
        """Put a thing between two corners (x, y, z) in every area, then turn it about its center."""
        column = self.index(name)
        corners = np.array([low, high], float)[..., np.newaxis]
        self.center[:, :, column] = corners.mean(axis=0)
        self.half[:, :, column] = (corners[1] - corners[0]) / 2
        self.yaw[:, column] = yaw


class Box(NamedTuple):
    """An upright box in a kernel: its center, half its edge lengths, and the cosine and sine of its yaw."""

    x: float
    y: float
    z: float
    half_x: float
    half_y: float
    half_z: float
    cos: float
    sin: float


@inner_kernel
def box(center: Array, half: Array, yaw: Array, area: int, thing: int) -> Box:
    """Return a thing of `Shapes`, from its arrays."""
    x, y, z = center[0, area, thing], center[1, area, thing], center[2, area, thing]
    turn_cos, turn_sin = cos_sin(yaw[area, thing])
    return Box(x, y, z, half[0, area, thing], half[1, area, thing], half[2, area, thing], turn_cos, turn_sin)


@inner_kernel
def cos_sin(turn: float) -> tuple[float, float]:
    """Return the cosine and sine of a yaw; yaw 0, the most frequent one, needs no computation."""
    return (cos(turn), sin(turn)) if turn != 0 else (1.0, 0.0)


@inner_kernel
def separation(first: Box, second: Box) -> tuple[float, float, float, float]:
    """Return the distance of two boxes along the axis on which they are farthest apart, or overlap least.

    :param first: First box.
    :param second: Second box.
    :return: Distance in m, negative if the boxes overlap, and the unit normal (x, y, z) from the first to the
        second box.
    """
    x, y, z = second.x - first.x, second.y - first.y, second.z - first.z
    parallel = abs(first.cos * second.cos + first.sin * second.sin)
    across = abs(first.sin * second.cos - first.cos * second.sin)
    # x and z of the axes to the right of either box and ahead of it, and the extents of both boxes along them
    axes = (
        (first.cos, -first.sin, first.half_x + second.half_x * parallel + second.half_z * across),
        (first.sin, first.cos, first.half_z + second.half_x * across + second.half_z * parallel),
        (second.cos, -second.sin, second.half_x + first.half_x * parallel + first.half_z * across),
        (second.sin, second.cos, second.half_z + first.half_x * across + first.half_z * parallel),
    )
    gap, normal_x, normal_y, normal_z = -inf, 0.0, 0.0, 0.0
    for axis_x, axis_z, reach in axes:
        along = axis_x * x + axis_z * z
        if abs(along) - reach > gap:
            sign = -1.0 if along < 0 else 1.0
            gap, normal_x, normal_z = abs(along) - reach, sign * axis_x, sign * axis_z
    above = abs(y) - first.half_y - second.half_y
    if above > gap:
        gap, normal_x, normal_y, normal_z = above, 0.0, -1.0 if y < 0 else 1.0, 0.0
    return gap, normal_x, normal_y, normal_z


class Edge(NamedTuple):
    """The contact of two boxes.

    The ends of a part of an edge (x and z from the center of the first box), and the boxes' distance at either end.
    """

    x: tuple[float, float]
    z: tuple[float, float]
    gap: tuple[float, float]


@inner_kernel
def contact_edge(first: Box, second: Box, normal_x: float, normal_z: float) -> Edge:
    """Return where two boxes touch, seen from above: the part that their adjacent edges share.

    The normal is perpendicular to this edge; the other box's edge is clipped at its ends.

    :param first: First box.
    :param second: Second box.
    :param normal_x: Component along x of a horizontal normal from `separation` of the same boxes.
    :param normal_z: Component along z of that normal.
    :return: Shared part of the edge.
    """
    if _alignment(first, normal_x, normal_z) < _alignment(second, normal_x, normal_z):
        edge = _shared_edge(second, first, -normal_x, -normal_z)
        x, z = second.x - first.x, second.z - first.z
        return Edge((edge.x[0] + x, edge.x[1] + x), (edge.z[0] + z, edge.z[1] + z), edge.gap)
    return _shared_edge(first, second, normal_x, normal_z)


@inner_kernel
def _alignment(one: Box, x: float, z: float) -> float:
    """Return how well a direction agrees with one of the box's axes: 1 if they are parallel."""
    return max(abs(one.sin * x + one.cos * z), abs(one.cos * x - one.sin * z))


@inner_kernel
def _shared_edge(owner: Box, other: Box, out_x: float, out_z: float) -> Edge:
    """Return the edge of `owner` on the side of the other box, to which (out_x, out_z) is perpendicular."""
    along_x, along_z = out_z, -out_x
    right_out, ahead_out = owner.cos * out_x - owner.sin * out_z, owner.sin * out_x + owner.cos * out_z
    depth = abs(right_out) * owner.half_x + abs(ahead_out) * owner.half_z
    width = abs(ahead_out) * owner.half_x + abs(right_out) * owner.half_z

    # The edge of the other box that faces this one most: the vector to its middle, and from there to one of its ends.
    right_out, ahead_out = other.cos * out_x - other.sin * out_z, other.sin * out_x + other.cos * out_z
    x, z = other.x - owner.x, other.z - owner.z
    if abs(ahead_out) > abs(right_out):
        half = copysign(other.half_z, ahead_out)
        x, z = x - half * other.sin, z - half * other.cos
        to_end_x, to_end_z = other.half_x * other.cos, -other.half_x * other.sin
    else:
        half = copysign(other.half_x, right_out)
        x, z = x - half * other.cos, z + half * other.sin
        to_end_x, to_end_z = other.half_z * other.sin, other.half_z * other.cos
    middle_along, middle_out = x * along_x + z * along_z, x * out_x + z * out_z
    end_along, end_out = to_end_x * along_x + to_end_z * along_z, to_end_x * out_x + to_end_z * out_z

    # Both ends, as shares of the vector from the middle to that end, clipped where the owner's edge ends.
    one = _share(middle_along - end_along, width, middle_along, end_along)
    two = _share(middle_along + end_along, width, middle_along, end_along)
    place_one, place_two = middle_along + one * end_along, middle_along + two * end_along
    return Edge(
        (place_one * along_x + depth * out_x, place_two * along_x + depth * out_x),
        (place_one * along_z + depth * out_z, place_two * along_z + depth * out_z),
        (middle_out + one * end_out - depth, middle_out + two * end_out - depth),
    )


@inner_kernel
def _share(end: float, width: float, middle: float, to_end: float) -> float:
    """Return the position of an edge's end, as a share from its middle to this end, clipped at ± width."""
    return max(-1.0, min(1.0, (max(-width, min(width, end)) - middle) / to_end))

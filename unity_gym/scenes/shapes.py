"""The solid things of a scene: what rays hit and bodies collide with.

Axes are Unity's: x right, y up, z forward, in metres. A yaw is clockwise as seen from above, in radians: yaw 0 looks
along +z, yaw 90° along +x.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from unity_gym.specs import Array


class Shapes:
    """Upright boxes with one row an area and one column a thing, the same things in every area.

    Columns: `center` (3, areas, things), `half` (3, areas, things: half the edge lengths before rounding), `rounding`
    (areas, things: what a box is grown by in all directions, so that a sphere is a box without edges), `yaw`
    (areas, things), `tag` (int, areas × things, index into `tags`), `visible` (bool, areas × things: rays hit it).

    :param areas: how many areas there are
    :param names: the things, in the order of the columns
    :param tags: of the things, in the same order; "" for none
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
        """The column of a thing."""
        return self.names.index(name)

    def place(self, name: str, low: Sequence[float], high: Sequence[float], yaw: float = 0.0) -> None:
        """Put a thing between two corners (x, y, z) in every area, then turn it about its centre."""
        column = self.index(name)
        corners = np.array([low, high], float)[..., np.newaxis]
        self.center[:, :, column] = corners.mean(axis=0)
        self.half[:, :, column] = (corners[1] - corners[0]) / 2
        self.yaw[:, column] = yaw


def separation(apart: Array, half: Array, yaw: Array, other_half: Array, other_yaw: Array) -> tuple[Array, Array]:
    """The distance of upright boxes along the axis on which they are farthest apart, or overlap least.

    :param apart: (3, …), from the centres of the first to those of the other boxes
    :param half: (3, …), half the edge lengths of the first boxes; also `other_half`
    :param yaw: (…), of the first boxes; also `other_yaw`
    :return: distances (…; negative where boxes overlap), and unit normals (3, …) from the first to the other boxes
    """
    x, y, z = apart
    if not x.size:
        return x, apart
    cos, sin, other_cos, other_sin = np.cos(yaw), np.sin(yaw), np.cos(other_yaw), np.sin(other_yaw)
    # Along the axes of the first boxes, of the other ones, and upwards.
    along = np.stack(
        [cos * x - sin * z, sin * x + cos * z, other_cos * x - other_sin * z, other_sin * x + other_cos * z, y]
    )
    c, s = np.abs(cos * other_cos + sin * other_sin), np.abs(sin * other_cos - cos * other_sin)
    gaps = np.abs(along)
    gaps[0] -= half[0] + other_half[0] * c + other_half[2] * s
    gaps[1] -= half[2] + other_half[0] * s + other_half[2] * c
    gaps[2] -= other_half[0] + half[0] * c + half[2] * s
    gaps[3] -= other_half[2] + half[0] * s + half[2] * c
    gaps[4] -= half[1] + other_half[1]
    axis = gaps.argmax(axis=0)
    sign = np.where(np.take_along_axis(along, axis[np.newaxis], axis=0)[0] < 0, -1, 1)
    normal = np.empty_like(apart)
    normal[0] = sign * np.choose(axis, [cos, sin, other_cos, other_sin, 0])
    normal[1] = sign * (axis == 4)
    normal[2] = sign * np.choose(axis, [-sin, cos, -other_sin, other_cos, 0])
    return gaps.max(axis=0), normal


def contact_edge(
    apart: Array, half: Array, yaw: Array, other_half: Array, other_yaw: Array, normal: Array
) -> tuple[Array, Array]:
    """Where upright boxes touch, as seen from above: both ends of the piece of an edge that the nearer edges share.

    It is the edge to which the normal is perpendicular; the other box's edge is cut off at its ends.

    :param normal: (3, k), level, from `separation` with the same boxes, whose arrays are (3, k) and (k)
    :return: points (2 ends, 2: x and z from the centre of the first box, k), and distances (2, k) of the boxes there
    """
    x, z = normal[0], normal[2]

    def alignment(turn: Array) -> Array:
        along = np.abs(np.sin(turn) * x + np.cos(turn) * z)
        return np.asarray(np.maximum(along, np.abs(np.cos(turn) * x - np.sin(turn) * z)))

    swapped = alignment(yaw) < alignment(other_yaw)  # the edge is one of the other box
    sign = np.where(swapped, -1, 1)
    yaw, other_yaw = np.where(swapped, other_yaw, yaw), np.where(swapped, yaw, other_yaw)
    half, other_half = np.where(swapped, other_half, half), np.where(swapped, half, other_half)
    out, along = sign * np.stack([x, z]), sign * np.stack([z, -x])  # out of the box with the edge, and along the edge
    across, forward = _axes(yaw)
    depth = np.abs((across * out).sum(axis=0)) * half[0] + np.abs((forward * out).sum(axis=0)) * half[2]
    width = np.abs((across * along).sum(axis=0)) * half[0] + np.abs((forward * along).sum(axis=0)) * half[2]

    # The edge of the other box that looks this way the most, in these axes: its middle, and to one of its ends.
    across, forward = _axes(other_yaw)
    facing_across, facing_forward = (across * out).sum(axis=0), (forward * out).sum(axis=0)
    by_forward = np.abs(facing_forward) > np.abs(facing_across)
    facing = np.where(by_forward, facing_forward, facing_across)
    middle = sign * apart[::2] - np.sign(facing) * np.where(by_forward, forward * other_half[2], across * other_half[0])
    to_end = np.where(by_forward, across * other_half[0], forward * other_half[2])
    middle_along, end_along = (middle * along).sum(axis=0), (to_end * along).sum(axis=0)
    middle_out, end_out = (middle * out).sum(axis=0), (to_end * out).sum(axis=0)
    ends = np.stack([middle_along - end_along, middle_along + end_along])
    share = np.clip((np.clip(ends, -width, width) - middle_along) / end_along, -1, 1)
    points = (middle_along + share * end_along)[:, np.newaxis] * along + depth * out
    points += np.where(swapped, apart[::2], 0)
    return points, middle_out + share * end_out - depth


def _axes(yaw: Array) -> tuple[Array, Array]:
    """Unit vectors (x and z) to the right and forward."""
    cos, sin = np.cos(yaw), np.sin(yaw)
    return np.stack([cos, -sin]), np.stack([sin, cos])

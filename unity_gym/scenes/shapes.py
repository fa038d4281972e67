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

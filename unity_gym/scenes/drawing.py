"""Drawing in world coordinates, for the images of `Scene.render`.

    canvas = Canvas(-6, -6, 6, 6)                      # meters; the image is 400 pixels wide
    canvas.rectangle(0, 0, 5, 5, FLOOR)
    canvas.rectangle(x, z, 0.5, 0.5, BLUE, angle=-yaw)  # Unity's yaw is clockwise seen from above
    return canvas.image

Later shapes cover earlier ones. Edges are antialiased over one pixel.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TypeAlias

import numpy as np

from unity_gym.specs import Array

Color: TypeAlias = tuple[int, int, int]

WHITE: Color = (255, 255, 255)
BACKGROUND: Color = (236, 239, 243)
FLOOR: Color = (208, 213, 220)
WALL: Color = (96, 104, 118)
BLACK: Color = (33, 37, 44)
BLUE: Color = (38, 110, 214)
RED: Color = (214, 57, 51)
GREEN: Color = (67, 160, 71)
ORANGE: Color = (240, 140, 30)
YELLOW: Color = (245, 200, 50)
PURPLE: Color = (136, 73, 190)

# Level faces of Unity's materials in the light of its scenes: medians of the images in GridWorld's demonstration. Those
# of headband and eyes are computed from the material's color (0 to 255) in the same light: 1.137 · color + 24.5.
LIT_WALL: Color = (137, 139, 143)
LIT_FLOOR: Color = (70, 73, 78)
LIT_AGENT: Color = (62, 195, 255)
LIT_PLUS: Color = (140, 238, 151)
LIT_EX: Color = (238, 92, 75)
LIT_HEADBAND: Color = (255, 213, 71)
LIT_EYE: Color = (42, 42, 42)


class Canvas:
    """An image of a part of a plane: the plane's first axis points right in the image, its second one up.

    :param left: Least visible first coordinate in m.
    :param bottom: Least visible second coordinate in m.
    :param right: Greatest visible first coordinate in m.
    :param top: Greatest visible second coordinate in m.
    :param pixels: Width of the image in pixels, from which the height follows. Both are rounded to even numbers, as
        video encoders require.
    :param color: Background color.
    """

    image: Array
    """The image, uint8 (height, width, 3), row 0 at the top."""

    def __init__(
        self, left: float, bottom: float, right: float, top: float, pixels: int = 400, color: Color = BACKGROUND
    ) -> None:
        width = 2 * round(pixels / 2)
        self._scale = width / (right - left)  # pixels per meter
        height = 2 * max(1, round((top - bottom) * self._scale / 2))
        self._left, self._top = left, top
        self.image = np.full((height, width, 3), color, np.uint8)

    def rectangle(
        self, x: float, y: float, half_width: float, half_height: float, color: Color, angle: float = 0
    ) -> None:
        """Fill a rectangle.

        :param x: First coordinate of its center in m.
        :param y: Second coordinate of its center in m.
        :param half_width: Half its width in m.
        :param half_height: Half its height in m.
        :param color: Color of the rectangle.
        :param angle: Counter-clockwise rotation in radians.
        """
        cos, sin = np.cos(angle), np.sin(angle)
        reach_x = abs(cos) * half_width + abs(sin) * half_height
        reach_y = abs(sin) * half_width + abs(cos) * half_height
        part, dx, dy = self._around(x - reach_x, y - reach_y, x + reach_x, y + reach_y, x, y)
        across, along = np.abs(cos * dx + sin * dy), np.abs(cos * dy - sin * dx)
        self._fill(part, np.maximum(across - half_width, along - half_height), color)

    def disc(self, x: float, y: float, radius: float, color: Color) -> None:
        """Fill a circle."""
        part, dx, dy = self._around(x - radius, y - radius, x + radius, y + radius, x, y)
        self._fill(part, np.hypot(dx, dy) - radius, color)

    def ring(self, x: float, y: float, radius: float, width: float, color: Color) -> None:
        """Draw the outline of a circle; its width (m) is centered on `radius`."""
        reach = radius + width / 2
        part, dx, dy = self._around(x - reach, y - reach, x + reach, y + reach, x, y)
        self._fill(part, np.abs(np.hypot(dx, dy) - radius) - width / 2, color)

    def line(self, x0: float, y0: float, x1: float, y1: float, width: float, color: Color) -> None:
        """Draw a line with round ends; `width` is in m."""
        half = width / 2
        part, dx, dy = self._around(
            min(x0, x1) - half, min(y0, y1) - half, max(x0, x1) + half, max(y0, y1) + half, x0, y0
        )
        length = (x1 - x0) ** 2 + (y1 - y0) ** 2
        share = np.clip((dx * (x1 - x0) + dy * (y1 - y0)) / max(length, 1e-12), 0, 1)
        self._fill(part, np.hypot(dx - share * (x1 - x0), dy - share * (y1 - y0)) - half, color)

    def polyline(self, points: Sequence[tuple[float, float]] | Array, width: float, color: Color) -> None:
        """Draw lines from point to point."""
        for (x0, y0), (x1, y1) in pairwise(points):
            self.line(x0, y0, x1, y1, width, color)

    def _around(
        self, left: float, bottom: float, right: float, top: float, x: float, y: float
    ) -> tuple[Array, Array, Array]:
        """Return the pixels of a part of the plane, and the positions of their centers relative to (x, y).

        The positions along the first axis precede those along the second.
        """
        height, width = self.image.shape[:2]
        columns = slice(
            max(0, int((left - self._left) * self._scale) - 1), max(0, int((right - self._left) * self._scale) + 2)
        )
        rows = slice(
            max(0, int((self._top - top) * self._scale) - 1), max(0, int((self._top - bottom) * self._scale) + 2)
        )
        dx = (np.arange(width)[columns] + 0.5) / self._scale + (self._left - x)
        dy = (self._top - y) - (np.arange(height)[rows] + 0.5) / self._scale
        return self.image[rows, columns], dx[np.newaxis, :], dy[:, np.newaxis]

    def _fill(self, part: Array, distance: Array, color: Color) -> None:
        """Paint the pixels with a negative distance (m) from the shape; its edge is one pixel wide."""
        cover = np.clip(0.5 - distance * self._scale, 0, 1)[..., np.newaxis]
        part += np.rint(cover * (np.asarray(color, np.float64) - part)).astype(np.int16).astype(np.uint8)

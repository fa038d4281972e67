"""The grid sensor: which kind of thing stands on each cell of a square that turns with the agent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from unity_gym.scenes.sensors.rays import Pose
from unity_gym.scenes.sensors.sensor import ImageSensor
from unity_gym.scenes.shapes import Shapes
from unity_gym.specs import Array

_CELL = 1.0  # m


class _Pairs(NamedTuple):
    """Things near sensors, one column a pair: what a cell is tested against, in the sensor's frame and unit.

    `agent` and `thing`: int (p). `side`, `ahead`: where the thing is, to the right and forward. `half` (2, p): half its
    edges before rounding. `cos`, `sin`: of its yaw relative to the sensor's. `radius`: its rounding at the sensor's
    height. `cell`: half a cell's edge.
    """

    agent: Array
    thing: Array
    side: Array
    ahead: Array
    half: Array
    cos: Array
    sin: Array
    radius: Array
    cell: Array

    def take(self, index: Array) -> _Pairs:
        return _Pairs(*(column[..., index] for column in self))


class GridSensor(ImageSensor):
    """A square of cells of 1 m around the sensor, one channel a detectable tag, 255 where a cell holds such a thing.

    In the image, row 0 is the sensor's right edge and the last column its far end: the middle of row h and column w of
    n × n cells lies (n - 1) / 2 - h metres to the right and w - (n - 1) / 2 metres ahead. As in Unity, the agent's own
    shape is not seen, and of several things in a cell the one counts whose axis-aligned box has the point that is
    nearest to the middle of the cell nearest to the sensor; of equals, which Unity leaves to chance, the first.

    :param name: as Unity sends it, without "-OneHot"
    :param shapes: what there is to see
    :param pose: where the sensors of the agents with the given indices are
    :param own: int (agents), the column of each agent's own thing in `shapes`
    :param tags: detectable tags in the order of their channels
    :param size: cells along an edge
    :param half_height: how far above and below the sensor cells reach, m
    :param scale: of the agents with the given indices; it moves the cells apart and does not enlarge them
    """

    def __init__(
        self,
        name: str,
        shapes: Shapes,
        pose: Callable[[Array], Pose],
        own: Array,
        tags: Sequence[str],
        *,
        size: int,
        half_height: float,
        scale: Callable[[Array], Array] | None = None,
    ) -> None:
        super().__init__(f"{name}-OneHot", (len(tags), size, size), self.images)
        self._shapes, self._pose, self._own, self._scale = shapes, pose, own, scale
        self._size, self._half_height = size, half_height
        self._channel = np.array([tags.index(tag) if tag in tags else -1 for tag in shapes.tags])
        self._tags = len(tags)

    def images(self, rows: Array) -> Array:
        """What the agents `rows` see, uint8 (k, tags, size, size)."""
        shapes, size = self._shapes, self._size
        area, position, yaw = self._pose(rows)
        scale = np.ones(len(rows)) if self._scale is None else self._scale(rows)
        channel = self._channel[shapes.tag[area]]
        seen = shapes.visible[area] & (channel >= 0)
        seen[np.arange(len(rows)), self._own[rows]] = False
        pairs = self._near(area, position, yaw, scale, seen)

        is_round = (pairs.half == 0).all(axis=0)
        hits = [
            _cells(pairs.take(np.flatnonzero(kind)), size, span)
            for kind, span in ((is_round, _span_of_disc), (~is_round, _span_of_box))
        ]
        agent, thing, row, column = (np.concatenate(parts) for parts in zip(*hits, strict=True))

        # From the agent to the point of the thing's axis-aligned box that is nearest to the middle of the cell.
        cos, sin, apart = np.cos(yaw)[agent], np.sin(yaw)[agent], scale[agent]
        side, ahead = ((size - 1) / 2 - row) * apart, (column - (size - 1) / 2) * apart
        middle = np.array([cos * side + sin * ahead, np.zeros(len(side)), cos * ahead - sin * side])
        place = area[agent], thing
        turned_cos, turned_sin = np.abs(np.cos(shapes.yaw[place])), np.abs(np.sin(shapes.yaw[place]))
        x, y, z = shapes.half[:, area[agent], thing]
        reach = np.array([turned_cos * x + turned_sin * z, y, turned_sin * x + turned_cos * z]) + shapes.rounding[place]
        center = shapes.center[:, area[agent], thing] - position[:, agent]
        nearest = np.clip(middle, center - reach, center + reach)
        order = np.lexsort((-thing, -(nearest * nearest).sum(axis=0)))  # of several in a cell the last one stays

        winner = np.full((len(rows), size, size), -1)
        winner[agent[order], row[order], column[order]] = channel[agent, thing][order]
        images: Array = (winner[:, np.newaxis] == np.arange(self._tags)[:, np.newaxis, np.newaxis]).astype(np.uint8)
        images *= 255
        return images

    def _near(self, area: Array, position: Array, yaw: Array, scale: Array, seen: Array) -> _Pairs:
        """The things that may be on a cell, of those that are `seen` (agents, things)."""
        shapes = self._shapes
        x, y, z = shapes.center[:, area] - position[..., np.newaxis]
        cos, sin, unit = (column[:, np.newaxis] for column in (np.cos(yaw), np.sin(yaw), 1 / (scale * _CELL)))
        side, ahead = (cos * x - sin * z) * unit, (sin * x + cos * z) * unit
        rounding = shapes.rounding[area]
        above = np.maximum(np.abs(y) - shapes.half[1, area] - self._half_height, 0)
        radius = np.sqrt(np.maximum(rounding * rounding - above * above, 0)) * unit
        half = shapes.half[::2, area] * unit
        turn = shapes.yaw[area] - yaw[:, np.newaxis]
        far = np.hypot(*half) + radius + self._size / 2 + 1
        at = agent, thing = np.nonzero(seen & (above <= rounding) & (np.abs(side) < far) & (np.abs(ahead) < far))
        return _Pairs(
            agent,
            thing,
            side[at],
            ahead[at],
            half[:, agent, thing],
            np.cos(turn[at]),
            np.sin(turn[at]),
            radius[at],
            (0.5 * _CELL * unit)[agent, 0],
        )


def _cells(pairs: _Pairs, size: int, span: Callable[[Array, _Pairs], tuple[Array, Array]]) -> tuple[Array, ...]:
    """The cells that things overlap: agent, thing, row and column, int, one entry each.

    :param span: how far ahead of the middle of a cell a thing may at least and at most be, that is so far at its side
    """
    edge = (size - 1) / 2
    reach = np.abs(pairs.cos) * pairs.half[0] + np.abs(pairs.sin) * pairs.half[1] + pairs.radius + pairs.cell
    index, row = _expand(edge - pairs.side - reach, edge - pairs.side + reach, size)
    lines = pairs.take(index)
    least, most = span(lines.side - (edge - row), lines)
    index, column = _expand(edge + lines.ahead - most, edge + lines.ahead - least, size)
    return lines.agent[index], lines.thing[index], row[index], column


def _expand(low: Array, high: Array, size: int) -> tuple[Array, Array]:
    """The whole numbers from 0 to size - 1 that lie in intervals: of each the interval's index, and the number."""
    first = np.ceil(np.clip(low, 0, size)).astype(np.intp)
    last = np.floor(np.clip(high, -1, size - 1)).astype(np.intp)
    count = np.maximum(last - first + 1, 0)
    index = np.repeat(np.arange(len(count)), count)
    return index, np.arange(len(index)) + np.repeat(first - np.cumsum(count) + count, count)


def _span_of_disc(side: Array, pairs: _Pairs) -> tuple[Array, Array]:
    beside = np.maximum(np.abs(side) - pairs.cell, 0)
    most = pairs.cell + np.sqrt(np.maximum(pairs.radius**2 - beside**2, 0))
    return -most, most


def _span_of_box(side: Array, pairs: _Pairs) -> tuple[Array, Array]:
    """By the separating axis theorem; a rounding counts as if it were square."""
    (x, z), cell, cos, sin = pairs.half + pairs.radius, pairs.cell, pairs.cos, pairs.sin
    diagonal = cell * (np.abs(cos) + np.abs(sin))
    most = cell + np.abs(sin) * x + np.abs(cos) * z
    least = -most
    # Along the box's own axes, |offset + slope · ahead| has to be within the limit.
    for offset, slope, limit in ((cos * side, -sin, x + diagonal), (sin * side, cos, z + diagonal)):
        slope = np.where(np.abs(slope) < 1e-9, 1e-9, slope)
        middle, around = -offset / slope, limit / np.abs(slope)
        least, most = np.maximum(least, middle - around), np.minimum(most, middle + around)
    return least, most

"""The grid sensor: the kind of thing on each cell of a square that turns with the agent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil, cos, floor, inf, sin, sqrt
from typing import NamedTuple

import numpy as np

from unity_gym.scenes.kernels import inner_kernel, kernel
from unity_gym.scenes.sensors.rays import Pose
from unity_gym.scenes.sensors.sensor import ImageSensor
from unity_gym.scenes.shapes import Shapes
from unity_gym.specs import Array

_CELL = 1.0  # m


class GridSensor(ImageSensor):
    """A square of cells of 1 m around the sensor, one channel per detectable tag, 255 where a cell has such a thing.

    In the image, row 0 is the sensor's right edge and the last column its far end. The middle of row h and column w of
    n × n cells is (n - 1) / 2 - h meters to the right and w - (n - 1) / 2 meters ahead.

    As in Unity, the agent's own shape is invisible. If a cell has several things, the sensor takes, of each thing's
    axis-aligned box, the point nearest to the middle of the cell. The thing whose point is nearest to the sensor
    counts. Of equals, for which Unity's order is undefined, the first one counts.

    :param name: Name as Unity sends it, without "-OneHot".
    :param shapes: Things that the sensor detects.
    :param pose: Function that returns the poses of the sensors of the agents with the given indices.
    :param own: Index of each agent's own thing in `shapes`, int (agents).
    :param tags: Detectable tags in the order of their channels.
    :param size: Number of cells along an edge.
    :param half_height: Height of the cells above and below the sensor in m.
    :param scale: Function that returns the scales of the agents with the given indices. A scale moves the cells apart
        and does not enlarge them.
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
        self._half_height = half_height
        self._channel = np.array([tags.index(tag) if tag in tags else -1 for tag in shapes.tags])

    def images(self, rows: Array) -> Array:
        """Return the images of the agents, uint8 (k, PNGs, size, size, 3): three tags per PNG, the last one padded."""
        shapes = self._shapes
        area, position, yaw = self._pose(rows)
        scale = np.ones(len(rows)) if self._scale is None else self._scale(rows)
        tags, size, _ = self.shape
        images = np.zeros((len(rows), -(-tags // 3), size, size, 3), np.uint8)
        _see(
            _Scenery(shapes.center, shapes.half, shapes.rounding, shapes.yaw),
            shapes.visible,
            self._channel[shapes.tag],
            area,
            np.ascontiguousarray(position),
            yaw,
            scale,
            self._own[rows],
            self._half_height,
            images,
        )
        return images


class _Scenery(NamedTuple):
    """The arrays of `Shapes` that hold the poses and sizes of things."""

    center: Array
    half: Array
    rounding: Array
    yaw: Array


class _Sensor(NamedTuple):
    """Position (m), yaw (rad) with its cosine and sine, and scale of a sensor."""

    x: float
    y: float
    z: float
    yaw: float
    cos: float
    sin: float
    scale: float


class _Box(NamedTuple):
    """A box in the axes of the area: center relative to a sensor, and half the edges, in m."""

    x: float
    y: float
    z: float
    reach_x: float
    reach_y: float
    reach_z: float


class _Thing(NamedTuple):
    """A thing in the axes of a sensor, in units of the distance of its cells.

    `side`, `ahead`: center, to the right and forward. `half_x`, `half_z`: half the edges before rounding. `cos`, `sin`:
    of the yaw relative to the sensor's. `radius`: rounding at the height of the sensor. `cell`: half a cell's edge.
    """

    side: float
    ahead: float
    half_x: float
    half_z: float
    cos: float
    sin: float
    radius: float
    cell: float


@kernel
def _see(
    scenery: _Scenery,
    visible: Array,
    channel: Array,
    area: Array,
    position: Array,
    yaw: Array,
    scale: Array,
    own: Array,
    half_height: float,
    images: Array,
) -> None:
    """Write the images of the agents to `images` (agents, PNGs, size, size, 3), which contains zeros."""
    size = images.shape[2]
    edge = (size - 1) / 2
    distances = np.empty((size, size))
    for k in range(len(area)):
        distances[:] = inf
        x, y, z = position[:, k]
        sensor = _Sensor(x, y, z, yaw[k], cos(yaw[k]), sin(yaw[k]), scale[k])
        for thing in range(channel.shape[1]):
            thing_channel = channel[area[k], thing]
            if thing == own[k] or thing_channel < 0 or not visible[area[k], thing]:
                continue
            above = abs(scenery.center[1, area[k], thing] - sensor.y) - scenery.half[1, area[k], thing]
            above = max(above - half_height, 0.0)
            if above > scenery.rounding[area[k], thing]:
                continue
            seen = _from_sensor(scenery, area[k], thing, sensor, above)
            reach = abs(seen.cos) * seen.half_x + abs(seen.sin) * seen.half_z + seen.radius + seen.cell
            first_row, last_row = _first(edge - seen.side - reach, size), _last(edge - seen.side + reach, size)
            if first_row > last_row:
                continue
            box = _axis_aligned_box(scenery, area[k], thing, sensor)
            for row in range(first_row, last_row + 1):
                least, most = _span(seen, seen.side - (edge - row))
                first, last = _first(edge + seen.ahead - most, size), _last(edge + seen.ahead - least, size)
                for column in range(first, last + 1):
                    distance = _distance(box, sensor, (edge - row) * sensor.scale, (column - edge) * sensor.scale)
                    if distance < distances[row, column]:
                        distances[row, column] = distance
                        for png in range(images.shape[1]):
                            for color in range(3):
                                images[k, png, row, column, color] = 255 if 3 * png + color == thing_channel else 0


@inner_kernel
def _first(place: float, size: int) -> int:
    """Return the first cell at or after a place."""
    return ceil(min(max(place, 0.0), float(size)))


@inner_kernel
def _last(place: float, size: int) -> int:
    """Return the last cell at or before a place."""
    return floor(min(max(place, -1.0), size - 1.0))


@inner_kernel
def _from_sensor(scenery: _Scenery, area: int, thing: int, sensor: _Sensor, above: float) -> _Thing:
    """Return a thing in the axes of a sensor; `above`: m from the cells up or down to its box."""
    x, z = scenery.center[0, area, thing] - sensor.x, scenery.center[2, area, thing] - sensor.z
    unit = 1 / (sensor.scale * _CELL)
    half_x, half_z = scenery.half[0, area, thing], scenery.half[2, area, thing]
    turn = scenery.yaw[area, thing] - sensor.yaw if half_x > 0 or half_z > 0 else 0.0
    rounding = scenery.rounding[area, thing]
    return _Thing(
        (sensor.cos * x - sensor.sin * z) * unit,
        (sensor.sin * x + sensor.cos * z) * unit,
        half_x * unit,
        half_z * unit,
        cos(turn),
        sin(turn),
        sqrt(max(rounding * rounding - above * above, 0.0)) * unit,
        0.5 * _CELL * unit,
    )


@inner_kernel
def _span(thing: _Thing, side: float) -> tuple[float, float]:
    """Return how far at least and at most a thing `side` to the right of a cell's middle may be ahead of it."""
    cell, radius = thing.cell, thing.radius
    if thing.half_x == 0 and thing.half_z == 0:
        offset = max(abs(side) - cell, 0.0)
        most = cell + sqrt(max(radius * radius - offset * offset, 0.0))
        return -most, most
    # A box, by the separating axis theorem; a rounding counts as if it were square.
    half_x, half_z = thing.half_x + radius, thing.half_z + radius
    diagonal = cell * (abs(thing.cos) + abs(thing.sin))
    most = cell + abs(thing.sin) * half_x + abs(thing.cos) * half_z
    least = -most
    # Along the box's own axes, |offset + slope · ahead| has to be within the limit.
    for offset, direction, limit in (
        (thing.cos * side, -thing.sin, half_x + diagonal),
        (thing.sin * side, thing.cos, half_z + diagonal),
    ):
        slope = direction if abs(direction) >= 1e-9 else 1e-9
        middle, around = -offset / slope, limit / abs(slope)
        least, most = max(least, middle - around), min(most, middle + around)
    return least, most


@inner_kernel
def _axis_aligned_box(scenery: _Scenery, area: int, thing: int, sensor: _Sensor) -> _Box:
    """Return the box around a thing, relative to a sensor."""
    turn_cos, turn_sin = abs(cos(scenery.yaw[area, thing])), abs(sin(scenery.yaw[area, thing]))
    x, y, z = scenery.half[0, area, thing], scenery.half[1, area, thing], scenery.half[2, area, thing]
    rounding = scenery.rounding[area, thing]
    return _Box(
        scenery.center[0, area, thing] - sensor.x,
        scenery.center[1, area, thing] - sensor.y,
        scenery.center[2, area, thing] - sensor.z,
        turn_cos * x + turn_sin * z + rounding,
        y + rounding,
        turn_sin * x + turn_cos * z + rounding,
    )


@inner_kernel
def _distance(box: _Box, sensor: _Sensor, side: float, ahead: float) -> float:
    """Return the squared distance (m²) from a sensor to the point of a box that is nearest to the middle of a cell.

    :param side: Position of the middle of the cell to the right of the sensor in m.
    :param ahead: Position of the middle of the cell in front of the sensor in m.
    """
    x = _nearest(box.x, box.reach_x, sensor.cos * side + sensor.sin * ahead)
    y = _nearest(box.y, box.reach_y, 0.0)
    z = _nearest(box.z, box.reach_z, sensor.cos * ahead - sensor.sin * side)
    return x * x + y * y + z * z


@inner_kernel
def _nearest(center: float, reach: float, place: float) -> float:
    """Return the position within an interval that is nearest to a place."""
    return min(max(place, center - reach), center + reach)

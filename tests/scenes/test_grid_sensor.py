"""The grid sensor against a slow implementation of its rules: one agent, one cell, one object at a time."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from unity_gym.scenes.sensors.grid import GridSensor
from unity_gym.scenes.sensors.rays import Pose
from unity_gym.scenes.shapes import Shapes

TAGS = ("block", "ball", "goal")


def corners(x: float, z: float, half_x: float, half_z: float, yaw: float) -> list[tuple[float, float]]:
    cos, sin = math.cos(yaw), math.sin(yaw)
    return [
        (x + cos * a * half_x + sin * b * half_z, z - sin * a * half_x + cos * b * half_z)
        for a, b in ((1, 1), (1, -1), (-1, -1), (-1, 1))
    ]


def overlap(one: list[tuple[float, float]], other: list[tuple[float, float]]) -> bool:
    """Return whether two rectangles, given by their corners in order, have a common point."""
    for shape in (one, other):
        for (x0, z0), (x1, z1) in itertools.pairwise(shape):
            axis = x1 - x0, z1 - z0
            spans = [[axis[0] * x + axis[1] * z for x, z in rectangle] for rectangle in (one, other)]
            if max(spans[0]) < min(spans[1]) or max(spans[1]) < min(spans[0]):
                return False
    return True


def seen(shapes: Shapes, area: int, own: int, position: np.ndarray, yaw: float, size: int, scale: float) -> np.ndarray:
    """Return the image of one agent."""
    image = np.zeros((len(TAGS), size, size), np.uint8)
    for row, column in itertools.product(range(size), range(size)):
        side, ahead = scale * ((size - 1) / 2 - row), scale * (column - (size - 1) / 2)
        x = position[0] + math.cos(yaw) * side + math.sin(yaw) * ahead
        z = position[2] - math.sin(yaw) * side + math.cos(yaw) * ahead
        best, winner = math.inf, -1
        for thing in range(shapes.tag.shape[1]):
            tag = shapes.tags[shapes.tag[area, thing]]
            if thing == own or tag not in TAGS or not shapes.visible[area, thing]:
                continue
            cx, cy, cz = shapes.center[:, area, thing]
            hx, hy, hz = shapes.half[:, area, thing]
            radius, turn = shapes.rounding[area, thing], shapes.yaw[area, thing]
            above = max(abs(cy - position[1]) - hy - 0.1, 0)
            if above > radius:
                continue
            if radius:
                dx, dz = cx - x, cz - z
                right, forward = math.cos(yaw) * dx - math.sin(yaw) * dz, math.sin(yaw) * dx + math.cos(yaw) * dz
                hit = math.hypot(max(abs(right) - 0.5, 0), max(abs(forward) - 0.5, 0), above) <= radius
            else:
                hit = overlap(corners(x, z, 0.5, 0.5, yaw), corners(cx, cz, hx, hz, turn))
            if hit:
                cos, sin = abs(math.cos(turn)), abs(math.sin(turn))
                reach = np.array([cos * hx + sin * hz, hy, sin * hx + cos * hz]) + radius
                center = shapes.center[:, area, thing]
                point = np.clip([x, position[1], z], center - reach, center + reach)
                distance = float(np.sum((point - position) ** 2))
                if distance < best:
                    best, winner = distance, TAGS.index(tag)
        if winner >= 0:
            image[winner, row, column] = 255
    return image


@pytest.mark.parametrize("seed", range(4))
def test_grid_images_equal_a_slow_reference(seed: int) -> None:
    rng = np.random.default_rng(seed)
    areas, things, size = 2, 14, 10
    tags = ["block", "ball", "goal", "floor"]
    shapes = Shapes(areas, [str(i) for i in range(things)], [tags[i % 4] for i in range(things)])
    shapes.center[:] = rng.uniform(-7, 7, (3, areas, things))
    shapes.center[1] = rng.uniform(-0.8, 0.8, (areas, things))
    balls = np.arange(things) % 4 == 1
    shapes.half[:] = np.where(balls, 0, rng.uniform(0.1, 2.5, (3, areas, things)))
    shapes.half[0, :, 0] = 30  # a wall
    shapes.rounding[:] = np.where(balls, rng.uniform(0.2, 1.5, (areas, things)), 0)
    shapes.yaw[:] = rng.uniform(-4, 4, (areas, things))
    shapes.yaw[1, 0] = 0
    shapes.visible[0, 3] = False
    own = rng.integers(0, things, 4)
    area, yaw = np.array([0, 1, 0, 1]), np.append(rng.uniform(-4, 4, 3), 0.0)
    position, scale = rng.uniform(-3, 3, (3, 4)), np.array([1, 1, 1.5, 0.6])
    position[1] = rng.uniform(-0.5, 0.5, 4)
    sensor = GridSensor(
        "Grid",
        shapes,
        lambda rows: Pose(area[rows], position[:, rows], yaw[rows]),
        own,
        TAGS,
        size=size,
        half_height=0.1,
        scale=lambda rows: scale[rows],
    )
    assert (sensor.name, sensor.shape) == ("Grid-OneHot", (3, size, size))
    rows = np.array([3, 0, 2, 1])
    expected = [seen(shapes, area[i], own[i], position[:, i], yaw[i], size, scale[i]) for i in rows]
    (pixels,) = sensor.images(rows).swapaxes(0, 1)  # one PNG per agent: a channel per color
    np.testing.assert_array_equal(pixels.transpose(0, 3, 1, 2), expected)
    assert np.mean(expected) > 10  # the images are not empty

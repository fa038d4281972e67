"""How the cubes of several scenes move and begin: one of seven choices adds to their speed or turns them."""

from __future__ import annotations

import numpy as np

from unity_gym.scenes.bodies import Bodies
from unity_gym.scenes.sensors.rays import Pose
from unity_gym.scenes.shapes import Shapes, separation
from unity_gym.specs import ActionSpec, Array

SPEED = 3.0  # m/s that a push adds in a tick
TURN = np.radians(4)  # a tick
_SPAWN = 6.25  # m from the middle
_THICKNESS = 0.01  # m, half of it: of the box that has to be free
SEVEN_MOVES = ActionSpec(0, (7,))
# Nothing, forward, backward, turn right, turn left, left, right: what a tick of it adds forward, to the right, to yaw.
_MOVES = np.array(
    [
        [0, 0, 0],
        [SPEED, 0, 0],
        [-SPEED, 0, 0],
        [0, 0, TURN],
        [0, 0, -TURN],
        [0, -0.75 * SPEED, 0],
        [0, 0.75 * SPEED, 0],
    ]
)


class Walkers:
    """The same number of agents in each area, which are the first bodies: agent k of area a is row a · number + k."""

    def __init__(self, bodies: Bodies, number: int) -> None:
        self._bodies, self._number = bodies, number

    def place(self, rows: Array) -> tuple[Array, Array]:
        """Areas and columns of the agents `rows`, int (k)."""
        return rows // self._number, rows % self._number

    def pose(self, rows: Array) -> Pose:
        """Where they are."""
        area, column = self.place(rows)
        shapes = self._bodies.shapes
        return Pose(area, shapes.center[:, area, column], shapes.yaw[area, column])

    def velocity(self, rows: Array) -> Array:
        """(3, k), m/s."""
        area, column = self.place(rows)
        return self._bodies.velocity[:, area, column]

    def move(self, rows: Array, choices: Array) -> None:
        """One tick of what they chose, int (k)."""
        self.push(rows, *_MOVES[choices].T)

    def push(self, rows: Array, ahead: Array, right: Array | float, turn: Array) -> None:
        """Add to their speed (m/s) along their axes, and turn them (radians)."""
        area, column = self.place(rows)
        yaw, velocity = self._bodies.shapes.yaw, self._bodies.velocity
        sin, cos = np.sin(yaw[area, column]), np.cos(yaw[area, column])
        velocity[0, area, column] += ahead * sin + right * cos
        velocity[2, area, column] += ahead * cos - right * sin
        yaw[area, column] += turn


def spawn(shapes: Shapes, rng: np.random.Generator, areas: Array, column: int, clearance: float) -> None:
    """Put a thing 1 m above the ground, up to 6.25 m from the middle, where nothing is near it.

    Its own old place and those of other things count, as far as they reach up to that height.

    :param areas: int (k), in which the thing is put
    :param clearance: m, half the edge of the square that has to be free
    """
    reach, no_yaw = np.array([clearance, _THICKNESS, clearance])[:, np.newaxis, np.newaxis], np.zeros((1, 1))
    while len(areas):
        place = np.ones((3, len(areas)))
        place[::2] = rng.uniform(-_SPAWN, _SPAWN, (2, len(areas)))
        apart = shapes.center[:, areas] - place[..., np.newaxis]
        gap, _ = separation(apart, reach, no_yaw, shapes.half[:, areas], shapes.yaw[areas])
        free = (gap > 0).all(axis=1)
        shapes.center[:, areas[free], column] = place[:, free]
        areas = areas[~free]

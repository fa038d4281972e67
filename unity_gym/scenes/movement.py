"""The movement and spawning of the cubes of several scenes: an action adds to their speed or turns them."""

from __future__ import annotations

from math import cos, sin

import numpy as np

from unity_gym.errors import PlayerError
from unity_gym.scenes.bodies import Bodies
from unity_gym.scenes.kernels import inner_kernel, kernel
from unity_gym.scenes.sensors.rays import Pose
from unity_gym.scenes.shapes import Box, Shapes, box, separation
from unity_gym.specs import ActionSpec, Array

SPEED = 3.0  # m/s that a push adds per tick
TURN = np.radians(4)  # per tick
_SPAWN = 6.25  # m from the middle
_MOST_TRIES = 10_000
_THICKNESS = 0.01  # m, half the height of the box that must be free
SEVEN_MOVES = ActionSpec(0, (7,))
# No action, forward, backward, turn right, turn left, left, right: changes of forward speed, right speed and yaw.
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
        """Return the areas and indices of the agents `rows`, int (k)."""
        return rows // self._number, rows % self._number

    def pose(self, rows: Array) -> Pose:
        """Return the poses of the agents `rows`."""
        area, column = self.place(rows)
        shapes = self._bodies.shapes
        return Pose(area, shapes.center[:, area, column], shapes.yaw[area, column])

    def velocity(self, rows: Array) -> Array:
        """Return the velocities of the agents `rows`, (3, k), in m/s."""
        area, column = self.place(rows)
        return self._bodies.velocity[:, area, column]

    def move(self, rows: Array, actions: Array, moves: Array = _MOVES) -> None:
        """Apply one tick of discrete actions, int (k).

        :param rows: Agent indices, int (k).
        :param actions: Discrete actions, int (k).
        :param moves: Changes by each action of the speed ahead and to the right (m/s) and of the yaw (radians),
            float (actions, 3).
        """
        self.push(rows, moves[actions])

    def push(self, rows: Array, changes: Array) -> None:
        """Add changes (k, 3) of the speed ahead and to the right (m/s) and of the yaw (radians)."""
        _push(rows, changes, self._number, self._bodies.shapes.yaw, self._bodies.velocity)


@inner_kernel
def _push(rows: Array, changes: Array, number: int, yaw: Array, velocity: Array) -> None:
    for k in range(len(rows)):
        area, column = rows[k] // number, rows[k] % number
        ahead, right, turn = changes[k, 0], changes[k, 1], changes[k, 2]
        turn_sin, turn_cos = sin(yaw[area, column]), cos(yaw[area, column])
        velocity[0, area, column] += ahead * turn_sin + right * turn_cos
        velocity[2, area, column] += ahead * turn_cos - right * turn_sin
        yaw[area, column] += turn


def spawn(
    shapes: Shapes, rng: np.random.Generator, areas: Array, column: int, clearance: float, tries: int | None = None
) -> None:
    """Place a thing 1 m above the ground, up to 6.25 m from the middle, where nothing is near it.

    Its old place and those of other things count as occupied if they reach up to that height.

    :param shapes: Shapes that contain the thing.
    :param rng: Random generator of the scene.
    :param areas: Areas in which the thing is placed, int (k).
    :param column: Index of the thing.
    :param clearance: Half the edge of the square that must be free, in m.
    :param tries: Number of places to try, of which the last is taken even if it is occupied; by default it never is.
    :raises PlayerError: If other things leave no free place.
    """
    for tried in range(1, _MOST_TRIES + 1):
        place = np.ones((3, len(areas)))
        place[::2] = rng.uniform(-_SPAWN, _SPAWN, (2, len(areas)))
        free = _is_free(shapes.center, shapes.half, shapes.yaw, areas, place, clearance) | (tried == tries)
        shapes.center[:, areas[free], column] = place[:, free]
        areas = areas[~free]
        if not len(areas):
            return
    raise PlayerError(
        f"no place within {_SPAWN} m of the middle of an area is {clearance} m away from all things: make them smaller "
        "with the environment parameters of the scene, such as block_scale"
    )


@kernel
def _is_free(center: Array, half: Array, yaw: Array, areas: Array, place: Array, clearance: float) -> Array:
    free = np.ones(len(areas), np.bool_)
    for k in range(len(areas)):
        around = Box(place[0, k], place[1, k], place[2, k], clearance, _THICKNESS, clearance, 1.0, 0.0)
        for thing in range(center.shape[2]):
            if separation(around, box(center, half, yaw, areas[k], thing))[0] <= 0:
                free[k] = False
                break
    return free

"""The rigid body sensor: the velocity of an agent along its own axes."""

from __future__ import annotations

from collections.abc import Callable
from math import cos, sin

import numpy as np

from unity_gym.scenes.kernels import inner_kernel
from unity_gym.scenes.sensors.rays import Pose
from unity_gym.scenes.sensors.sensor import VectorSensor
from unity_gym.specs import Array


class RigidBodySensor(VectorSensor):
    """The velocity along the agent's own axes (right, up, forward, m/s) and its pose relative to its root.

    As the agent is its own root, the pose is always the position 0, 0, 0 and the quaternion 0, 0, 0, 1.

    :param pose: Function that returns the poses of the agents with the given indices.
    :param velocity: Function that returns the velocities of the agents with the given indices, (3, k), along the
        world's axes, in m/s.
    :param velocity_first: Whether the velocity precedes the pose.
    """

    def __init__(
        self,
        pose: Callable[[Array], Pose],
        velocity: Callable[[Array], Array],
        *,
        velocity_first: bool = True,
    ) -> None:
        super().__init__("RBSensor", 10, self._feel)
        self._pose, self._velocity = pose, velocity
        self._first, self._one = (0, 9) if velocity_first else (7, 6)

    def _feel(self, rows: Array) -> Array:
        felt = np.zeros((len(rows), 10), np.float32)
        _write_velocity(self._pose(rows).yaw, np.ascontiguousarray(self._velocity(rows)), felt, self._first)
        felt[:, self._one] = 1
        return felt


@inner_kernel
def _write_velocity(yaw: Array, velocity: Array, felt: Array, first: int) -> None:
    """Write velocities (3, k) along the axes of bodies with a yaw (k) to three columns of `felt`, from `first` on."""
    for k in range(len(yaw)):
        turn_cos, turn_sin = cos(yaw[k]), sin(yaw[k])
        x, y, z = velocity[0, k], velocity[1, k], velocity[2, k]
        felt[k, first] = turn_cos * x - turn_sin * z
        felt[k, first + 1] = y
        felt[k, first + 2] = turn_sin * x + turn_cos * z

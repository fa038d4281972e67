"""The rigid body sensor: the velocity of an agent along its own axes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

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
        _, _, yaw = self._pose(rows)
        x, y, z = self._velocity(rows)
        cos, sin = np.cos(yaw), np.sin(yaw)
        felt = np.zeros((len(rows), 10), np.float32)
        felt[:, self._first : self._first + 3] = np.stack([cos * x - sin * z, y, sin * x + cos * z], axis=1)
        felt[:, self._one] = 1
        return felt

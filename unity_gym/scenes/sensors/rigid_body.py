"""The rigid body sensor: how fast an agent moves, as it feels it itself."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from unity_gym.scenes.sensors.rays import Pose
from unity_gym.scenes.sensors.sensor import VectorSensor
from unity_gym.specs import Array


class RigidBodySensor(VectorSensor):
    """The velocity along the agent's own axes (right, up, forward, m/s), then where its root is and how it is turned.

    As the agent is its own root, the latter are always 0, 0, 0 and the quaternion 0, 0, 0, 1.

    :param pose: where the agents with the given indices are
    :param velocity: of the agents with the given indices, (3, k), along the world's axes
    """

    def __init__(self, pose: Callable[[Array], Pose], velocity: Callable[[Array], Array]) -> None:
        super().__init__("RBSensor", 10, self._feel)
        self._pose, self._velocity = pose, velocity

    def _feel(self, rows: Array) -> Array:
        _, _, yaw = self._pose(rows)
        x, y, z = self._velocity(rows)
        cos, sin = np.cos(yaw), np.sin(yaw)
        felt = np.zeros((len(rows), 10), np.float32)
        felt[:, 0], felt[:, 1], felt[:, 2] = cos * x - sin * z, y, sin * x + cos * z
        felt[:, 9] = 1
        return felt

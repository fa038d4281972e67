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
    :param velocity_first: it comes before the rest, not after
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

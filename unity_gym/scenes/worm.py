"""Worm: a head and three segments crawl towards a target."""

from __future__ import annotations

import math

import numpy as np

from unity_gym.scenes.articulated.scene import ArticulatedScene
from unity_gym.scenes.articulated.skeleton import GROUND, Drive, Part, Skeleton, capsule, carried_part, sphere
from unity_gym.scenes.kernels import kernel
from unity_gym.scenes.rotations import euler, from_to, local_axis, multiply_inverse, rotate_inverse
from unity_gym.scenes.sensors import Sensor, VectorSensor
from unity_gym.specs import Array

_HEIGHT = 1.65  # m, at the start
_SPEED = 10.0  # m/s
_RAY = 10.0  # m
_DEEPEST = 2.0  # m below the start; a head that is lower ends the episode
_WIDEST_ANGLE = 30.0  # degrees between the head and the direction to the target; beyond, there is no reward
_LIMITS = [(-60.0, 60.0), (-60.0, 60.0)]
_PITCHED = tuple(euler(90, 0))  # the segments behind the head: along their y axis they look forward
_EYES = sphere(0.126, (0.29, 0.04, 0.65), 1), sphere(0.126, (-0.27, 0.10, 0.60), 1)
_MOUTH = sphere(0.31, (-0.02, -0.03, 0.99), 1)


def _segment(number: int, radius: float, length: float, z: float, joint: float) -> Part:
    """Return a segment behind the head; the joint to the previous one is `joint` meters ahead of its center."""
    return Part(
        f"segment{number}",
        capsule("y", radius, length),
        mass=10,
        center=(0, _HEIGHT, z),
        rotation=_PITCHED,
        parent=f"segment{number - 1}",
        anchor=(0, joint, 0),
        hinges=carried_part((1, 0, 0), (0, 0, -1), _LIMITS),
    )


# In Unity, weak springs connect the eyes with the head and a fixed joint the mouth; here they are parts of the head.
SKELETON = Skeleton(
    (
        Part("segment0", capsule("z", 0.37, 2.0), mass=10, center=(0, _HEIGHT, 0), extra=(*_EYES, _MOUTH)),
        _segment(1, 0.33, 1.5, -1.316, 0.516),
        _segment(2, 0.28, 1.48, -2.441, 0.575),
        _segment(3, 0.26, 1.46, -3.557, 0.566),
    ),
    Drive(spring=3000, damper=30, max_force=10000, rigid=False, substeps=4, contact_time=0.0135),
)
_JOINTS = 3
_ANGLES = slice(2 * _JOINTS)  # actions: x and y of each joint, then the strengths


class Worm(ArticulatedScene):
    """The reward of a tick is 1 if the head moves at 10 m/s towards the target and looks there."""

    skeleton = SKELETON
    behavior = "Worm"
    start = (0.0, _HEIGHT, 0.0)
    target_height = _HEIGHT
    speeds = _SPEED, _SPEED
    may_land = SKELETON.names
    finders = (("segment0", _MOUTH),)
    action_size = 9

    def sensors(self) -> list[Sensor]:
        """Return the sensor of the goal and the segments."""
        return [VectorSensor("VectorSensor_size64", 64, self._observe)]

    def _act(self, rows: Array) -> None:
        actions = self.agents.continuous[rows].astype(np.float64)
        shares = actions[:, _ANGLES].reshape(-1, _JOINTS, 2)[:, :, ::-1]  # a segment turns about y first
        strength = np.repeat((actions[:, _ANGLES.stop :] + 1) / 2, 2, axis=1)
        self._drive(rows, shares.reshape(len(rows), -1), strength)
        fallen = self.bodies.position[rows, 0, 1] < _HEIGHT - _DEEPEST
        if fallen.any():
            self.agents.end_episode(rows[fallen])

    def _rewards(self) -> Array:
        rewards = np.empty(self.areas)
        bodies = self.bodies
        _rewards(bodies.velocity, bodies.rotation, self.cube_forward, self.cube_rotation, rewards)
        return rewards

    def _observe(self, rows: Array) -> Array:
        observations = np.empty((len(rows), 64))
        bodies = self.bodies
        poses = bodies.position, bodies.rotation, bodies.velocity, bodies.angular_velocity
        cube = self.cube_position, self.cube_rotation, self.cube_forward
        _observe(rows, poses, bodies.target, cube, self.touching, self.strength[:, ::2], observations)
        return observations


@kernel
def _angle(a: Array, b: Array) -> float:
    """Return the angle between two rotations in degrees."""
    dot = min(abs(a[0] * b[0] + a[1] * b[1] + a[2] * b[2] + a[3] * b[3]), 1.0)
    return 2 * math.degrees(math.acos(dot))


@kernel
def _rewards(velocity: Array, rotation: Array, cube_forward: Array, cube_rotation: Array, out: Array) -> None:
    """Write (1 - (d / 10)²)² · (1 - angle / 180): d from the target velocity, the angle from the cube to the head."""
    for row in range(len(out)):
        miss = velocity[row, 0] - _SPEED * cube_forward[row]
        share = min(math.sqrt(miss[0] ** 2 + miss[1] ** 2 + miss[2] ** 2) / _SPEED, 1.0)
        angle = _angle(cube_rotation[row], rotation[row, 0])
        out[row] = (1 - share * share) ** 2 * (1 - angle / 180) if angle < _WIDEST_ANGLE else 0.0


@kernel
def _observe(
    rows: Array,
    poses: tuple[Array, Array, Array, Array],
    target: Array,
    cubes: tuple[Array, Array, Array],
    touching: Array,
    strength: Array,
    out: Array,
) -> None:
    """Write the observations (k, 64): 12 values of the goal, then per segment its contact, motion and pose."""
    position, rotation, velocity, angular_velocity = poses
    cube_position, cube_rotation, cube_forward = cubes
    forward = np.empty(3)
    for index, row in enumerate(rows):
        values, cube = out[index], cube_rotation[row]
        values[0] = min((position[row, 0, 1] - GROUND) / _RAY, 1.0)
        values[1], values[2], values[3] = 0.0, 0.0, _SPEED
        values[4] = _angle(cube, rotation[row, 0]) / 180
        local_axis(rotation[row, 0], 2, forward)
        from_to(forward, cube_forward[row], values[5:9])
        x, y, z = target[row] - cube_position[row]
        rotate_inverse(cube, x, y, z, values[9:12])
        at = 12
        for part in range(position.shape[1]):
            values[at] = touching[row, part]
            v, w = velocity[row, part], angular_velocity[row, part]
            rotate_inverse(cube, v[0], v[1], v[2], values[at + 1 : at + 4])
            rotate_inverse(cube, w[0], w[1], w[2], values[at + 4 : at + 7])
            at += 7
            if part > 0:
                x, y, z = position[row, part] - position[row, 0]
                rotate_inverse(cube, x, y, z, values[at : at + 3])
                multiply_inverse(rotation[row, part - 1], rotation[row, part], values[at + 3 : at + 7])
                at += 7
            if part < strength.shape[1]:
                values[at] = strength[row, part]
                at += 1

"""Crawler: a body on four legs of two segments runs towards a target at a target speed."""

from __future__ import annotations

import math

import numpy as np

from unity_gym.scenes.articulated.scene import ArticulatedScene, observe_walk, walking_rewards
from unity_gym.scenes.articulated.skeleton import GROUND, Drive, Part, Skeleton, capsule, driven_part, sphere
from unity_gym.scenes.kernels import kernel
from unity_gym.scenes.rotations import (
    euler,
    local_axis,
    multiply_inverse,
    rotate_inverse,
)
from unity_gym.scenes.sensors import Sensor, VectorSensor
from unity_gym.specs import Array

_START = (0.0, 2.656, 0.0)
_RAY = 10.0  # m
_LEGS = 4
_LEG_YAWS = (-45.0, 45.0, 135.0, -135.0)  # degrees
_HIP, _LEG, _FORELEG = 0.4, 0.9, 1.98  # m from the middle to the hips and to the centers of the segments
_LEG_HEIGHT = 2.506


def _outward(leg: int, distance: float, height: float) -> tuple[float, float, float]:
    yaw = math.radians(_LEG_YAWS[leg])
    return -distance * math.sin(yaw), height, -distance * math.cos(yaw)


def _legs() -> list[Part]:
    parts = []
    for leg in range(_LEGS):
        # Along its y axis the leg points outwards, along z upwards.
        rotation = tuple(euler(-90, _LEG_YAWS[leg]))
        parts += [
            Part(
                f"leg{leg}",
                capsule("y", 0.15, 0.95),
                mass=2,
                center=_outward(leg, _LEG, _LEG_HEIGHT),
                rotation=rotation,
                parent="body",
                anchor=(0, _HIP - _LEG, 0),
                hinges=driven_part((1, 0, 0), (0, 0, -1), [(-60, 0), (-20, 20)]),
            ),
            Part(
                f"foreleg{leg}",
                capsule("y", 0.15, 1.5),
                mass=1,
                center=_outward(leg, _FORELEG, _LEG_HEIGHT),
                rotation=rotation,
                parent=f"leg{leg}",
                anchor=(0, -0.75, 0),
                hinges=driven_part((1, 0, 0), (0, 0, -1), [(0, 150)]),
            ),
        ]
    return parts


SKELETON = Skeleton(
    (Part("body", sphere(0.5), mass=20, center=_START), *_legs()),
    Drive(spring=40000, damper=5000, max_force=20000, rigid=True),
    speculative=True,
)
_HINGES_OF_A_LEG = 3  # two of the leg, one of the foreleg
_UPPER, _LOWER = slice(2 * _LEGS), slice(2 * _LEGS, 3 * _LEGS)  # actions: angles
_UPPER_STRENGTH, _LOWER_STRENGTH = slice(3 * _LEGS, 4 * _LEGS), slice(4 * _LEGS, 5 * _LEGS)


class Crawler(ArticulatedScene):
    """The reward of a tick is 1 if the mean velocity of the parts is the target velocity and the body looks ahead."""

    skeleton = SKELETON
    behavior = "Crawler"
    start = _START
    target_height = 2.506
    speeds = 0.1, 15.0
    may_land = tuple(f"foreleg{leg}" for leg in range(_LEGS))
    finders = tuple((part.name, part.shape) for part in SKELETON.parts)
    action_size = 20

    def sensors(self) -> list[Sensor]:
        """Return the sensors: the poses and velocities of all parts; the goal, contacts and strengths."""
        return [
            VectorSensor("PhysicsBodySensor:Body", 126, self._observe_body),
            VectorSensor("VectorSensor_size32", 32, self._observe_goal),
        ]

    def _act(self, rows: Array) -> None:
        actions = self.agents.continuous[rows].astype(np.float64)
        shares = np.empty((len(rows), _LEGS, _HINGES_OF_A_LEG))
        shares[:, :, :2] = actions[:, _UPPER].reshape(-1, _LEGS, 2)
        shares[:, :, 2] = actions[:, _LOWER]
        strength = np.empty_like(shares)
        strength[:, :, :2] = actions[:, _UPPER_STRENGTH, np.newaxis]
        strength[:, :, 2] = actions[:, _LOWER_STRENGTH]
        self._drive(rows, shares.reshape(len(rows), -1), (strength.reshape(len(rows), -1) + 1) / 2)

    def _rewards(self) -> Array:
        rewards = np.empty(self.areas)
        bodies = self.bodies
        walking_rewards(bodies.velocity, self.cube_forward, self.speed, bodies.rotation[:, 0], rewards)
        return rewards

    def _observe_body(self, rows: Array) -> Array:
        observations = np.empty((len(rows), 126))
        bodies = self.bodies
        _observe_body(
            rows,
            bodies.position,
            bodies.rotation,
            bodies.velocity,
            self.cube_position,
            self.cube_rotation,
            observations,
        )
        return observations

    def _observe_goal(self, rows: Array) -> Array:
        observations = np.empty((len(rows), 32))
        bodies = self.bodies
        _observe_goal(
            rows,
            bodies.position,
            bodies.rotation,
            bodies.velocity,
            bodies.target,
            self.cube_position,
            self.cube_rotation,
            self.cube_forward,
            self.speed,
            observations,
        )
        touching, strength = self.touching[rows], self.strength[rows].reshape(len(rows), _LEGS, _HINGES_OF_A_LEG)
        observations[:, 15] = touching[:, 0]
        observations[:, 16::4], observations[:, 17::4] = touching[:, 1::2], strength[:, :, 0]
        observations[:, 18::4], observations[:, 19::4] = touching[:, 2::2], strength[:, :, 2]
        return observations


@kernel
def _observe_body(
    rows: Array,
    position: Array,
    rotation: Array,
    velocity: Array,
    cube_position: Array,
    cube_rotation: Array,
    out: Array,
) -> None:
    """Write the observations of the body sensor, (k, 126): poses (63), velocities (27), joint rotations (36)."""
    parts = position.shape[1]
    for index, row in enumerate(rows):
        cube, values = cube_rotation[row], out[index]
        for part in range(parts):
            x, y, z = position[row, part] - cube_position[row]
            rotate_inverse(cube, x, y, z, values[7 * part : 7 * part + 3])
            multiply_inverse(cube, rotation[row, part], values[7 * part + 3 : 7 * part + 7])
            v = velocity[row, part]
            rotate_inverse(cube, v[0], v[1], v[2], values[7 * parts + 3 * part : 7 * parts + 3 * part + 3])
            start = 10 * parts + 4 * part
            if part == 0:
                multiply_inverse(cube, rotation[row, 0], values[start : start + 4])
            else:
                parent = 0 if part % 2 else part - 1
                multiply_inverse(rotation[row, parent], rotation[row, part], values[start : start + 4])


@kernel
def _observe_goal(
    rows: Array,
    position: Array,
    rotation: Array,
    velocity: Array,
    target: Array,
    cube_position: Array,
    cube_rotation: Array,
    cube_forward: Array,
    speed: Array,
    out: Array,
) -> None:
    """Write the first 15 values of the vector observation, (k, 32)."""
    for index, row in enumerate(rows):
        values, cube = out[index], cube_rotation[row]
        observe_walk(velocity[row], rotation[row, 0], cube, cube_forward[row], speed[row], values[:11])
        x, y, z = target[row] - cube_position[row]
        rotate_inverse(cube, x, y, z, values[11:14])
        values[14] = min(_ray_down(position[row], rotation[row]) / _RAY, 1.0)


@kernel
def _ray_down(position: Array, rotation: Array) -> float:
    """Return the distance (m) from the body straight down to the ground or to a leg."""
    x, y, z = position[0]
    nearest: float = y - GROUND
    axis = np.empty(3)
    for part in range(1, position.shape[0]):
        half = 0.325 if part % 2 else 0.6
        local_axis(rotation[part], 1, axis)
        # Points of the segment in the frame of the ray; a fine grid is enough for one observation value of 158.
        dx, dy, dz = position[part, 0] - x, position[part, 1] - y, position[part, 2] - z
        reach = half + 0.15
        if dx * dx + dz * dz > reach * reach or dy > reach:
            continue
        for i in range(-20, 21):
            share = half * i / 20
            px, py, pz = dx + share * axis[0], dy + share * axis[1], dz + share * axis[2]
            rest = 0.15**2 - px * px - pz * pz
            if rest > 0:
                top = -(py + math.sqrt(rest))
                if 0 < top < nearest:
                    nearest = top
    return nearest

"""Walker: a humanoid of 16 parts walks towards a target at a target speed."""

from __future__ import annotations

import numpy as np

from unity_gym.scenes.academy import Academy
from unity_gym.scenes.articulated.scene import ArticulatedScene, observe_walk, walking_rewards
from unity_gym.scenes.articulated.skeleton import (
    Drive,
    Part,
    Shape,
    Skeleton,
    Vector,
    capsule,
    driven_part,
    sphere,
)
from unity_gym.scenes.kernels import kernel
from unity_gym.scenes.rotations import from_to, local_axis, multiply_inverse, rotate_inverse
from unity_gym.scenes.sensors import Sensor, VectorSensor
from unity_gym.specs import Array

_HIPS = 3.0  # m, above the platform at the start
_SPINE, _CHEST, _HEAD, _ARMS = 3.683, 4.488, 5.85, 4.488
_TRUNK_LIMITS = [(-20.0, 20.0), (-20.0, 20.0), (-15.0, 15.0)]
_FOOT_LIMITS = [(-20.0, 20.0), (-20.0, 20.0), (-20.0, 20.0)]
_FOOT = Shape((0.175, 0.068, 0.275), 0.0, center=(0, 0, -0.06))
_MASS_PARAMETERS = {"chest": "chest_mass", "spine": "spine_mass", "hips": "hip_mass"}
_MASS = 8.0  # kg, of these three parts by default


def _leg(side: str, x: float) -> list[Part]:
    axis, secondary = (-1, 0, 0), (0, 0, -1)
    thigh, shin, foot = f"thigh{side}", f"shin{side}", f"foot{side}"
    return [
        Part(
            thigh,
            capsule("y", 0.25, 0.9),
            mass=14,
            center=(x, 2.2, 0),
            parent="hips",
            anchor=(0, 0.5, 0),
            hinges=driven_part(axis, secondary, [(-90, 60), (-40, 40)]),
        ),
        Part(
            shin,
            capsule("y", 0.2, 1.0),
            mass=7,
            center=(x, 1.2, 0),
            parent=thigh,
            anchor=(0, 0.5, 0),
            hinges=driven_part(axis, secondary, [(0, 120)]),
        ),
        Part(
            foot,
            _FOOT,
            mass=5,
            center=(x, 0.6, 0.1),
            parent=shin,
            anchor=(0, 0, -0.1),
            hinges=driven_part((1, 0, 0), (0, 1, 0), _FOOT_LIMITS),
        ),
    ]


def _arm(side: str, sign: float) -> list[Part]:
    axis: Vector = (0, sign, 0)
    upper, lower = f"arm{side}", f"forearm{side}"
    return [
        Part(
            upper,
            capsule("x", 0.25, 1.0),
            mass=4,
            center=(1.25 * sign, _ARMS, 0),
            parent="chest",
            anchor=(-0.55 * sign, 0, 0),
            hinges=driven_part(axis, (0, 0, 1), [(-60, 120), (-100, 100)]),
        ),
        Part(
            lower,
            capsule("x", 0.25, 1.0),
            mass=3,
            center=(2.25 * sign, _ARMS, 0),
            parent=upper,
            anchor=(-0.5 * sign, 0, 0),
            hinges=driven_part(axis, (0, 0, 1), [(0, 160)]),
        ),
        Part(f"hand{side}", sphere(0.25), mass=2, center=(2.95 * sign, _ARMS, 0), parent=lower),
    ]


def _trunk() -> list[Part]:
    axis, secondary = (1, 0, 0), (0, 0, -1)
    return [
        Part("hips", capsule("x", 0.28, 1.3), mass=_MASS, center=(0, _HIPS, 0)),
        Part(
            "spine",
            capsule("x", 0.25, 1.0),
            mass=_MASS,
            center=(0, _SPINE, 0),
            parent="hips",
            anchor=(0, -0.3, 0),
            hinges=driven_part(axis, secondary, _TRUNK_LIMITS),
        ),
        Part(
            "chest",
            capsule("x", 0.4, 1.4),
            mass=_MASS,
            center=(0, _CHEST, 0),
            parent="spine",
            anchor=(0, -0.5, 0),
            hinges=driven_part(axis, secondary, _TRUNK_LIMITS),
        ),
        Part(
            "head",
            sphere(0.651),
            mass=6,
            center=(0, _HEAD, 0),
            parent="chest",
            anchor=(0, -0.85, 0),
            hinges=driven_part(axis, secondary, [(-30, 10), (-20, 20)]),
        ),
    ]


SKELETON = Skeleton(
    (*_trunk(), *_leg("L", -0.4), *_leg("R", 0.4), *_arm("L", -1), *_arm("R", 1)),
    Drive(spring=40000, damper=5000, max_force=20000, rigid=True),
    speculative=True,
)
_HIPS_PART, _HEAD_PART = SKELETON.names.index("hips"), SKELETON.names.index("head")
_WITHOUT_JOINT = ("hips", "handL", "handR")

# Each row names what an action dimension sets: the axes of a part's joint, then the strengths.
_ROTATIONS = (
    *(("chest", axis) for axis in "xyz"),
    *(("spine", axis) for axis in "xyz"),
    *(("thighL", axis) for axis in "xy"),
    *(("thighR", axis) for axis in "xy"),
    ("shinL", "x"),
    ("shinR", "x"),
    *(("footR", axis) for axis in "xyz"),
    *(("footL", axis) for axis in "xyz"),
    *(("armL", axis) for axis in "xy"),
    *(("armR", axis) for axis in "xy"),
    ("forearmL", "x"),
    ("forearmR", "x"),
    *(("head", axis) for axis in "xy"),
)
_STRENGTHS = (
    "chest",
    "spine",
    "head",
    "thighL",
    "shinL",
    "footL",
    "thighR",
    "shinR",
    "footR",
    "armL",
    "forearmL",
    "armR",
    "forearmR",
)
_HINGE_ORDER = {1: "x", 2: "xy", 3: "zxy"}  # the axes of a joint, by their number, in the order of its hinges
_HINGES = [(part.name, axis) for part in SKELETON.parts if part.hinges for axis in _HINGE_ORDER[len(part.hinges)]]
_ROTATION_OF_HINGE = np.array([_ROTATIONS.index(hinge) for hinge in _HINGES])
_STRENGTH_OF_HINGE = np.array([len(_ROTATIONS) + _STRENGTHS.index(part) for part, _ in _HINGES])

_OBSERVED = ("hips", "chest", "spine", *SKELETON.names[3:])
_ORDER = np.array([SKELETON.names.index(name) for name in _OBSERVED])
_PARENTS = np.array(SKELETON.parents)
# The first hinge of each part, whose strength is that of its joint; -1 if the part has no hinge to observe.
_FIRST_HINGE = np.array(
    [-1 if name in _WITHOUT_JOINT else [part for part, _ in _HINGES].index(name) for name in SKELETON.names]
)


class Walker(ArticulatedScene):
    """The reward of a tick is 1 if the mean velocity of the parts is the target velocity and the head looks ahead."""

    skeleton = SKELETON
    behavior = "Walker"
    start = (0.0, _HIPS, 0.0)
    target_height = 1.0
    speeds = 0.1, 10.0
    may_land = ("shinL", "footL", "shinR", "footR")
    finders = tuple((part.name, part.shape) for part in SKELETON.parts)
    action_size = len(_ROTATIONS) + len(_STRENGTHS)

    def __init__(self, academy: Academy, areas: int) -> None:
        super().__init__(academy, areas)
        self._masses = np.full((areas, len(_MASS_PARAMETERS)), _MASS)

    def sensors(self) -> list[Sensor]:
        """Return the sensor of the goal and all parts."""
        return [VectorSensor("VectorSensor_size243", 243, self._observe)]

    def _start_episode(self, rows: Array) -> None:
        read = self.academy.parameters.positive
        masses = np.stack([read(name, _MASS, len(rows)) for name in _MASS_PARAMETERS.values()], axis=1)
        changed = (masses != self._masses[rows]).any(axis=1)
        if changed.any():
            self._masses[rows] = masses
            self.bodies.set_masses(rows[changed], list(_MASS_PARAMETERS), masses[changed])
        super()._start_episode(rows)

    def _act(self, rows: Array) -> None:
        actions = self.agents.continuous[rows].astype(np.float64)
        self._drive(rows, actions[:, _ROTATION_OF_HINGE], (actions[:, _STRENGTH_OF_HINGE] + 1) / 2)

    def _rewards(self) -> Array:
        rewards = np.empty(self.areas)
        bodies = self.bodies
        walking_rewards(bodies.velocity, self.cube_forward, self.speed, bodies.rotation[:, _HEAD_PART], rewards)
        return rewards

    def _observe(self, rows: Array) -> Array:
        observations = np.empty((len(rows), 243))
        bodies = self.bodies
        poses = bodies.position, bodies.rotation, bodies.velocity, bodies.angular_velocity
        cubes = self.cube_position, self.cube_rotation, self.cube_forward
        joints = _ORDER, _PARENTS, _FIRST_HINGE
        _observe(rows, poses, bodies.target, cubes, self.speed, self.touching, self.strength, joints, observations)
        return observations


@kernel
def _observe(
    rows: Array,
    poses: tuple[Array, Array, Array, Array],
    target: Array,
    cubes: tuple[Array, Array, Array],
    speed: Array,
    touching: Array,
    strength: Array,
    joints: tuple[Array, Array, Array],
    out: Array,
) -> None:
    """Write the observations (k, 243): 18 values of the goal, then per part its contact, motion and pose."""
    position, rotation, velocity, angular_velocity = poses
    cube_position, cube_rotation, cube_forward = cubes
    order, parents, first_hinge = joints
    forward = np.empty(3)
    for index, row in enumerate(rows):
        values, cube = out[index], cube_rotation[row]
        observe_walk(velocity[row], rotation[row, _HIPS_PART], cube, cube_forward[row], speed[row], values[:11])
        local_axis(rotation[row, _HEAD_PART], 2, forward)
        from_to(forward, cube_forward[row], values[11:15])
        x, y, z = target[row] - cube_position[row]
        rotate_inverse(cube, x, y, z, values[15:18])
        at = 18
        for part in order:
            values[at] = touching[row, part]
            v, w = velocity[row, part], angular_velocity[row, part]
            rotate_inverse(cube, v[0], v[1], v[2], values[at + 1 : at + 4])
            rotate_inverse(cube, w[0], w[1], w[2], values[at + 4 : at + 7])
            x, y, z = position[row, part] - position[row, _HIPS_PART]
            rotate_inverse(cube, x, y, z, values[at + 7 : at + 10])
            at += 10
            if first_hinge[part] >= 0:
                multiply_inverse(rotation[row, parents[part]], rotation[row, part], values[at : at + 4])
                values[at + 4] = strength[row, first_hinge[part]]
                at += 5

"""Descriptions of articulated bodies in Unity's axes and terms, and their conversion to MuJoCo models."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import mujoco
import numpy as np

from unity_gym.scenes.rotations import multiply, rotate
from unity_gym.specs import Array

Vector: TypeAlias = tuple[float, float, float]

TICK = 1 / 75  # s
GRAVITY = 1.5 * 9.81  # m/s²
GROUND = 0.5  # m, the height of the ground
_INSIDE = 49.5  # m from the middle to the walls
_FRICTION = 0.6
_STIFFEST = 0.9  # greatest stiffness of a drive: the impedance d of MuJoCo's soft constraint
_MARGIN = 0.05  # m around each shape in which speculative contacts are made; fast enough for 7.5 m/s
_CONTACT_IMPEDANCE = (0.8, 0.8, 0.001, 0.5, 2.0)
_CONE_SIDES = 16  # of the polygon that stands for the ellipse of two swings; its corners are 2 % too wide
TARGET_HALF = 0.5  # m, half an edge of the target cube
_TARGET_MASS = 1.0  # kg


@dataclass(frozen=True)
class Shape:
    """A sphere, capsule or box.

    `half`: half of its extents along the part's axes without `radius`, so (0, 0, 0) for a sphere and one non-zero entry
    for a capsule. `center`: position in the part's frame.
    """

    half: Vector
    radius: float
    center: Vector = (0.0, 0.0, 0.0)
    mass: float = 0.0


def sphere(radius: float, center: Vector = (0.0, 0.0, 0.0), mass: float = 0.0) -> Shape:
    """Return a sphere."""
    return Shape((0.0, 0.0, 0.0), radius, center, mass)


def capsule(axis: str, radius: float, length: float) -> Shape:
    """Return a capsule along an axis ("x", "y" or "z") of the part; the length includes its round ends."""
    half = length / 2 - radius
    return Shape((half * (axis == "x"), half * (axis == "y"), half * (axis == "z")), radius)


@dataclass(frozen=True)
class Hinge:
    """One free axis of a joint: positive angles turn the part about `axis`, in its own frame (Unity's direction).

    `low` and `high` are the limits in degrees.
    """

    axis: Vector
    low: float
    high: float


@dataclass(frozen=True)
class Part:
    """A rigid part, its starting pose, and the joint that connects it with its parent.

    `parent`: name of the parent part; "" for the root. `center` and `rotation`: at the start, relative to the
    platform. `anchor`: position of the joint in the part's frame. `hinges`: from the parent's side to the part's; none:
    rigid. Of three, the first and the last are the swings, which a cone limits together, as in PhysX: their angles,
    each divided by its limit, are in the unit circle. `extra`: further shapes, each with its own mass.
    """

    name: str
    shape: Shape
    mass: float
    center: Vector
    rotation: Sequence[float] = (0.0, 0.0, 0.0, 1.0)
    parent: str = ""
    anchor: Vector = (0.0, 0.0, 0.0)
    hinges: tuple[Hinge, ...] = ()
    extra: tuple[Shape, ...] = ()


def driven_part(x: Vector, y: Vector, limits: Sequence[tuple[float, float]]) -> tuple[Hinge, ...]:
    """Return the hinges of a part that has a configurable joint itself.

    Such a part turns by the inverse of the joint's angles: Unity's rotation is y · x · z, its inverse z⁻¹ · x⁻¹ · y⁻¹.

    :param x: Axis of the joint in the part's frame.
    :param y: Secondary axis of the joint.
    :param limits: Limits of x, y and z in degrees; (0, 0): locked. Trailing limits may be omitted.
    """
    axes: dict[str, Sequence[float] | Array] = {"x": x, "y": y, "z": np.cross(x, y)}
    given = dict(zip("xyz", limits, strict=False))
    return tuple(
        Hinge(_negative(axes[name]), *given[name]) for name in "zxy" if name in given and given[name] != (0, 0)
    )


def carried_part(x: Vector, y: Vector, limits: Sequence[tuple[float, float]]) -> tuple[Hinge, ...]:
    """Return the hinges of a part to which the joint of another part connects: it turns by the joint's angles, y · x.

    :param x: Axis of the joint in this part's frame.
    :param y: Secondary axis of the joint in this part's frame.
    :param limits: Limits of x and y in degrees.
    """
    return Hinge(y, *limits[1]), Hinge(x, *limits[0])


def _negative(vector: Sequence[float] | Array) -> Vector:
    x, y, z = (0.0 - float(component) for component in vector)
    return x, y, z


@dataclass(frozen=True)
class Drive:
    """The drive of joints towards their target angles.

    PhysX's slerp drive is a spring row within the solver, whose error and speed are half of the angle's. So it acts
    with a quarter of its spring and damper, and its force limit is a torque limit of half the value.

    `max_force`: limit at full strength. `rigid`: the spring is so stiff that the joint follows its target at the rate
    spring / (damper + tick · spring). It yields to loads only as far as the solver has no time to converge. A soft
    constraint models this. Otherwise, a spring and a damper do, in `substeps` per tick. `contact_time`: time in seconds
    in which contacts correct overlaps, more than two substeps.
    """

    spring: float
    damper: float
    max_force: float
    rigid: bool
    substeps: int = 1
    contact_time: float = 0.027

    @property
    def rate(self) -> float:
        """Share of the error that is corrected per second (1/s)."""
        return self.spring / (self.damper + TICK * self.spring)

    @property
    def stiffness(self) -> float:
        """Effective spring in N m/rad."""
        return self.spring / 4

    @property
    def damping(self) -> float:
        """Effective damper in N m s/rad, including the effect of an implicit step of one tick."""
        return (self.damper + TICK * self.spring) / 4


@dataclass(frozen=True)
class Skeleton:
    """A body: its parts, a parent before its children, and the drive of all its joints.

    `speculative`: contacts remove the speed that would carry a part into another one or the ground within a tick.
    Otherwise, contacts start when surfaces overlap.
    """

    parts: tuple[Part, ...]
    drive: Drive
    speculative: bool = False
    names: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", tuple(part.name for part in self.parts))

    @property
    def hinges(self) -> list[Hinge]:
        """All hinges in the order of the parts."""
        return [hinge for part in self.parts for hinge in part.hinges]

    @property
    def parents(self) -> list[int]:
        """Index of each part's parent; -1 for the root."""
        return [self.names.index(part.parent) if part.parent else -1 for part in self.parts]

    @property
    def reach(self) -> float:
        """Maximum distance of any point of the body from the root's center in m."""
        centers: dict[str, float] = {}
        tips = []
        for part in self.parts:
            centers[part.name] = 0.0
            if part.parent:
                offset, turned = self.relative(part)
                arm = np.empty(3)
                rotate(turned, *part.anchor, arm)
                centers[part.name] = centers[part.parent] + math.dist(offset, -arm) + math.hypot(*part.anchor)
            tips += [
                centers[part.name] + math.hypot(*shape.center) + math.hypot(*shape.half) + shape.radius
                for shape in (part.shape, *part.extra)
            ]
        return max(tips)

    def compile(self) -> mujoco.MjModel:
        """Return a MuJoCo model of the body, a target cube, the ground and four walls.

        The root comes first, the target last.
        """
        spec = mujoco.MjSpec()
        spec.compiler.degree = False
        spec.option.timestep = TICK / self.drive.substeps
        spec.option.gravity = [0, 0, -GRAVITY]
        spec.option.cone = mujoco.mjtCone.mjCONE_ELLIPTIC
        spec.option.impratio = 10
        spec.option.tolerance = 1e-12  # the motion does not depend on the starting point of the solver
        spec.option.integrator = (
            mujoco.mjtIntegrator.mjINT_EULER if self.drive.rigid else mujoco.mjtIntegrator.mjINT_IMPLICITFAST
        )
        # Same solutions as with the defaults, but faster: few rows share joints, bodies have one shape each, and the
        # target is no separate island while it is held.
        spec.option.jacobian = mujoco.mjtJacobian.mjJAC_SPARSE
        spec.option.disableflags = mujoco.mjtDisableBit.mjDSBL_MIDPHASE | mujoco.mjtDisableBit.mjDSBL_ISLAND
        world = spec.worldbody
        self._add_plane(world, [0, 0, GROUND], [0, 0, 1])
        for x, z in ((1, 0), (-1, 0), (0, 1), (0, -1)):
            self._add_plane(world, [-_INSIDE * x, -_INSIDE * z, 0], [x, z, 0])
        bodies: dict[str, mujoco.MjsBody] = {"": world}
        for part in self.parts:
            position, rotation = self.relative(part)
            body = bodies[part.name] = bodies[part.parent].add_body(
                name=part.name, pos=to_mujoco(position), quat=quaternion_to_mujoco(rotation)
            )
            if not part.parent:
                body.add_freejoint()
            for index, hinge in enumerate(part.hinges):
                name = f"{part.name} {index}"
                body.add_joint(
                    name=name,
                    axis=-np.asarray(to_mujoco(hinge.axis)),  # swapping two axes reverses the direction of rotation
                    pos=to_mujoco(part.anchor),
                    limited=1,
                    range=np.radians([hinge.low, hinge.high]),
                )
                self._add_drive(spec, name)
            if len(part.hinges) == 3:
                self._add_cone(spec, part)
            for shape in (Shape(part.shape.half, part.shape.radius, part.shape.center, part.mass), *part.extra):
                self._add_shape(body, shape)
        # With compensated weight and no contacts, the target needs no computation; `ArticulatedBodies` switches both.
        target = world.add_body(name="target", pos=[0, 0, GROUND + TARGET_HALF], gravcomp=1)
        target.add_freejoint()
        box = Shape((TARGET_HALF,) * 3, 0.0, mass=_TARGET_MASS)
        self._add_shape(target, box)
        return spec.compile()

    def relative(self, part: Part) -> tuple[Array, Array]:
        """Return position and rotation of a part at the start, relative to its parent."""
        if not part.parent:
            return np.asarray(part.center), np.asarray(part.rotation)
        parent = self.parts[self.names.index(part.parent)]
        position, inverse = np.empty(3), np.array([-1, -1, -1, 1]) * np.asarray(parent.rotation)
        x, y, z = np.asarray(part.center) - np.asarray(parent.center)
        rotate(inverse, x, y, z, position)
        rotation = np.empty(4)
        multiply(inverse, np.asarray(part.rotation, float), rotation)
        return position, rotation

    def _add_drive(self, spec: mujoco.MjSpec, joint: str) -> None:
        drive = self.drive
        if drive.rigid:
            equality = spec.add_equality(type=mujoco.mjtEq.mjEQ_JOINT, objtype=mujoco.mjtObj.mjOBJ_JOINT, name1=joint)
            equality.solref = [-drive.rate / TICK, -1 / TICK]
            equality.solimp = [_STIFFEST, _STIFFEST, 0.001, 0.5, 2.0]
        else:
            actuator = spec.add_actuator(trntype=mujoco.mjtTrn.mjTRN_JOINT, target=joint)
            actuator.set_to_position(kp=drive.stiffness, kv=drive.damping)
            actuator.forcelimited = 1
            actuator.forcerange = [-drive.max_force / 2, drive.max_force / 2]

    def _add_cone(self, spec: mujoco.MjSpec, part: Part) -> None:
        """Limit the two swings of a part together; the limits of their hinges are two pairs of sides already."""
        swings = {f"{part.name} {index}": math.radians(part.hinges[index].high) for index in (0, 2)}
        scale = math.sqrt(math.prod(swings.values()))
        for side in range(1, _CONE_SIDES // 2):
            turn = 2 * math.pi * side / _CONE_SIDES
            if side == _CONE_SIDES // 4:
                continue
            tendon = spec.add_tendon(limited=1, range=[-scale, scale])
            for share, (joint, limit) in zip((math.cos(turn), math.sin(turn)), swings.items(), strict=True):
                tendon.wrap_joint(joint, share * scale / limit)

    def _add_plane(self, world: mujoco.MjsBody, position: list[float], normal: list[float]) -> None:
        rotation = np.empty(4)
        mujoco.mju_quatZ2Vec(rotation, np.asarray(normal, float))
        self._finish(world.add_geom(type=mujoco.mjtGeom.mjGEOM_PLANE, size=[0, 0, 1], pos=position, quat=rotation))

    def _add_shape(self, body: mujoco.MjsBody, shape: Shape) -> None:
        half = to_mujoco(shape.half)
        geom = body.add_geom(pos=to_mujoco(shape.center), mass=shape.mass)
        if not any(half):
            geom.type, geom.size = mujoco.mjtGeom.mjGEOM_SPHERE, [shape.radius, 0, 0]
        elif shape.radius:
            geom.type, geom.size = mujoco.mjtGeom.mjGEOM_CAPSULE, [shape.radius, 0, 0]
            geom.fromto = [*(-each for each in half), *half]
        else:
            geom.type, geom.size = mujoco.mjtGeom.mjGEOM_BOX, half
        self._finish(geom)

    def _finish(self, geom: mujoco.MjsGeom) -> None:
        geom.friction = [_FRICTION, 0, 0]
        geom.solref = [self.drive.contact_time, 1]
        geom.solimp = _CONTACT_IMPEDANCE
        if self.speculative:
            geom.margin = _MARGIN


def to_mujoco(vector: Sequence[float] | Array) -> list[float]:
    """Return a vector in MuJoCo's axes, in which z is up: y and z are swapped."""
    x, y, z = (float(component) for component in vector)
    return [x, z, y]


def quaternion_to_mujoco(rotation: Sequence[float] | Array) -> list[float]:
    """Return a quaternion (x, y, z, w) in MuJoCo's axes and order (w, x, y, z)."""
    x, y, z, w = (float(component) for component in rotation)
    return [w, -x, -z, -y]

"""The base class of Crawler, Worm and Walker."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import ClassVar

import numpy as np

from unity_gym.scenes.academy import Academy
from unity_gym.scenes.agents import Agents
from unity_gym.scenes.articulated.physics import ArticulatedBodies
from unity_gym.scenes.articulated.skeleton import GROUND, TARGET_HALF, TICK, Shape, Skeleton
from unity_gym.scenes.drawing import BLUE, FLOOR, GREEN, ORANGE
from unity_gym.scenes.kernels import inner_kernel, kernel
from unity_gym.scenes.perspective import Solids, follow, photograph
from unity_gym.scenes.rotations import about_y, from_to, local_axis, rotate, rotate_inverse
from unity_gym.scenes.scene import Scene
from unity_gym.scenes.sensors import Sensor
from unity_gym.specs import ActionSpec, Array

PERIOD = 5  # ticks from decision to decision
_MAX_STEP = 5000
_CONTACT_DISTANCE = 0.02  # m; nearer surfaces touch (0.01 m for each)
_TARGET_DISTANCE = 0.06  # m, between a part and the target that it touches
_TARGET_RADIUS = 40.0  # m, radius of the sphere of random targets
_COSINE_OF_120 = -0.5


class ArticulatedScene(Scene):
    """Ten platforms with one body each, whose agent has to bring it to a target cube.

    State, one row per area: `bodies`; `touching` (bool, areas × parts: which parts touch the ground); `cube_position`,
    `cube_rotation` and `cube_forward` of the orientation cube, a frame at the root that points towards the target
    without tilt; `speed`, the target speed of the body (m/s); the current `angles` (radians) and `strength` (shares) of
    the joints.

    In each tick the agents act, then the cube is turned and rewards are given (`FixedUpdate`), then physics moves the
    bodies. So observations contain the cube of the previous tick. As in Unity, the cube points from its previous
    position to the target. Target angles and strengths of the joints persist across episodes, and targets stay in place
    until touched.
    """

    default_areas = 10
    skeleton: ClassVar[Skeleton]
    behavior: ClassVar[str]
    start: ClassVar[tuple[float, float, float]]
    """Position of the root at the start of an episode in m."""
    target_height: ClassVar[float]
    """Height of new targets in m."""
    speeds: ClassVar[tuple[float, float]]
    """Least and greatest target speed of an episode in m/s."""
    may_land: ClassVar[tuple[str, ...]]
    """Parts that may touch the ground; contact of another part ends the episode with a reward of -1."""
    finders: ClassVar[tuple[tuple[str, Shape], ...]]
    """Shapes whose contact moves the target, each with its part."""

    def __init__(self, academy: Academy, areas: int) -> None:
        super().__init__(academy, areas)
        skeleton = self.skeleton
        self.bodies = ArticulatedBodies(skeleton, areas, PERIOD)
        self.touching = np.zeros((areas, len(skeleton.parts)), bool)
        self.cube_position = np.tile(self.start, (areas, 1))
        self.cube_rotation = np.tile([0.0, 0, 0, 1], (areas, 1))
        self.cube_forward = np.tile([0.0, 0, 1], (areas, 1))
        self.speed = np.full(areas, self.speeds[1])
        hinges = skeleton.hinges
        self._low, self._high = np.radians([[hinge.low, hinge.high] for hinge in hinges]).T
        self.angles = np.zeros((areas, len(hinges)))
        self.strength = np.zeros((areas, len(hinges)))
        self._rows = np.arange(areas)
        self._half = np.array([part.shape.half for part in skeleton.parts])
        self._radius = np.array([part.shape.radius for part in skeleton.parts])
        self._center = np.array([part.shape.center for part in skeleton.parts])
        parts, shapes = zip(*self.finders, strict=True)
        self._finders = np.array([skeleton.names.index(part) for part in parts])
        self._finder_half = np.array([shape.half for shape in shapes])
        self._finder_radius = np.array([shape.radius for shape in shapes])
        self._finder_center = np.array([shape.center for shape in shapes])
        self._is_deadly = np.array([name not in self.may_land for name in skeleton.names])
        self._move_targets(self._rows)
        self.agents = Agents(
            academy,
            areas,
            self.behavior,
            self.sensors(),
            ActionSpec(self.action_size, ()),
            act=self._act,
            start_episode=self._start_episode,
            decision_period=PERIOD,
            repeat_actions=False,
            max_step=_MAX_STEP,
        )
        academy.parameters.watch("gravity", self.bodies.set_gravity)

    action_size: ClassVar[int]

    @abstractmethod
    def sensors(self) -> list[Sensor]:
        """Return the sensors of the agents."""

    @abstractmethod
    def _rewards(self) -> Array:
        """Return the reward of each agent in a tick, float64 (areas)."""

    @abstractmethod
    def _act(self, rows: Array) -> None:
        """Set the target angles and strengths of the joints; called after each decision."""

    def _drive(self, rows: Array, shares: Array, strength: Array) -> None:
        """Set the targets of the joints, shares in [-1, 1] of their ranges, and their strengths, shares in [0, 1].

        :param rows: Agent indices, int (k).
        :param shares: Targets of the joints, (k, hinges).
        :param strength: Strengths of the joints, (k, hinges).
        """
        self.angles[rows] = self._low + (self._high - self._low) * np.clip((shares + 1) / 2, 0, 1)
        self.strength[rows] = strength
        self.bodies.drive(rows, self.angles[rows], strength)

    def _start_episode(self, rows: Array) -> None:
        rng, n = self.academy.rng, len(rows)
        self.bodies.put(rows, np.asarray(self.start), about_y(np.radians(rng.uniform(0, 360, n))))
        self.touching[rows] = False
        self._turn_cubes(rows)
        self.speed[rows] = rng.uniform(*self.speeds, n)

    def _move_targets(self, rows: Array) -> None:
        """Move targets to random points of a ball, projected to the targets' height."""
        rng, n = self.academy.rng, len(rows)
        direction = rng.normal(size=(n, 3))
        direction *= (_TARGET_RADIUS * rng.random(n) ** (1 / 3) / np.sqrt((direction**2).sum(axis=1)))[:, np.newaxis]
        direction[:, 1] = self.target_height
        self.bodies.place_target(rows, direction)

    def _turn_cubes(self, rows: Array) -> None:
        _turn_cubes(
            rows, self.bodies.position, self.bodies.target, self.cube_position, self.cube_rotation, self.cube_forward
        )

    def after_step(self) -> None:
        """Turn the orientation cubes to the targets and give the rewards of the step."""
        self._turn_cubes(self._rows)
        self.agents.reward += self._rewards()

    def simulate(self) -> None:
        """Move the bodies by a tick; parts that touch the ground or a target take effect."""
        bodies = self.bodies
        touching, found = np.empty_like(self.touching), np.empty(self.areas, bool)
        poses = bodies.position, bodies.rotation, bodies.velocity, bodies.angular_velocity
        _touch_ground(poses, self._half, self._radius, self._center, touching)
        _touch_targets(
            bodies.position,
            bodies.rotation,
            self._finders,
            self._finder_half,
            self._finder_radius,
            self._finder_center,
            bodies.target,
            bodies.target_rotation,
            found,
        )
        bodies.step(PERIOD - (self.academy.step_count - 1) % PERIOD)

        landed = (touching & ~self.touching)[:, self._is_deadly].sum(axis=1)
        self.touching = touching
        if found.any():
            self._move_targets(np.flatnonzero(found))
        if landed.any():
            rows = np.flatnonzero(landed)
            self.agents.reward[rows] = -1
            self.agents.end_episode(rows)
            self.agents.reward[landed > 1] = -1  # for the second part that landed; it counts for the new episode

    def render(self, area: int) -> Array:
        """Return an image of the body from behind, in perspective, and of its target if that is visible."""
        bodies, parts = self.bodies, self.skeleton.parts
        shapes = [(index, shape) for index, part in enumerate(parts) for shape in (part.shape, *part.extra)]
        solids = Solids(2 + len(shapes))
        solids.put(0, (0, GROUND - 1, 0), FLOOR, half=(50, 1, 50), tile=2)
        solids.put(1, bodies.target[area], GREEN, half=(TARGET_HALF,) * 3, rotation=bodies.target_rotation[area])
        offset = np.empty(3)
        for index, (part, shape) in enumerate(shapes, 2):
            rotation = bodies.rotation[area, part]
            rotate(rotation, *shape.center, offset)
            color = ORANGE if self.touching[area, part] else BLUE
            solids.put(index, bodies.position[area, part] + offset, color, shape.half, shape.radius, rotation)
        view = follow(bodies.position[area, 0], self.cube_forward[area], distance=8, height=4)
        return photograph(solids, view)


@kernel
def _turn_cubes(
    rows: Array, position: Array, target: Array, cube_position: Array, cube_rotation: Array, cube_forward: Array
) -> None:
    """Turn orientation cubes from their current positions towards the target, then move them to the root."""
    for row in rows:
        x, z = target[row, 0] - cube_position[row, 0], target[row, 2] - cube_position[row, 2]
        distance = math.hypot(x, z)
        sin, cos = (x / distance, z / distance) if distance > 1e-5 else (0.0, 1.0)
        half = math.atan2(sin, cos) / 2
        # Unity makes w positive up to 120° to either side, and y beyond.
        sign = -1.0 if cos < _COSINE_OF_120 and sin < 0 else 1.0
        cube_rotation[row, 0], cube_rotation[row, 2] = 0.0, 0.0
        cube_rotation[row, 1], cube_rotation[row, 3] = sign * math.sin(half), sign * math.cos(half)
        cube_forward[row, 0], cube_forward[row, 1], cube_forward[row, 2] = sin, 0.0, cos
        cube_position[row] = position[row, 0]


@kernel
def _touch_ground(
    poses: tuple[Array, Array, Array, Array], half: Array, radius: Array, center: Array, touching: Array
) -> None:
    """Write which parts touch the ground or could do so in the next tick, as in PhysX, bool (n, parts).

    :param poses: Position, rotation, velocity and angular velocity of the parts.
    """
    position, rotation, velocity, angular_velocity = poses
    axis, reach, offset = np.empty(3), np.empty(3), np.empty(3)
    for row in range(position.shape[0]):
        for part in range(position.shape[1]):
            r = rotation[row, part]
            reach[:] = radius[part]
            for i in range(3):
                if half[part, i] != 0:
                    local_axis(r, i, axis)
                    reach += half[part, i] * np.abs(axis)
            rotate(r, center[part, 0], center[part, 1], center[part, 2], offset)
            v, w = velocity[row, part], angular_velocity[row, part]
            speed = math.sqrt(v[0] ** 2 + v[1] ** 2 + v[2] ** 2)
            turn = math.sqrt(w[0] ** 2 + w[1] ** 2 + w[2] ** 2)
            size = math.sqrt(reach[0] ** 2 + reach[1] ** 2 + reach[2] ** 2)
            distance = position[row, part, 1] + offset[1] - reach[1] - GROUND
            touching[row, part] = distance < _CONTACT_DISTANCE + TICK * (speed + turn * size)


@kernel
def _touch_targets(
    position: Array,
    rotation: Array,
    finders: Array,
    half: Array,
    radius: Array,
    center: Array,
    target: Array,
    target_rotation: Array,
    found: Array,
) -> None:
    """Write which targets a shape touches, bool (n). Boxes count as capsules along their longest edge.

    :param finders: Index of the part of each shape.
    """
    axis, offset, start, along = np.empty(3), np.empty(3), np.empty(3), np.empty(3)
    for row in range(position.shape[0]):
        found[row] = False
        for shape in range(len(finders)):
            part = finders[shape]
            longest = 0
            for i in range(1, 3):
                if half[shape, i] > half[shape, longest]:
                    longest = i
            length = half[shape, longest]
            size = radius[shape] if radius[shape] > 0 else (half[shape].sum() - length) / 2
            rotate(rotation[row, part], center[shape, 0], center[shape, 1], center[shape, 2], offset)
            offset += position[row, part] - target[row]
            limit = length + size + 2 * TARGET_HALF
            if offset[0] ** 2 + offset[1] ** 2 + offset[2] ** 2 > limit * limit:
                continue
            local_axis(rotation[row, part], longest, axis)
            rotate_inverse(target_rotation[row], offset[0], offset[1], offset[2], start)
            rotate_inverse(target_rotation[row], axis[0], axis[1], axis[2], along)
            low, high = -length, length
            while high - low > 1e-3:  # the distance from a box is convex along a line
                third = (high - low) / 3
                if _distance(start, along, low + third) < _distance(start, along, high - third):
                    high -= third
                else:
                    low += third
            if _distance(start, along, (low + high) / 2) - size < _TARGET_DISTANCE:
                found[row] = True


@inner_kernel
def _distance(start: Array, along: Array, share: float) -> float:
    """Return the distance from start + share · along to the target, in its own frame."""
    total = 0.0
    for i in range(3):
        total += max(abs(start[i] + share * along[i]) - TARGET_HALF, 0.0) ** 2
    return math.sqrt(total)


@kernel
def walking_rewards(velocity: Array, cube_forward: Array, speed: Array, rotation: Array, out: Array) -> None:
    """Write the reward for moving at the target velocity while a part looks at the target, float64 (n).

    With the mean velocity v of the parts, the target velocity g, d = min(|v - g|, |g|) and the forward axis f of the
    part, it is (1 - (d / |g|)²)² · (f · cube forward + 1) / 2.

    :param velocity: Velocities of the parts in m/s, (n, parts, 3).
    :param cube_forward: Forward axes of the orientation cubes, (n, 3).
    :param speed: Target speeds in m/s, (n).
    :param rotation: Rotations of the part that has to look at the target, (n, 4).
    :param out: Array that receives the rewards.
    """
    look, goal = np.empty(3), np.empty(3)
    for row in range(len(speed)):
        goal[:] = speed[row] * cube_forward[row]
        for part in range(velocity.shape[1]):
            goal -= velocity[row, part] / velocity.shape[1]
        miss = min(math.sqrt(goal[0] ** 2 + goal[1] ** 2 + goal[2] ** 2), speed[row]) / speed[row]
        local_axis(rotation[row], 2, look)
        gaze = look[0] * cube_forward[row, 0] + look[2] * cube_forward[row, 2]
        out[row] = (1 - miss * miss) ** 2 * (gaze + 1) / 2


@kernel
def observe_walk(
    velocity: Array, rotation: Array, cube_rotation: Array, cube_forward: Array, speed: float, out: Array
) -> None:
    """Write what a body observes of its task, float64 (11).

    With the mean velocity v of the parts and the target velocity g, it is |v - g|, v and g in the frame of the cube,
    and the rotation from the forward axis of the part to that of the cube.

    :param velocity: Velocities of the parts in m/s, (parts, 3).
    :param rotation: Rotation of the part that has to look at the target, (4).
    :param cube_rotation: Rotation of the orientation cube, (4).
    :param cube_forward: Forward axis of the orientation cube, (3).
    :param speed: Target speed in m/s.
    :param out: Array that receives the values.
    """
    mean, forward = np.zeros(3), np.empty(3)
    for part in range(len(velocity)):
        mean += velocity[part] / len(velocity)
    miss = speed * cube_forward - mean
    out[0] = math.sqrt(miss[0] ** 2 + miss[1] ** 2 + miss[2] ** 2)
    rotate_inverse(cube_rotation, mean[0], mean[1], mean[2], out[1:4])
    out[4], out[5], out[6] = 0.0, 0.0, speed
    local_axis(rotation, 2, forward)
    from_to(forward, cube_forward, out[7:11])

"""WallJump: an agent reaches a goal behind a wall by walking, by jumping, or by climbing over it from a block."""

from __future__ import annotations

from math import cos, sin, sqrt

import numpy as np

from unity_gym.scenes.academy import Academy
from unity_gym.scenes.agents import Agents
from unity_gym.scenes.bodies import TICK, Bodies
from unity_gym.scenes.drawing import BLUE, FLOOR, GREEN, ORANGE, WALL, WHITE, Canvas
from unity_gym.scenes.kernels import inner_kernel, kernel
from unity_gym.scenes.scene import Scene
from unity_gym.scenes.sensors.rays import Pose, RayPerceptionSensor
from unity_gym.scenes.sensors.sensor import Sensor, StackingSensor, VectorSensor
from unity_gym.scenes.shapes import Box, Shapes, box, separation
from unity_gym.specs import ActionSpec, Array

_AGENT, _BLOCK, _WALL, _PLATFORM, _GOAL = range(5)
_STACKS = 6
_SPEED = 3.0  # m/s that a step forward adds per tick
_SIDE = 0.6  # share of that for a sideways step
_TURN = np.radians(6)  # per tick

_JUMP_TIME = np.float32(0.2)  # s; in single precision, as in Unity, this lasts eleven ticks of 0.02 s
_JUMP_HEIGHT = 2.75  # m above the position of the jump
_JUMP_PULL = 777 * TICK  # 1/s: target speed per remaining meter
_JUMP_GAIN = 10.0  # m/s, largest change per tick
_FALL = 111.0  # m/s² downwards, in addition to gravity
_FEET = (0.475, 0.5, 0.475)  # m, half of the box that detects ground below

_NO_WALL, _LOW_WALL, _HIGH_WALL = 0, 1, 2
_HEIGHTS = (("no_wall_height", 0.0), ("small_wall_height", 4.0), ("big_wall_height", 8.0))
_SMALL, _BIG = 0, 1  # behaviors


class WallJump(Scene):
    """24 areas with one agent and one block each.

    Each tick gives a reward of -0.0005, the goal 1, and a fall off the platform -1. An episode has no wall (1 of 5), a
    low one (1 of 5) or a high one. With a high one, the agent has the behavior BigWallJump instead of SmallWallJump.
    An ended episode belongs to the behavior with which it started.

    Unity draws the first episodes' walls twice and reports ends of episodes that did not start; here they start with
    their final wall.
    """

    default_areas = 24

    def __init__(self, academy: Academy, areas: int) -> None:
        super().__init__(academy, areas)
        shapes = self.shapes = Shapes(
            areas, ["agent", "block", "wall", "platform", "goal"], ["agent", "block", "wall", "walkableSurface", "goal"]
        )
        shapes.place("agent", (-0.5, 0.5, -12.5), (0.5, 1.5, -11.5), yaw=np.pi)
        shapes.place("block", (-1.5, 0.5, -7.77), (1.5, 2.5, -4.77))
        shapes.place("wall", (-10, 0, -2.73), (10, 0, -1.23))
        shapes.place("platform", (-10.5, -0.55, -14.5), (10.5, 0.45, 6.5))
        shapes.place("goal", (4.37, 0.49, 0.93), (8.37, 5.49, 4.93))
        self.bodies = Bodies(
            shapes,
            masses=[25, 10],
            drags=[2, 1],
            solids=["wall", "platform"],
            gravity=26.9775,
            floating=["block"],
            turning=["agent"],
            on_ground=False,
        )
        academy.parameters.watch("gravity", self.bodies.set_gravity)
        self._jump_left = np.zeros(areas, np.float32)  # s
        self._jump_start = np.zeros(areas)  # height of the agent, m
        self._new_wall = np.full(areas, -1)
        self._has_started = False
        self.agents = Agents(
            academy,
            areas,
            ("SmallWallJump", "BigWallJump"),
            self._sensors(),
            ActionSpec(0, (3, 3, 3, 2)),
            act=self._act,
            start_episode=self._start_episode,
            decision_period=5,
            max_step=2000,
        )

    def _sensors(self) -> list[Sensor]:
        rays = [
            RayPerceptionSensor(
                name,
                self.shapes,
                self._pose,
                ("wall", "goal", "block"),
                rays_per_direction=3,
                max_degrees=90,
                length=20,
                start_offset=start,
                end_offset=end,
            )
            for name, start, end in (("OffsetRayPerceptionSensor", 2.5, 5.0), ("RayPerceptionSensor", 0.0, 0.0))
        ]
        sensors = [*rays, VectorSensor("VectorSensor_size4", 4, self._observe)]
        return [StackingSensor(sensor, _STACKS, self.areas) for sensor in sensors]

    def _pose(self, rows: Array) -> Pose:
        return Pose(rows, self.shapes.center[:, rows, _AGENT], self.shapes.yaw[rows, _AGENT])

    def _observe(self, rows: Array) -> Array:
        return _observe(rows, self.shapes.center, self.shapes.half)

    def _start_episode(self, rows: Array) -> None:
        rng, n = self.academy.rng, len(rows)
        self._place_block(rows)
        center = self.shapes.center
        center[0, rows, _AGENT] = rng.uniform(-9, 9, n)
        center[1, rows, _AGENT] = 1
        center[2, rows, _AGENT] = -12
        self.bodies.velocity[:, rows, _AGENT] = 0
        self._new_wall[rows] = np.minimum(rng.integers(5, size=n), _HIGH_WALL)
        if not self._has_started:
            self._has_started = True
            self.before_step()

    def _place_block(self, rows: Array) -> None:
        rng, n, center = self.academy.rng, len(rows), self.shapes.center
        center[0, rows, _BLOCK] = rng.uniform(-8.1, 8.1, n)
        center[1, rows, _BLOCK] = 1.5
        center[2, rows, _BLOCK] = -6.27 + rng.uniform(-3.5, 3.5, n)
        self.bodies.velocity[:, rows, _BLOCK] = 0

    def before_step(self) -> None:
        """Build the new walls and change to their behaviors, one tick after the episode ends of the old behaviors."""
        if (self._new_wall < 0).all():
            return
        for wall, (name, height) in enumerate(_HEIGHTS):
            rows = np.flatnonzero(self._new_wall == wall)
            self.shapes.half[1, rows, _WALL] = self.academy.parameters.values(name, height, len(rows)) / 2
            self.agents.behavior[rows] = _BIG if wall == _HIGH_WALL else _SMALL
        self._new_wall[:] = -1

    def _act(self, rows: Array) -> None:
        agents, shapes = self.agents, self.shapes
        _move(
            rows,
            agents.discrete,
            shapes.center,
            shapes.half,
            shapes.yaw,
            self.bodies.velocity,
            self._jump_left,
            self._jump_start,
        )
        agents.reward[rows] -= 0.0005
        fallen = rows[_have_fallen(rows, shapes.center, shapes.half)]
        if len(fallen):
            agents.reward[fallen] = -1
            agents.end_episode(fallen)
            self._place_block(fallen)

    def simulate(self) -> None:
        """Move agents and blocks by a tick; an agent that was in the goal and lands or stands ends its episode."""
        shapes = self.shapes
        in_goal = _are_in_goal(shapes.center, shapes.half, shapes.yaw)
        self.bodies.simulate()
        arrived = np.flatnonzero(in_goal & _have_feet_on_ground(shapes.center, shapes.half))
        if len(arrived):
            self.agents.reward[arrived] = 1
            self.agents.end_episode(arrived)

    def render(self, area: int) -> Array:
        """Return an image of an area from above."""
        shapes = self.shapes
        canvas = Canvas(-12, -16, 12, 8)
        canvas.rectangle(0, -4, 10.5, 10.5, FLOOR)
        canvas.rectangle(6.37, 2.93, 2, 2, GREEN)
        height = shapes.half[1, area, _WALL]
        if height > 0.45:  # the higher, the darker
            shade = max(0.0, 1 - height / 8)
            canvas.rectangle(0, -1.98, 10, 0.75, (int(WALL[0] * shade * 1.6), int(WALL[1] * shade * 1.6), 190))
        for thing, color in ((_BLOCK, ORANGE), (_AGENT, BLUE)):
            x, _, z = shapes.center[:, area, thing]
            half = shapes.half[0, area, thing]
            canvas.rectangle(x, z, half, half, color, angle=-shapes.yaw[area, thing])
        x, _, z = shapes.center[:, area, _AGENT]
        yaw = shapes.yaw[area, _AGENT]
        canvas.line(x, z, x + 0.35 * np.sin(yaw), z + 0.35 * np.cos(yaw), 0.2, WHITE)
        return canvas.image


@inner_kernel
def _move(
    rows: Array,
    actions: Array,
    center: Array,
    half: Array,
    yaw: Array,
    velocity: Array,
    jump_left: Array,
    jump_start: Array,
) -> None:
    """Apply one tick of actions: walk, turn, jump, and fall fast."""
    for area in rows:
        forward, turn, side, jump = actions[area, 0], actions[area, 1], actions[area, 2], actions[area, 3]
        on_ground = _is_on_ground(center, half, yaw, area)
        # A sideways step replaces one forward or backward.
        ahead, right = 0.0 if side else _sign(forward), -_SIDE * _sign(side)
        turn_sin, turn_cos = sin(yaw[area, _AGENT]), cos(yaw[area, _AGENT])
        share = 1.0 if on_ground else 0.5
        walk_x, walk_z = share * (ahead * turn_sin + right * turn_cos), share * (ahead * turn_cos - right * turn_sin)

        if jump and jump_left[area] <= 0 and _feet_are_on_ground(center, half, area):
            jump_left[area] = _JUMP_TIME
            jump_start[area] = center[1, area, _AGENT]
        yaw[area, _AGENT] -= _TURN * _sign(turn)

        speed = velocity[:, area, _AGENT]
        if jump_left[area] > 0:
            rise = jump_start[area] + _JUMP_HEIGHT - center[1, area, _AGENT]
            x, y, z = _JUMP_PULL * walk_x - speed[0], _JUMP_PULL * rise - speed[1], _JUMP_PULL * walk_z - speed[2]
            gain = min(1.0, _JUMP_GAIN / max(sqrt(x * x + y * y + z * z), 1e-9))
            speed[0] += gain * x
            speed[1] += gain * y
            speed[2] += gain * z
        elif not on_ground:
            speed[1] -= _FALL * TICK
        speed[0] += _SPEED * walk_x
        speed[2] += _SPEED * walk_z
        jump_left[area] -= np.float32(TICK)


@kernel
def _observe(rows: Array, center: Array, half: Array) -> Array:
    """Return positions, from 4 m before the middle and in 20 m, and whether the feet are on the ground, (k, 4)."""
    observed = np.empty((len(rows), 4))
    for k in range(len(rows)):
        for axis in range(3):
            observed[k, axis] = center[axis, rows[k], _AGENT] / 20
        observed[k, 2] += 4 / 20
        observed[k, 3] = _feet_are_on_ground(center, half, rows[k])
    return observed


@inner_kernel
def _sign(action: int) -> float:
    """Return the direction of a branch index: 0, 1 or -1."""
    return (0.0, 1.0, -1.0)[action]


@inner_kernel
def _is_over(center: Array, half: Array, area: int, thing: int, ground: int) -> bool:
    """Return whether the center of a thing is above or below another thing without yaw."""
    return bool(
        abs(center[0, area, thing] - center[0, area, ground]) < half[0, area, ground]
        and abs(center[2, area, thing] - center[2, area, ground]) < half[2, area, ground]
    )


@inner_kernel
def _feet_are_on_ground(center: Array, half: Array, area: int) -> bool:
    """Return whether a ray of 1 m downwards, from just below the center, hits ground (the small check)."""
    for ground in range(_BLOCK, _PLATFORM + 1):
        depth = center[1, area, _AGENT] - 0.05 - (center[1, area, ground] + half[1, area, ground])
        if 0 <= depth <= 1 and _is_over(center, half, area, _AGENT, ground):
            return True
    return False


@inner_kernel
def _is_on_ground(center: Array, half: Array, yaw: Array, area: int) -> bool:
    """Return whether a box that extends slightly below the agent overlaps ground (the large check)."""
    agent = box(center, half, yaw, area, _AGENT)
    feet = Box(agent.x, agent.y - 0.05, agent.z, *_FEET, agent.cos, agent.sin)
    overlaps = False
    for ground in range(_BLOCK, _PLATFORM + 1):
        overlaps = overlaps or separation(feet, box(center, half, yaw, area, ground))[0] < 0
    return overlaps


@kernel
def _have_fallen(rows: Array, center: Array, half: Array) -> Array:
    """Return whether the agent or the block has no ground below it."""
    fallen = np.zeros(len(rows), np.bool_)
    for k in range(len(rows)):
        above = False
        for ground in range(_BLOCK, _PLATFORM + 1):
            above = above or _is_over(center, half, rows[k], _AGENT, ground)
        fallen[k] = not (above and _is_over(center, half, rows[k], _BLOCK, _PLATFORM))
    return fallen


@kernel
def _have_feet_on_ground(center: Array, half: Array) -> Array:
    """Return the small check of each agent, bool (areas)."""
    areas = center.shape[1]
    standing = np.zeros(areas, np.bool_)
    for area in range(areas):
        standing[area] = _feet_are_on_ground(center, half, area)
    return standing


@kernel
def _are_in_goal(center: Array, half: Array, yaw: Array) -> Array:
    """Return whether agents overlap the goal, bool (areas)."""
    areas = yaw.shape[0]
    overlap = np.zeros(areas, np.bool_)
    for area in range(areas):
        agent, goal = box(center, half, yaw, area, _AGENT), box(center, half, yaw, area, _GOAL)
        overlap[area] = separation(agent, goal)[0] < 0
    return overlap

"""WallJump: an agent reaches a goal behind a wall: it walks there, jumps over it, or climbs over it from a block."""

from __future__ import annotations

import numpy as np

from unity_gym.scenes.academy import Academy
from unity_gym.scenes.agents import Agents
from unity_gym.scenes.bodies import TICK, Bodies
from unity_gym.scenes.drawing import BLUE, FLOOR, GREEN, ORANGE, WALL, WHITE, Canvas
from unity_gym.scenes.scene import Scene
from unity_gym.scenes.sensors.rays import Pose, RayPerceptionSensor
from unity_gym.scenes.sensors.sensor import Sensor, StackingSensor, VectorSensor
from unity_gym.scenes.shapes import Shapes, separation
from unity_gym.specs import ActionSpec, Array

_AGENT, _BLOCK, _WALL, _PLATFORM, _GOAL = range(5)
_STACKS = 6
_SPEED = 3.0  # m/s that a step forward adds in a tick
_SIDE = 0.6  # of that for a step to a side
_TURN = np.radians(6)  # a tick
_SIGNS = np.array([0, 1, -1])  # of the choices of a branch: nothing, one way, the other

_JUMP_TIME = np.float32(0.2)  # s; in single precision, as in Unity, this lasts eleven ticks of 0.02 s
_JUMP_HEIGHT = 2.75  # m above the place of the jump
_JUMP_PULL = 777 * TICK  # 1/s: the speed wanted for each metre to go
_JUMP_GAIN = 10.0  # m/s that a tick changes at most
_FALL = 111.0  # m/s² downwards, on top of gravity
_FEET = np.array([0.475, 0.5, 0.475])[:, np.newaxis, np.newaxis]  # half of the box that looks for ground below

_NO_WALL, _LOW_WALL, _HIGH_WALL = 0, 1, 2
_HEIGHTS = (("no_wall_height", 0.0), ("small_wall_height", 4.0), ("big_wall_height", 8.0))
_SMALL, _BIG = 0, 1  # behaviors


class WallJump(Scene):
    """24 areas with an agent and a block each. Each tick costs 0.0005; the goal pays 1, a fall off the platform -1.

    An episode has no wall (1 of 5), a low one (1 of 5) or a high one, and with the last one the agent has the behavior
    BigWallJump instead of SmallWallJump. An ended episode belongs to the behavior that it began with. Unity draws
    the first episodes' walls twice and tells of ends that nobody saw begin; here they begin with the wall they keep.
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
            on_ground=False,
        )
        academy.parameters.watch("gravity", self._set_gravity)
        self._jump_left = np.zeros(areas, np.float32)  # s
        self._jump_start = np.zeros(areas)  # height of the agent, m
        self._new_wall = np.full(areas, -1)
        self._has_begun = False
        self.agents = Agents(
            academy,
            areas,
            ("SmallWallJump", "BigWallJump"),
            self._sensors(),
            ActionSpec(0, (3, 3, 3, 2)),
            act=self._act,
            begin_episode=self._begin_episode,
            decision_period=5,
            max_step=2000,
        )

    def _set_gravity(self, value: float) -> None:
        self.bodies.gravity = value

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
        observed = np.empty((len(rows), 4))
        observed[:, :3] = self.shapes.center[:, rows, _AGENT].T / 20
        observed[:, 2] += 4 / 20
        observed[:, 3] = self._feet_on_ground(rows)
        return observed

    def _begin_episode(self, rows: Array) -> None:
        rng, n = self.academy.rng, len(rows)
        self._place_block(rows)
        center = self.shapes.center
        center[0, rows, _AGENT] = rng.uniform(-9, 9, n)
        center[1, rows, _AGENT] = 1
        center[2, rows, _AGENT] = -12
        self.bodies.velocity[:, rows, _AGENT] = 0
        self._new_wall[rows] = np.minimum(rng.integers(5, size=n), _HIGH_WALL)
        if not self._has_begun:
            self._has_begun = True
            self.before_step()

    def _place_block(self, rows: Array) -> None:
        rng, n, center = self.academy.rng, len(rows), self.shapes.center
        center[0, rows, _BLOCK] = rng.uniform(-8.1, 8.1, n)
        center[1, rows, _BLOCK] = 1.5
        center[2, rows, _BLOCK] = -6.27 + rng.uniform(-3.5, 3.5, n)
        self.bodies.velocity[:, rows, _BLOCK] = 0

    def before_step(self) -> None:
        """Build the new walls and change to their behaviors, a tick after the ends that belong to the old ones."""
        if (self._new_wall < 0).all():
            return
        for wall, (name, height) in enumerate(_HEIGHTS):
            rows = np.flatnonzero(self._new_wall == wall)
            self.shapes.half[1, rows, _WALL] = self.academy.parameters.column(name, height, len(rows)) / 2
            self.agents.behavior[rows] = _BIG if wall == _HIGH_WALL else _SMALL
        self._new_wall[:] = -1

    def _act(self, rows: Array) -> None:
        agents, shapes = self.agents, self.shapes
        position, velocity = shapes.center[:, rows, _AGENT], self.bodies.velocity[:, rows, _AGENT]
        yaw = shapes.yaw[rows, _AGENT]
        forward, turn, side, jump = agents.discrete[rows].T
        on_ground = self._on_ground(rows)

        # To a side: 1 is left. It takes the place of forward and backward.
        ahead, right = _SIGNS[forward], -_SIDE * _SIGNS[side]
        ahead = np.where(side > 0, 0, ahead)
        sin, cos = np.sin(yaw), np.cos(yaw)
        direction = np.array([ahead * sin + right * cos, np.zeros(len(rows)), ahead * cos - right * sin])
        direction *= np.where(on_ground, 1, 0.5)

        left = self._jump_left[rows]
        starts = (jump == 1) & (left <= 0) & self._feet_on_ground(rows)
        left[starts] = _JUMP_TIME
        self._jump_start[rows[starts]] = position[1, starts]
        shapes.yaw[rows, _AGENT] = yaw - _TURN * _SIGNS[turn]

        jumps = left > 0
        to_go = direction.copy()
        to_go[1] += self._jump_start[rows] + _JUMP_HEIGHT - position[1]
        change = _JUMP_PULL * to_go - velocity
        size = np.sqrt((change * change).sum(axis=0))
        velocity += np.where(jumps, np.minimum(1, _JUMP_GAIN / np.maximum(size, 1e-9)), 0) * change
        velocity += _SPEED * direction
        velocity[1] -= np.where(jumps | on_ground, 0, _FALL * TICK)
        self.bodies.velocity[:, rows, _AGENT] = velocity
        self._jump_left[rows] = left - np.float32(TICK)

        agents.reward[rows] -= 0.0005
        fallen = rows[self._has_fallen(rows)]
        if len(fallen):
            agents.reward[fallen] = -1
            agents.end_episode(fallen)
            self._place_block(fallen)

    def _over(self, rows: Array, thing: int, things: slice) -> Array:
        """Whether the centre of a thing is above other things' sides, as seen from above: bool (k, things)."""
        center, half = self.shapes.center, self.shapes.half
        apart = np.abs(center[::2, rows, thing, np.newaxis] - center[::2, rows, things])
        return np.asarray((apart < half[::2, rows, things]).all(axis=0))

    def _feet_on_ground(self, rows: Array) -> Array:
        """The small check: a ray of 1 m downwards, from just below the centre, meets something to stand on."""
        shapes, ground = self.shapes, slice(_BLOCK, _PLATFORM + 1)
        start = shapes.center[1, rows, _AGENT, np.newaxis] - 0.05
        depth = start - (shapes.center + shapes.half)[1, rows, ground]
        return np.asarray((self._over(rows, _AGENT, ground) & (depth >= 0) & (depth <= 1)).any(axis=1))

    def _on_ground(self, rows: Array) -> Array:
        """The large check: a box that reaches a little below the agent overlaps something to stand on."""
        shapes, ground = self.shapes, slice(_BLOCK, _PLATFORM + 1)
        apart = shapes.center[:, rows, ground] - shapes.center[:, rows, _AGENT, np.newaxis]
        apart[1] += 0.05
        yaw = shapes.yaw[rows, _AGENT, np.newaxis]
        gap, _ = separation(apart, _FEET, yaw, shapes.half[:, rows, ground], shapes.yaw[rows, ground])
        return np.asarray((gap < 0).any(axis=1))

    def _has_fallen(self, rows: Array) -> Array:
        """Whether the agent or the block has nothing below it."""
        platform = slice(_PLATFORM, _PLATFORM + 1)
        agent = self._over(rows, _AGENT, slice(_BLOCK, _PLATFORM + 1)).any(axis=1)
        return np.asarray(~(agent & self._over(rows, _BLOCK, platform)[:, 0]))

    def simulate(self) -> None:
        self.bodies.simulate()
        shapes = self.shapes
        apart = shapes.center[:, :, _GOAL] - shapes.center[:, :, _AGENT]
        half = shapes.half[:, :, _AGENT]
        near = np.flatnonzero((np.abs(apart) < shapes.half[:, :, _GOAL] + 1).all(axis=0))
        if not len(near):
            return
        yaw, turned = shapes.yaw[near, _AGENT], shapes.yaw[near, _GOAL]
        gap, _ = separation(apart[:, near], half[:, near], yaw, shapes.half[:, near, _GOAL], turned)
        inside = near[gap < 0]
        arrived = inside[self._feet_on_ground(inside)]
        if len(arrived):
            self.agents.reward[arrived] = 1
            self.agents.end_episode(arrived)

    def render(self, area: int) -> Array:
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
        return canvas.picture

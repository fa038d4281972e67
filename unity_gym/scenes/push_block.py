"""PushBlock: a cube pushes a block onto the goal along one side of a walled square."""

from __future__ import annotations

import numpy as np

from unity_gym.scenes.academy import Academy
from unity_gym.scenes.agents import Agents
from unity_gym.scenes.bodies import FRICTION, TICK, Bodies
from unity_gym.scenes.drawing import BLUE, FLOOR, GREEN, ORANGE, WALL, WHITE, Canvas
from unity_gym.scenes.movement import SEVEN_MOVES, SPEED, TURN, Walkers, spawn
from unity_gym.scenes.scene import Scene
from unity_gym.scenes.sensors.rays import RayPerceptionSensor
from unity_gym.scenes.sensors.sensor import Sensor, StackingSensor
from unity_gym.scenes.shapes import Shapes
from unity_gym.specs import ActionSpec, Array

_MAX_STEP = 5000
_JUMP = 20.0  # m/s
_JUMP_PAUSE, _JUMP_TIME = 3.0, 0.5  # s
_PRESS = 60.0  # m/s² downwards
_CLEARANCE = 2.5  # m around a starting position


class PushBlock(Scene):
    """32 areas with one agent and one block each.

    Each tick gives a reward of -1/5000. When the block touches the goal, the reward is 5 and the episode ends.

    Areas are stored as seen from above with the goal at the bottom (-z). Unity rotates an area with all its contents by
    right angles at a reset, which agents cannot observe.
    """

    default_areas = 32
    wall_height = 1.5
    spawn_tries: int | None = None

    def __init__(self, academy: Academy, areas: int) -> None:
        super().__init__(academy, areas)
        shapes = self.shapes = Shapes(
            areas,
            ["agent", "block", "goal", "right", "left", "far", "near"],
            ["agent", "block", "goal", "wall", "wall", "wall", "wall"],
        )
        shapes.place("agent", (-0.5, -10.5, -0.5), (0.5, -9.5, 0.5), yaw=np.pi)
        shapes.place("block", (-1, -10.375, -1), (1, -9.625, 1))
        shapes.place("goal", (-12.5, -1.505, -12.65), (12.5, 1.495, -8.35))
        low, high = -0.5, self.wall_height
        shapes.place("right", (12.5, low, -12.5), (13, high, 12.5))
        shapes.place("left", (-13, low, -12.5), (-12.5, high, 12.5))
        shapes.place("far", (-12.5, low, 12.5), (12.5, high, 13))
        shapes.place("near", (-12.5, low, -13), (12.5, high, -12.5))
        self.bodies = Bodies(
            shapes,
            masses=[10, 10],
            drags=[4, 0.5],
            solids=["goal", "right", "left", "far", "near"],
            gravity=24.525,
        )
        academy.parameters.watch("gravity", self.bodies.set_gravity)
        self.walkers = Walkers(self.bodies, 1)
        self.agents = Agents(
            academy,
            areas,
            "PushBlock",
            self._sensors(),
            self._actions(),
            act=self._act,
            start_episode=self._start_episode,
            decision_period=5,
            max_step=_MAX_STEP,
        )

    def _actions(self) -> ActionSpec:
        return SEVEN_MOVES

    def _sensors(self) -> list[Sensor]:
        return [
            StackingSensor(
                RayPerceptionSensor(
                    name,
                    self.shapes,
                    self.walkers.pose,
                    ("block", "goal", "wall"),
                    rays_per_direction=3,
                    max_degrees=90,
                    length=12,
                    start_offset=height,
                    end_offset=height,
                ),
                3,
                self.areas,
            )
            for name, height in (("OffsetRayPerceptionSensor", 1.5), ("RayPerceptionSensor", 0.0))
        ]

    def _start_episode(self, rows: Array) -> None:
        parameters = self.academy.parameters
        n = len(rows)
        # The block before the agent, which starts at a distance from it; both before the block takes its new size.
        for thing in (1, 0):
            spawn(self.shapes, self.academy.rng, rows, thing, _CLEARANCE, self.spawn_tries)
        for kind, name in enumerate(("static_friction", "dynamic_friction")):
            ground = parameters.values(name, 0, n)  # a contact takes the average of two materials, at two points
            self.bodies.ground_friction[kind, rows] = (ground + FRICTION)[:, np.newaxis]
        self.shapes.half[::2, rows, 1] = parameters.positive("block_scale", 2, n) / 2
        self.bodies.drag[rows, 1] = parameters.values("block_drag", 0.5, n)
        self.bodies.velocity[:, rows] = 0

    def _act(self, rows: Array) -> None:
        self.walkers.move(rows, self.agents.discrete[rows, 0])
        self.agents.reward[rows] -= 1 / _MAX_STEP

    def simulate(self) -> None:
        """Move agents and blocks by a tick; a block in the goal gives a reward and ends the episode."""
        self.bodies.simulate()
        scored = np.flatnonzero(self.bodies.entered("block", "goal"))
        if len(scored):
            self.agents.reward[scored] += 5
            self.agents.end_episode(scored)

    def render(self, area: int) -> Array:
        """Return an image of an area from above."""
        canvas = Canvas(-13, -13, 13, 13, color=WALL)
        canvas.rectangle(0, 0, 12.5, 12.5, FLOOR)
        canvas.rectangle(0, -10.425, 12.5, 2.075, GREEN)
        (agent_x, block_x), _, (agent_z, block_z) = self.shapes.center[:, area, :2]
        half = self.shapes.half[0, area, 1]
        canvas.rectangle(block_x, block_z, half, half, ORANGE)
        yaw = self.shapes.yaw[area, 0]
        canvas.rectangle(agent_x, agent_z, 0.5, 0.5, BLUE, angle=-yaw)
        ahead_x, ahead_z = 0.35 * np.sin(yaw), 0.35 * np.cos(yaw)
        canvas.line(agent_x, agent_z, agent_x + ahead_x, agent_z + ahead_z, 0.2, WHITE)
        return canvas.image


class PushBlockWithInput(PushBlock):
    """PushBlock in Unity's newer input system: two axes (turn, drive) and a jump button, between walls of 24 m.

    Only the larger one of the axes counts: the first turns by its sign, the second drives. A jump is possible every
    3 s; between jumps, a strong force presses the agent down. As in Unity, an action is an input event that
    the next tick reads: it acts one tick late.
    """

    wall_height = 24.0
    spawn_tries = 50

    def __init__(self, academy: Academy, areas: int) -> None:
        self._events = np.zeros((areas, 3))  # turn, drive and button for the next tick
        self._axes = np.zeros((areas, 2))  # turn and drive of this tick
        self._pressed = np.zeros(areas, bool)
        self._cooldown = np.zeros(areas)  # s
        self._rising = np.zeros(areas, np.float32)  # s
        super().__init__(academy, areas)

    def _actions(self) -> ActionSpec:
        return ActionSpec(2, (2,))

    def _act(self, rows: Array) -> None:
        self._events[rows, :2] = np.clip(self.agents.continuous[rows], -1, 1)
        self._events[rows, 2] = self.agents.discrete[rows, 0]
        self.agents.reward[rows] -= 1 / _MAX_STEP

    def before_step(self) -> None:
        """Read the events of the previous tick; a press starts a jump."""
        self._axes[:] = self._events[:, :2]
        pressed = self._events[:, 2] == 1
        jumps = pressed & ~self._pressed & (self._cooldown <= 0)
        self._pressed = pressed
        self.bodies.velocity[1, jumps, 0] += _JUMP
        self._cooldown[jumps], self._rising[jumps] = _JUMP_PAUSE, _JUMP_TIME
        self._cooldown -= TICK

    def after_step(self) -> None:
        """Move the agents by the axes that the actions hold down, and let jumping agents rise and fall."""
        axis, drive = self._axes.T
        ahead = np.where(np.abs(drive) > np.abs(axis), drive, 0) * SPEED
        turn = np.where(np.abs(axis) > np.abs(drive), np.sign(axis), 0) * TURN
        self.walkers.push(self.agents.rows, np.stack([ahead, np.zeros_like(turn), turn], axis=1))
        self.bodies.velocity[1, :, 0] -= np.where(self._rising < 0, _PRESS * TICK, 0)
        self._rising -= np.float32(TICK)

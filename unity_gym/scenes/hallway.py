"""Hallway: an agent sees one of two symbols and must choose the goal with the same symbol at the end of the hallway."""

from __future__ import annotations

import numpy as np

from unity_gym.scenes.academy import Academy
from unity_gym.scenes.agents import Agents
from unity_gym.scenes.bodies import Bodies
from unity_gym.scenes.drawing import BLUE, FLOOR, GREEN, ORANGE, PURPLE, WALL, WHITE, Canvas
from unity_gym.scenes.movement import Walkers
from unity_gym.scenes.scene import Scene
from unity_gym.scenes.sensors.rays import RayPerceptionSensor
from unity_gym.scenes.sensors.sensor import Sensor, StackingSensor, VectorSensor
from unity_gym.scenes.shapes import Shapes
from unity_gym.specs import ActionSpec, Array

_SPEED = 1.5  # m/s that a push adds per tick
_TURN = np.radians(3)  # per tick
_MOVES = np.array([[0, 0, 0], [_SPEED, 0, 0], [-_SPEED, 0, 0], [0, 0, _TURN], [0, 0, -_TURN]])  # ahead, right, turn
_MAX_STEP = 3000
_STACKS = 3
_MIDDLE = 0.015  # x of the ground from which the agent and the symbols are placed, m
_AWAY = 1000.0  # m, depth of the hidden symbol below the room
_GOAL_SIDE = 7.0  # m from the middle
_SYMBOLS = ("O", "X")
_GOALS = ("pad O", "pad X", "sign O", "sign X")
_AGENT = 0
_SYMBOL, _PAD, _SIGN = slice(1, 3), slice(3, 5), slice(5, 7)  # with O, with X
_SUM = 2  # aggregation of the client's statistics


class Hallway(Scene):
    """16 areas with one agent each.

    Each tick gives a reward of -1/3000. The right goal gives 1, the wrong one -0.1; both end the episode. A goal is a
    flat pad and a sign behind it. As in Unity, contacts turn the agent, and its spin continues in the next episode
    until the agent lands.
    """

    default_areas = 16

    def __init__(self, academy: Academy, areas: int) -> None:
        super().__init__(academy, areas)
        walls = ["right", "left", "far", "near"]
        shapes = self.shapes = Shapes(
            areas,
            ["agent", "symbol O", "symbol X", *_GOALS, *walls],
            ["agent", "symbol_O", "symbol_X", *["symbol_O_Goal", "symbol_X_Goal"] * 2, *["wall"] * len(walls)],
        )
        shapes.half[:, :, _AGENT] = 0.5
        for symbol in _SYMBOLS:
            shapes.place(f"symbol {symbol}", (-2, 0, -0.5), (2, 4, 0.5))
            shapes.place(f"pad {symbol}", (-2, -0.05, 20.29), (2, 0.05, 24.29))
            shapes.place(f"sign {symbol}", (-2.04, 0, 24.22), (2.04, 4.01, 25.36))
        shapes.place("right", (9.5, -1, -25), (10, 3, 25))
        shapes.place("left", (-10, -1, -25), (-9.5, 3, 25))
        shapes.place("far", (-10, -1, 24.75), (10, 3, 25.25))
        shapes.place("near", (-10, -1, -25.25), (10, 3, -24.75))
        solids = shapes.names[1:]
        self.bodies = Bodies(shapes, masses=[25], drags=[2], solids=solids, gravity=19.62, turning=["agent"])
        academy.parameters.watch("gravity", self.bodies.set_gravity)
        self.walkers = Walkers(self.bodies, 1)
        self.symbol = np.zeros(areas, np.int64)
        """Index of the visible symbol: O, X."""
        self.agents = Agents(
            academy,
            areas,
            "Hallway",
            self._sensors(),
            ActionSpec(0, (len(_MOVES),)),
            act=self._act,
            start_episode=self._start_episode,
            decision_period=6,
            max_step=_MAX_STEP,
        )

    def _sensors(self) -> list[Sensor]:
        rays = RayPerceptionSensor(
            "RayPerceptionSensor",
            self.shapes,
            self.walkers.pose,
            ("symbol_O_Goal", "symbol_X_Goal", "symbol_O", "symbol_X", "wall"),
            rays_per_direction=2,
            max_degrees=70,
            length=12,
        )
        time = VectorSensor("VectorSensor_size1", 1, self._observe)
        return [StackingSensor(sensor, _STACKS, self.areas) for sensor in (rays, time)]

    def _observe(self, rows: Array) -> Array:
        return self.agents.step_count[rows, np.newaxis] / _MAX_STEP

    def _start_episode(self, rows: Array) -> None:
        rng, shapes, n = self.academy.rng, self.shapes, len(rows)
        self.symbol[rows] = shown = rng.integers(2, size=n)
        shapes.center[1, rows, _SYMBOL] = 2 - _AWAY
        shapes.center[1, rows, 1 + shown] = 2
        # Unity's script leaves the X in the middle and moves only the O sideways.
        shapes.center[0, rows, 1 + shown] = _MIDDLE + np.where(shown == 0, rng.uniform(-3, 3, n), 0)
        shapes.center[2, rows, 1 + shown] = rng.uniform(-5, 5, n)

        shapes.center[0, rows, _AGENT] = _MIDDLE + rng.uniform(-3, 3, n)
        shapes.center[1, rows, _AGENT] = 1
        shapes.center[2, rows, _AGENT] = rng.uniform(-20, -10, n)
        shapes.yaw[rows, _AGENT] = rng.uniform(0, 2 * np.pi, n)
        self.bodies.velocity[:, rows, _AGENT] = 0

        side = np.where(rng.integers(2, size=n) == 0, _GOAL_SIDE, -_GOAL_SIDE)
        for thing in (_PAD, _SIGN):
            shapes.center[0, rows, thing] = np.stack([side, -side], axis=1)
        for _ in rows:
            self._count(correct=0, wrong=0)

    def _count(self, **goals: float) -> None:
        """Send the number of reached goals; Unity's script sends zeros at each reset, too."""
        for name, value in goals.items():
            self.academy.communicator.add_statistic(f"Goal/{name.capitalize()}", value, _SUM)

    def _act(self, rows: Array) -> None:
        self.agents.reward[rows] -= 1 / _MAX_STEP
        self.walkers.move(rows, self.agents.discrete[rows, 0], _MOVES)

    def simulate(self) -> None:
        """Move the agents by a tick; a goal that an agent enters ends its episode."""
        self.bodies.simulate()
        pads_and_signs = self.bodies.entered("agent", *_GOALS)
        areas, _ = pads_and_signs.nonzero()
        if not len(areas):
            return
        ended = np.unique(areas)
        reached = pads_and_signs[ended, : len(_SYMBOLS)] | pads_and_signs[ended, len(_SYMBOLS) :]
        correct = reached[np.arange(len(ended)), self.symbol[ended]]
        self.agents.reward[ended] = np.where(correct, 1, -0.1)
        for is_correct in correct:
            self._count(**{"correct" if is_correct else "wrong": 1})
        self.agents.end_episode(ended)

    def render(self, area: int) -> Array:
        """Return an image of an area from above."""
        shapes = self.shapes
        canvas = Canvas(-26, -10.5, 26, 10.5, color=WALL)
        canvas.rectangle(0, 0, 24.75, 9.5, FLOOR)

        def draw(x: float, z: float, half: float, cross: bool, radius: float) -> None:
            """Draw a symbol; the far end of the hallway is on the right, so the image's axes are z and -x."""
            if cross:
                canvas.line(z - radius, -x - radius, z + radius, -x + radius, half, WHITE)
                canvas.line(z - radius, -x + radius, z + radius, -x - radius, half, WHITE)
            else:
                canvas.ring(z, -x, radius, half, WHITE)

        for index, color in enumerate((GREEN, PURPLE)):
            pad, symbol = _PAD.start + index, _SYMBOL.start + index
            x, z = shapes.center[0, area, pad], shapes.center[2, area, pad]
            canvas.rectangle(z, -x, 2, 2, color)
            draw(x, z, 0.4, index == 1, 1.0)
            if self.symbol[area] == index:
                x, z = shapes.center[0, area, symbol], shapes.center[2, area, symbol]
                canvas.rectangle(z, -x, 0.5, 2, color)
                draw(x, z, 0.15, index == 1, 0.3)
        x, z, yaw = shapes.center[0, area, _AGENT], shapes.center[2, area, _AGENT], shapes.yaw[area, _AGENT]
        canvas.rectangle(z, -x, 0.5, 0.5, BLUE, angle=-yaw)
        canvas.line(z, -x, z + 0.35 * np.cos(yaw), -x - 0.35 * np.sin(yaw), 0.2, ORANGE)
        return canvas.image

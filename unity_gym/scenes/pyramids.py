"""Pyramids: an agent presses a switch, which makes a pyramid appear, and topples it to get the gold on its top."""

from __future__ import annotations

import numpy as np

from unity_gym.scenes.academy import Academy
from unity_gym.scenes.agents import Agents
from unity_gym.scenes.bodies import Bodies
from unity_gym.scenes.drawing import BLUE, FLOOR, GREEN, ORANGE, RED, WALL, WHITE, YELLOW, Canvas
from unity_gym.scenes.heap import Heap
from unity_gym.scenes.movement import Walkers
from unity_gym.scenes.scene import Scene
from unity_gym.scenes.sensors.rays import RayPerceptionSensor
from unity_gym.scenes.sensors.sensor import Sensor, VectorSensor
from unity_gym.scenes.shapes import Shapes
from unity_gym.specs import ActionSpec, Array

_SPEED = 2.0  # m/s that a push adds per tick
_TURN = np.radians(4)  # per tick
_MOVES = np.array([[0, 0, 0], [_SPEED, 0, 0], [-_SPEED, 0, 0], [0, 0, _TURN], [0, 0, -_TURN]])  # ahead, right, turn
_MAX_STEP = 5000
_GRAVITY = 9.81  # m/s²
_AGENT_MASS = 25.0  # kg
# Bricks weigh 2 kg in Unity. These never turn and so jam less: 6 kg slow an agent as in Unity's demonstration.
_BRICK_MASS = 6.0
_HALF = 0.5  # m, half of an edge of an agent and of a brick
_DROP = 2.0  # m, starting height of the agents' centers and of the undersides of switches
_SWITCH_MASS = 1.0  # kg
_SWITCH_HALF = 2.0  # m, half of an edge of a switch
_BUTTON_HEIGHT = 1.375  # m, of its center above the underside of the switch

_ZONES = np.array([(x, z) for z in (-30.0, 0.0, 30.0) for x in (-30.0, 0.0, 30.0)])
_ZONE_SPREAD = 25 / 2.1  # m around the middle of a zone in which things are placed
_STONE_PYRAMIDS = 6

# Limits along x and z, and height.
_WALLS = (
    (49.5, 50.5, -50.6, 50.1, 5.0),
    (-50.5, -49.5, -50.6, 50.1, 5.0),
    (-50.5, 50.5, 49.1, 50.1, 5.0),
    (-50.5, 50.5, -50.6, -49.6, 5.0),
    (34.995, 49.5, 16.058, 17.058, 4.52),
    (34.995, 49.5, -16.942, -15.942, 4.52),
    (-49.5, -34.995, -17.058, -16.058, 4.52),
    (-49.5, -34.995, 15.942, 16.942, 4.52),
    (16.058, 17.058, -49.5, -34.995, 4.52),
    (-16.942, -15.942, -49.5, -34.995, 4.52),
    (15.942, 16.942, 34.995, 49.5, 4.52),
    (-17.058, -16.058, 34.995, 49.5, 4.52),
    *((x, x + 15.15, z - 0.5, z + 0.5, 4.52) for x in (8.963, -24.133) for z in (16.558, -16.558)),
    *((x - 0.5, x + 0.5, z - 7.5, z + 7.5, 4.52) for x in (16.538, -16.558) for z in (16.558, -16.558)),
)

# Half edges and middles from the root, x, y and z, of the four layers of a pyramid of stones.
LAYERS = np.array([(0.43, 0.5, 0.78), (0.435, 1.5, 0.824), (0.325, 2.5, 0.753), (0.34, 3.5, 0.8)])
_LAYER_HALVES = np.array([(2.27, 0.5, 2.34), (1.745, 0.5, 1.797), (1.095, 0.5, 1.122), (0.5, 0.5, 0.5)])

# Middles of the gold and of 25 bricks, from the root.
_BRICKS = np.array(
    [
        (0.45, 5.0, 0.8),
        (0.52, 3.5, 0.8),
        *((x, 2.5, z) for x in (-0.143, 1.047) for z in (0.131, 1.375)),
        *((x, 1.5, z) for x in (-0.81, 0.38, 1.68) for z in (-0.473, 2.121)),
        *((x, 1.5, 0.771) for x in (-0.81, 1.68)),
        *((x, 0.5, z) for x in (-1.34, -0.213, 1.087, 2.2) for z in (-1.06, 2.62)),
        *((x, 0.5, z) for x in (-1.34, 2.2) for z in (0.101, 1.451)),
    ]
)

_AGENT, _SWITCH, _BUTTON, _GOLD = range(4)
_HEAP = slice(_GOLD, _GOLD + len(_BRICKS))
_STONES = slice(_HEAP.stop, _HEAP.stop + 4 * _STONE_PYRAMIDS)  # the layers of a pyramid are consecutive


class Pyramids(Scene):
    """16 areas with one agent each.

    Each tick gives a reward of -1/5000. When the agent touches the gold, the reward is 2 and the episode ends. Pyramids
    appear in place instead of falling by 2 m. Those of stones are static, and each of their layers is one box. A switch
    falls by 2 m. It only rises and falls, but as in Unity, a fast agent plows through it and throws it up.
    """

    default_areas = 16

    def __init__(self, academy: Academy, areas: int) -> None:
        super().__init__(academy, areas)
        bricks = [f"brick {i}" for i in range(1, len(_BRICKS))]
        stones = [f"stones {pyramid}.{layer}" for pyramid in range(_STONE_PYRAMIDS) for layer in range(4)]
        walls = [f"wall {i}" for i in range(len(_WALLS))]
        shapes = self.shapes = Shapes(
            areas,
            ["agent", "switch", "button", "gold", *bricks, *stones, *walls],
            [
                "agent",
                "switchOff",
                "",
                "goal",
                *["block"] * len(bricks),
                *["stone"] * len(stones),
                *["wall"] * len(walls),
            ],
        )
        shapes.tags = (*shapes.tags, "switchOn")
        self._switch_tags = shapes.tags.index("switchOff"), shapes.tags.index("switchOn")
        shapes.half[:, :, _AGENT] = shapes.half[:, :, _HEAP] = _HALF
        shapes.half[:, :, _GOLD] = 1.0
        shapes.place("switch", (-2, 0, -2), (2, 4, 2))
        shapes.place("button", (-1, 1, -1), (1, 1.75, 1))
        shapes.half[:, :, _STONES] = np.tile(_LAYER_HALVES.T, _STONE_PYRAMIDS)[:, np.newaxis]
        for name, (left, right, near, far, height) in zip(walls, _WALLS, strict=True):
            shapes.place(name, (left, -1, near), (right, height, far))

        solids = [*stones[::4], *walls]
        self.bodies = Bodies(
            shapes,
            masses=[_AGENT_MASS, _SWITCH_MASS],
            drags=[2, 0],
            solids=solids,
            gravity=_GRAVITY,
            anchored=["switch"],
        )
        self.walkers = Walkers(self.bodies, 1)
        columns = [shapes.index(name) for name in ("switch", *solids)]
        self.heap = Heap(shapes, _HEAP, _BRICK_MASS, _AGENT, _AGENT_MASS, columns, _GRAVITY)
        self._zones = np.zeros((areas, len(_ZONES)), np.int64)  # of the agent, the switch, the bricks, the stones
        self._is_on = np.zeros(areas, bool)
        self.agents = Agents(
            academy,
            areas,
            "Pyramids",
            self._sensors(),
            ActionSpec(0, (len(_MOVES),)),
            act=self._act,
            start_episode=self._start_episode,
            decision_period=5,
            max_step=_MAX_STEP,
        )

    def _sensors(self) -> list[Sensor]:
        rays = [
            RayPerceptionSensor(
                name,
                self.shapes,
                self.walkers.pose,
                ("block", "wall", "goal", "switchOff", "switchOn", "stone"),
                rays_per_direction=3,
                max_degrees=degrees,
                length=35,
                end_offset=end,
            )
            for name, degrees, end in (
                ("RayPerceptionSensor", 70, 0.0),
                ("RayPerceptionSensor1", 65, 5.0),
                ("RayPerceptionSensor2", 75, 10.0),
            )
        ]
        return [*rays, VectorSensor("VectorSensor_size4", 4, self._observe)]

    def _observe(self, rows: Array) -> Array:
        x, y, z = self.walkers.velocity(rows)
        yaw = self.shapes.yaw[rows, _AGENT]
        sin, cos = np.sin(yaw), np.cos(yaw)
        return np.stack([self._is_on[rows], cos * x - sin * z, y, sin * x + cos * z], axis=1)

    def _places(self, rows: Array, part: int) -> Array:
        """Return random positions in the zones of a part of the episodes, x and z (2, k)."""
        spread = self.academy.rng.uniform(-_ZONE_SPREAD, _ZONE_SPREAD, (len(rows), 2))
        return np.asarray((_ZONES[self._zones[rows, part]] + spread).T)

    def _start_episode(self, rows: Array) -> None:
        rng, shapes, n = self.academy.rng, self.shapes, len(rows)
        self._zones[rows] = rng.permuted(np.tile(np.arange(len(_ZONES)), (n, 1)), axis=1)
        shapes.center[::2, rows, _AGENT] = self._places(rows, 0)
        shapes.center[1, rows, _AGENT] = _DROP
        shapes.yaw[rows, _AGENT] = np.radians(rng.integers(360, size=n))
        self.bodies.velocity[:, rows, _AGENT] = 0

        shapes.center[::2, rows, _SWITCH] = shapes.center[::2, rows, _BUTTON] = self._places(rows, 1)
        shapes.center[1, rows, _SWITCH] = _DROP + _SWITCH_HALF
        self._lift_buttons()
        self._set_switch(rows, False)
        for pyramid in range(_STONE_PYRAMIDS):
            first = _STONES.start + 4 * pyramid
            self._build(rows, slice(first, first + 4), LAYERS, self._places(rows, 3 + pyramid))

    def _build(self, rows: Array, columns: slice, parts: Array, root: Array) -> None:
        """Place things (parts, 3) around their roots (2, k)."""
        center = self.shapes.center
        center[0, rows, columns] = root[0][:, np.newaxis] + parts[:, 0]
        center[1, rows, columns] = parts[:, 1]
        center[2, rows, columns] = root[1][:, np.newaxis] + parts[:, 2]

    def _set_switch(self, rows: Array, on: bool) -> None:
        """Switch the switch on or off, which shows or hides the pyramid of bricks."""
        self._is_on[rows] = on
        self.shapes.tag[rows, _SWITCH] = self._switch_tags[on]
        self.shapes.visible[rows, _HEAP] = on
        if on:
            self._build(rows, _HEAP, _BRICKS, self._places(rows, 2))
            self.heap.rest(rows)

    def _lift_buttons(self) -> None:
        """Move the buttons, which are inside the switches, to their heights."""
        height = self.shapes.center[1]
        height[:, _BUTTON] = height[:, _SWITCH] - _SWITCH_HALF + _BUTTON_HEIGHT

    def _act(self, rows: Array) -> None:
        self.walkers.move(rows, self.agents.discrete[rows, 0], _MOVES)
        self.agents.reward[rows] -= 1 / _MAX_STEP

    def simulate(self) -> None:
        """Move all bodies by a tick; a pressed switch turns on, and touched gold ends the episode."""
        self.heap.simulate(self.bodies.velocity)
        self.bodies.simulate()
        self._lift_buttons()
        pressed = self.bodies.entered("agent", "switch") & ~self._is_on
        if pressed.any():
            self._set_switch(np.flatnonzero(pressed), True)
        has_gold = self.heap.touched[:, 0]
        if has_gold.any():
            arrived = np.flatnonzero(has_gold)
            self.agents.reward[arrived] = 2
            self.agents.end_episode(arrived)

    def render(self, area: int) -> Array:
        """Return an image of an area from above."""
        shapes = self.shapes
        canvas = Canvas(-51, -51, 51, 51, color=FLOOR)

        def draw(columns: range, color: tuple[int, int, int]) -> None:
            for column in columns:
                x, _, z = shapes.center[:, area, column]
                half_x, _, half_z = shapes.half[:, area, column]
                canvas.rectangle(x, z, half_x, half_z, color, angle=-shapes.yaw[area, column])

        draw(range(_STONES.stop, len(shapes.names)), WALL)
        for layer, shade in enumerate((120, 140, 160, 180)):
            draw(range(_STONES.start + layer, _STONES.stop, 4), (shade, shade, shade))
        draw(range(_SWITCH, _SWITCH + 1), GREEN if self._is_on[area] else RED)
        if self._is_on[area]:
            for column in sorted(range(_HEAP.start, _HEAP.stop), key=lambda column: shapes.center[1, area, column]):
                draw(range(column, column + 1), YELLOW if column == _GOLD else ORANGE)
        x, _, z = shapes.center[:, area, _AGENT]
        yaw = shapes.yaw[area, _AGENT]
        canvas.rectangle(x, z, 1, 1, BLUE, angle=-yaw)
        canvas.line(x, z, x + 0.8 * np.sin(yaw), z + 0.8 * np.cos(yaw), 0.4, WHITE)
        return canvas.image

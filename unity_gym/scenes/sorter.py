"""Sorter: in a round room, an agent touches numbered tiles in ascending order."""

from __future__ import annotations

import numpy as np

from unity_gym.scenes.academy import Academy
from unity_gym.scenes.agents import Agents
from unity_gym.scenes.bodies import Bodies
from unity_gym.scenes.drawing import BLUE, FLOOR, GREEN, RED, WALL, WHITE, Canvas
from unity_gym.scenes.kernels import inner_kernel
from unity_gym.scenes.movement import Walkers
from unity_gym.scenes.scene import Scene
from unity_gym.scenes.sensors.rigid_body import RigidBodySensor
from unity_gym.scenes.sensors.sensor import Sensor, StackingSensor, VectorSensor
from unity_gym.scenes.shapes import Shapes
from unity_gym.specs import ActionSpec, Array, DimensionProperty

_TILES = 20  # numbers, and positions around the room
_SPEED = 2.0  # m/s that a push adds per tick
_TURN = np.radians(4)  # per tick
_SIGNS = (0.0, 1.0, -1.0)  # direction of a branch index
_MAX_STEP = 5000
_RADIUS = 20.5  # m from the middle of the room to the middles of tiles
_WALL_SIDES = 48
_WALL_RADIUS = 19.943  # m, to the middle of each of the wall's sides
_UNIT = 20.0  # m
_START_HEIGHT = 1.21  # m above the floor
_HEIGHT = 2.05  # m, height of the middle of a tile
_AWAY = 1000.0  # m, depth of absent tiles below the room
_ANGLES = np.arange(_TILES) * (2 * np.pi / _TILES)  # of the positions, as yaw
_AGENT = 0
_TILE_COLUMNS = slice(1, 1 + _TILES)


class Sorter(Scene):
    """8 areas with one agent each.

    Each tick gives a reward of -1/5000 and the right tile 1; a wrong one gives -1 and ends the episode. An episode has
    1 to `num_tiles` tiles with different numbers from 1 to 20, and also ends with the last of them. The wall has 48
    sides.
    """

    default_areas = 8

    def __init__(self, academy: Academy, areas: int) -> None:
        super().__init__(academy, areas)
        self._tiles = [f"tile {number}" for number in range(1, _TILES + 1)]
        walls = [f"wall {side}" for side in range(_WALL_SIDES)]
        shapes = self.shapes = Shapes(
            areas, ["agent", *self._tiles, *walls], ["agent", *["tile"] * _TILES, *["wall"] * _WALL_SIDES]
        )
        shapes.half[:, :, _AGENT] = 0.5
        shapes.yaw[:, _AGENT] = np.pi
        shapes.half[:, :, _TILE_COLUMNS] = np.array([1.75, 2.14, 0.76])[:, np.newaxis, np.newaxis]
        half = (_WALL_RADIUS + 2) * np.tan(np.pi / _WALL_SIDES)  # m, of a side's outer edge
        for side, wall in enumerate(walls):
            angle = side * (2 * np.pi / _WALL_SIDES)
            x, z = (_WALL_RADIUS + 1) * np.sin(angle), (_WALL_RADIUS + 1) * np.cos(angle)
            shapes.place(wall, (x - half, -1, z - 1), (x + half, 5, z + 1), yaw=angle)
        solids = shapes.names[1:]
        self.bodies = Bodies(shapes, masses=[10], drags=[4], solids=solids, gravity=24.525)
        academy.parameters.watch("gravity", self.bodies.set_gravity)
        self.walkers = Walkers(self.bodies, 1)
        self.present = np.zeros((areas, _TILES), bool)
        """Tiles of the episode, bool (areas, numbers - 1); `visited` are those that the agent has touched."""
        self.visited = np.zeros((areas, _TILES), bool)
        self._changes = np.zeros((areas, 3))
        self.agents = Agents(
            academy,
            areas,
            "Sorter",
            self._sensors(),
            ActionSpec(0, (3, 3, 3)),
            act=self._act,
            start_episode=self._start_episode,
            decision_period=5,
            max_step=_MAX_STEP,
        )

    def _sensors(self) -> list[Sensor]:
        return [
            VectorSensor(
                "BufferSensor",
                (_TILES, _TILES + 3),
                self._observe_tiles,
                properties=(DimensionProperty.VARIABLE_SIZE, DimensionProperty.NONE),
            ),
            RigidBodySensor(self.walkers.pose, self.walkers.velocity, velocity_first=False),
            StackingSensor(VectorSensor("VectorSensor_size4", 4, self._observe), 2, self.areas),
        ]

    def _observe_tiles(self, rows: Array) -> Array:
        """Return number, position and touch flag of each present tile, in the order of the numbers.

        The number is a flag at the index of the number. As in Unity's script, the position overwrites the flag of
        number 20.
        """
        tiles = np.zeros((len(rows), _TILES, _TILES + 3), np.float32)
        _list_tiles(rows, self.shapes.center, self.present, self.visited, tiles)
        return tiles

    def _observe(self, rows: Array) -> Array:
        x, _, z = self.shapes.center[:, rows, _AGENT] / _UNIT
        yaw = self.shapes.yaw[rows, _AGENT]
        return np.stack([x, z, np.sin(yaw), np.cos(yaw)], axis=1)

    def _start_episode(self, rows: Array) -> None:
        rng, shapes, n = self.academy.rng, self.shapes, len(rows)
        most = np.clip(self.academy.parameters.values("num_tiles", _TILES, n), 1, _TILES).astype(int)
        count = rng.integers(1, most, endpoint=True)[:, np.newaxis]
        every = np.tile(np.arange(_TILES), (n, 1))
        self.present[rows] = present = rng.permuted(every, axis=1) < count
        self.visited[rows] = False
        angle = _ANGLES[rng.permuted(every, axis=1)]
        shapes.center[0, rows, _TILE_COLUMNS] = _RADIUS * np.sin(angle)
        shapes.center[1, rows, _TILE_COLUMNS] = np.where(present, _HEIGHT, -_AWAY)
        shapes.center[2, rows, _TILE_COLUMNS] = _RADIUS * np.cos(angle)
        shapes.yaw[rows, _TILE_COLUMNS] = angle
        shapes.center[:, rows, _AGENT] = np.array([[0], [_START_HEIGHT], [0]])
        self.bodies.velocity[:, rows, _AGENT] = 0

    def _act(self, rows: Array) -> None:
        _read_actions(rows, self.agents.discrete, self._changes)
        self.walkers.push(rows, self._changes)
        self.agents.reward[rows] -= 1 / _MAX_STEP

    def simulate(self) -> None:
        """Move the agents by a tick; a touched tile gives its reward, and a wrong or the last one ends the episode."""
        self.bodies.simulate()
        rows, numbers = (self.bodies.entered("agent", *self._tiles) & ~self.visited).nonzero()
        if not len(rows):
            return
        right = numbers == (self.present & ~self.visited)[rows].argmax(axis=1)
        self.visited[rows, numbers] = True
        self.agents.reward[rows] += np.where(right, 1, -1)
        ended = rows[~right | (self.visited == self.present).all(axis=1)[rows]]
        if len(ended):
            self.agents.end_episode(ended)

    def render(self, area: int) -> Array:
        """Return an image with paler tiles for higher numbers; touched ones are green, the next one has a red rim."""
        shapes = self.shapes
        canvas = Canvas(-22.5, -22.5, 22.5, 22.5, color=WALL)
        canvas.disc(0, 0, _WALL_RADIUS + 0.2, FLOOR)
        left = self.present[area] & ~self.visited[area]
        for number in np.flatnonzero(self.present[area]):
            column = 1 + number
            x, _, z = shapes.center[:, area, column]
            angle = -shapes.yaw[area, column]
            shade = 30 + 11 * int(number)
            if left.any() and number == left.argmax():
                canvas.rectangle(x, z, 2.15, 1.16, RED, angle=angle)
            canvas.rectangle(x, z, 1.75, 0.76, (shade, shade, shade) if left[number] else GREEN, angle=angle)
        x, _, z = shapes.center[:, area, _AGENT]
        yaw = shapes.yaw[area, _AGENT]
        canvas.rectangle(x, z, 0.5, 0.5, BLUE, angle=-yaw)
        canvas.line(x, z, x + 0.35 * np.sin(yaw), z + 0.35 * np.cos(yaw), 0.2, WHITE)
        return canvas.image


@inner_kernel
def _list_tiles(rows: Array, center: Array, present: Array, visited: Array, tiles: Array) -> None:
    """Write the present tiles of the agents `rows`, (k), to `tiles` (k, tiles, numbers + 3), which contains zeros."""
    for k in range(len(rows)):
        area, place = rows[k], 0
        for number in range(_TILES):
            if present[area, number]:
                tile = tiles[k, place]
                tile[number + 1] = 1
                tile[_TILES] = (center[0, area, 1 + number] - center[0, area, _AGENT]) / _UNIT
                tile[_TILES + 1] = (center[2, area, 1 + number] - center[2, area, _AGENT]) / _UNIT
                tile[_TILES + 2] = visited[area, number]
                place += 1


@inner_kernel
def _read_actions(rows: Array, actions: Array, changes: Array) -> None:
    """Write the effects of the agents' actions to the first rows of `changes`, in the format of `Walkers.push`."""
    for k in range(len(rows)):
        forward, side, turn = actions[rows[k], 0], actions[rows[k], 1], actions[rows[k], 2]
        # A sideways step replaces one forward or backward.
        changes[k, 0] = _SPEED * _SIGNS[forward] if side == 0 else 0.0
        changes[k, 1] = _SPEED * _SIGNS[side]
        changes[k, 2] = -_TURN * _SIGNS[turn]

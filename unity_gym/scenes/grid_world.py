"""GridWorld: seen from above, an agent walks to the green plus or the red ex, depending on its goal signal."""

from __future__ import annotations

from functools import lru_cache
from typing import cast

import numpy as np

from unity_gym.errors import PlayerError
from unity_gym.scenes import drawing
from unity_gym.scenes.academy import Academy
from unity_gym.scenes.agents import Agents
from unity_gym.scenes.drawing import LIT_AGENT, LIT_EX, LIT_FLOOR, LIT_PLUS, LIT_WALL
from unity_gym.scenes.kernels import inner_kernel, kernel
from unity_gym.scenes.scene import Scene
from unity_gym.scenes.sensors import ImageSensor, VectorSensor
from unity_gym.specs import ActionSpec, Array, ObservationType

_PLUS, _EX = 1, 2  # contents of a cell; 0: empty
_GOALS = np.array([_PLUS, _EX])
_MOVES = np.array([[0, 0], [0, 1], [0, -1], [-1, 0], [1, 0]])  # (x, z) of stay, up, down, left, right
_STEP_COST = 0.01
_MAX_STEP = 100
_MOST_IMAGES = 2**14  # cached images, of about 400 bytes; 5 × 5 cells with two goals have 13,800 different images
_LARGEST_GRID = 64  # cells; cells of larger grids are smaller than a pixel of the camera
_HALF_BAR = 0.1  # cells; goals and agent consist of bars that are one cell long

_HEIGHT, _WIDTH = 64, 84  # pixels of the camera


class Camera:
    """A camera that looks straight down at `size` × `size` cells, which fill the image's height between two side walls.

    A pixel shows what is below its middle. The pixels that a thing covers are an array with one row per cell of the
    thing; short rows are padded with -1.
    """

    def __init__(self, size: int) -> None:
        # In cells, from the left and the lower end of the grid; the top row is the farthest.
        x = (np.arange(_WIDTH) + 0.5 - _WIDTH / 2) * size / _HEIGHT + size / 2
        z = (np.arange(_HEIGHT)[::-1] + 0.5) * size / _HEIGHT
        column, row = np.floor(x).astype(int), np.floor(z).astype(int)
        inside = (column >= 0) & (column < size)
        cell = np.where(inside, column * size + row[:, np.newaxis], -1)
        self._empty = np.where(cell.reshape(-1, 1) < 0, LIT_WALL, LIT_FLOOR).astype(np.uint8)

        u, v = np.meshgrid(x - column - 0.5, z - row - 0.5)  # from the middle of the cell
        p, q = np.abs(u + v) / np.sqrt(2), np.abs(u - v) / np.sqrt(2)
        u, v = np.abs(u), np.abs(v)
        plus = np.minimum(u, v) < _HALF_BAR
        ex = (np.minimum(p, q) < _HALF_BAR) & (np.maximum(p, q) < 0.5)
        self._plus, self._ex = _covered_pixels(plus, cell), _covered_pixels(ex, cell)
        self._agent = _covered_pixels(np.maximum(u, v) > 0.5 - 2 * _HALF_BAR, cell)

    def take(self, goals: Array, agents: Array) -> Array:
        """Return images of k grids, uint8 (k, height, width, 3).

        :param goals: Contents of cell x · size + z, (k, cells or more).
        :param agents: Cells of the agents, (k).
        :return: Images of the grids.
        """
        images = np.repeat(self._empty[np.newaxis], len(agents), axis=0)
        _paint(images, self._plus, self._ex, self._agent, goals, agents)
        return images.reshape(len(agents), _HEIGHT, _WIDTH, 3)


def _covered_pixels(covered: Array, cell: Array) -> Array:
    """Return the pixels in which `covered` is true, one row per cell."""
    pixels = [np.flatnonzero(covered & (cell == each)) for each in range(cell.max() + 1)]
    table = np.full((len(pixels), max(map(len, pixels))), -1)
    for row, covers in zip(table, pixels, strict=True):
        row[: len(covers)] = covers
    return table


@inner_kernel
def _paint(images: Array, plus: Array, ex: Array, agent: Array, goals: Array, agents: Array) -> None:
    """Draw goals and agents on the given cells to images (k, pixels, 3) of empty grids."""
    for k in range(len(images)):
        for cell in range(len(plus)):
            if goals[k, cell] == _PLUS:
                _color(images[k], plus[cell], LIT_PLUS)
            elif goals[k, cell] == _EX:
                _color(images[k], ex[cell], LIT_EX)
        _color(images[k], agent[agents[k]], LIT_AGENT)


@inner_kernel
def _color(image: Array, pixels: Array, color: tuple[int, int, int]) -> None:
    for pixel in pixels:
        if pixel >= 0:
            image[pixel, 0], image[pixel, 1], image[pixel, 2] = color


_camera_over = lru_cache(Camera)


class _GridCamera(ImageSensor):
    """The camera of the agents in some areas. There are few different grids, so each is drawn and encoded once."""

    def __init__(self, name: str, scene: GridWorld, areas: Array) -> None:
        super().__init__(name, (3, _HEIGHT, _WIDTH), lambda rows: scene.see(areas[rows]))
        self._scene, self._areas = scene, areas
        self._encoded: dict[bytes, bytes] = {}

    def observe(self, rows: Array) -> list[bytes]:
        if len(self._encoded) > _MOST_IMAGES:
            self._encoded.clear()
        grids = self._scene.grids(self._areas[rows])
        new = [k for k, grid in enumerate(grids) if grid not in self._encoded]
        if new:
            images = super().observe(rows[new])
            self._encoded |= dict(zip([grids[k] for k in new], images, strict=True))
        return [self._encoded[grid] for grid in grids]


class GridWorld(Scene):
    """Nine grids.

    State, one row per area: `size` of the grid in cells, `position` of the agent (x, z), `target_goal`, and
    `goals`, the contents of cell x · size + z, (areas, cells of the largest grid so far).

    Each action gives a reward of -0.01. A reached goal *sets* the reward to 1 if it is the target, otherwise to -1, and
    ends the episode. One area in nine has the sensor names of the area in Unity's scene that uses a render texture.

    The mask depends on the current grid of the agent. Unity uses `gridSize` instead, which makes a difference only
    between a change of that parameter and the next episode.
    """

    default_areas = 9

    def __init__(self, academy: Academy, areas: int) -> None:
        super().__init__(academy, areas)
        self.size = np.zeros(areas, np.int64)
        self.position = np.zeros((areas, 2), np.int64)
        self.target_goal = np.zeros(areas, np.int64)
        self.goals = np.zeros((areas, 0), np.uint8)
        textures = areas // self.default_areas
        seen_by_camera, seen_by_texture = np.split(np.arange(areas), [areas - textures])
        self.kinds = [self._agents(seen_by_camera, "CameraSensor", "VectorSensor")]
        if textures:
            self.kinds.append(self._agents(seen_by_texture, "RenderTextureSensor", "VectorlSensor"))

    def _agents(self, areas: Array, image: str, signal: str) -> Agents:
        """Return the agents of these areas, with the names of their two sensors."""
        agents = Agents(
            self.academy,
            len(areas),
            "GridWorld",
            [
                _GridCamera(image, self, areas),
                VectorSensor(signal, 2, lambda rows: self._goal_signal(areas[rows]), kind=ObservationType.GOAL_SIGNAL),
            ],
            ActionSpec(0, (len(_MOVES),)),
            act=lambda rows: self._act(agents, rows, areas[rows]),
            start_episode=lambda rows: self._start_episode(areas[rows]),
            read_mask=lambda rows: self._forbidden(areas[rows]),
            decision_period=1,
            max_step=_MAX_STEP,
        )
        return agents

    def grids(self, areas: Array) -> list[bytes]:
        """Return what the camera shows in areas: size, agent and goals of each grid, as bytes."""
        grids = np.empty((len(areas), 2 + self.goals.shape[1]), np.uint16)
        _describe(areas, self.size, self.position, self.goals, grids)
        return cast(list[bytes], grids.view(f"V{grids.itemsize * grids.shape[1]}")[:, 0].tolist())

    def cell(self, areas: Array) -> Array:
        """Return the cells of the agents."""
        cells: Array = self.position[areas, 0] * self.size[areas] + self.position[areas, 1]
        return cells

    def see(self, areas: Array) -> Array:
        """Return images of areas, uint8 (k, 1, height, width, 3)."""
        images = np.empty((len(areas), _HEIGHT, _WIDTH, 3), np.uint8)
        for size in set(self.size[areas].tolist()):
            positions = np.flatnonzero(self.size[areas] == size)
            matching = areas[positions]
            images[positions] = _camera_over(size).take(self.goals[matching], self.cell(matching))
        return images[:, np.newaxis]

    def _goal_signal(self, areas: Array) -> Array:
        return np.asarray(self.target_goal[areas, np.newaxis] == _GOALS)

    def _forbidden(self, areas: Array) -> Array:
        return _forbidden_moves(areas, self.size, self.position)

    def _act(self, agents: Agents, rows: Array, areas: Array) -> None:
        state = self.size, self.position, self.goals, self.target_goal
        ended = _walk(rows, areas, *state, agents.discrete, agents.reward)
        if len(ended):
            agents.end_episode(ended)

    def _start_episode(self, areas: Array) -> None:
        parameters, rng = self.academy.parameters, self.academy.rng
        names = {"gridSize": 5, "numPlusGoals": 1, "numExGoals": 1}
        drawn = np.stack([parameters.values(name, default, len(areas)) for name, default in names.items()], axis=1)
        settings = drawn.astype(np.int64)
        for setting in set(map(tuple, settings.tolist())):
            size, pluses, exes = setting
            count = pluses + exes + 1
            if not 1 <= size <= _LARGEST_GRID or min(pluses, exes) < 0 or count > size * size:
                raise PlayerError(
                    f"GridWorld cannot lay out {pluses} plus goals, {exes} ex goals and an agent on a grid of {size} × "
                    f"{size} cells: gridSize goes up to {_LARGEST_GRID}, and each of them needs a cell of its own"
                )
            matching = areas[(settings == setting).all(axis=1)]
            cells = rng.random((len(matching), size * size)).argsort(axis=1)[:, :count]
            self.size[matching] = size
            self.position[matching] = np.stack(np.divmod(cells[:, -1], size), axis=1)
            if size * size > self.goals.shape[1]:
                self.goals = np.pad(self.goals, ((0, 0), (0, size * size - self.goals.shape[1])))
            self.goals[matching] = 0
            self.goals[matching[:, np.newaxis], cells[:, :-1]] = [_PLUS] * pluses + [_EX] * exes
        self.target_goal[areas] = rng.integers(_PLUS, _EX + 1, len(areas))

    def render(self, area: int) -> Array:
        """Return an image of the grid from above; the disc in the agent has the color of the target goal."""
        size = int(self.size[area])
        canvas = drawing.Canvas(-1, -1, size, size, color=drawing.WALL)
        canvas.rectangle((size - 1) / 2, (size - 1) / 2, size / 2, size / 2, drawing.FLOOR)
        x, z = self.position[area].tolist()
        canvas.rectangle(x, z, 0.5, 0.5, drawing.BLUE)
        canvas.rectangle(x, z, 0.5 - 2 * _HALF_BAR, 0.5 - 2 * _HALF_BAR, drawing.FLOOR)
        canvas.disc(x, z, _HALF_BAR, drawing.GREEN if self.target_goal[area] == _PLUS else drawing.RED)
        for goal, color, angle in ((_PLUS, drawing.GREEN, 0.0), (_EX, drawing.RED, np.pi / 4)):
            for cell in np.flatnonzero(self.goals[area] == goal).tolist():
                x, z = divmod(cell, size)
                canvas.rectangle(x, z, 0.5, _HALF_BAR, color, angle)
                canvas.rectangle(x, z, _HALF_BAR, 0.5, color, angle)
        return canvas.image


@inner_kernel
def _describe(areas: Array, size: Array, position: Array, goals: Array, grids: Array) -> None:
    """Write size, cell of the agent and contents of all cells of the grids of `areas` to `grids`, (k, 2 + cells)."""
    for k in range(len(areas)):
        area = areas[k]
        grids[k, 0], grids[k, 1] = size[area], position[area, 0] * size[area] + position[area, 1]
        for cell in range(goals.shape[1]):
            grids[k, 2 + cell] = goals[area, cell]


@kernel
def _forbidden_moves(areas: Array, size: Array, position: Array) -> Array:
    """Return which moves leave the grids of `areas`, bool (k, moves)."""
    forbidden = np.empty((len(areas), len(_MOVES)), np.bool_)
    for k, area in enumerate(areas):
        for move in range(len(_MOVES)):
            x, z = position[area, 0] + _MOVES[move, 0], position[area, 1] + _MOVES[move, 1]
            forbidden[k, move] = not (0 <= x < size[area] and 0 <= z < size[area])
    return forbidden


@kernel
def _walk(
    rows: Array,
    areas: Array,
    size: Array,
    position: Array,
    goals: Array,
    target_goal: Array,
    moves: Array,
    reward: Array,
) -> Array:
    """Move agents and give their rewards.

    :param rows: Rows of the agents in `moves` and `reward`, int (k).
    :param areas: Areas of the agents, int (k).
    :return: Rows of the agents that have reached a goal.
    """
    ends = np.zeros(len(rows), np.bool_)
    for k in range(len(rows)):
        row, area = rows[k], areas[k]
        for axis in range(2):  # walls stop the agent
            target = position[area, axis] + _MOVES[moves[row, 0], axis]
            position[area, axis] = min(max(target, 0), size[area] - 1)
        goal = goals[area, position[area, 0] * size[area] + position[area, 1]]
        ends[k] = goal > 0
        reward[row] -= _STEP_COST
        if ends[k]:
            reward[row] = 1 if goal == target_goal[area] else -1
    return rows[ends]

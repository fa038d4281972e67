"""Match3: swap two neighboring cells of a board to line up three or more of one color, which then disappear."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from unity_gym.errors import PlayerError
from unity_gym.scenes import drawing
from unity_gym.scenes.academy import Academy
from unity_gym.scenes.agents import Agents
from unity_gym.scenes.kernels import inner_kernel, kernel
from unity_gym.scenes.scene import Scene
from unity_gym.scenes.sensors import ImageSensor, Sensor, VectorSensor
from unity_gym.specs import ActionSpec, Array

ROWS, COLUMNS = 9, 8
_VECTOR, _VISUAL = "Match3VectorObs", "Match3VisualObs"
_HEURISTICS = "Match3SmartHeuristic", "Match3SimpleHeuristic"

_COLORS = 6
_SPECIALS = 3  # 0: a plain cell
_SHARE_OF_TWO, _SHARE_OF_ONE = 0.1, 0.3  # shares of cells of special type 2, and of type 2 or 1
_REWARD_PER_POINT = 0.01
_MAX_MOVES = 500
_LEAST = 6  # rows and columns, by default
_SMALLEST = 3  # least valid numbers of rows and columns; much smaller boards have no moves
_OUTSIDE = -1  # color and special type of what is outside the board
_EMPTY = -2  # color of a cell to be filled

_DISCS = (drawing.RED, drawing.GREEN, drawing.BLUE, drawing.YELLOW, drawing.PURPLE, drawing.ORANGE)

_MARGIN = 2  # cells outside a board on each side, so that every line test stays in the array
_UP, _RIGHT = COLUMNS + 2 * _MARGIN, 1  # steps in the flat array of a board with its margin


def _moves() -> tuple[Array, Array]:
    """Return the cells of each move and those of its line tests, as indices into a board with its margin.

    The moves are in Unity's order: first (row, column) with its right neighbor, then with the one above.

    :return: Cells of a move (2, moves), and, per step from a piece's new position, direction and piece, the cells that
        make a line with it (2, 3, 2, moves). The first direction continues the move, the others are perpendicular.
    """
    index = np.arange(_UP * (ROWS + 2 * _MARGIN)).reshape(-1, _UP)[_MARGIN:-_MARGIN, _MARGIN:-_MARGIN]
    first = np.concatenate([index[:, :-1].ravel(), index[:-1].ravel()])
    move = np.repeat([_RIGHT, _UP], [index[:, :-1].size, index[:-1].size])
    side = np.where(move == _RIGHT, _UP, _RIGHT)
    cells = np.stack([first, first + move])
    ahead = np.stack([move, -move])  # of the piece on the first cell, of the other one
    directions = np.stack([ahead, np.stack([side, side]), np.stack([-side, -side])])
    return cells, np.stack([cells[::-1] + steps * directions for steps in (1, 2)])


_CELLS, _LINES = _moves()
MOVES = _CELLS.shape[1]


class Boards:
    """Boards and the rules of the game, one entry per board.

    `color` (0 to 5) and `special` type (0 to 2) are int8 (n, 9, 8), row 0 at the bottom, -1 outside a smaller board.

    :param count: Number of boards.
    :param rng: Random generator of new cells.
    """

    def __init__(self, count: int, rng: np.random.Generator) -> None:
        self._rng = rng
        margin = ((0, 0), (_MARGIN, _MARGIN), (_MARGIN, _MARGIN))
        inner = np.zeros((count, ROWS, COLUMNS), np.int8)
        colors, specials = np.pad(inner, margin, constant_values=_OUTSIDE), np.pad(inner, margin)
        part = (slice(None), slice(_MARGIN, -_MARGIN), slice(_MARGIN, -_MARGIN))
        self.color, self.special = colors[part], specials[part]
        self._flat_colors, self._flat_specials = colors.reshape(count, -1), specials.reshape(count, -1)

    def lay_out(self, boards: Array, rows: Array, columns: Array) -> None:
        """Make new boards of `rows` × `columns` cells, int (k) each, without lines."""
        inside = (np.arange(ROWS)[:, np.newaxis] < rows[:, np.newaxis, np.newaxis]) & (
            np.arange(COLUMNS) < columns[:, np.newaxis, np.newaxis]
        )
        self.color[boards] = self.special[boards] = np.where(inside, 0, _OUTSIDE)
        self.shuffle(boards)

    def shuffle(self, boards: Array) -> None:
        """Fill the boards again, without lines."""
        self.color[boards] = np.where(self.color[boards] == _OUTSIDE, _OUTSIDE, _EMPTY)
        self._fill(boards)
        self.resolve(boards)

    def _fill(self, boards: Array) -> None:
        """Fill the empty cells of boards at random."""
        count = np.count_nonzero(self.color[boards] == _EMPTY)
        colors, chances = self._rng.integers(0, _COLORS, count), self._rng.random(count)
        _fill_in(self.color, self.special, boards, colors, chances)

    def resolve(self, boards: Array) -> Array:
        """Clear all lines, let the cells above fall and fill up from above, until there is no line.

        :return: Points of the cleared cells, int (k).
        """
        points = np.zeros(len(boards), np.int64)
        active = np.arange(len(boards))
        while True:
            active = active[_clear_lines(self.color, self.special, boards[active], active, points)]
            if not len(active):
                return points
            self._fill(boards[active])

    def valid_moves(self, boards: Array) -> Array:
        """Return the moves that make a line, bool (k, 127)."""
        return np.asarray(self.move_points(boards) > 0)

    def move_points(self, boards: Array) -> Array:
        """Return the points of the lines that each move makes with the moved cells before anything falls, (k, 127)."""
        return _points_of_moves(self._flat_colors, self._flat_specials, boards)

    def swap(self, boards: Array, moves: Array) -> None:
        """Exchange the two cells of one move on each board."""
        cells, other = _CELLS[:, moves], _CELLS[::-1, moves]
        for flat in (self._flat_colors, self._flat_specials):
            flat[boards, cells] = flat[boards, other]


@inner_kernel
def _fill_in(color: Array, special: Array, boards: Array, colors: Array, chances: Array) -> None:
    """Put `colors` and special types on the empty cells of boards, row by row."""
    filled = 0
    for board in boards:
        for row in range(ROWS):
            for column in range(COLUMNS):
                if color[board, row, column] == _EMPTY:
                    color[board, row, column] = colors[filled]
                    chance = chances[filled]
                    special[board, row, column] = 2 if chance < _SHARE_OF_TWO else 1 if chance < _SHARE_OF_ONE else 0
                    filled += 1


@kernel
def _clear_lines(color: Array, special: Array, boards: Array, rows: Array, points: Array) -> Array:
    """Clear the lines of boards, let the cells above fall, and add the points to `points[rows]`.

    :return: Whether there was a line, bool (k).
    """
    cleared = np.zeros(len(boards), np.bool_)
    lines = np.empty((ROWS, COLUMNS), np.bool_)
    for k, board in enumerate(boards):
        _mark_lines(color[board], lines)
        for column in range(COLUMNS):
            free = 0  # lowest row of the column to which a cell can fall
            for row in range(ROWS):
                if color[board, row, column] == _OUTSIDE:
                    break
                if lines[row, column]:
                    cleared[k] = True
                    points[rows[k]] += 1 + special[board, row, column]
                else:
                    color[board, free, column] = color[board, row, column]
                    special[board, free, column] = special[board, row, column]
                    free += 1
            for row in range(free, ROWS):
                if color[board, row, column] != _OUTSIDE:
                    color[board, row, column] = _EMPTY
    return cleared


@inner_kernel
def _mark_lines(color: Array, lines: Array) -> None:
    """Mark the cells of a board that belong to three or more of a color in a row or column."""
    lines[:] = False
    for row in range(ROWS):
        for column in range(COLUMNS):
            own = color[row, column]
            if own == _OUTSIDE:
                continue
            if row >= 2 and color[row - 1, column] == own and color[row - 2, column] == own:
                lines[row - 2 : row + 1, column] = True
            if column >= 2 and color[row, column - 1] == own and color[row, column - 2] == own:
                lines[row, column - 2 : column + 1] = True


@kernel
def _points_of_moves(colors: Array, specials: Array, boards: Array) -> Array:
    """Return the points of all moves on boards, int (k, moves), 0 for invalid ones."""
    points = np.zeros((len(boards), MOVES), np.int64)
    for k, board in enumerate(boards):
        color, special = colors[board], specials[board]
        for move in range(MOVES):
            first, second = color[_CELLS[0, move]], color[_CELLS[1, move]]
            if first != second and first != _OUTSIDE and second != _OUTSIDE:
                points[k, move] = _points_of(color, special, move, 0) + _points_of(color, special, move, 1)
    return points


@kernel
def _points_of(color: Array, special: Array, move: int, piece: int) -> int:
    """Return the points of the lines that one of the two cells of a move makes at its new position."""
    cell = _CELLS[piece, move]
    count, worth = np.zeros(3, np.int64), np.zeros(3, np.int64)  # of the cells of its color in each direction
    for direction in range(3):
        for step in range(2):
            other = _LINES[step, direction, piece, move]
            if color[other] != color[cell]:
                break
            count[direction] += 1
            worth[direction] += 1 + special[other]
    points = 0
    if count[0] == 2:
        points += worth[0]
    if count[1] + count[2] >= 2:
        points += worth[1] + worth[2]
    return points + 1 + special[cell] if points else 0


@kernel
def _one_hot(cells: Array, boards: Array, kinds: int) -> Array:
    """Return the contents of each cell of boards, bool (k, 9, 8, kinds), all False outside the board."""
    flags = np.zeros((len(boards), ROWS, COLUMNS, kinds), np.bool_)
    for k, board in enumerate(boards):
        for row in range(ROWS):
            for column in range(COLUMNS):
                if cells[board, row, column] != _OUTSIDE:
                    flags[k, row, column, cells[board, row, column]] = True
    return flags


class Match3(Scene):
    """Twelve boards with Unity's four behaviors.

    State: `boards`, `valid` moves of each (bool, n × 127), and the number of `moves` requested in this episode.

    An episode is 499 moves long. Each cell that a move and its cascade clear gives a reward of 0.01, and 0.01 more per
    level of its special type. The tick after the move gives it. The two heuristic behaviors make greedy
    moves, independent of the client's actions.

    An episode's board has 6 to 9 rows and 6 to 8 columns, drawn at random per episode. The parameters `minRows` and
    `minColumns` set the least numbers: 9 and 8 give the full board, on which Unity's published results were measured.
    In Unity, these numbers are settings of the board, not parameters.
    """

    default_areas = 12
    behaviors: ClassVar = (*[_VECTOR] * 4, *[_VISUAL] * 4, *[_HEURISTICS[0]] * 2, *[_HEURISTICS[1]] * 2)
    """Behaviors of the first boards; further boards repeat them from the start."""

    def __init__(self, academy: Academy, areas: int) -> None:
        super().__init__(academy, areas)
        self.boards = Boards(areas, academy.rng)
        self.valid = np.zeros((areas, MOVES), bool)
        self.moves = np.zeros(areas, np.int64)
        self._has_started = False
        names = np.resize(self.behaviors, areas)
        self.kinds = [self._agents(name, np.flatnonzero(names == name)) for name in dict.fromkeys(names.tolist())]

    def _agents(self, behavior: str, boards: Array) -> tuple[Agents, Array]:
        """Return the agents of a behavior, and the indices of their boards."""
        greedy = self.greedy_moves if behavior in _HEURISTICS else None
        agents = Agents(
            self.academy,
            len(boards),
            behavior,
            [
                self._sensor("cells", behavior, boards, self.boards.color, _COLORS),
                self._sensor("special", behavior, boards, self.boards.special, _SPECIALS),
            ],
            ActionSpec(0, (MOVES,)),
            act=lambda rows: self._act(boards[rows], greedy(boards[rows]) if greedy else agents.discrete[rows, 0]),
            start_episode=lambda rows: self._start_episode(boards[rows]),
            read_mask=lambda rows: ~self.valid[boards[rows]],
        )
        return agents, boards

    def _sensor(self, name: str, behavior: str, boards: Array, cells: Array, kinds: int) -> Sensor:
        """Return a sensor of the contents of each cell, one-hot over its `kinds`; all zeros outside the board."""
        name = f"Match3 Sensor ({name})"

        if behavior == _VISUAL:

            def image(rows: Array) -> Array:
                flags = _one_hot(cells, boards[rows], kinds).reshape(len(rows), ROWS, COLUMNS, -1, 3)
                return np.asarray(flags.transpose(0, 3, 1, 2, 4) * np.uint8(255))

            return ImageSensor(name, (kinds, ROWS, COLUMNS), image)
        return VectorSensor(
            name, ROWS * COLUMNS * kinds, lambda rows: _one_hot(cells, boards[rows], kinds).reshape(len(rows), -1)
        )

    def before_step(self) -> None:
        """Resolve the boards, give rewards and request the next moves; the 500th request ends the episode instead."""
        if not self._has_started:
            return  # the boards are filled in the academy's first step
        every = np.arange(self.areas)
        points = self.boards.resolve(every)
        self.valid = self.boards.valid_moves(every)
        while len(stuck := np.flatnonzero(~self.valid.any(axis=1))):
            self.boards.shuffle(stuck)
            self.valid[stuck] = self.boards.valid_moves(stuck)
        self.moves += 1
        for agents, boards in self.kinds:
            agents.reward += _REWARD_PER_POINT * points[boards]
            agents.request_decision(agents.rows)
            over = self.moves[boards] >= _MAX_MOVES
            if over.any():
                agents.end_episode(np.flatnonzero(over), interrupted=True)

    def _act(self, boards: Array, moves: Array) -> None:
        allowed = self.valid[boards, moves]
        self.boards.swap(boards[allowed], moves[allowed])

    def greedy_moves(self, boards: Array) -> Array:
        """Return the move of each board whose own lines give most points, int (k).

        Cascades do not count; ties are broken at random.
        """
        points = self.boards.move_points(boards)
        best = points == points.max(axis=1, keepdims=True)
        moves: Array = np.where(best, self.academy.rng.random(best.shape), -1).argmax(axis=1)
        return moves

    def _start_episode(self, boards: Array) -> None:
        self._has_started = True
        self.moves[boards] = 0
        rows, columns = (self._draw_size(*size, len(boards)) for size in (("minRows", ROWS), ("minColumns", COLUMNS)))
        self.boards.lay_out(boards, rows, columns)
        self.valid[boards] = self.boards.valid_moves(boards)

    def _draw_size(self, parameter: str, greatest: int, count: int) -> Array:
        least = self.academy.parameters.values(parameter, _LEAST, count).astype(np.int64)
        wrong = (least < _SMALLEST) | (least > greatest)
        if wrong.any():
            raise PlayerError(f"Match3 takes {parameter} from {_SMALLEST} to {greatest}, got {least[wrong][0]}")
        return self.academy.rng.integers(least, greatest + 1)

    def render(self, area: int) -> Array:
        """Return an image of the board; cells of special types have one or two rings."""
        canvas = drawing.Canvas(-1, -1, COLUMNS, ROWS, color=drawing.FLOOR)
        for (row, column), color in np.ndenumerate(self.boards.color[area]):
            if color != _OUTSIDE:
                canvas.disc(column, row, 0.45, _DISCS[color])
                for ring in range(self.boards.special[area, row, column]):
                    canvas.ring(column, row, 0.3 - 0.15 * ring, 0.06, drawing.WHITE)
        return canvas.image


class Match3Vector(Match3):
    """Boards whose agents all have vector observations."""

    behaviors = (_VECTOR,)


class Match3Visual(Match3):
    """Boards whose agents all have image observations."""

    behaviors = (_VISUAL,)

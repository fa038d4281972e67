"""Match3: swap two neighbouring cells of a board so that three or more of a colour stand in line; they vanish."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from unity_gym.errors import PlayerError
from unity_gym.scenes import drawing
from unity_gym.scenes.academy import Academy
from unity_gym.scenes.agents import Agents
from unity_gym.scenes.scene import Scene
from unity_gym.scenes.sensors import ImageSensor, Sensor, VectorSensor
from unity_gym.specs import ActionSpec, Array

ROWS, COLUMNS = 9, 8
_VECTOR, _VISUAL = "Match3VectorObs", "Match3VisualObs"
_HEURISTICS = "Match3SmartHeuristic", "Match3SimpleHeuristic"

_COLORS = 6
_SPECIALS = 3  # 0: a plain cell
_SPECIAL_SHARES = np.array([0.1, 0.3])  # cells of type 2; of type 2 or 1
_REWARD_PER_POINT = 0.01
_MAX_MOVES = 500
_LEAST = 6  # rows and columns, by default
_SMALLEST = 3  # rows and columns that may be asked for; much smaller boards have no moves
_OUTSIDE = -1  # colour and special type of what lies outside the board

_DISCS = (drawing.RED, drawing.GREEN, drawing.BLUE, drawing.YELLOW, drawing.PURPLE, drawing.ORANGE)

_MARGIN = 2  # cells of the outside around a board, so that every line test stays in the array
_UP, _RIGHT = COLUMNS + 2 * _MARGIN, 1  # steps in the flat array of a board with its margin


def _moves() -> tuple[Array, Array]:
    """Where the pieces of each move stand and what their line tests look at, as indices into a board with its margin.

    The moves are in Unity's order: first (row, column) with its right neighbour, then with the one above.

    :return: the two cells (2, moves) and, per step from a piece's new place, direction and piece, the cells that make
        a line with it (2, 3, 2, moves). The first direction goes on along the move, the others go to its sides
    """
    index = np.arange(_UP * (ROWS + 2 * _MARGIN)).reshape(-1, _UP)[_MARGIN:-_MARGIN, _MARGIN:-_MARGIN]
    first = np.concatenate([index[:, :-1].ravel(), index[:-1].ravel()])
    move = np.repeat([_RIGHT, _UP], [index[:, :-1].size, index[:-1].size])
    side = np.where(move == _RIGHT, _UP, _RIGHT)
    cells = np.stack([first, first + move])
    ahead = np.stack([move, -move])  # of the piece that stands on the first cell, of the other
    directions = np.stack([ahead, np.stack([side, side]), np.stack([-side, -side])])
    return cells, np.stack([cells[::-1] + steps * directions for steps in (1, 2)])


_CELLS, _LINES = _moves()
MOVES = _CELLS.shape[1]


class Boards:
    """Boards and the rules of the game, one entry a board.

    `color` (0 to 5) and `special` type (0 to 2) are int8 (n, 9, 8), row 0 at the bottom, -1 outside a smaller board.

    :param count: how many boards
    :param rng: for new cells
    """

    def __init__(self, count: int, rng: np.random.Generator) -> None:
        self._rng = rng
        margin = ((0, 0), (_MARGIN, _MARGIN), (_MARGIN, _MARGIN))
        inner = np.zeros((count, ROWS, COLUMNS), np.int8)
        self._colors = np.pad(inner, margin, constant_values=_OUTSIDE)
        self._specials = np.pad(inner, margin)
        part = (slice(None), slice(_MARGIN, -_MARGIN), slice(_MARGIN, -_MARGIN))
        self.color, self.special = self._colors[part], self._specials[part]
        self._flat_colors, self._flat_specials = self._colors.reshape(count, -1), self._specials.reshape(count, -1)

    def lay_out(self, boards: Array, rows: Array, columns: Array) -> None:
        """Make new boards of `rows` × `columns` cells, int (k) each, with no line on them."""
        inside = (np.arange(ROWS)[:, np.newaxis] < rows[:, np.newaxis, np.newaxis]) & (
            np.arange(COLUMNS) < columns[:, np.newaxis, np.newaxis]
        )
        self.color[boards] = self.special[boards] = np.where(inside, 0, _OUTSIDE)
        self.shuffle(boards)

    def shuffle(self, boards: Array) -> None:
        """Fill the boards anew, with no line on them."""
        color, special = self.color[boards], self.special[boards]
        self._fill(color, special, color != _OUTSIDE)
        self.color[boards], self.special[boards] = color, special
        self.resolve(boards)

    def _fill(self, color: Array, special: Array, empty: Array) -> None:
        count = np.count_nonzero(empty)
        color[empty] = self._rng.integers(0, _COLORS, count)
        special[empty] = (self._rng.random(count)[:, np.newaxis] < _SPECIAL_SHARES).sum(axis=1)

    def resolve(self, boards: Array) -> Array:
        """Clear all lines, let what is above fall and fill up from above, until there is no line.

        :return: int (k), the points of what was cleared
        """
        color, special = self.color[boards], self.special[boards]
        points = np.zeros(len(boards), np.int64)
        which = np.arange(len(boards))
        while True:
            cleared = _in_line(color)
            found = cleared.any(axis=(1, 2))
            if not found.any():
                return points
            which, color, special, cleared = which[found], color[found], special[found], cleared[found]
            points[which] += ((1 + special) * cleared).sum(axis=(1, 2))
            rank = cleared.astype(np.int8)  # cleared cells rise to the top of the board, below what is outside
            rank[color == _OUTSIDE] = 2
            order = rank.argsort(axis=1, kind="stable")
            fallen = np.arange(len(which))[:, np.newaxis, np.newaxis], order, np.arange(COLUMNS)
            color, special = color[fallen], special[fallen]
            self._fill(color, special, cleared[fallen])
            self.color[boards[which]], self.special[boards[which]] = color, special

    def valid_moves(self, boards: Array) -> Array:
        """bool (k, 127): the moves that make a line."""
        pieces, along, sideways, _, _ = self._lines(boards)
        valid: Array = (along | sideways).any(axis=1) & _exchangeable(pieces)
        return valid

    def move_points(self, boards: Array) -> Array:
        """int (k, 127): the points of the lines that each move makes with the moved pieces, before anything falls."""
        pieces, along, sideways, near, far = self._lines(boards)
        worth = 1 + self._flat_specials[boards]
        around = worth[:, _LINES]
        near, far = (
            near * around[:, 0],
            far * around[:, 1],
        )  # points of the cells that the pieces would stand in line with
        points = along * (near[:, 0] + far[:, 0]) + sideways * (near[:, 1:] + far[:, 1:]).sum(axis=1)
        points += (along | sideways) * worth[:, _CELLS]
        total: Array = points.sum(axis=1) * _exchangeable(pieces)
        return total

    def _lines(self, boards: Array) -> tuple[Array, Array, Array, Array, Array]:
        """What each piece of each move would stand in line with.

        :return: the pieces' colours (k, 2, moves); whether they make a line along the move, and across it, bool
            (k, 2, moves); which of the cells one and two steps away belong to their runs, bool (k, 3, 2, moves) each
        """
        colors = self._flat_colors[boards]
        pieces = colors[:, _CELLS]
        same = colors[:, _LINES] == pieces[:, np.newaxis, np.newaxis]
        near = same[:, 0]
        far = near & same[:, 1]
        return pieces, far[:, 0], far[:, 1] | far[:, 2] | (near[:, 1] & near[:, 2]), near, far

    def swap(self, boards: Array, moves: Array) -> None:
        """Exchange the two pieces of one move on each board."""
        cells, other = _CELLS[:, moves], _CELLS[::-1, moves]
        for flat in (self._flat_colors, self._flat_specials):
            flat[boards, cells] = flat[boards, other]


def _exchangeable(pieces: Array) -> Array:
    """Whether both pieces (k, 2, moves) are on the board and of different colours."""
    both: Array = (pieces[:, 0] != pieces[:, 1]) & (pieces != _OUTSIDE).all(axis=1)
    return both


def _in_line(color: Array) -> Array:
    """Which cells (k, 9, 8) belong to three or more of a colour in a row or column."""
    lines = np.zeros(color.shape, bool)
    for cells, marked in ((color, lines), (color.swapaxes(1, 2), lines.swapaxes(1, 2))):
        pairs = (cells[:, 1:] == cells[:, :-1]) & (cells[:, 1:] != _OUTSIDE)
        threes = pairs[:, 1:] & pairs[:, :-1]
        for shift in range(3):
            marked[:, shift : shift + threes.shape[1]] |= threes
    return lines


class Match3(Scene):
    """Twelve boards with Unity's four behaviors. State: `boards`, `valid` moves of each (bool, n × 127), and the
    `moves` that it has been asked for in this episode.

    An episode is 499 moves long. Each cell that a move clears, in all steps of its cascade, pays 0.01 and as much again
    for each level of its special type; that is paid in the tick after the move. The two heuristic behaviors make greedy
    moves, whatever the client says.

    An episode's board has 6 to 9 rows and 6 to 8 columns, drawn anew for each. The parameters `minRows` and
    `minColumns` set the least numbers: 9 and 8 give the full board, on which Unity's published results were got. In
    Unity these numbers are settings of the board, not parameters.
    """

    default_areas = 12
    behaviors: ClassVar = (*[_VECTOR] * 4, *[_VISUAL] * 4, *[_HEURISTICS[0]] * 2, *[_HEURISTICS[1]] * 2)
    """Of the first boards; those that follow begin again at the front."""

    def __init__(self, academy: Academy, areas: int) -> None:
        super().__init__(academy, areas)
        self.boards = Boards(areas, academy.rng)
        self.valid = np.zeros((areas, MOVES), bool)
        self.moves = np.zeros(areas, np.int64)
        self._has_begun = False
        names = np.resize(self.behaviors, areas)
        self.kinds = [self._agents(name, np.flatnonzero(names == name)) for name in dict.fromkeys(names.tolist())]

    def _agents(self, behavior: str, boards: Array) -> tuple[Agents, Array]:
        """The agents of a behavior, and the boards they play on."""
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
            begin_episode=lambda rows: self._begin_episode(boards[rows]),
            read_mask=lambda rows: ~self.valid[boards[rows]],
        )
        return agents, boards

    def _sensor(self, name: str, behavior: str, boards: Array, cells: Array, kinds: int) -> Sensor:
        """What stands on each cell, one-hot over its `kinds`; all zeros outside the board."""
        name = f"Match3 Sensor ({name})"

        def one_hot(rows: Array) -> Array:
            return np.asarray(cells[boards[rows], ..., np.newaxis] == np.arange(kinds))

        if behavior == _VISUAL:
            shape = (kinds, ROWS, COLUMNS)
            return ImageSensor(name, shape, lambda rows: one_hot(rows).transpose(0, 3, 1, 2) * np.uint8(255))
        return VectorSensor(name, ROWS * COLUMNS * kinds, lambda rows: one_hot(rows).reshape(len(rows), -1))

    def before_step(self) -> None:
        """Settle the boards, pay for it, and ask for the next moves. The 500th request ends the episode instead."""
        if not self._has_begun:
            return  # the boards are laid out in the academy's first step
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
        """int (k): for each board a move whose own lines, without the cascade, are worth the most; ties at random."""
        points = self.boards.move_points(boards)
        best = points == points.max(axis=1, keepdims=True)
        moves: Array = np.where(best, self.academy.rng.random(best.shape), -1).argmax(axis=1)
        return moves

    def _begin_episode(self, boards: Array) -> None:
        self._has_begun = True
        self.moves[boards] = 0
        rows, columns = (self._draw_size(*size, len(boards)) for size in (("minRows", ROWS), ("minColumns", COLUMNS)))
        self.boards.lay_out(boards, rows, columns)
        self.valid[boards] = self.boards.valid_moves(boards)

    def _draw_size(self, parameter: str, greatest: int, count: int) -> Array:
        least = self.academy.parameters.column(parameter, _LEAST, count).astype(np.int64)
        wrong = (least < _SMALLEST) | (least > greatest)
        if wrong.any():
            raise PlayerError(f"Match3 takes {parameter} from {_SMALLEST} to {greatest}; got {least[wrong][0]}")
        return self.academy.rng.integers(least, greatest + 1)

    def render(self, area: int) -> Array:
        """The board; cells of special types have one or two rings."""
        canvas = drawing.Canvas(-1, -1, COLUMNS, ROWS, color=drawing.FLOOR)
        for (row, column), color in np.ndenumerate(self.boards.color[area]):
            if color != _OUTSIDE:
                canvas.disc(column, row, 0.45, _DISCS[color])
                for ring in range(self.boards.special[area, row, column]):
                    canvas.ring(column, row, 0.3 - 0.15 * ring, 0.06, drawing.WHITE)
        return canvas.picture


class Match3Vector(Match3):
    """Boards that are all seen as numbers."""

    behaviors = (_VECTOR,)


class Match3Visual(Match3):
    """Boards that are all seen as images."""

    behaviors = (_VISUAL,)

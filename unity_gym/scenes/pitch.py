"""A walled football pitch with a goal at either end: players and a ball, which are round as seen from above.

They are fast, so a tick is made in several steps, and an impact comes in the step in which surfaces would meet, with
the normal of that moment. As in Unity's physics engine, what meets at less than 2 m/s does not bounce, and an overlap
is taken back by 80 % a tick, no faster than 10 m/s.

The ball is held at a height at which it is sunk into the pitch, which pushes against it with all its might: friction
makes it roll within a few ticks. That its rolling ends when it bounces follows from the same engine's rules. Neither
has been compared with Unity.
"""

from __future__ import annotations

import numpy as np

from unity_gym.scenes.bodies import CONTACT_DISTANCE, DEPENETRATION, DEPENETRATION_SPEED, FRICTION, TICK, rounds
from unity_gym.specs import Array

PLAYER_RADIUS, BALL_RADIUS = 0.5, 0.624  # m
BALL_HEIGHT = 0.5  # m, of its centre
SIDE = 7.53  # m from the middle to the walls along the sides
MOUTH = 4.25  # m, half of a goal's width
GOAL_LINE = 15.5  # m from the middle
GOAL_BACK = 17.4
# The walls across the corners, in the quarter where x and z are positive.
CORNER = np.array([14.46, 6.41])  # their centre
CORNER_HALF = np.array([2.4, 0.23])  # half of their length and thickness
CORNER_NORMAL = np.array([np.sin(np.radians(60)), np.cos(np.radians(60))])  # outwards
BLOCKED = 15.01  # m from the middle to the wall that may stand before the goal at -x

_PLAYER_MASS, _BALL_MASS = 50.0, 3.0  # kg
_PLAYER_DRAG, _BALL_DRAG = 3.0, 1.0  # 1/s
_BOUNCE = 0.8  # of the ball
_BOUNCE_SPEED = 2.0  # m/s
_KICK = 2000.0  # N, for a tick
_GROUND_FRICTION = (FRICTION + 0.1) / 2
_ROLLING = 2 / 7  # the share of its slip that the ball loses until it rolls
# The speed that the ground gives back to the sunk ball in a tick, and takes friction from.
_PUSH_BACK = DEPENETRATION * (BALL_RADIUS - BALL_HEIGHT) / TICK
_STEPS = 4
_STEP = TICK / _STEPS  # s
_NEAR = BALL_RADIUS + 0.5  # m from a disc's centre; no wall is reached from farther away in a step
_NET = 0.1  # m, how far the sides of the net stand inside of the mouth
_LEAST_CORNER = 15.497 / np.cos(np.radians(30))  # x + z / √3 on the walls across the corners


class Pitch:
    """Columns: `position` and `velocity` (2: x and z, areas, players and last the ball), `rolling` (2, areas: the speed
    at which the ball turns), `struck` (bool, areas × players): who has begun to touch the ball in the last tick.

    :param position: which it moves
    :param blocked: a wall closes the goal at -x
    """

    def __init__(self, position: Array, blocked: bool) -> None:
        self.position = position
        self.velocity = np.zeros_like(position)
        _, areas, count = position.shape
        self.rolling = np.zeros((2, areas))
        self.struck = np.zeros((areas, count - 1), bool)
        self.gravity = 9.81  # m/s²
        self._blocked = blocked
        self._radius = np.array([PLAYER_RADIUS] * (count - 1) + [BALL_RADIUS])
        self._weight = np.array([1 / _PLAYER_MASS] * (count - 1) + [1 / _BALL_MASS])
        self._drag = 1 - TICK * np.array([_PLAYER_DRAG] * (count - 1) + [_BALL_DRAG])
        self._ball = count - 1
        self._first, self._second = np.triu_indices(count, 1)
        self._reach = self._radius[self._first] + self._radius[self._second]
        self._with_ball = np.flatnonzero(self._second == self._ball)  # in the order of the players
        self._touching = np.zeros((areas, len(self._first)), bool)
        self._touch = self._touching.copy()
        self._normal = np.zeros((2, *self._touching.shape))

    def kick(self, players: Array) -> None:
        """Let players (bool, areas × players) who touch the ball kick it away from them, in the next tick."""
        away = (self._normal[:, :, self._with_ball] * players).sum(axis=2)
        self.velocity[:, :, self._ball] += _KICK / _BALL_MASS * TICK * away

    def clear(self, areas: Array) -> None:
        """Stop all movement in areas (int, k), and forget who touches the ball."""
        self.velocity[:, areas] = 0
        self.rolling[:, areas] = 0
        self._touching[areas] = False

    def in_goal(self) -> Array:
        """Areas × (goal at -x, goal at +x), bool: whether the ball touches the floor of the goal."""
        x, z = self.position[:, :, self._ball]
        reach = np.sqrt((BALL_RADIUS + CONTACT_DISTANCE) ** 2 - BALL_HEIGHT**2)
        beyond = np.maximum(GOAL_LINE - np.abs(x), 0)
        touches = np.hypot(beyond, np.maximum(np.abs(z) - MOUTH, 0)) < reach
        return np.stack([touches & (x < 0), touches & (x > 0)], axis=1)

    def simulate(self) -> None:
        """One tick."""
        velocity, ball = self.velocity, self._ball
        velocity *= self._drag
        self.rolling *= self._drag[ball]
        players = velocity[:, :, :ball]
        speed = np.hypot(players[0], players[1])
        players *= 1 - np.minimum(1, _GROUND_FRICTION * self.gravity * TICK / np.maximum(speed, 1e-9))
        slip = velocity[:, :, ball] - self.rolling
        size = np.hypot(slip[0], slip[1])
        most = _GROUND_FRICTION * (_PUSH_BACK + self.gravity * TICK)
        rub = slip * np.minimum(_ROLLING, most / np.maximum(size, 1e-9))
        velocity[:, :, ball] -= rub
        self.rolling += rub * (1 / _ROLLING - 1)

        self._touch[:] = False
        for _ in range(_STEPS):
            self._meet()
            self._meet_walls()
            self.position += velocity * _STEP
        self.struck = (self._touch & ~self._touching)[:, self._with_ball]
        self._touching = self._touch.copy()

    def _meet(self) -> None:
        """Impacts and overlaps of two."""
        position, velocity = self.position, self.velocity
        apart = position[:, :, self._second] - position[:, :, self._first]
        relative = velocity[:, :, self._second] - velocity[:, :, self._first]
        distance = np.maximum(np.hypot(apart[0], apart[1]), 1e-9)
        gap = distance - self._reach
        closing = -(relative * apart).sum(axis=0) / distance
        met = gap < closing * _STEP
        close = met | (gap < CONTACT_DISTANCE)
        if not close.any():
            return
        self._touch |= close
        area, pair = np.nonzero(close)
        at = area, pair
        share = np.clip(gap[at] / np.maximum(closing[at], 1e-9), 0, _STEP)
        then = apart[:, area, pair] + relative[:, area, pair] * share
        self._normal[:, area, pair] = then / np.maximum(np.hypot(then[0], then[1]), 1e-9)

        area, pair = np.nonzero(met | (gap < 0))
        first, second = self._first[pair], self._second[pair]
        count = position.shape[2]
        for rows in rounds(area * count + first, area * count + second, np.ones(len(area), bool)):
            a, p, i, j = area[rows], pair[rows], first[rows], second[rows]
            normal = self._normal[:, a, p]
            speed = ((velocity[:, a, i] - velocity[:, a, j]) * normal).sum(axis=0)
            with_ball = j == self._ball
            bounces = with_ball & (speed > _BOUNCE_SPEED)
            depth = -gap[a, p]
            wanted = np.where(bounces, -_BOUNCE * speed, np.maximum(-depth, 0) / _STEP)
            both = self._weight[i] + self._weight[j]
            change = np.maximum(speed - wanted, 0) / both * normal
            velocity[:, a, i] -= self._weight[i] * change
            velocity[:, a, j] += self._weight[j] * change
            out = np.minimum(np.maximum(depth, 0) * DEPENETRATION / _STEPS, DEPENETRATION_SPEED * _STEP) / both * normal
            position[:, a, i] -= self._weight[i] * out
            position[:, a, j] += self._weight[j] * out
            hit = with_ball & (change != 0).any(axis=0)
            self._stop_rolling(a[hit], normal[:, hit])

    def _stop_rolling(self, area: Array, normal: Array) -> None:
        self.rolling[:, area] -= (self.rolling[:, area] * normal).sum(axis=0) * normal

    def _meet_walls(self) -> None:
        """Impacts with walls, which also rub players."""
        x, z = np.abs(self.position)
        near = (z > SIDE - _NEAR) | (x > BLOCKED - _NEAR) | (x + z / np.sqrt(3) > _LEAST_CORNER - 2 * _NEAR)
        if not near.any():
            return
        velocity, ball = self.velocity, self._ball
        for distance, normal in self._walls():
            gap = distance - self._radius
            speed = (velocity * normal).sum(axis=0)
            hit = gap < np.maximum(speed, 0) * _STEP
            if not hit.any():
                continue
            wanted = np.maximum(gap, 0) / _STEP
            wanted[:, ball] = np.where(speed[:, ball] > _BOUNCE_SPEED, -_BOUNCE * speed[:, ball], wanted[:, ball])
            change = np.maximum(speed - wanted, 0) * hit
            velocity -= change * normal
            players = velocity[:, :, :ball]
            along = players - (players * normal[:, :, :ball]).sum(axis=0) * normal[:, :, :ball]
            size = np.maximum(np.hypot(along[0], along[1]), 1e-9)
            players -= along * np.minimum(1, FRICTION * change[:, :ball] / size)
            self.position -= normal * np.clip(-gap * DEPENETRATION / _STEPS, 0, DEPENETRATION_SPEED * _STEP)
            area = np.flatnonzero(change[:, ball])
            self._stop_rolling(area, normal[:, area, ball])

    def _walls(self) -> list[tuple[Array, Array]]:
        """How far (areas, discs) from the centres walls are, and in which directions (2, areas, discs)."""
        signs = np.where(self.position < 0, -1, 1)
        x, z = np.abs(self.position)  # all four quarters are alike
        nothing = np.zeros_like(x)
        across = CORNER_NORMAL[0] * (x - CORNER[0]) + CORNER_NORMAL[1] * (z - CORNER[1])
        along = CORNER_NORMAL[0] * (z - CORNER[1]) - CORNER_NORMAL[1] * (x - CORNER[0])
        aside = np.clip(along, -CORNER_HALF[0], CORNER_HALF[0]) - along
        ahead = -CORNER_HALF[1] - across
        corner = np.where(aside == 0, ahead, np.hypot(aside, ahead))
        toward = np.stack(
            [ahead * CORNER_NORMAL[0] - aside * CORNER_NORMAL[1], ahead * CORNER_NORMAL[1] + aside * CORNER_NORMAL[0]]
        ) / np.where(corner == 0, 1e-9, corner)
        walls = [
            (SIDE - z, np.stack([nothing, signs[1]])),
            (corner, signs * np.where(aside == 0, CORNER_NORMAL[:, np.newaxis, np.newaxis], toward)),
            (np.where(x > GOAL_LINE, MOUTH - _NET - z, np.inf), np.stack([nothing, signs[1]])),
            (GOAL_BACK - x, np.stack([signs[0], nothing])),
        ]
        if self._blocked:
            walls.append((BLOCKED + self.position[0], np.stack([nothing - 1, nothing])))
        return walls

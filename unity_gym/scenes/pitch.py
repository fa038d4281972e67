"""A walled football pitch with a goal at either end: players and a ball, which are round seen from above.

They are fast, so a tick consists of several steps. An impact occurs in the step in which surfaces would meet, with
the normal of that moment. As in Unity's physics engine, impacts at less than 2 m/s do not bounce. A tick corrects
80 % of an overlap, by at most 10 m/s.

The ball is held at a height at which it is partly in the pitch, which therefore pushes against it: friction makes it
roll within a few ticks. But it rolls at 4.4 m/s at most, as Unity limits its spin, so friction slows a faster ball down
to this speed. By the same engine's rules, a bounce ends its rolling. None of this has been compared with Unity, but
Unity's network wins more matches with the limit (docs/environments/scenes.md).
"""

from __future__ import annotations

from math import cos, hypot, inf, radians, sin, sqrt
from typing import NamedTuple

import numpy as np

from unity_gym.scenes.bodies import CONTACT_DISTANCE, DEPENETRATION, DEPENETRATION_SPEED, FRICTION, MAX_SPIN, TICK
from unity_gym.scenes.kernels import inner_kernel, kernel
from unity_gym.specs import Array

PLAYER_RADIUS, BALL_RADIUS = 0.5, 0.624  # m
BALL_HEIGHT = 0.5  # m, height of its center
SIDE = 7.508  # m from the middle to the walls along the sides
MOUTH = 4.25  # m, half of a goal's width
GOAL_LINE = 15.5  # m from the middle
# m from the middle to the fronts of a net's sides and to its back, of the goals at -x and at +x
NET_FRONT = 15.5, 15.47
NET_BACK = 17.373, 17.356
# The diagonal walls at the corners, in the quarter where x and z are positive.
CORNER = 14.46, 6.41  # their center
CORNER_HALF = 2.4, 0.23  # half of their length and thickness
CORNER_NORMAL = sin(radians(60)), cos(radians(60))  # outwards
BLOCKED = 15.01  # m from the middle to the optional wall in front of the goal at -x

_PLAYER_MASS, _BALL_MASS = 50.0, 3.0  # kg
_PLAYER_DRAG, _BALL_DRAG = 3.0, 1.0  # 1/s
_BOUNCE = 0.8  # of the ball
_BOUNCE_SPEED = 2.0  # m/s
_KICK = 2000.0  # N, for one tick
_GROUND_FRICTION = (FRICTION + 0.1) / 2
_ROLLING = 2 / 7  # the share of its slip that the ball loses until it rolls
_MAX_ROLLING = MAX_SPIN * BALL_RADIUS  # m/s
# The speed that the ground returns to the sunk ball per tick, from which friction follows.
_PUSH_BACK = DEPENETRATION * (BALL_RADIUS - BALL_HEIGHT) / TICK
_STEPS = 4
_STEP = TICK / _STEPS  # s
_NEAR = BALL_RADIUS + 0.5  # m from a disc's center; a disc cannot reach farther walls within a step
_NET = 0.1  # m, thickness of the sides of a net, which end at the sides of the mouth
_LEAST_CORNER = 15.497 / cos(radians(30))  # x + z / √3 on the diagonal walls


class Pitch:
    """The state of the pitches of all areas, in arrays.

    `position` and `velocity` (2: x and z, areas, players and last the ball), `rolling` (2, areas: speed of the ball's
    surface by its rotation), `struck` (bool, areas × players: the player started to touch the ball in the last tick),
    and `in_goal` (bool, areas × 2: the ball touches the floor or the net of the goal at -x, at +x).

    :param position: Positions, which a tick changes.
    :param blocked: Whether a wall closes the goal at -x.
    """

    def __init__(self, position: Array, blocked: bool) -> None:
        self.position = position
        self.velocity = np.zeros_like(position)
        _, areas, count = position.shape
        self.rolling = np.zeros((2, areas))
        self.struck = np.zeros((areas, count - 1), bool)
        self.in_goal = np.zeros((areas, 2), bool)
        self.gravity = 9.81  # m/s²
        self._blocked = blocked
        self._ball = count - 1
        self._first, self._second = np.triu_indices(count, 1)
        self._with_ball = np.flatnonzero(self._second == self._ball)  # in the order of the players
        self._touching = np.zeros((areas, len(self._first)), bool)
        self._normal = np.zeros((2, *self._touching.shape))

    def kick(self, players: Array) -> None:
        """Let players (bool, areas × players) that touch the ball kick it away from them in the next tick."""
        away = (self._normal[:, :, self._with_ball] * players).sum(axis=2)
        self.velocity[:, :, self._ball] += _KICK / _BALL_MASS * TICK * away

    def clear(self, areas: Array) -> None:
        """Stop all movement in areas (int, k), and reset which players touch the ball."""
        self.velocity[:, areas] = 0
        self.rolling[:, areas] = 0
        self._touching[areas] = False

    def simulate(self) -> bool:
        """Advance all pitches by one tick.

        :return: Whether any player has started to touch a ball, or a ball is in a goal.
        """
        discs = _Discs(self.position, self.velocity, self.rolling)
        contacts = _Contacts(self._first, self._second, self._touching, self._normal)
        return _simulate(discs, contacts, self.struck, self.in_goal, self.gravity, self._blocked)


class _Discs(NamedTuple):
    """The arrays of `Pitch` for players and ball."""

    position: Array
    velocity: Array
    rolling: Array


class _Contacts(NamedTuple):
    """Pairs of discs.

    Indices of both, whether they touch (areas, pairs), and the unit normal from the first to the second when they last
    met (2, areas, pairs).
    """

    first: Array
    second: Array
    touching: Array
    normal: Array


@kernel
def _simulate(discs: _Discs, contacts: _Contacts, struck: Array, in_goal: Array, gravity: float, blocked: bool) -> bool:
    position, velocity = discs.position, discs.velocity
    areas, count = position.shape[1:]
    ball = count - 1
    touches = np.empty(len(contacts.first), np.bool_)
    gaps = np.empty(len(contacts.first))
    eventful = False
    for area in range(areas):
        _slow_down(discs, area, gravity)
        touches[:] = False
        scored = False
        for _ in range(_STEPS):
            _meet(discs, contacts, area, touches, gaps)
            for disc in range(count):
                meets_net = _meet_walls(discs, area, disc, blocked)
                scored |= meets_net and disc == ball
                for axis in range(2):
                    position[axis, area, disc] += velocity[axis, area, disc] * _STEP
        for pair in range(len(touches)):
            if contacts.second[pair] == ball:
                started = touches[pair] and not contacts.touching[area, pair]
                struck[area, contacts.first[pair]] = started
                eventful |= started
            contacts.touching[area, pair] = touches[pair]
        x, z = position[0, area, ball], position[1, area, ball]
        reach = sqrt((BALL_RADIUS + CONTACT_DISTANCE) ** 2 - BALL_HEIGHT**2)
        scored |= hypot(max(GOAL_LINE - abs(x), 0.0), max(abs(z) - MOUTH, 0.0)) < reach
        in_goal[area, 0], in_goal[area, 1] = scored and x < 0, scored and x > 0
        eventful |= scored
    return eventful


@inner_kernel
def _slow_down(discs: _Discs, area: int, gravity: float) -> None:
    """Apply drag, and the friction of the ground, which makes the ball roll."""
    velocity, rolling = discs.velocity, discs.rolling
    ball = velocity.shape[2] - 1
    for player in range(ball):
        for axis in range(2):
            velocity[axis, area, player] *= 1 - TICK * _PLAYER_DRAG
        speed = hypot(velocity[0, area, player], velocity[1, area, player])
        loss = min(1.0, _GROUND_FRICTION * gravity * TICK / max(speed, 1e-9))
        for axis in range(2):
            velocity[axis, area, player] *= 1 - loss
    for axis in range(2):
        velocity[axis, area, ball] *= 1 - TICK * _BALL_DRAG
        rolling[axis, area] *= 1 - TICK * _BALL_DRAG
    limit = min(1.0, _MAX_ROLLING / max(hypot(rolling[0, area], rolling[1, area]), 1e-9))
    for axis in range(2):
        rolling[axis, area] *= limit
    slip = velocity[0, area, ball] - rolling[0, area], velocity[1, area, ball] - rolling[1, area]
    most = _GROUND_FRICTION * (_PUSH_BACK + gravity * TICK)
    share = min(_ROLLING, most / max(hypot(slip[0], slip[1]), 1e-9))
    for axis in range(2):
        velocity[axis, area, ball] -= slip[axis] * share
        rolling[axis, area] += slip[axis] * share * (1 / _ROLLING - 1)


@inner_kernel
def _radius(is_ball: bool) -> float:
    return BALL_RADIUS if is_ball else PLAYER_RADIUS


@inner_kernel
def _meet(discs: _Discs, contacts: _Contacts, area: int, touches: Array, gaps: Array) -> None:
    """Apply impacts and overlaps of pairs, which follow from the positions and speeds before any impact."""
    position, velocity, normal = discs.position, discs.velocity, contacts.normal
    ball = position.shape[2] - 1
    for pair in range(len(gaps)):
        i, j = contacts.first[pair], contacts.second[pair]
        x, z = position[0, area, j] - position[0, area, i], position[1, area, j] - position[1, area, i]
        speed_x, speed_z = velocity[0, area, j] - velocity[0, area, i], velocity[1, area, j] - velocity[1, area, i]
        distance = max(hypot(x, z), 1e-9)
        gap = distance - _radius(False) - _radius(j == ball)
        closing = -(speed_x * x + speed_z * z) / distance
        meets = gap < closing * _STEP
        if meets or gap < CONTACT_DISTANCE:
            touches[pair] = True
            time = min(max(gap / max(closing, 1e-9), 0.0), _STEP)
            x, z = x + speed_x * time, z + speed_z * time
            distance = max(hypot(x, z), 1e-9)
            normal[0, area, pair], normal[1, area, pair] = x / distance, z / distance
        gaps[pair] = gap if meets or gap < 0 else inf
    for pair in range(len(gaps)):
        if gaps[pair] < inf:
            toward = normal[0, area, pair], normal[1, area, pair]
            _push_apart(discs, area, contacts.first[pair], contacts.second[pair], gaps[pair], toward)


@inner_kernel
def _push_apart(discs: _Discs, area: int, i: int, j: int, gap: float, normal: tuple[float, float]) -> None:
    """Apply the impact of two discs, and correct a part of their overlap."""
    position, velocity = discs.position, discs.velocity
    with_ball = j == position.shape[2] - 1
    weight, other_weight = 1 / _PLAYER_MASS, 1 / _BALL_MASS if with_ball else 1 / _PLAYER_MASS
    speed = 0.0
    for axis in range(2):
        speed += (velocity[axis, area, i] - velocity[axis, area, j]) * normal[axis]
    least = -_BOUNCE * speed if with_ball and speed > _BOUNCE_SPEED else max(gap, 0.0) / _STEP
    impulse = max(speed - least, 0.0) / (weight + other_weight)
    out = min(max(-gap, 0.0) * DEPENETRATION / _STEPS, DEPENETRATION_SPEED * _STEP) / (weight + other_weight)
    for axis in range(2):
        velocity[axis, area, i] -= weight * impulse * normal[axis]
        velocity[axis, area, j] += other_weight * impulse * normal[axis]
        position[axis, area, i] -= weight * out * normal[axis]
        position[axis, area, j] += other_weight * out * normal[axis]
    if with_ball and impulse > 0:
        _stop_rolling(discs, area, normal)


@inner_kernel
def _stop_rolling(discs: _Discs, area: int, normal: tuple[float, float]) -> None:
    along = discs.rolling[0, area] * normal[0] + discs.rolling[1, area] * normal[1]
    for axis in range(2):
        discs.rolling[axis, area] -= along * normal[axis]


@inner_kernel
def _meet_walls(discs: _Discs, area: int, disc: int, blocked: bool) -> bool:
    """Apply the impacts of a disc with walls, which follow from its position before any of them.

    :return: Whether the disc touches a net.
    """
    place_x, place_z = discs.position[0, area, disc], discs.position[1, area, disc]
    x, z = abs(place_x), abs(place_z)  # all four quarters are equal, except for the nets
    if z <= SIDE - _NEAR and x <= BLOCKED - _NEAR and x + z / sqrt(3) <= _LEAST_CORNER - 2 * _NEAR:
        return False
    sign_x, sign_z = -1.0 if place_x < 0 else 1.0, -1.0 if place_z < 0 else 1.0
    goal = 0 if place_x < 0 else 1
    corner, corner_x, corner_z = _corner(x, z)
    net, net_x, net_z = _net(x, z, NET_FRONT[goal])
    # The net stands next to the corner's wall. The nearer one is met first, or both if they are about equally near.
    is_near = net <= corner + CONTACT_DISTANCE
    meets_net = is_near and _meet_wall(discs, area, disc, net, (sign_x * net_x, sign_z * net_z))
    _meet_wall(discs, area, disc, SIDE - z, (0.0, sign_z))
    meets_corner = _meet_wall(discs, area, disc, corner, (sign_x * corner_x, sign_z * corner_z))
    meets_net |= is_near and meets_corner
    meets_net |= _meet_wall(discs, area, disc, NET_BACK[goal] - x, (sign_x, 0.0))
    if blocked:
        _meet_wall(discs, area, disc, BLOCKED + place_x, (-1.0, 0.0))
    return meets_net


@inner_kernel
def _net(x: float, z: float, front: float) -> tuple[float, float, float]:
    """Return the distance to the side of a net, whose front is at x = `front`, and the unit vector towards it."""
    ahead = front - x
    if ahead <= 0:
        return MOUTH - _NET - z, 0.0, 1.0
    aside = min(max(z, MOUTH - _NET), MOUTH) - z
    distance = hypot(ahead, aside)
    return distance, ahead / distance, aside / distance


@inner_kernel
def _corner(x: float, z: float) -> tuple[float, float, float]:
    """Return the distance to the diagonal wall, and the unit vector towards it."""
    normal_x, normal_z = CORNER_NORMAL
    across = normal_x * (x - CORNER[0]) + normal_z * (z - CORNER[1])
    along = normal_x * (z - CORNER[1]) - normal_z * (x - CORNER[0])
    aside = min(max(along, -CORNER_HALF[0]), CORNER_HALF[0]) - along
    ahead = -CORNER_HALF[1] - across
    if aside == 0:
        return ahead, normal_x, normal_z
    distance = hypot(aside, ahead)
    return distance, (ahead * normal_x - aside * normal_z) / distance, (ahead * normal_z + aside * normal_x) / distance


@inner_kernel
def _meet_wall(discs: _Discs, area: int, disc: int, distance: float, normal: tuple[float, float]) -> bool:
    """Apply the impact of a disc with a wall and, for players, its friction, and correct a part of their overlap.

    :param distance: Distance of the wall from the center of the disc in m.
    :param normal: Unit vector towards the wall.
    :return: Whether they touch.
    """
    position, velocity = discs.position, discs.velocity
    is_ball = disc == position.shape[2] - 1
    gap = distance - _radius(is_ball)
    speed = velocity[0, area, disc] * normal[0] + velocity[1, area, disc] * normal[1]
    if gap >= max(speed, 0.0) * _STEP:
        return gap < CONTACT_DISTANCE
    least = -_BOUNCE * speed if is_ball and speed > _BOUNCE_SPEED else max(gap, 0.0) / _STEP
    change = max(speed - least, 0.0)
    out = min(max(-gap * DEPENETRATION / _STEPS, 0.0), DEPENETRATION_SPEED * _STEP)
    for axis in range(2):
        velocity[axis, area, disc] -= change * normal[axis]
        position[axis, area, disc] -= out * normal[axis]
    if is_ball:
        if change > 0:
            _stop_rolling(discs, area, normal)
        return True
    toward = velocity[0, area, disc] * normal[0] + velocity[1, area, disc] * normal[1]
    along_x, along_z = velocity[0, area, disc] - toward * normal[0], velocity[1, area, disc] - toward * normal[1]
    share = min(1.0, FRICTION * change / max(hypot(along_x, along_z), 1e-9))
    velocity[0, area, disc] -= along_x * share
    velocity[1, area, disc] -= along_z * share
    return True

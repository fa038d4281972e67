"""Upright bodies that slide, fall and push each other, modeled on Unity's physics engine (PhysX).

One tick of a body: gravity, drag (`v ← v (1 - drag · dt)`), ground, contacts, then the move. Agents gain 2 to 3 m/s
per tick and push things almost all of the time. So these scenes depend on the following properties of PhysX:

- Contacts are found at the positions before the move, and only between surfaces less than 2 cm apart. So a fast body
  enters an obstacle and is pushed out in later ticks: 80 % of the depth per tick, at most 10 m/s. This moves bodies
  without changing their velocity.
- A contact ahead stops an approach just before the surfaces meet. Contacts do not bounce.
- Friction between boxes acts at two points, each with the whole normal force: the coefficient doubles.
- A contact turns a body that may turn, such as a block that is pushed off its middle. It pushes at both ends of the
  edge along which the boxes touch. Friction from below acts on such a body at two distant points, which are opposite
  corners on the ground.
- The ground is solved together with the contacts. So it carries a body with another one on top. A block moves only if
  it is pushed with at least 1.2 times its weight.

Unity's demonstration of PushBlock shows all of these properties. Its agents fly as computed to 0.1 mm and lose
2 · 0.3 · g · dt · (1 - drag · dt) of their speed per tick on the ground. Of 55 episodes with a known start, 53 end in
the demonstrated decision if only the demonstrated actions are replayed.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import inf, sqrt
from typing import NamedTuple

import numpy as np

from unity_gym.scenes.kernels import inner_kernel, kernel
from unity_gym.scenes.shapes import Box, Shapes, box, contact_edge, separation
from unity_gym.specs import Array

TICK = 0.02  # s
FRICTION = 0.6  # of Unity's default material
FRICTION_POINTS = 2
CONTACT_DISTANCE = 0.02  # m; sum of the contact offsets of two shapes
DEPENETRATION = 0.8  # share of an overlap that a tick corrects
DEPENETRATION_SPEED = 10.0  # m/s
GROUND = -2e-5  # m; a body at rest is about this deep in the ground, so that rays along the ground do not hit it
_ITERATIONS = 6  # as in Unity's scenes
_NEGLIGIBLE = 1e-9  # kg m/s; the solver has converged if impulses change by less
_ANGULAR_DRAG = 0.05  # 1/s
MAX_SPIN = 7.0  # rad/s; Unity's default limit, to which a tick first reduces the angular velocity of a body


class Bodies:
    """The first things of `shapes` move, the others are static. Contacts turn only those named in `turning`.

    Arrays: `velocity` (3, areas, things; zero for static things), `spin` (areas, things; rad/s, clockwise as yaw,
    zero for things that do not turn), `drag` (1/s, areas × bodies), and `ground_friction` (2, areas, bodies). The
    latter holds the coefficients of the ground, static and dynamic, summed over both points of friction. Positions are
    those of the shapes.

    :param shapes: Boxes without rounding.
    :param masses: Masses of the bodies in kg.
    :param drags: Drags of the bodies in 1/s.
    :param solids: Names of the things that bodies collide with in addition to each other; rays may hit more things.
    :param gravity: Acceleration in m/s².
    :param floating: Names of bodies that keep their height.
    :param anchored: Names of bodies that only rise and fall. As in PhysX, contacts still share momentum with them as
        if they were free, and they lose their horizontal speed afterwards: a heavy body plows through a light one.
    :param turning: Names of bodies that contacts turn.
    :param on_ground: Whether there is ground at height 0 everywhere.
    """

    def __init__(
        self,
        shapes: Shapes,
        masses: Sequence[float],
        drags: Sequence[float],
        solids: Sequence[str],
        *,
        gravity: float,
        floating: Sequence[str] = (),
        anchored: Sequence[str] = (),
        turning: Sequence[str] = (),
        on_ground: bool = True,
    ) -> None:
        areas, things = shapes.visible.shape
        count = len(masses)
        self.shapes = shapes
        self.gravity = gravity
        self.velocity = np.zeros((3, areas, things))
        self.spin = np.zeros((areas, things))
        self.drag = np.tile(np.array(drags, float), (areas, 1))
        self.ground_friction = np.full((2, areas, count), FRICTION_POINTS * FRICTION)
        self._on_ground = on_ground
        self._weight = np.zeros((3, things))
        self._weight[:, :count] = 1 / np.array(masses)
        self._weight[1, [shapes.index(name) for name in floating]] = 0
        self._turns = np.isin(shapes.names, turning)
        self._anchored = np.isin(shapes.names, anchored)
        fixed = [shapes.index(name) for name in solids]
        pairs = [(i, j) for i in range(count) for j in (*range(i + 1, count), *fixed)]
        self._pairs = np.array(pairs)
        self._columns = {(shapes.names[i], shapes.names[j]): column for column, (i, j) in enumerate(pairs)}
        self._touching = np.zeros((areas, len(pairs)), bool)
        self._entered = np.zeros((areas, len(pairs)), bool)

    def set_gravity(self, value: float) -> None:
        """Set the acceleration in m/s²."""
        self.gravity = value

    def entered(self, first: str, second: str, *more: str) -> Array:
        """Return whether things started to touch in the last tick.

        :param first: Name of one thing.
        :param second: Name of another thing, with a greater index.
        :param more: Names of further things to test in addition to the second one.
        :return: Flags, bool (areas), or (areas, things) if more than one second thing is given.
        """
        if more:
            return np.asarray(self._entered[:, self._pairs_of(first, second, *more)])
        return np.asarray(self._entered[:, self._columns[first, second]])

    @cache  # noqa: B019  # the few bodies of a process live as long as it
    def _pairs_of(self, first: str, *others: str) -> Array | slice:
        """Return the indices of pairs of one thing and others in `_entered`, as a slice if they are consecutive."""
        columns = np.array([self._columns[first, other] for other in others])
        return slice(columns[0], columns[-1] + 1) if (np.diff(columns) == 1).all() else columns

    def entered_by(self, firsts: Sequence[str], second: str) -> Array:
        """Return which of several things started to touch another one in the last tick, bool (areas, firsts)."""
        return np.asarray(self._entered[:, [self._columns[first, second] for first in firsts]])

    def simulate(self) -> None:
        """Advance all bodies by one tick."""
        shapes = self.shapes
        _simulate(
            shapes.center,
            shapes.half,
            shapes.yaw,
            self.velocity,
            self.spin,
            self.drag,
            self.ground_friction,
            self._weight,
            self._turns,
            self._anchored,
            self._pairs,
            self._touching,
            self._entered,
            float(self.gravity),
            self._on_ground,
        )


class _World(NamedTuple):
    """The arrays of `Shapes` and `Bodies`, and the masses: `weight` (3, things) is 1 / mass along each axis."""

    center: Array
    half: Array
    yaw: Array
    velocity: Array
    spin: Array
    drag: Array
    ground_friction: Array
    weight: Array
    turns: Array
    anchored: Array


class _Motion(NamedTuple):
    """The motion of the things of an area, one row per thing.

    `speed` (4: m/s along x, y and z, spin in rad/s), and `weight` (4): 1 / mass along each axis, and 1 / moment of
    inertia about the vertical one. Zero for static things.
    """

    speed: Array
    weight: Array


class _Contacts(NamedTuple):
    """The contacts of an area, one row per contact.

    Impulses act along up to six directions, equal and opposite on both bodies: along the normal at one or both
    ends of an edge (0, 1), and of friction in two directions at one or two points (2 and 3, 4 and 5).

    Arrays:

    - `pair` (int, 2): the bodies
    - `ends` and `points` (int)
    - `effect` (6, 2, 4): change of the speeds and the spin of both bodies per impulse, except for their weights
    - `mass` (6): impulse that changes the speed at which bodies part by 1 m/s
    - `coupling`: change of that speed per impulse at the other end
    - `impulse` (6): sum so far
    - `rub` (6): impulses of friction that would stop sliding
    - `moving` (2) and `lasting` (2): least speeds in m/s at which bodies may part at either end, in the move of this
      tick and after it
    """

    pair: Array
    ends: Array
    points: Array
    effect: Array
    mass: Array
    coupling: Array
    impulse: Array
    rub: Array
    moving: Array
    lasting: Array


class _Ground(NamedTuple):
    """The effect of the ground on the bodies of an area, one row per body.

    Arrays: `moving` and `lasting`, as of contacts (-inf where the ground is out of reach), `stop` (speed of the stopped
    fall, m/s), `points` (int), `lever` (2: motion of the first point per unit of spin, x and z; the second point moves
    in the opposite direction), `impulse` (2 points, 2: of friction), and `friction` (2: static and dynamic, of each
    point).
    """

    moving: Array
    lasting: Array
    stop: Array
    points: Array
    lever: Array
    impulse: Array
    friction: Array


@kernel
def _simulate(
    center: Array,
    half: Array,
    yaw: Array,
    velocity: Array,
    spin: Array,
    drag: Array,
    ground_friction: Array,
    weight: Array,
    turns: Array,
    anchored: Array,
    pairs: Array,
    touching: Array,
    entered: Array,
    gravity: float,
    on_ground: bool,
) -> None:
    world = _World(center, half, yaw, velocity, spin, drag, ground_friction, weight, turns, anchored)
    bodies = drag.shape[1]
    n, things = len(pairs), len(turns)
    motion = _Motion(np.zeros((things, 4)), np.zeros((things, 4)))
    contacts = _Contacts(
        np.empty((n, 2), np.int64),
        np.empty(n, np.int64),
        np.empty(n, np.int64),
        np.empty((n, 6, 2, 4)),
        np.empty((n, 6)),
        np.empty(n),
        np.empty((n, 6)),
        np.empty((n, 6)),
        np.empty((n, 2)),
        np.empty((n, 2)),
    )
    ground = _Ground(
        np.full(bodies, -inf),
        np.full(bodies, -inf),
        np.zeros(bodies),
        np.ones(bodies, np.int64),
        np.zeros((bodies, 2)),
        np.zeros((bodies, 2, 2)),
        np.zeros((bodies, 2)),
    )
    _simulate_areas(world, motion, contacts, ground, pairs, touching, entered, gravity, on_ground)


@inner_kernel
def _simulate_areas(
    world: _World,
    motion: _Motion,
    contacts: _Contacts,
    ground: _Ground,
    pairs: Array,
    touching: Array,
    entered: Array,
    gravity: float,
    on_ground: bool,
) -> None:
    center, velocity = world.center, world.velocity
    areas, bodies = world.drag.shape
    any_turns = world.turns.any()
    for area in range(areas):
        _fall(world, motion, area, gravity)
        count = _find(world, motion, contacts, area, pairs, touching, entered)
        if on_ground:
            _find_ground(world, ground, area)
        for _ in range(_ITERATIONS if count > 0 or any_turns else 1):
            change = _solve(motion, contacts, count, contacts.moving)
            _stand(motion, ground, ground.moving)
            if count > 0 and change < _NEGLIGIBLE:
                break
        for body in range(bodies):
            for axis in range(3):
                if axis == 1 or not world.anchored[body]:
                    center[axis, area, body] += motion.speed[body, axis] * TICK
            world.yaw[area, body] += motion.speed[body, 3] * TICK
        _solve(motion, contacts, count, contacts.lasting)
        _stand(motion, ground, ground.lasting)
        for body in range(bodies):
            for axis in range(3):
                velocity[axis, area, body] = motion.speed[body, axis] if axis == 1 or not world.anchored[body] else 0.0
            world.spin[area, body] = max(-MAX_SPIN, min(MAX_SPIN, motion.speed[body, 3]))


@inner_kernel
def _fall(world: _World, motion: _Motion, area: int, gravity: float) -> None:
    """Write the speeds of the bodies after gravity and drag, and their inverse masses."""
    for body in range(world.drag.shape[1]):
        for axis in range(3):
            fall = gravity * TICK if axis == 1 and world.weight[1, body] > 0 else 0.0
            motion.speed[body, axis] = (world.velocity[axis, area, body] - fall) * (1 - world.drag[area, body] * TICK)
            motion.weight[body, axis] = world.weight[axis, body]
        if world.turns[body]:
            motion.speed[body, 3] = world.spin[area, body] * (1 - _ANGULAR_DRAG * TICK)
            square = world.half[0, area, body] ** 2 + world.half[2, area, body] ** 2
            motion.weight[body, 3] = 3 * world.weight[0, body] / square


@inner_kernel
def _find_ground(world: _World, ground: _Ground, area: int) -> None:
    """Find the bodies that the ground carries, and the points at which its friction acts."""
    ground.stop[:] = 0
    ground.impulse[:] = 0
    for body in range(len(ground.stop)):
        gap = world.center[1, area, body] - world.half[1, area, body] - GROUND
        ground.moving[body] = ground.lasting[body] = -inf
        if gap < CONTACT_DISTANCE and world.weight[1, body] > 0:
            ground.moving[body], ground.lasting[body] = _least_speeds(gap)
        points = ground.points[body] = 2 if world.turns[body] else 1
        if points == 2:
            one = box(world.center, world.half, world.yaw, area, body)
            ground.lever[body, 0] = one.cos * one.half_z - one.sin * one.half_x
            ground.lever[body, 1] = -one.cos * one.half_x - one.sin * one.half_z
        for kind in range(2):
            ground.friction[body, kind] = world.ground_friction[kind, area, body] / points


@inner_kernel
def _least_speeds(gap: float) -> tuple[float, float]:
    """Return the least speeds (m/s) at which things with a gap (m) may part.

    The first is for the move of a tick, the second is the speed after it.
    """
    lasting = -max(gap, 0.0) / TICK
    return lasting if gap > 0 else min(gap * (-DEPENETRATION / TICK), DEPENETRATION_SPEED), lasting


@inner_kernel
def _stand(motion: _Motion, ground: _Ground, least: Array) -> None:
    """Stop falls at the ground, and apply its friction to sliding and turning bodies."""
    speed = motion.speed
    for body in range(len(least)):
        weight, turn_weight = motion.weight[body, 0], motion.weight[body, 3]
        before = ground.stop[body]
        if before == 0 and speed[body, 1] >= least[body]:
            continue
        stop = ground.stop[body] = max(before + least[body] - speed[body, 1], 0.0)
        speed[body, 1] += stop - before
        # All points at once, each with its share of the mass, so that straight sliding causes no rotation.
        points = ground.points[body]
        speed_x, speed_z, spin = speed[body, 0], speed[body, 2], speed[body, 3]
        for point in range(points):
            sign = 1.0 - 2.0 * point
            lever_x, lever_z = sign * ground.lever[body, 0], sign * ground.lever[body, 1]
            before_x, before_z = ground.impulse[body, point, 0], ground.impulse[body, point, 1]
            x = before_x - (speed_x + spin * lever_x) / (points * (weight + lever_x**2 * turn_weight))
            z = before_z - (speed_z + spin * lever_z) / (points * (weight + lever_z**2 * turn_weight))
            size = sqrt(x * x + z * z)
            if size * weight > ground.friction[body, 0] * stop:
                share = min(1.0, ground.friction[body, 1] * stop / (size * weight))
                x, z = x * share, z * share
            ground.impulse[body, point, 0], ground.impulse[body, point, 1] = x, z
            speed[body, 0] += weight * (x - before_x)
            speed[body, 2] += weight * (z - before_z)
            speed[body, 3] += turn_weight * (lever_x * (x - before_x) + lever_z * (z - before_z))


@inner_kernel
def _find(
    world: _World,
    motion: _Motion,
    contacts: _Contacts,
    area: int,
    pairs: Array,
    touching: Array,
    entered: Array,
) -> int:
    """Find the contacts of an area, and mark the pairs that touch since this tick.

    :return: Number of contacts.
    """
    center, half, yaw = world.center, world.half, world.yaw
    count = 0
    for pair in range(len(pairs)):
        i, j = pairs[pair, 0], pairs[pair, 1]
        touches = False
        # Only things with near bounds need the exact test; bounds of turned things are the widest possible.
        wide = CONTACT_DISTANCE
        wide += half[2, area, i] + half[0, area, i] if yaw[area, i] != 0 else 0.0
        wide += half[2, area, j] + half[0, area, j] if yaw[area, j] != 0 else 0.0
        apart_x = abs(center[0, area, j] - center[0, area, i]) - half[0, area, i] - half[0, area, j]
        apart_y = abs(center[1, area, j] - center[1, area, i]) - half[1, area, i] - half[1, area, j]
        apart_z = abs(center[2, area, j] - center[2, area, i]) - half[2, area, i] - half[2, area, j]
        if max(apart_x, apart_z) < wide and apart_y < CONTACT_DISTANCE:
            first, second = box(center, half, yaw, area, i), box(center, half, yaw, area, j)
            gap, normal_x, normal_y, normal_z = separation(first, second)
            touches = gap < CONTACT_DISTANCE and _bounds_are_near(first, second)
            if touches:
                _add_contact(motion, contacts, count, i, j, first, second, gap, (normal_x, normal_y, normal_z))
                count += 1
        entered[area, pair] = touches and not touching[area, pair]
        touching[area, pair] = touches
    return count


@inner_kernel
def _bounds_are_near(first: Box, second: Box) -> bool:
    """Return whether the bounds of two boxes, along the axes of the area, nearly touch."""
    reach_x = abs(first.cos) * first.half_x + abs(first.sin) * first.half_z
    reach_x += abs(second.cos) * second.half_x + abs(second.sin) * second.half_z
    reach_z = abs(first.sin) * first.half_x + abs(first.cos) * first.half_z
    reach_z += abs(second.sin) * second.half_x + abs(second.cos) * second.half_z
    return abs(second.x - first.x) - reach_x < CONTACT_DISTANCE and abs(second.z - first.z) - reach_z < CONTACT_DISTANCE


@inner_kernel
def _add_contact(
    motion: _Motion,
    contacts: _Contacts,
    k: int,
    i: int,
    j: int,
    first: Box,
    second: Box,
    gap: float,
    normal: tuple[float, float, float],
) -> None:
    """Write the contact of the things i and j to row k."""
    contacts.pair[k, 0], contacts.pair[k, 1] = i, j
    contacts.ends[k] = contacts.points[k] = 1
    contacts.impulse[k] = 0
    normal_x, normal_y, normal_z = normal
    turns = motion.weight[i, 3] + motion.weight[j, 3] > 0
    gaps = (gap, inf)
    if normal_y != 0:  # one body is on the other: friction acts in the plane
        (x, z), (other_x, other_z) = _anchors(first, second)
        _direct(contacts, k, 0, 0.0, normal_y, 0.0, 0.0, 0.0, first, second)
        if turns:
            contacts.points[k] = 2
            _direct(contacts, k, 4, 1.0, 0.0, 0.0, other_x, other_z, first, second)
            _direct(contacts, k, 5, 0.0, 0.0, 1.0, other_x, other_z, first, second)
        _direct(contacts, k, 2, 1.0, 0.0, 0.0, x, z, first, second)
        _direct(contacts, k, 3, 0.0, 0.0, 1.0, x, z, first, second)
    else:  # friction acts along the edge, with the same arm at either end, and upwards
        edge = contact_edge(first, second, normal_x, normal_z)
        _direct(contacts, k, 0, normal_x, 0.0, normal_z, edge.x[0], edge.z[0], first, second)
        if turns:
            contacts.ends[k] = 2
            gaps = edge.gap
            _direct(contacts, k, 1, normal_x, 0.0, normal_z, edge.x[1], edge.z[1], first, second)
        _direct(contacts, k, 2, normal_z, 0.0, -normal_x, edge.x[0], edge.z[0], first, second)
        _direct(contacts, k, 3, 0.0, 1.0, 0.0, 0.0, 0.0, first, second)
    for end in range(contacts.ends[k]):
        contacts.moving[k, end], contacts.lasting[k, end] = _least_speeds(gaps[end])
    if contacts.ends[k] == 2:
        contacts.coupling[k] = 0
        for part in range(4):
            contacts.coupling[k] += (
                contacts.effect[k, 0, 0, part] * contacts.effect[k, 1, 0, part] * motion.weight[i, part]
                + contacts.effect[k, 0, 1, part] * contacts.effect[k, 1, 1, part] * motion.weight[j, part]
            )
    for row in range(2 + 2 * contacts.points[k]):
        if row == 1 and contacts.ends[k] == 1:
            continue
        yields = 0.0
        for part in range(4):
            yields += contacts.effect[k, row, 0, part] ** 2 * motion.weight[i, part]
            yields += contacts.effect[k, row, 1, part] ** 2 * motion.weight[j, part]
        # Two things that both cannot move in a direction exert no force in it.
        contacts.mass[k, row] = 1 / yields if yields > 0 else 0.0


@inner_kernel
def _direct(
    contacts: _Contacts,
    k: int,
    row: int,
    x: float,
    y: float,
    z: float,
    at_x: float,
    at_z: float,
    first: Box,
    second: Box,
) -> None:
    """Set the direction (x, y, z) of a row's impulses, and their point, relative to the center of the first body."""
    effect = contacts.effect
    effect[k, row, 1, 0], effect[k, row, 1, 1], effect[k, row, 1, 2] = x, y, z
    effect[k, row, 0, 0], effect[k, row, 0, 1], effect[k, row, 0, 2] = -x, -y, -z
    effect[k, row, 0, 3] = at_x * z - at_z * x
    at_x, at_z = at_x + first.x - second.x, at_z + first.z - second.z
    effect[k, row, 1, 3] = at_z * x - at_x * z


@inner_kernel
def _anchors(first: Box, second: Box) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return two distant points of friction on a body from one below or above it, x and z from the first one's center.

    They are opposite corners of the first body, moved into the second one.
    """
    longest = -1.0
    one = other = (0.0, 0.0)
    for side in (-1.0, 1.0):
        a = _corner_within(first, second, side * first.half_x, first.half_z)
        b = _corner_within(first, second, -side * first.half_x, -first.half_z)
        length = (a[0] - b[0]) ** 2 + (a[1] - b[1]) ** 2
        if length > longest:
            longest, one, other = length, a, b
    return one, other


@inner_kernel
def _corner_within(first: Box, second: Box, right: float, ahead: float) -> tuple[float, float]:
    """Return a point along the axes of the first body, moved into the second one.

    The result is x and z from the center of the first one.
    """
    x = first.cos * right + first.sin * ahead + first.x - second.x
    z = first.cos * ahead - first.sin * right + first.z - second.z
    across = max(-second.half_x, min(second.half_x, second.cos * x - second.sin * z))
    along = max(-second.half_z, min(second.half_z, second.sin * x + second.cos * z))
    return (
        second.cos * across + second.sin * along + second.x - first.x,
        second.cos * along - second.sin * across + second.z - first.z,
    )


@inner_kernel
def _solve(motion: _Motion, contacts: _Contacts, count: int, least: Array) -> float:
    """Apply impulses until bodies part at least at the least speeds (contacts, 2), and apply friction.

    Contacts are solved one after the other (projected Gauss-Seidel).

    :return: Largest change of an impulse in kg m/s.
    """
    impulse, mass, rub = contacts.impulse, contacts.mass, contacts.rub
    change = 0.0
    for k in range(count):
        first = (least[k, 0] - _parting(motion, contacts, k, 0)) * mass[k, 0] + impulse[k, 0]
        if contacts.ends[k] == 1:
            change = max(change, _push(motion, contacts, k, 0, max(first, 0.0)))
        else:
            second = (least[k, 1] - _parting(motion, contacts, k, 1)) * mass[k, 1] + impulse[k, 1]
            first += impulse[k, 1] * contacts.coupling[k] * mass[k, 0]
            second += impulse[k, 0] * contacts.coupling[k] * mass[k, 1]
            first, second = _both_ends(
                first, second, contacts.coupling[k] * mass[k, 0], contacts.coupling[k] * mass[k, 1]
            )
            change = max(change, _push(motion, contacts, k, 0, first))
            change = max(change, _push(motion, contacts, k, 1, second))
        points = contacts.points[k]
        most = FRICTION_POINTS * FRICTION * (impulse[k, 0] + impulse[k, 1]) / points
        for row in range(2, 2 + 2 * points):  # all points at once, each with its share of the mass
            rub[k, row] = impulse[k, row] - _parting(motion, contacts, k, row) * mass[k, row] / points
        for row in range(2, 2 + 2 * points, 2):
            share = min(1.0, most / max(sqrt(rub[k, row] ** 2 + rub[k, row + 1] ** 2), 1e-9))
            change = max(change, _push(motion, contacts, k, row, rub[k, row] * share))
            change = max(change, _push(motion, contacts, k, row + 1, rub[k, row + 1] * share))
    return change


@inner_kernel
def _both_ends(first: float, second: float, by_second: float, by_first: float) -> tuple[float, float]:
    """Return the impulses at both ends of an edge.

    None is negative, and neither end parts more slowly than it must.

    :param first: Impulse that the first end needs if there is none at the second one.
    :param second: Impulse that the second end needs if there is none at the first one.
    :param by_second: Reduction of the first end's impulse per impulse at the second one.
    :param by_first: Reduction of the second end's impulse per impulse at the first one.
    """
    left = 1 - by_second * by_first
    if left > 1e-9:
        one, other = (first - by_second * second) / left, (second - by_first * first) / left
        if one >= 0 and other >= 0:
            return one, other
    if first >= 0 and second - by_first * first <= 0:
        return first, 0.0
    return (0.0, second) if second >= 0 else (max(first, 0.0), 0.0)


@inner_kernel
def _parting(motion: _Motion, contacts: _Contacts, k: int, row: int) -> float:
    """Return the speed at which the bodies of a contact part, in one of its directions and at the impulse's point."""
    speed = 0.0
    for end in range(2):
        for part in range(4):
            speed += contacts.effect[k, row, end, part] * motion.speed[contacts.pair[k, end], part]
    return speed


@inner_kernel
def _push(motion: _Motion, contacts: _Contacts, k: int, row: int, impulse: float) -> float:
    """Change the impulse of a contact in one of its directions and return the change in kg m/s."""
    change = impulse - contacts.impulse[k, row]
    contacts.impulse[k, row] = impulse
    for end in range(2):
        body = contacts.pair[k, end]
        for part in range(4):
            motion.speed[body, part] += motion.weight[body, part] * contacts.effect[k, row, end, part] * change
    return float(abs(change))

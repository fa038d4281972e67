"""Upright bodies that slide, fall and push each other, in the way in which Unity's physics engine (PhysX) moves them.

One tick of a body: gravity, drag (`v ← v (1 - drag · dt)`), ground, contacts, then the move. What PhysX does, and these
scenes depend on, because their agents gain 2 to 3 m/s in each tick and push things almost all of the time:

- Contacts are found where bodies are before the move, and only where less than 2 cm are between them. So a fast body
  enters what it hits, and is pushed out in the ticks after: 80 % of the depth a tick, and no faster than 10 m/s. That
  moves bodies but leaves them no velocity.
- A contact ahead stops an approach just before the surfaces meet. Contacts do not bounce.
- Boxes rub at two points, each with the whole normal force: the coefficient doubles.
- Contacts turn a body that may turn: it is pushed at both ends of the edge along which it touches another, and the
  ground rubs at two opposite corners of its bottom.

Unity's recording of PushBlock shows all of this. Agents fly there as computed to 0.1 mm, lose
2 · 0.3 · g · dt · (1 - drag · dt) of their speed in a tick on the ground, and 53 of 55 episodes whose beginning can be
found end, played again with the recorded actions alone, in the recorded decision.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from unity_gym.scenes.shapes import Shapes, contact_edge, separation
from unity_gym.specs import Array

TICK = 0.02  # s
FRICTION = 0.6  # of Unity's default material
FRICTION_POINTS = 2
CONTACT_DISTANCE = 0.02  # m; the contact offsets of two shapes
DEPENETRATION = 0.8  # share of an overlap that a tick takes back
DEPENETRATION_SPEED = 10.0  # m/s
_ITERATIONS = 3  # more change nothing in a replay of Unity's recording of PushBlock
_TURNING_ITERATIONS = 6  # as many as Unity's scenes have
_ANGULAR_DRAG = 0.05  # 1/s
_TOP_SPIN = 7.0  # rad/s; Unity's limit
GROUND = -2e-5  # m; a body at rest is pressed into the ground by about this much, so that rays along it do not hit it


class Bodies:
    """The first things of `shapes` move, the others stand still. Contacts turn only those that are named `turning`.

    Columns: `velocity` (3, areas, things; zero for what stands still), `spin` (areas, things; rad/s, clockwise as yaw),
    `drag` (1/s, areas × bodies), `ground_friction` (2, areas, bodies): the coefficients of the ground's contacts,
    static and dynamic. Positions are those of the shapes.

    :param shapes: of boxes without rounding
    :param masses: of the bodies, kg
    :param drags: of the bodies, 1/s
    :param solids: the things that bodies collide with besides each other; rays may see more than that
    :param gravity: m/s²
    :param floating: bodies that keep their height
    :param turning: bodies that contacts turn
    :param on_ground: there is ground at height 0 everywhere
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
        turning: Sequence[str] = (),
        on_ground: bool = True,
    ) -> None:
        areas, n = shapes.visible.shape
        count = self._count = len(masses)
        self.shapes = shapes
        self.gravity = gravity
        self.velocity = np.zeros((3, areas, n))
        self.spin = np.zeros((areas, n))
        self.drag = np.tile(np.array(drags, float), (areas, 1))
        self.ground_friction = np.full((2, areas, count), FRICTION_POINTS * FRICTION)
        self._on_ground = on_ground
        self._weight = np.zeros((3, n))  # 1 / mass along each axis
        self._weight[:, :count] = 1 / np.array(masses)
        self._falls = np.ones(count)
        for name in floating:
            self._weight[1, shapes.index(name)] = self._falls[shapes.index(name)] = 0
        self._turning = np.array([shapes.index(name) for name in turning], np.intp)
        self._turns = np.isin(np.arange(n), self._turning)
        fixed = [shapes.index(name) for name in solids]
        pairs = [(i, j) for i in range(count) for j in (*range(i + 1, count), *fixed)]
        self._first, self._second = np.array(pairs).T
        self._pairs = {(shapes.names[i], shapes.names[j]): column for column, (i, j) in enumerate(pairs)}
        self._touching = np.zeros((areas, len(pairs)), bool)
        self._entered = np.zeros((areas, len(pairs)), bool)

    def entered(self, first: str, second: str) -> Array:
        """bool (areas): whether two things, named in the order of their columns, touch since the last tick."""
        return np.asarray(self._entered[:, self._pairs[first, second]])

    def simulate(self) -> None:
        """One tick."""
        count, velocity = self._count, self.velocity
        moving = velocity[:, :, :count]
        moving[1] -= self.gravity * TICK * self._falls
        moving *= 1 - self.drag * TICK
        self.spin *= 1 - _ANGULAR_DRAG * TICK
        contacts = self._find()
        lift = self._stand(moving, contacts) if self._on_ground else 0.0
        move, turn = self._solve(contacts)
        self.shapes.center[:, :, :count] += move[:, :, :count] * TICK
        self.shapes.center[1, :, :count] += lift
        self.shapes.yaw += turn * TICK

    def _solve(self, contacts: list[_Contacts | _Ground]) -> tuple[Array, Array]:
        """Change velocities so that no bodies come too close.

        Contacts of a body are solved one after the other, several times (projected Gauss-Seidel), all others at once.

        :return: velocities and spins of all things that also take overlaps back, for this tick's move
        """
        velocity, spin = self.velocity.reshape(3, -1), self.spin.reshape(-1)
        iterations = _TURNING_ITERATIONS if len(self._turning) else _ITERATIONS if len(contacts) > 1 else len(contacts)
        for _ in range(iterations):
            for contact in contacts:
                contact.solve(velocity, spin, contact.moving)
        move: Array = self.velocity.copy()
        turn: Array = self.spin.copy()
        for contact in contacts:
            contact.solve(velocity, spin, contact.lasting)
        np.clip(spin, -_TOP_SPIN, _TOP_SPIN, out=spin)
        return move, turn

    def _stand(self, moving: Array, contacts: list[_Contacts | _Ground]) -> Array:
        """Let the ground stop falls and slow what slides on it; return how far it lifts what has sunk into it (m).

        :param contacts: it adds those of bodies that contacts turn
        """
        shapes, count = self.shapes, self._count
        gap = shapes.center[1, :, :count] - shapes.half[1, :, :count] - GROUND
        stop = np.maximum(-np.maximum(gap, 0) / TICK - moving[1], 0) * (gap < CONTACT_DISTANCE) * self._falls
        moving[1] += stop
        speed = np.sqrt(moving[0] ** 2 + moving[2] ** 2)
        static, dynamic = self.ground_friction * stop
        loss = np.where(speed <= static, speed, np.minimum(dynamic, speed))
        if len(self._turning):
            loss[:, self._turning] = 0
            contacts.append(_Ground(self._turning, shapes, self._weight[0], self.ground_friction, stop))
        moving[::2] *= 1 - loss / np.maximum(speed, 1e-9)
        lift: Array = np.clip(-DEPENETRATION * gap, 0, DEPENETRATION_SPEED * TICK) * self._falls
        return lift

    def _find(self) -> list[_Contacts | _Ground]:
        """The contacts of this tick, and who touches whom since now."""
        shapes, first, second = self.shapes, self._first, self._second
        center, half = shapes.center, shapes.half
        cos, sin = np.abs(np.cos(shapes.yaw)), np.abs(np.sin(shapes.yaw))
        reach = np.stack([cos * half[0] + sin * half[2], half[1], sin * half[0] + cos * half[2]])
        apart = np.abs(center[:, :, second] - center[:, :, first]) - reach[:, :, first] - reach[:, :, second]
        area, pair = np.nonzero((apart < CONTACT_DISTANCE).all(axis=0))
        i, j = first[pair], second[pair]
        gap, normal = separation(
            center[:, area, j] - center[:, area, i],
            half[:, area, i],
            shapes.yaw[area, i],
            half[:, area, j],
            shapes.yaw[area, j],
        )
        near = gap < CONTACT_DISTANCE
        area, pair = area[near], pair[near]
        touching = np.zeros_like(self._touching)
        touching[area, pair] = True
        self._entered = touching & ~self._touching
        self._touching = touching

        i, j, gap, normal = i[near], j[near], gap[near], normal[:, near]
        things = len(shapes.names)
        at, other = area * things + i, area * things + j
        if len(self._turning):
            return self._edges(at, other, gap, normal)
        return [
            _Contacts(
                at[rows], other[rows], gap[rows], normal[:, rows], (self._weight[:, i[rows]], self._weight[:, j[rows]])
            )
            for rows in _rounds(at, other, self._weight[0, j] > 0)
        ]

    def _edges(self, first: Array, second: Array, gap: Array, normal: Array) -> list[_Contacts | _Ground]:
        """The contacts, with both ends of an edge where one of the bodies may turn."""
        shapes = self.shapes
        things = len(shapes.names)
        half, yaw = shapes.half.reshape(3, -1), shapes.yaw.reshape(-1)
        apart = shapes.center.reshape(3, -1)
        apart = apart[:, second] - apart[:, first]
        level = (normal[1] == 0) & (self._turns[first % things] | self._turns[second % things])
        facing = np.where(level, normal, np.array([[1.0], [0.0], [0.0]]))
        points, gaps = contact_edge(apart, half[:, first], yaw[first], half[:, second], yaw[second], facing)
        rows = np.repeat(np.arange(len(gap)), 1 + level)
        end = np.append(0, rows[1:] == rows[:-1]) if len(rows) else rows
        arm = points[end, :, rows].T * level[rows]
        gap = np.where(level[rows], gaps[end, rows], gap[rows])
        first, second, normal, apart = first[rows], second[rows], normal[:, rows], apart[::2, rows] * level[rows]
        arms = arm, arm - apart

        weights = self._weight[:, first % things], self._weight[:, second % things]
        slowness = np.where(self._turns, _slowness(shapes.half, self._weight[0]), 0).reshape(-1)
        return [
            _EdgeContacts(
                first[chosen],
                second[chosen],
                gap[chosen],
                normal[:, chosen],
                (weights[0][:, chosen], weights[1][:, chosen]),
                (arms[0][:, chosen], arms[1][:, chosen]),
                (slowness[first[chosen]], slowness[second[chosen]]),
            )
            for chosen in _rounds(first, second, weights[1][0] > 0)
        ]


def _rounds(first: Array, second: Array, second_moves: Array) -> list[Array]:
    """Contacts in an order in which those of a body follow one another: what can be solved at once, as indices.

    :param first: int (k), the bodies; also `second`
    :param second_moves: bool (k), the second is no thing that stands still, of which contacts are independent
    """
    rounds = []
    left = np.arange(len(first))
    size = int(max(first.max(initial=-1), second.max(initial=-1))) + 1
    while len(left):
        earliest = np.full(size, len(first))
        np.minimum.at(earliest, first[left], left)
        movers = left[second_moves[left]]
        np.minimum.at(earliest, second[movers], movers)
        ready = (earliest[first[left]] == left) & ((earliest[second[left]] == left) | ~second_moves[left])
        rounds.append(left[ready])
        left = left[~ready]
    return rounds


class _Contacts:
    """Contacts of which no two share a body.

    :param first: int (k), of the bodies among all areas' things; also `second`
    :param gap: m (k), between them
    :param normal: (3, k), from the first to the second
    :param weights: (3, k), of the first and of the second, 1 / kg along each axis
    """

    def __init__(self, first: Array, second: Array, gap: Array, normal: Array, weights: tuple[Array, Array]) -> None:
        self._first, self._second, self._normal = first, second, normal
        self._weights = weights
        self._both = weights[0] + weights[1]
        self._masses = 1 / np.maximum(self._both, 1e-9)
        # Two things of which neither can move along the normal exert no force, so they do not rub either.
        weight = (normal * normal * self._both).sum(axis=0)
        self._mass = np.divide(1, weight, out=np.zeros_like(weight), where=weight > 0)
        self._impulse = np.zeros(len(gap))  # kg m/s
        self._friction = np.zeros_like(normal)
        # The least speeds, in m/s, at which bodies may part: for the move of this tick, and what stays of it.
        self.lasting = -np.maximum(gap, 0) / TICK
        self.moving = np.where(gap > 0, self.lasting, np.minimum(gap * (-DEPENETRATION / TICK), DEPENETRATION_SPEED))

    def solve(self, velocity: Array, spin: Array, least: Array) -> None:  # noqa: ARG002  # nothing turns
        """Change velocities (3, areas · things) by impulses until bodies part at the least speeds, and by friction.

        :param spin: (areas · things), of bodies that contacts turn
        """
        normal, both = self._normal, self._both
        relative = velocity.take(self._second, axis=1) - velocity.take(self._first, axis=1)
        parting = (relative * normal).sum(axis=0)
        impulse = np.maximum(self._impulse + (least - parting) * self._mass, 0)
        change = (impulse - self._impulse) * normal
        self._impulse = impulse

        relative += both * change
        slip = relative - (relative * normal).sum(axis=0) * normal
        friction = self._friction - slip * self._masses
        size = np.sqrt((friction * friction).sum(axis=0))
        friction *= np.minimum(1, FRICTION_POINTS * FRICTION * impulse / np.maximum(size, 1e-9))
        change += friction - self._friction
        self._friction = friction
        velocity[:, self._first] -= self._weights[0] * change
        velocity[:, self._second] += self._weights[1] * change


class _EdgeContacts(_Contacts):
    """Contacts that push bodies beside their centres.

    :param arms: (2: x and z, k), from the centres of the first and of the second to the point of contact
    :param slowness: (k), of the first and of the second, 1 / (kg m²); 0 for what does not turn
    """

    def __init__(
        self,
        first: Array,
        second: Array,
        gap: Array,
        normal: Array,
        weights: tuple[Array, Array],
        arms: tuple[Array, Array],
        slowness: tuple[Array, Array],
    ) -> None:
        super().__init__(first, second, gap, normal, weights)
        self._arms, self._slowness = arms, slowness
        along = np.stack([normal[2], normal[1], -normal[0]])
        levers = [[_torque(arm, direction) for arm in arms] for direction in (normal, along)]
        across, beside = (a * a * slowness[0] + b * b * slowness[1] for a, b in levers)
        self._mass = self._mass / (1 + self._mass * across)
        self._masses = self._masses.copy()
        self._masses[::2] /= 1 + self._masses[::2] * beside

    def solve(self, velocity: Array, spin: Array, least: Array) -> None:
        normal = self._normal
        parting = (self._relative(velocity, spin) * normal).sum(axis=0)
        impulse = np.maximum(self._impulse + (least - parting) * self._mass, 0)
        self._apply(velocity, spin, (impulse - self._impulse) * normal)
        self._impulse = impulse

        relative = self._relative(velocity, spin)
        slip = relative - (relative * normal).sum(axis=0) * normal
        friction = self._friction - slip * self._masses
        size = np.sqrt((friction * friction).sum(axis=0))
        friction *= np.minimum(1, FRICTION_POINTS * FRICTION * impulse / np.maximum(size, 1e-9))
        self._apply(velocity, spin, friction - self._friction)
        self._friction = friction

    def _relative(self, velocity: Array, spin: Array) -> Array:
        """The velocity of the second's point as seen from the first's."""
        relative: Array = velocity.take(self._second, axis=1) - velocity.take(self._first, axis=1)
        (x, z), (other_x, other_z) = self._arms
        turn, other_turn = spin.take(self._first), spin.take(self._second)
        relative[0] += other_turn * other_z - turn * z
        relative[2] -= other_turn * other_x - turn * x
        return relative

    def _apply(self, velocity: Array, spin: Array, change: Array) -> None:
        velocity[:, self._first] -= self._weights[0] * change
        velocity[:, self._second] += self._weights[1] * change
        spin[self._first] -= self._slowness[0] * _torque(self._arms[0], change)
        spin[self._second] += self._slowness[1] * _torque(self._arms[1], change)


def _torque(arm: Array, force: Array) -> Array:
    """Of forces (3, …) at arms (2: x and z, …), clockwise as yaw."""
    torque: Array = arm[1] * force[0] - arm[0] * force[2]
    return torque


class _Ground:
    """The ground rubs at two opposite corners of each of these bodies, at either with the body's whole weight.

    :param turning: int (k), the bodies' columns
    :param weight: (things), 1 / kg
    :param friction: (2, areas, bodies), the coefficients for both corners together
    :param stop: (areas, bodies), the speed that the ground takes from their falls in this tick, m/s
    """

    def __init__(self, turning: Array, shapes: Shapes, weight: Array, friction: Array, stop: Array) -> None:
        self._bodies, self._weight = turning, weight[turning]
        self._size = shapes.yaw.shape
        self._slowness = _slowness(shapes.half[:, :, turning], self._weight)
        right, _, ahead = shapes.half[:, :, turning]
        cos, sin = np.cos(shapes.yaw[:, turning]), np.sin(shapes.yaw[:, turning])
        self._arm = np.stack([cos * right + sin * ahead, cos * ahead - sin * right])
        self._mass = 1 / (self._weight + self._arm[::-1] ** 2 * self._slowness)
        self._limits = friction[:, :, turning] * stop[:, turning] / (FRICTION_POINTS * self._weight)
        self._impulses = np.zeros((2, *self._arm.shape))
        self.moving = self.lasting = np.zeros(0)

    def solve(self, velocity: Array, spin: Array, least: Array) -> None:  # noqa: ARG002  # as `_Contacts.solve`
        speed = velocity.reshape(3, *self._size)[::2, :, self._bodies]
        turn = spin.reshape(self._size)[:, self._bodies]
        static, dynamic = self._limits
        for corner, (x, z) in enumerate((self._arm, -self._arm)):
            impulse = self._impulses[corner] - self._mass * (speed + turn * np.stack([z, -x]))
            size = np.sqrt((impulse * impulse).sum(axis=0))
            impulse *= np.where(size <= static, 1, dynamic / np.maximum(size, 1e-9))
            change = impulse - self._impulses[corner]
            self._impulses[corner] = impulse
            speed += self._weight * change
            turn += self._slowness * (z * change[0] - x * change[1])
        velocity.reshape(3, *self._size)[::2, :, self._bodies] = speed
        spin.reshape(self._size)[:, self._bodies] = turn


def _slowness(half: Array, weight: Array) -> Array:
    """How little boxes resist being turned about their vertical axes, 1 / (kg m²)."""
    slowness: Array = 3 * weight / np.maximum(half[0] ** 2 + half[2] ** 2, 1e-9)
    return slowness

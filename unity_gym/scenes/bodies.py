"""Upright bodies that slide, fall and push each other, in the way in which Unity's physics engine (PhysX) moves them.

One tick of a body: gravity, drag (`v ← v (1 - drag · dt)`), ground, contacts, then the move. What PhysX does, and these
scenes depend on, because their agents gain 2 to 3 m/s in each tick and push things almost all of the time:

- Contacts are found where bodies are before the move, and only where less than 2 cm are between them. So a fast body
  enters what it hits, and is pushed out in the ticks after: 80 % of the depth a tick, and no faster than 10 m/s. That
  moves bodies but leaves them no velocity.
- A contact ahead stops an approach just before the surfaces meet. Contacts do not bounce.
- Boxes rub at two points, each with the whole normal force: the coefficient doubles.

Unity's recording of PushBlock shows all of this. Agents fly there as computed to 0.1 mm, lose
2 · 0.3 · g · dt · (1 - drag · dt) of their speed in a tick on the ground, and 53 of 55 episodes whose beginning can be
found end, played again with the recorded actions alone, in the recorded decision.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from unity_gym.scenes.shapes import Shapes, separation
from unity_gym.specs import Array

TICK = 0.02  # s
FRICTION = 0.6  # of Unity's default material
FRICTION_POINTS = 2
CONTACT_DISTANCE = 0.02  # m; the contact offsets of two shapes
DEPENETRATION = 0.8  # share of an overlap that a tick takes back
DEPENETRATION_SPEED = 10.0  # m/s
_ITERATIONS = 3  # more change nothing in a replay of Unity's recording of PushBlock
GROUND = -2e-5  # m; a body at rest is pressed into the ground by about this much, so that rays along it do not hit it


class Near(NamedTuple):
    """Things that touch or nearly do, one entry a pair: two columns of `area`; the distance (m), and the unit normal
    (3, k) from the first to the second."""

    area: Array
    first: Array
    second: Array
    gap: Array
    normal: Array


class Bodies:
    """The first things of `shapes` move, the others stand still. Their yaw is set, never turned by a contact.

    Columns: `velocity` (3, areas, things; zero for what stands still), `drag` (1/s, areas × bodies),
    `ground_friction` (2, areas, bodies): the coefficients of the ground's contacts, static and dynamic.
    Positions are those of the shapes.

    :param shapes: of boxes without rounding
    :param masses: of the bodies, kg
    :param drags: of the bodies, 1/s
    :param solids: the things that bodies collide with besides each other; rays may see more than that
    :param gravity: m/s²
    :param floating: bodies that keep their height
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
        on_ground: bool = True,
    ) -> None:
        areas, n = shapes.visible.shape
        count = self._count = len(masses)
        self.shapes = shapes
        self.gravity = gravity
        self.velocity = np.zeros((3, areas, n))
        self.drag = np.tile(np.array(drags, float), (areas, 1))
        self.ground_friction = np.full((2, areas, count), FRICTION_POINTS * FRICTION)
        self._on_ground = on_ground
        self._weight = np.zeros((3, n))  # 1 / mass along each axis
        self._weight[:, :count] = 1 / np.array(masses)
        self._falls = np.ones(count)
        for name in floating:
            self._weight[1, shapes.index(name)] = self._falls[shapes.index(name)] = 0
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
        moving = self.velocity[:, :, : self._count]
        moving[1] -= self.gravity * TICK * self._falls
        moving *= 1 - self.drag * TICK
        near = self._find()
        lift, stop = self._stand(moving) if self._on_ground else (0.0, np.zeros_like(self.drag))
        self._move(near, stop)
        self.shapes.center[1, :, : self._count] += lift

    def _move(self, near: Near, stop: Array) -> None:  # noqa: ARG002  # bodies that turn use it
        """Change velocities so that no bodies come too close, and move.

        Contacts of a body are solved one after the other, several times (projected Gauss-Seidel), all others at once.

        :param stop: (areas, bodies), speeds of falls that the ground has stopped, m/s
        """
        velocity = self.velocity.reshape(3, -1)
        contacts = self._contacts(near)
        for _ in range(_ITERATIONS if len(contacts) > 1 else len(contacts)):
            for contact in contacts:
                contact.solve(velocity, contact.moving)
        self.shapes.center[:, :, : self._count] += self.velocity[:, :, : self._count] * TICK
        for contact in contacts:  # what took overlaps back does not last
            contact.solve(velocity, contact.lasting)

    def _contacts(self, near: Near) -> list[_Contacts]:
        things = len(self.shapes.names)
        first, second = near.area * things + near.first, near.area * things + near.second
        weights = self._weight[:, near.first], self._weight[:, near.second]
        return [
            _Contacts(
                first[rows],
                second[rows],
                near.gap[rows],
                near.normal[:, rows],
                (weights[0][:, rows], weights[1][:, rows]),
            )
            for rows in rounds(first, second, near.second < self._count)
        ]

    def _stand(self, moving: Array) -> tuple[Array, Array]:
        """Let the ground stop falls and slow what slides on it.

        :return: how far it lifts what has sunk into it (m), and the speeds of the falls that it has stopped (m/s)
        """
        shapes, count = self.shapes, self._count
        gap = shapes.center[1, :, :count] - shapes.half[1, :, :count] - GROUND
        stop = np.maximum(-np.maximum(gap, 0) / TICK - moving[1], 0) * (gap < CONTACT_DISTANCE) * self._falls
        moving[1] += stop
        speed = np.sqrt(moving[0] ** 2 + moving[2] ** 2)
        static, dynamic = self.ground_friction * stop
        loss = np.where(speed <= static, speed, np.minimum(dynamic, speed))
        moving[::2] *= 1 - loss / np.maximum(speed, 1e-9)
        return np.clip(-DEPENETRATION * gap, 0, DEPENETRATION_SPEED * TICK) * self._falls, stop

    def _find(self) -> Near:
        """The contacts of this tick; it also notes who touches whom since now."""
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

        return Near(area, i[near], j[near], gap[near], normal[:, near])


def rounds(first: Array, second: Array, second_moves: Array) -> list[Array]:
    """Contacts in an order in which those of a body follow one another: what can be solved at once, as indices.

    :param first: int (k), the bodies; also `second`
    :param second_moves: bool (k): contacts with a thing that stands still do not wait for each other
    """
    parts = []
    left = np.arange(len(first))
    size = int(max(first.max(initial=-1), second.max(initial=-1))) + 1
    while len(left):
        earliest = np.full(size, len(first))
        np.minimum.at(earliest, first[left], left)
        moving = left[second_moves[left]]
        np.minimum.at(earliest, second[moving], moving)
        ready = (earliest[first[left]] == left) & ((earliest[second[left]] == left) | ~second_moves[left])
        parts.append(left[ready])
        left = left[~ready]
    return parts


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
        self._impulse = np.zeros(len(gap))
        self._friction = np.zeros_like(normal)
        # The least speeds, in m/s, at which bodies may part: for the move of this tick, and what stays of it.
        self.lasting = -np.maximum(gap, 0) / TICK
        self.moving = np.where(gap > 0, self.lasting, np.minimum(gap * (-DEPENETRATION / TICK), DEPENETRATION_SPEED))

    def solve(self, velocity: Array, least: Array) -> None:
        """Change velocities (3, areas · things) by impulses until bodies part at the least speeds, and by friction."""
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

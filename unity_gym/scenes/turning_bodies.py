"""Bodies that contacts turn, such as a block that is pushed beside its middle.

They move as in `bodies.py`. A contact pushes at both ends of the edge along which two boxes touch, and the ground rubs
at two opposite corners of a box, with its whole weight at each, as Unity's physics engine does: so it holds a block
until it is pushed with 1.2 times its weight. Unlike there, the ground's friction is solved together with the contacts,
without which it could not hold what is pushed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from unity_gym.scenes.bodies import (
    DEPENETRATION,
    DEPENETRATION_SPEED,
    FRICTION,
    FRICTION_POINTS,
    TICK,
    Bodies,
    Near,
    rounds,
)
from unity_gym.scenes.shapes import Shapes, contact_edge
from unity_gym.specs import Array

_ITERATIONS = 6  # as many as Unity's scenes have
_ANGULAR_DRAG = 0.05  # 1/s
_TOP_SPIN = 7.0  # rad/s; Unity's limit
_NO_EDGE = 1e6  # m; a distance at which nothing touches


class TurningBodies(Bodies):
    """Bodies of which some are turned by contacts.

    A further column: `spin` (areas, things; rad/s, clockwise as yaw, zero for what does not turn). The friction of
    turning bodies with the ground does not change: `ground_friction` does not count for them.

    :param turning: their names; the other parameters are those of `Bodies`
    """

    def __init__(
        self,
        shapes: Shapes,
        masses: Sequence[float],
        drags: Sequence[float],
        *rest: Any,
        turning: Sequence[str],
        **options: Any,
    ) -> None:
        super().__init__(shapes, masses, drags, *rest, **options)
        self._turning = np.array([shapes.index(name) for name in turning])
        self.spin = np.zeros(shapes.yaw.shape)
        self.ground_friction[:, :, self._turning] = 0  # `_Ground` rubs them instead

    def _move(self, near: Near, stop: Array) -> None:
        shapes, count = self.shapes, self._count
        areas, things = shapes.yaw.shape
        state = np.empty((areas * things, 4))  # of each thing the velocity, then the spin
        state[:, :3] = self.velocity.reshape(3, -1).T
        state[:, 3] = self.spin.reshape(-1) * (1 - _ANGULAR_DRAG * TICK)
        weights = np.zeros((areas, things, 4))  # 1 / mass along each axis, 1 / moment of inertia
        weights[..., :3] = self._weight.T
        half = shapes.half[:, :, self._turning]
        weights[:, self._turning, 3] = 3 * self._weight[0, self._turning] / (half[0] ** 2 + half[2] ** 2)

        yielding = weights.reshape(-1, 4)
        contacts = self._edges(near, yielding)
        rows = (np.arange(areas)[:, np.newaxis] * things + self._turning).reshape(-1)
        ground = _Ground(rows, shapes, yielding, stop[:, self._turning].reshape(-1))
        for _ in range(_ITERATIONS):
            for contact in contacts:
                contact.solve(state, contact.moving)
            ground.solve(state)
        moved = state.reshape(areas, things, 4)
        shapes.center[:, :, :count] += moved[:, :count, :3].transpose(2, 0, 1) * TICK
        shapes.yaw += moved[..., 3] * TICK
        for contact in contacts:
            contact.solve(state, contact.lasting)
        ground.solve(state)
        self.velocity[:] = moved[..., :3].transpose(2, 0, 1)
        self.spin[:] = np.clip(moved[..., 3], -_TOP_SPIN, _TOP_SPIN)

    def _edges(self, near: Near, yielding: Array) -> list[_EdgeContacts]:
        shapes = self.shapes
        area, normal = near.area, near.normal
        things = shapes.yaw.shape[1]
        pair = area * things + np.stack([near.first, near.second])
        half, yaw = shapes.half.reshape(3, -1)[:, pair], shapes.yaw.reshape(-1)[pair]
        center = shapes.center.reshape(3, -1)[:, pair]
        apart = center[:, 1] - center[:, 0]
        level = normal[1] == 0
        ahead = np.where(level, normal, np.array([[1.0], [0.0], [0.0]]))
        points, gaps = contact_edge(apart, half[:, 0], yaw[0], half[:, 1], yaw[1], ahead)
        edge = level & (yielding[pair, 3] > 0).any(axis=0)
        arms = np.stack([points, points - apart[::2]]) * edge  # of the first and of the second body, to either end
        gaps = np.where(edge, gaps, np.stack([near.gap, np.full(len(area), _NO_EDGE)]))
        # Friction acts along the edge and upwards, or in the plane if one body lies on the other.
        along = np.where(level, np.stack([normal[2], normal[1], -normal[0]]), np.array([[1.0], [0.0], [0.0]]))
        up = np.where(level, np.array([[0.0], [1.0], [0.0]]), np.array([[0.0], [0.0], [1.0]]))
        directions = np.stack([normal, normal, along, up])
        arms = arms[:, [0, 1, 0, 0]]
        torques = arms[:, :, 1] * directions[:, 0] - arms[:, :, 0] * directions[:, 2]
        both = np.empty((len(area), 4, 2, 4))  # effects of an impulse between the two on either's velocity and spin
        both[:, :, 1, :3] = directions.transpose(2, 0, 1)
        both[:, :, 0, :3] = -both[:, :, 1, :3]
        both[:, :, 0, 3], both[:, :, 1, 3] = -torques[0].T, torques[1].T
        effects = both.reshape(-1, 4, 8)
        weights = yielding[pair.T].reshape(-1, 1, 8)
        return [
            _EdgeContacts(pair.T[chosen], gaps[:, chosen], effects[chosen], weights[chosen])
            for chosen in rounds(pair[0], pair[1], near.second < self._count)
        ]


class _EdgeContacts:
    """Contacts along edges, of which no two share a body.

    The impulses of one are those along the normal at either end of the edge, and those of friction in two directions.
    Friction along the edge has the same arm at either end.

    :param pair: int (k, 2), the bodies
    :param gap: m (2, k), between them at either end
    :param effects: (k, 4, 8): the directions of the four impulses, in the velocities and spins of both bodies
    :param yielding: (k, 1, 8): 1 / mass and 1 / moment of inertia of both bodies
    """

    def __init__(self, pair: Array, gap: Array, effects: Array, yielding: Array) -> None:
        self._pair, self._effects = pair, effects
        self._responses = (effects * yielding).transpose(0, 2, 1)
        coupling = (effects @ self._responses).transpose(1, 2, 0)
        own = coupling[[0, 1, 2, 3], [0, 1, 2, 3]]
        # Two things of which neither can move in a direction exert no force in it.
        self._mass = np.divide(1, own, out=np.zeros_like(own), where=own > 0)
        self._second_by_first, self._slip_by_push = coupling[1, 0], coupling[2:, :2]
        self._impulse = np.zeros_like(own)
        self.lasting = -np.maximum(gap, 0) / TICK
        self.moving = np.where(gap > 0, self.lasting, np.minimum(gap * (-DEPENETRATION / TICK), DEPENETRATION_SPEED))

    def solve(self, state: Array, least: Array) -> None:
        """Change velocities and spins (things, 4) until the ends part at the least speeds (2, k), and by friction."""
        both = state[self._pair]
        speed = (self._effects @ both.reshape(-1, 8, 1))[..., 0].T
        before, mass = self._impulse, self._mass
        impulse = np.empty_like(before)
        change = np.empty_like(before)
        np.maximum(before[0] + (least[0] - speed[0]) * mass[0], 0, out=impulse[0])
        np.subtract(impulse[0], before[0], out=change[0])
        np.maximum(before[1] + (least[1] - speed[1] - self._second_by_first * change[0]) * mass[1], 0, out=impulse[1])
        np.subtract(impulse[1], before[1], out=change[1])

        slip = speed[2:] + (self._slip_by_push * change[:2]).sum(axis=1)
        friction = before[2:] - slip * mass[2:]
        size = np.hypot(friction[0], friction[1])
        limit = FRICTION_POINTS * FRICTION * (impulse[0] + impulse[1])
        np.multiply(friction, np.minimum(1, limit / np.maximum(size, 1e-9)), out=impulse[2:])
        np.subtract(impulse[2:], before[2:], out=change[2:])
        self._impulse = impulse
        both += (self._responses @ change.T[..., np.newaxis]).reshape(both.shape)
        state[self._pair] = both


class _Ground:
    """The ground under bodies that turn.

    :param rows: int (k), the bodies among all areas' things
    :param yielding: (areas · things, 4), of all things
    :param stop: (k), the speeds of falls that the ground stops in this tick, m/s
    """

    def __init__(self, rows: Array, shapes: Shapes, yielding: Array, stop: Array) -> None:
        self._rows = rows
        right, _, ahead = shapes.half.reshape(3, -1)[:, rows]
        yaw = shapes.yaw.reshape(-1)[rows]
        cos, sin = np.cos(yaw), np.sin(yaw)
        self._yielding = yielding[rows][:, [0, 2, 3]].T
        lever = np.stack([cos * ahead - sin * right, -cos * right - sin * ahead])  # what a unit of spin moves a corner
        self._effects = np.stack([lever, -lever])
        self._mass = 1 / (self._yielding[:2] + lever**2 * self._yielding[2])
        self._limit = FRICTION * stop / self._yielding[0]
        self._impulse = np.zeros_like(self._effects)

    def solve(self, state: Array) -> None:
        """Change velocities and spins (things, 4) until the corners stand still, as far as friction can."""
        bodies = state[self._rows].T
        speed, spin = bodies[::2], bodies[3]
        for corner, lever in enumerate(self._effects):
            before = self._impulse[corner]
            impulse = before - self._mass * (speed + spin * lever)
            size = np.hypot(impulse[0], impulse[1])
            impulse *= np.minimum(1, self._limit / np.maximum(size, 1e-9))
            change = impulse - before
            self._impulse[corner] = impulse
            speed += self._yielding[:2] * change
            turn = lever * change
            spin += self._yielding[2] * (turn[0] + turn[1])
        state[self._rows] = bodies.T

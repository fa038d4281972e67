"""Heaps of light boxes that stand until an agent hits them, and that it ploughs through.

The boxes never turn. Towards each other they are rounded, so much that one slides off another as soon as its centre is
no longer above it; that stands for tipping over. As in `bodies.py`, contacts are found where things are before they
move, and a fast agent enters what it hits. Because a box may have many contacts, they are solved all at once, each with
its share of the masses (Tonge et al. 2012, "Mass Splitting for Jitter-Free Parallel Rigid Body Simulation"). A heap
sleeps unless an agent touches it or has just done so.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from unity_gym.scenes.bodies import (
    CONTACT_DISTANCE,
    DEPENETRATION,
    DEPENETRATION_SPEED,
    FRICTION,
    FRICTION_POINTS,
    TICK,
)
from unity_gym.scenes.shapes import Shapes, separation
from unity_gym.specs import Array

_ITERATIONS = 4
_CORE = 0.5  # m between the centres of two boxes, along an axis, up to which their surfaces are flat to each other
_AWAKE = 75  # ticks that a heap moves after the last touch


class Heap:
    """Some neighbouring columns of `shapes`, on ground at height 0, and the agent of each area that pushes them.

    Columns: `velocity` (3, areas, boxes), `touched` (bool, areas × boxes: the agent touches it since the last tick).
    A heap is there where its first box is visible.

    :param shapes: of boxes without rounding; those of the heap have yaw 0 and the same sizes in all areas
    :param boxes: the columns of the heap
    :param mass: of each box, kg
    :param agent: the column of the thing that pushes, whose height the heap does not change
    :param agent_mass: kg
    :param solids: columns of things with yaw 0 that stand in the way
    :param gravity: m/s²
    """

    def __init__(
        self,
        shapes: Shapes,
        boxes: slice,
        mass: float,
        agent: int,
        agent_mass: float,
        solids: Sequence[int],
        gravity: float,
    ) -> None:
        self._shapes, self._boxes, self._agent, self._solids = shapes, boxes, agent, np.array(solids)
        self._gravity = gravity
        self._half = shapes.half[:, 0, boxes]
        self._weights = 1 / mass, 1 / agent_mass
        areas, count = shapes.visible[:, boxes].shape
        first, second = self._pairs = np.triu_indices(count, 1)
        # Two boxes touch where a cube of the size of the core comes within this distance of the other's centre.
        self._reach = self._half[0, first] + self._half[0, second] - _CORE
        self._awake = np.zeros(areas, np.int64)
        self.velocity = np.zeros((3, areas, count))
        self.touched = np.zeros((areas, count), bool)

    def rest(self, rows: Array) -> None:
        """Let the heaps of some areas stand still where they are."""
        self._awake[rows] = 0
        self.velocity[:, rows] = 0

    def simulate(self, pushing: Array) -> None:
        """One tick.

        :param pushing: (3, areas), velocities of the agents; those of agents that push are changed
        """
        self.touched[:] = False
        standing = np.flatnonzero(self._shapes.visible[:, self._boxes.start])
        if not len(standing):
            return
        row, box, gap, normal = self._find_agent(standing)
        self.touched[standing[row], box] = True
        self._awake[standing[row]] = _AWAKE
        awake = self._awake > 0
        rows = np.flatnonzero(awake)
        if not len(rows):
            return
        row = (np.cumsum(awake) - 1)[standing[row]]
        self._move(rows, row, box, gap, normal, pushing)
        self._awake[rows] -= 1
        self.velocity[:, rows[self._awake[rows] == 0]] = 0

    def _find_agent(self, rows: Array) -> tuple[Array, Array, Array, Array]:
        """What agents touch: index into `rows` and box (int, k), gap (m, k), normal towards the box (3, k)."""
        shapes, boxes, agent = self._shapes, self._boxes, self._agent
        apart = shapes.center[:, rows, boxes] - shapes.center[:, rows, agent, np.newaxis]
        wide = self._half[:, np.newaxis] + shapes.half[:, rows, agent, np.newaxis] * np.sqrt(2) + CONTACT_DISTANCE
        row, box = np.nonzero((np.abs(apart) < wide).all(axis=0))
        half, yaw = shapes.half[:, rows[row], agent], shapes.yaw[rows[row], agent]
        gap, normal = separation(apart[:, row, box], half, yaw, self._half[:, box], np.zeros(len(row)))
        near = gap < CONTACT_DISTANCE
        return row[near], box[near], gap[near], normal[:, near]

    def _move(self, rows: Array, row: Array, box: Array, gap: Array, normal: Array, pushing: Array) -> None:
        """Move the boxes of the areas `rows`, with these contacts of agents."""
        shapes, (weight, agent_weight) = self._shapes, self._weights
        n, count = len(rows), self.touched.shape[1]
        center = shapes.center[:, rows, self._boxes]
        contacts = [(n * count + row, row * count + box, gap, normal)]
        contacts += [self._find_pairs(center), self._find_solids(rows, center)]
        first, second, gap = (np.concatenate(column) for column in list(zip(*contacts, strict=True))[:3])
        normal = np.concatenate([contact[3] for contact in contacts], axis=1)

        # One column a box, then one an agent, then one for all that stands still.
        size = n * (count + 1) + 1
        weights = np.full((3, size), weight)
        weights[:, n * count :] = agent_weight
        weights[1, n * count :] = weights[:, -1] = 0
        velocity = np.zeros((3, size))
        velocity[:, : n * count] = self.velocity[:, rows].reshape(3, -1)
        velocity[1, : n * count] -= self._gravity * TICK
        velocity[:, n * count : -1] = pushing[:, rows]
        height = (center[1] - self._half[1]).ravel()
        solver = _Solver(first, second, gap, normal, velocity, weights)
        solver.solve(height)

        self.velocity[:, rows] = velocity[:, : n * count].reshape(3, n, count)
        pushing[:, rows] = velocity[:, n * count : -1]
        center += velocity[:, : n * count].reshape(center.shape) * TICK
        center += solver.depenetration()[:, : n * count].reshape(center.shape)
        np.maximum(center[1], self._half[1], out=center[1])
        shapes.center[:, rows, self._boxes] = center

    def _find_pairs(self, center: Array) -> tuple[Array, Array, Array, Array]:
        """Contacts between boxes: first and second (int, k, columns of all boxes), gap (k), normal (3, k)."""
        count = center.shape[2]
        first, second = self._pairs
        wide = self._reach + (_CORE + CONTACT_DISTANCE)
        x = center[0]
        row, pair = np.nonzero(np.abs(x[:, second] - x[:, first]) < wide)
        apart = center[:, row, second[pair]] - center[:, row, first[pair]]
        close = (np.abs(apart[1:]) < wide[pair]).all(axis=0)
        row, pair, apart = row[close], pair[close], apart[:, close]
        beyond = np.abs(apart) - _CORE
        outside = np.maximum(beyond, 0)
        deep = (outside == 0).all(axis=0)  # the centres are in each other's core
        axis = beyond.argmax(axis=0)
        outside[axis[deep], np.flatnonzero(deep)] = 1e-9
        distance = np.sqrt((outside * outside).sum(axis=0))
        normal = outside * np.sign(apart) / distance
        gap = distance - self._reach[pair]
        near = gap < CONTACT_DISTANCE
        row, pair = row[near], pair[near]
        return row * count + first[pair], row * count + second[pair], gap[near], normal[:, near]

    def _find_solids(self, rows: Array, center: Array) -> tuple[Array, Array, Array, Array]:
        """Contacts of boxes with what stands still, which is the last column."""
        shapes, (n, count) = self._shapes, center.shape[1:]
        where, wide = (column[:, rows][..., self._solids] for column in (shapes.center, shapes.half))
        least, most = (extreme[..., np.newaxis] for extreme in (center.min(axis=2), center.max(axis=2)))
        wide += self._half.max() + CONTACT_DISTANCE
        row, solid = np.nonzero(((where + wide > least) & (where - wide < most))[::2].all(axis=0))
        apart = where[:, row, solid, np.newaxis] - center[:, row]
        gaps = np.abs(apart) - shapes.half[:, rows[row], self._solids[solid], np.newaxis] - self._half[:, np.newaxis]
        pair, box = np.nonzero((gaps < CONTACT_DISTANCE).all(axis=0))
        row, apart, gaps = row[pair], apart[:, pair, box], gaps[:, pair, box]
        axis, contact = gaps.argmax(axis=0), np.arange(len(row))
        normal = np.zeros_like(apart)
        normal[axis, contact] = np.where(apart[axis, contact] < 0, -1, 1)
        return row * count + box, np.full(len(row), n * (count + 1)), gaps[axis, contact], normal


class _Solver:
    """The contacts of a tick, solved all at once.

    :param first: int (k), columns of bodies; also `second`
    :param gap: m (k)
    :param normal: (3, k), from the first to the second
    :param velocity: (3, bodies); changed in place
    :param weights: (3, bodies), 1 / kg along each axis
    """

    def __init__(self, first: Array, second: Array, gap: Array, normal: Array, velocity: Array, weights: Array) -> None:
        self._first, self._second, self._gap, self._normal = first, second, gap, normal
        self._velocity, size = velocity, velocity.shape[1]
        self._changes = -weights[:, first], weights[:, second]
        ends = np.concatenate([first, second])
        self._count = np.maximum(np.bincount(ends, minlength=size), 1)
        self._places = (ends + size * np.arange(3)[:, np.newaxis]).ravel()
        square = normal * normal
        own, other = (square * weights[:, first]).sum(axis=0), (square * weights[:, second]).sum(axis=0)
        self._share = own / np.maximum(own + other, 1e-9)
        shared = own * self._count[first] + other * self._count[second]
        self._mass = np.divide(1, shared, out=np.zeros_like(shared), where=shared > 0)

    def _scatter(self, at_first: Array, at_second: Array) -> Array:
        """Sums over the contacts of each body, (3, bodies)."""
        values = np.concatenate([at_first, at_second], axis=1).ravel()
        return np.bincount(self._places, values, self._velocity.size).reshape(self._velocity.shape)

    def solve(self, height: Array) -> None:
        """Let nothing come too close, and let surfaces rub.

        :param height: m (boxes), of the undersides of the first bodies above the ground
        """
        velocity, normal, first, second = self._velocity, self._normal, self._first, self._second
        least = -np.maximum(self._gap, 0) / TICK
        ground = np.where(height < CONTACT_DISTANCE, -np.maximum(height, 0) / TICK, -np.inf)
        falling = velocity[1, : len(height)]
        impulse, stop = np.zeros(len(first)), np.zeros(len(height))
        for _ in range(_ITERATIONS):
            parting = ((velocity[:, second] - velocity[:, first]) * normal).sum(axis=0)
            before, impulse = impulse, np.maximum(impulse + (least - parting) * self._mass, 0)
            change = (impulse - before) * normal
            velocity += self._scatter(change * self._changes[0], change * self._changes[1])
            stop += np.maximum(ground - falling, 0)
            np.maximum(falling, ground, out=falling)

        slip = velocity[:, second] - velocity[:, first]
        slip -= (slip * normal).sum(axis=0) * normal
        size = np.sqrt((slip * slip).sum(axis=0))
        rub = np.minimum(FRICTION * impulse, size * self._mass) / np.maximum(size, 1e-9) * slip
        velocity -= self._scatter(rub * self._changes[0], rub * self._changes[1])
        level = velocity[::2, : len(height)]
        speed = np.sqrt((level * level).sum(axis=0))
        level *= 1 - np.minimum(1, FRICTION_POINTS * FRICTION * stop / np.maximum(speed, 1e-9))

    def depenetration(self) -> Array:
        """How far overlaps move the bodies in this tick, m (3, bodies)."""
        depth = np.minimum(-DEPENETRATION * np.minimum(self._gap, 0), DEPENETRATION_SPEED * TICK)
        move = depth * self._normal
        return self._scatter(-move * self._share, move * (1 - self._share)) / self._count

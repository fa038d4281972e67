"""Heaps of light boxes that are at rest until an agent hits them and drives through them.

The boxes never turn. Towards each other they are rounded so much that one slides off another as soon as its center is
no longer above it; this replaces tipping over. As in `bodies.py`, contacts are found at the positions before the move,
and a fast agent enters obstacles. A heap is simulated only while an agent touches it and shortly after that.

Because a box may have many contacts, they are solved all at once, each with its share of the masses.
Paper: Tonge et al. 2012, "Mass Splitting for Jitter-Free Parallel Rigid Body Simulation".
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, sqrt
from typing import NamedTuple

import numpy as np

from unity_gym.scenes.bodies import (
    CONTACT_DISTANCE,
    DEPENETRATION,
    DEPENETRATION_SPEED,
    FRICTION,
    FRICTION_POINTS,
    TICK,
)
from unity_gym.scenes.kernels import inner_kernel, kernel
from unity_gym.scenes.shapes import Shapes, box, separation
from unity_gym.specs import Array

_ITERATIONS = 4
_CORE = 0.5  # m between the centers of two boxes along an axis, up to which their facing surfaces are flat
_AWAKE = 75  # ticks for which a heap is simulated after the last touch


class Heap:
    """Consecutive boxes of `shapes`, on ground at height 0, and the agent of each area that pushes them.

    Arrays: `velocity` (3, areas, boxes), `touched` (bool, areas × boxes: the agent touches it since the last tick).
    A heap exists where its first box is visible.

    :param shapes: Boxes without rounding; those of the heap have yaw 0.
    :param boxes: Indices of the heap's boxes.
    :param mass: Mass of each box in kg.
    :param agent: Index of the thing that pushes, whose height the heap does not change.
    :param agent_mass: Mass of that thing in kg.
    :param solids: Indices of static things with yaw 0 that block boxes.
    :param gravity: Acceleration in m/s².
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
        self._shapes, self._first, self._agent, self._solids = shapes, boxes.start, agent, np.array(solids)
        self._gravity = gravity
        self._weights = 1 / mass, 1 / agent_mass
        areas, count = shapes.visible[:, boxes].shape
        self._awake = np.zeros(areas, np.int64)
        self.velocity = np.zeros((3, areas, count))
        self.touched = np.zeros((areas, count), bool)

    def rest(self, rows: Array) -> None:
        """Stop the heaps of some areas at their current positions."""
        self._awake[rows] = 0
        self.velocity[:, rows] = 0

    def simulate(self, pushing: Array) -> None:
        """Advance all heaps by one tick.

        :param pushing: Velocities of all things of `shapes` in m/s, (3, areas, things); those of pushing agents are
            changed.
        """
        shapes = self._shapes
        _simulate(
            shapes.center,
            shapes.half,
            shapes.yaw,
            shapes.visible,
            self._first,
            self._agent,
            self._solids,
            self.velocity,
            pushing,
            self.touched,
            self._awake,
            self._weights,
            self._gravity,
        )


class _Contacts(NamedTuple):
    """The contacts of an area, one row per contact.

    `pair` (2), `gap` (m), `normal` (3, from the first to the second), and `mass` and `impulse` along it. In `pair`, the
    index of the agent follows those of the boxes, and one index for all static things is the last.
    """

    pair: Array
    gap: Array
    normal: Array
    mass: Array
    impulse: Array


class _Things(NamedTuple):
    """The boxes of an area, its agent, and all static things together, one row per thing.

    `velocity` and `change` of it (3), `weight` (3, 1 / mass along each axis), and `contacts` (their number, at
    least 1).
    """

    velocity: Array
    change: Array
    weight: Array
    contacts: Array


@kernel
def _simulate(
    center: Array,
    half: Array,
    yaw: Array,
    visible: Array,
    start: int,
    agent: int,
    solids: Array,
    velocity: Array,
    pushing: Array,
    touched: Array,
    awake: Array,
    weights: tuple[float, float],
    gravity: float,
) -> None:
    areas, boxes = touched.shape
    n = boxes + boxes * (boxes - 1) // 2 + boxes * len(solids)
    contacts = _Contacts(np.empty((n, 2), np.int64), np.empty(n), np.empty((n, 3)), np.empty(n), np.empty(n))
    things = _Things(
        np.zeros((boxes + 2, 3)), np.zeros((boxes + 2, 3)), np.zeros((boxes + 2, 3)), np.zeros(boxes + 2, np.int64)
    )
    for thing in range(boxes):
        things.weight[thing] = weights[0]
    things.weight[boxes, 0] = things.weight[boxes, 2] = weights[1]
    for area in range(areas):
        touched[area] = False
        if not visible[area, start]:
            continue
        count = _find_agent(contacts, center, half, yaw, area, start, agent, touched[area])
        if count:
            awake[area] = _AWAKE
        if not awake[area]:
            continue
        count = _find_pairs(contacts, count, center, half, area, start, boxes)
        count = _find_solids(contacts, count, center, half, area, start, boxes, solids)
        for thing in range(boxes):
            things.velocity[thing] = velocity[:, area, thing]
            things.velocity[thing, 1] -= gravity * TICK
        things.velocity[boxes] = pushing[:, area, agent]
        _prepare(contacts, count, things)
        _solve(contacts, count, things, center[1, area, start:] - half[1, area, start:])
        pushing[:, area, agent] = things.velocity[boxes]
        _depenetrate(contacts, count, things)
        awake[area] -= 1
        for thing in range(boxes):
            column = start + thing
            for axis in range(3):
                center[axis, area, column] += things.velocity[thing, axis] * TICK + things.change[thing, axis]
                velocity[axis, area, thing] = things.velocity[thing, axis] if awake[area] else 0.0
            center[1, area, column] = max(center[1, area, column], half[1, area, column])


@inner_kernel
def _add(contacts: _Contacts, k: int, first: int, second: int, gap: float, normal: tuple[float, float, float]) -> None:
    contacts.pair[k, 0], contacts.pair[k, 1] = first, second
    contacts.gap[k] = gap
    for axis in range(3):
        contacts.normal[k, axis] = normal[axis]


@inner_kernel
def _find_agent(
    contacts: _Contacts, center: Array, half: Array, yaw: Array, area: int, start: int, agent: int, touched: Array
) -> int:
    """Find the contacts of the agent with boxes.

    :return: Number of contacts.
    """
    count, boxes = 0, len(touched)
    agent_box = box(center, half, yaw, area, agent)
    for thing in range(boxes):
        other = box(center, half, yaw, area, start + thing)
        wide = other.half_x + sqrt(2) * agent_box.half_x + CONTACT_DISTANCE
        if abs(other.x - agent_box.x) < wide and abs(other.z - agent_box.z) < wide:
            gap, normal_x, normal_y, normal_z = separation(agent_box, other)
            if gap < CONTACT_DISTANCE:
                touched[thing] = True
                _add(contacts, count, boxes, thing, gap, (normal_x, normal_y, normal_z))
                count += 1
    return count


@inner_kernel
def _find_pairs(contacts: _Contacts, count: int, center: Array, half: Array, area: int, start: int, boxes: int) -> int:
    """Find the contacts between boxes: a cube of the size of the core comes close to the other's center.

    :param count: Number of contacts that were found before.
    :return: Number of contacts.
    """
    for i in range(start, start + boxes):
        for j in range(i + 1, start + boxes):
            reach = half[0, area, i] + half[0, area, j] - _CORE
            x, y, z = (
                center[0, area, j] - center[0, area, i],
                center[1, area, j] - center[1, area, i],
                center[2, area, j] - center[2, area, i],
            )
            beyond = (abs(x) - _CORE, abs(y) - _CORE, abs(z) - _CORE)
            if max(beyond) >= reach + CONTACT_DISTANCE:
                continue
            out_x, out_y, out_z = max(beyond[0], 0.0), max(beyond[1], 0.0), max(beyond[2], 0.0)
            if max(beyond) <= 0:  # each center is in the other's core
                if beyond[0] == max(beyond):
                    out_x = 1e-9
                elif beyond[1] == max(beyond):
                    out_y = 1e-9
                else:
                    out_z = 1e-9
            distance = sqrt(out_x * out_x + out_y * out_y + out_z * out_z)
            if distance - reach < CONTACT_DISTANCE:
                normal = (np.sign(x) * out_x / distance, np.sign(y) * out_y / distance, np.sign(z) * out_z / distance)
                _add(contacts, count, i - start, j - start, distance - reach, normal)
                count += 1
    return count


@inner_kernel
def _find_solids(
    contacts: _Contacts, count: int, center: Array, half: Array, area: int, start: int, boxes: int, solids: Array
) -> int:
    """Find the contacts of boxes with static things.

    :param count: Number of contacts that were found before.
    :return: Number of contacts.
    """
    for solid in solids:
        for thing in range(boxes):
            column = start + thing
            gap, nearest, sign = -inf, 0, 1.0
            for axis in range(3):
                apart = center[axis, area, solid] - center[axis, area, column]
                along = abs(apart) - half[axis, area, solid] - half[axis, area, column]
                if along > gap:
                    gap, nearest, sign = along, axis, -1.0 if apart < 0 else 1.0
                if gap >= CONTACT_DISTANCE:
                    break
            if gap < CONTACT_DISTANCE:
                normal = (sign * (nearest == 0), sign * (nearest == 1), sign * (nearest == 2))
                _add(contacts, count, thing, boxes + 1, gap, normal)
                count += 1
    return count


@inner_kernel
def _prepare(contacts: _Contacts, count: int, things: _Things) -> None:
    """Count the contacts of each thing, and compute the masses of contacts from the things' shares."""
    things.contacts[:] = 0
    for k in range(count):
        for end in range(2):
            things.contacts[contacts.pair[k, end]] += 1
    for k in range(count):
        shared = 0.0
        for end in range(2):
            thing = contacts.pair[k, end]
            shared += _along(contacts, k, things.weight[thing]) * things.contacts[thing]
        contacts.mass[k] = 1 / shared if shared > 0 else 0.0
        contacts.impulse[k] = 0


@inner_kernel
def _along(contacts: _Contacts, k: int, weight: Array) -> float:
    """Return 1 / mass of a thing along the normal of a contact."""
    total = 0.0
    for axis in range(3):
        total += contacts.normal[k, axis] ** 2 * weight[axis]
    return total


@inner_kernel
def _push(contacts: _Contacts, k: int, things: _Things, axis: int, impulse: float) -> None:
    """Add the effect of an impulse between two things to their changes of velocity."""
    first, second = contacts.pair[k, 0], contacts.pair[k, 1]
    things.change[first, axis] -= things.weight[first, axis] * impulse
    things.change[second, axis] += things.weight[second, axis] * impulse


@kernel
def _solve(contacts: _Contacts, count: int, things: _Things, height: Array) -> None:
    """Apply the impulses that keep things apart, and friction.

    :param height: Heights of the undersides of boxes above the ground in m, (at least as many as boxes).
    """
    velocity, change, normal = things.velocity, things.change, contacts.normal
    boxes = len(velocity) - 2
    stop = np.zeros(boxes)
    for _ in range(_ITERATIONS):
        change[:] = 0
        for k in range(count):
            first, second = contacts.pair[k, 0], contacts.pair[k, 1]
            parting = 0.0
            for axis in range(3):
                parting += (velocity[second, axis] - velocity[first, axis]) * normal[k, axis]
            least = -max(contacts.gap[k], 0.0) / TICK
            impulse = max(contacts.impulse[k] + (least - parting) * contacts.mass[k], 0.0)
            for axis in range(3):
                _push(contacts, k, things, axis, (impulse - contacts.impulse[k]) * normal[k, axis])
            contacts.impulse[k] = impulse
        velocity += change
        for thing in range(boxes):
            if height[thing] < CONTACT_DISTANCE:
                ground = -max(height[thing], 0.0) / TICK
                stop[thing] += max(ground - velocity[thing, 1], 0.0)
                velocity[thing, 1] = max(velocity[thing, 1], ground)

    change[:] = 0
    slip = np.empty(3)
    for k in range(count):
        slip[:] = velocity[contacts.pair[k, 1]] - velocity[contacts.pair[k, 0]]
        slip -= (slip * normal[k]).sum() * normal[k]
        size = sqrt((slip * slip).sum())
        rub = min(FRICTION * contacts.impulse[k], size * contacts.mass[k]) / max(size, 1e-9)
        for axis in range(3):
            _push(contacts, k, things, axis, -rub * slip[axis])
    velocity += change
    for thing in range(boxes):
        speed = sqrt(velocity[thing, 0] ** 2 + velocity[thing, 2] ** 2)
        left = 1 - min(1.0, FRICTION_POINTS * FRICTION * stop[thing] / max(speed, 1e-9))
        velocity[thing, 0] *= left
        velocity[thing, 2] *= left


@inner_kernel
def _depenetrate(contacts: _Contacts, count: int, things: _Things) -> None:
    """Write the moves that reduce overlaps in this tick to `change`, in m."""
    things.change[:] = 0
    for k in range(count):
        first, second = contacts.pair[k, 0], contacts.pair[k, 1]
        own, other = _along(contacts, k, things.weight[first]), _along(contacts, k, things.weight[second])
        share = own / max(own + other, 1e-9)
        depth = min(-DEPENETRATION * min(contacts.gap[k], 0.0), DEPENETRATION_SPEED * TICK)
        for axis in range(3):
            move = depth * contacts.normal[k, axis]
            things.change[first, axis] -= move * share / things.contacts[first]
            things.change[second, axis] += move * (1 - share) / things.contacts[second]

"""Many articulated bodies, which MuJoCo moves on all cores."""

from __future__ import annotations

import copy
import math

import mujoco
import numpy as np
from mujoco.rollout import Rollout

from unity_gym.machine import usable_cores
from unity_gym.scenes.articulated import contacts
from unity_gym.scenes.articulated.skeleton import GROUND, TARGET_HALF, Hinge, Skeleton, quaternion_to_mujoco
from unity_gym.scenes.kernels import inner_kernel, kernel
from unity_gym.scenes.rotations import multiply, rotate
from unity_gym.specs import Array

_LIMP = 0.01  # share of its maximum force; a rigid drive that is weaker is switched off
_CLEARANCE = 4.0  # m between a body's reach and a target that it cannot reach before the next decision
_AT_REST, _STANDS = 0.01, 0.02  # m/s and rad/s, m
_FREE = 7, 6  # positions and velocities of a body that moves freely


class ArticulatedBodies:
    """`count` bodies of one kind, each on a platform of its own with a target cube.

    The current state, float64: `position`, `velocity` and `angular_velocity` of the parts (count, parts, 3; m, m/s and
    rad/s; velocities are those of the parts' centers of mass), their `rotation` (count, parts, 4), and `target` (count,
    3) and `target_rotation` (count, 4) of the cubes. `state` (count, …) is the same state in MuJoCo's format: time,
    positions, velocities. Code that changes it must call `refresh`.

    Between two decisions, only an episode's end or a moved target acts on a body. So the first tick after a decision
    computes all ticks up to the next one, in one call that uses all cores. After a change in between, the rest is
    computed again.

    :param skeleton: Description of the bodies.
    :param count: Number of bodies.
    :param period: Number of ticks from decision to decision.
    """

    def __init__(self, skeleton: Skeleton, count: int, period: int) -> None:
        self.skeleton = skeleton
        if skeleton.speculative:
            contacts.install()
        model = skeleton.compile()
        self.models = [copy.copy(model) for _ in range(count)]
        self._period, self._substeps = period, skeleton.drive.substeps
        hinges = skeleton.hinges
        names = [f"{part.name} {index}" for part in skeleton.parts for index in range(len(part.hinges))]
        self._positions = np.array([1 + model.joint(name).qposadr[0] for name in names], np.int64)
        self._velocities = np.array([1 + model.nq + model.joint(name).dofadr[0] for name in names], np.int64)
        self._tree = _tree(skeleton, model, hinges, self._positions, self._velocities)

        threads = min(usable_cores(), count)
        self._rollout = Rollout(nthread=threads if threads > 1 else 0)
        self._datas = [mujoco.MjData(model) for _ in range(threads)]
        size = mujoco.mj_stateSize(model, mujoco.mjtState.mjSTATE_FULLPHYSICS)
        start = np.zeros(size)
        mujoco.mj_getState(model, self._datas[0], start, mujoco.mjtState.mjSTATE_FULLPHYSICS)
        self._start = start
        self.state = np.repeat(start[np.newaxis], count, axis=0)
        rigid = skeleton.drive.rigid
        self._control_kind = int(mujoco.mjtState.mjSTATE_EQ_ACTIVE if rigid else mujoco.mjtState.mjSTATE_CTRL)
        self._control = np.full((count, period * self._substeps, len(hinges)), float(rigid))
        self._targets = [each.eq_data[:, 0] if rigid else None for each in self.models]
        self._limits = [each.actuator_forcerange for each in self.models]

        self._is_held = np.ones(count, bool)
        self._far = skeleton.reach + _CLEARANCE
        # Results computed ahead: by tick up to the next decision, then by body.
        parts = len(skeleton.parts)
        self._is_ahead = np.zeros(count, bool)
        self._states = np.zeros((count, period, size))
        self._poses = tuple(
            np.zeros((period, count, *shape)) for shape in ((parts, 3), (parts, 4), (parts, 3), (parts, 3), (3,), (4,))
        )
        self.refresh(np.arange(count))

    def refresh(self, rows: Array) -> None:
        """Apply changes of `state[rows]`."""
        self._is_ahead[rows] = False
        poses = [np.empty((1, len(rows), *each.shape[2:])) for each in self._poses]
        _pose(self.state[rows, np.newaxis], self._tree, np.arange(len(rows)), 0, *poses)
        if not hasattr(self, "position"):
            self._show(*(pose[0] for pose in poses))
            return
        for present, pose in zip(self._present, poses, strict=True):
            present[rows] = pose[0]

    def _show(self, *poses: Array) -> None:
        self._present = poses
        self.position, self.rotation, self.velocity, self.angular_velocity, self.target, self.target_rotation = poses

    def put(self, rows: Array, center: Array, rotation: Array) -> None:
        """Reset bodies to their starting pose, at rest; their targets are not changed.

        :param rows: Indices of the bodies, int (k).
        :param center: Position of the root, (3), in m.
        :param rotation: Rotations of the whole bodies, (k, 4).
        """
        state = np.repeat(self._start[np.newaxis], len(rows), axis=0)
        x, y, z = center
        state[:, 1:4] = x, z, y
        state[:, 4:8] = [quaternion_to_mujoco(each) for each in rotation]
        place, motion = self._target_slices
        state[:, place], state[:, motion] = self.state[rows, place], self.state[rows, motion]
        self.state[rows] = state
        self.refresh(rows)

    def place_target(self, rows: Array, position: Array) -> None:
        """Move targets to `position` (k, 3) without changing their motion and rotation."""
        place = self._target_slices[0].start
        self.state[rows, place : place + 3] = position[:, [0, 2, 1]]
        self.refresh(rows)

    @property
    def _target_slices(self) -> tuple[slice, slice]:
        """Slices of a state with the target's position and motion."""
        model = self.models[0]
        end = 1 + model.nq
        return slice(end - _FREE[0], end), slice(end + model.nv - _FREE[1], end + model.nv)

    def drive(self, rows: Array, angles: Array, strength: Array) -> None:
        """Set the target angles of the joints.

        :param rows: Indices of the bodies, int (k).
        :param angles: Target angles in radians, (k, hinges).
        :param strength: Shares of the maximum force, (k, hinges).
        """
        self._is_ahead[rows] = False
        if self.skeleton.drive.rigid:
            self._control[rows] = strength[:, np.newaxis] >= _LIMP
            for row, target in zip(rows, angles, strict=True):
                self._targets[row][:] = target
        else:
            self._control[rows] = angles[:, np.newaxis]
            limits = np.abs(strength) * (self.skeleton.drive.max_force / 2)
            for row, limit in zip(rows, limits, strict=True):
                self._limits[row][:, 0], self._limits[row][:, 1] = -limit, limit

    def set_gravity(self, value: float) -> None:
        """Set the gravity (m/s², downwards) of all bodies."""
        self._is_ahead[:] = False
        for model in self.models:
            model.opt.gravity[2] = -value

    def set_masses(self, rows: Array, parts: list[str], masses: Array) -> None:
        """Set the masses (k, parts; kg) of some parts; their inertia grows in proportion."""
        for row, row_masses in zip(rows, masses, strict=True):
            model = self.models[row]
            for part, mass in zip(parts, row_masses, strict=True):
                body = model.body(part)
                body.inertia[:] *= mass / body.mass[0]
                body.mass[:] = mass
            mujoco.mj_setConst(model, self._datas[0])
        self._is_ahead[rows] = False

    def step(self, left: int) -> None:
        """Advance all bodies by one tick.

        :param left: Number of ticks up to the next decision, including this one.
        """
        tick = self._period - left
        if not self._is_ahead.all():
            self._compute(np.flatnonzero(~self._is_ahead), tick)
        self._show(*(pose[tick] for pose in self._poses))
        self.state[:] = self._states[:, tick]
        self._is_ahead[:] = left > 1

    def _compute(self, rows: Array, tick: int) -> None:
        """Compute the bodies `rows` from their current state, from `tick` of the period up to its end."""
        steps = (self._period - tick) * self._substeps
        is_all = len(rows) == len(self.models)
        self._hold_targets(rows)
        control = self._control[:, :steps] if is_all else self._control[rows, :steps]
        states = np.empty((len(rows), steps, self.state.shape[1]))
        self._rollout.rollout(
            self.models if is_all else [self.models[row] for row in rows],
            self._datas,
            self.state[rows],
            np.ascontiguousarray(control),
            control_spec=self._control_kind,
            skip_checks=True,
            nstep=steps,
            state=states,
        )
        self._states[rows, tick:] = states[:, self._substeps - 1 :: self._substeps]
        _pose(self._states, self._tree, rows, tick, *self._poses)
        self._is_ahead[rows] = True

    def _hold_targets(self, rows: Array) -> None:
        """Hold the targets that are at rest far from their bodies, and simulate the others."""
        place, motion = self._target_slices
        is_held = _may_be_held(self.state, rows, place.start, motion.start, self._far)
        for row in rows[is_held != self._is_held[rows]]:
            self._is_held[row] = held = not self._is_held[row]
            model = self.models[row]
            model.body_gravcomp[-1] = held  # the target is the last body, with one shape
            model.geom_contype[-1] = model.geom_conaffinity[-1] = not held
            if held:
                self.state[row, motion] = 0


def _tree(
    skeleton: Skeleton, model: mujoco.MjModel, hinges: list[Hinge], positions: Array, velocities: Array
) -> tuple[Array, ...]:
    """Return the properties of the skeleton that `_pose` needs."""
    parts = skeleton.parts
    place, rest = np.zeros((len(parts), 3)), np.zeros((len(parts), 4))
    for index, part in enumerate(parts):
        offset, rest[index] = skeleton.relative(part)
        rotate(rest[index], *part.anchor, place[index])
        place[index] += offset
    anchor = np.array([part.anchor for part in parts])
    center_of_mass = np.array([part.shape.center for part in parts])
    first = np.cumsum([0] + [len(part.hinges) for part in parts])
    axes = np.array([hinge.axis for hinge in hinges], float).reshape(-1, 3)
    return (
        np.array(skeleton.parents),
        place,
        rest,
        anchor,
        center_of_mass,
        first,
        axes,
        positions,
        velocities,
        np.array([1 + model.nq, 1 + model.nq - _FREE[0]]),
    )


@kernel
def _pose(
    states: Array,
    tree: tuple[Array, ...],
    rows: Array,
    first_tick: int,
    position: Array,
    rotation: Array,
    velocity: Array,
    angular_velocity: Array,
    target: Array,
    target_rotation: Array,
) -> None:
    """Convert MuJoCo's states (count, ticks, …) of `rows` to poses in Unity's axes, from a tick on."""
    parents, place, rest, anchor, center_of_mass, first, axes, positions, velocities, offsets = tree
    start_of_velocities, start_of_target = offsets
    q, axis, arm, step = np.empty(4), np.empty(3), np.empty(3), np.empty(4)
    for row in rows:
        for tick in range(first_tick, states.shape[1]):
            state = states[row, tick]
            t = start_of_target
            target[tick, row, 0], target[tick, row, 1], target[tick, row, 2] = state[t], state[t + 2], state[t + 1]
            _quaternion_from(state[t + 3 : t + 7], target_rotation[tick, row])
            for part in range(len(parents)):
                p, r = position[tick, row, part], rotation[tick, row, part]
                v, w = velocity[tick, row, part], angular_velocity[tick, row, part]
                parent = parents[part]
                if parent < 0:
                    s = start_of_velocities
                    p[0], p[1], p[2] = state[1], state[3], state[2]
                    _quaternion_from(state[4:8], r)
                    v[0], v[1], v[2] = state[s], state[s + 2], state[s + 1]
                    rotate(r, -state[s + 3], -state[s + 5], -state[s + 4], w)
                    continue
                parent_rotation = rotation[tick, row, parent]
                multiply(parent_rotation, rest[part], r)
                w[:] = angular_velocity[tick, row, parent]
                for hinge in range(first[part], first[part + 1]):
                    half = state[positions[hinge]] / 2
                    speed = state[velocities[hinge]]
                    rotate(r, axes[hinge, 0], axes[hinge, 1], axes[hinge, 2], axis)
                    w += speed * axis
                    step[:3] = np.sin(half) * axes[hinge]
                    step[3] = np.cos(half)
                    q[:] = r
                    multiply(q, step, r)
                # From the parent's center to the joint, and from there to the part's center.
                rotate(parent_rotation, place[part, 0], place[part, 1], place[part, 2], arm)
                p[:] = position[tick, row, parent] + arm
                v[:] = velocity[tick, row, parent]
                _add_cross(angular_velocity[tick, row, parent], arm, v)
                rotate(r, -anchor[part, 0], -anchor[part, 1], -anchor[part, 2], arm)
                p += arm
                _add_cross(w, arm, v)
            for part in range(len(parents)):
                c = center_of_mass[part]
                if c[0] != 0 or c[1] != 0 or c[2] != 0:
                    rotate(rotation[tick, row, part], c[0], c[1], c[2], arm)
                    _add_cross(angular_velocity[tick, row, part], arm, velocity[tick, row, part])


@inner_kernel
def _is_at_rest(state: Array, place: int, motion: int) -> bool:
    """Return whether a target is at rest on the ground; `place` and `motion` are its indices in a state."""
    for i in range(_FREE[1]):
        if abs(state[motion + i]) > _AT_REST:
            return False
    above: float = state[place + 2] - GROUND - TARGET_HALF
    return abs(above) < _STANDS


@kernel
def _may_be_held(states: Array, rows: Array, place: int, motion: int, far: float) -> Array:
    """Return which targets are at rest at least `far` (m) from the root, bool (k)."""
    held = np.zeros(len(rows), np.bool_)
    for index, row in enumerate(rows):
        state = states[row]
        apart = math.hypot(state[place] - state[1], state[place + 1] - state[2])
        held[index] = apart > far and _is_at_rest(state, place, motion)
    return held


@inner_kernel
def _quaternion_from(q: Array, out: Array) -> None:
    """Convert MuJoCo's quaternion (w, x, y, z)."""
    out[0], out[1], out[2], out[3] = -q[1], -q[3], -q[2], q[0]


@inner_kernel
def _add_cross(a: Array, b: Array, out: Array) -> None:
    out[0] += a[1] * b[2] - a[2] * b[1]
    out[1] += a[2] * b[0] - a[0] * b[2]
    out[2] += a[0] * b[1] - a[1] * b[0]

"""3DBall and 3DBallHard: a cube tilts about two axes to keep a ball from rolling off its top.

The platform is no rigid body: its tilt is set, so it gives the ball no surface velocity and carries no impulse. So
the ball's mass has no effect on its motion, and neither has the parameter `mass`.
"""

from __future__ import annotations

from math import cos, sin, sqrt

import numpy as np

from unity_gym.scenes.academy import Academy
from unity_gym.scenes.agents import Agents
from unity_gym.scenes.bodies import DEPENETRATION, DEPENETRATION_SPEED, MAX_SPIN
from unity_gym.scenes.drawing import BLUE, ORANGE
from unity_gym.scenes.kernels import inner_kernel, kernel
from unity_gym.scenes.perspective import Solids, follow, photograph
from unity_gym.scenes.scene import Scene
from unity_gym.scenes.sensors import Sensor, StackingSensor, VectorSensor
from unity_gym.specs import ActionSpec, Array

_TICK = 0.02  # seconds
_HALF_TURN_PER_TICK = float(np.radians(2.0)) / 2
_TILT_LIMIT = 0.25  # of the quaternion's components, about 29 degrees
_HALF_PLATFORM = 2.5  # m; a cube of 5 m
_RADIUS = 0.5  # m, times the parameter `scale`
_FRICTION = 0.6
_SPHERE_INERTIA = 0.4  # of m r²
_ROLLING = 1 / (1 + 1 / _SPHERE_INERTIA)  # the share of the slip whose removal makes the ball roll
_ANGULAR_DRAG = 0.01  # 1/s
_CONTACT_OFFSET = 0.02  # m; surfaces that are nearer get a contact (0.01 m for each)
_LANDING = 0.8  # share of the gap to the platform by which a landing ball moves in a tick
_CAMERA = follow(np.array([0, 0.8, 0]), np.array([0.35, 0, 1]), distance=9.5, height=5)


_Vector = tuple[float, float, float]
_Quaternion = tuple[float, float, float, float]  # w, x, y, z


@inner_kernel
def _turn_about_x(rotation: _Quaternion, half: float) -> _Quaternion:
    """Rotate about the local x axis; `half` of the angle in radians."""
    w, x, y, z = rotation
    c, s = cos(half), sin(half)
    return c * w - s * x, c * x + s * w, c * y + s * z, c * z - s * y


@inner_kernel
def _turn_about_z(rotation: _Quaternion, half: float) -> _Quaternion:
    """Rotate about the local z axis; `half` of the angle in radians."""
    w, x, y, z = rotation
    c, s = cos(half), sin(half)
    return c * w - s * z, c * x + s * y, c * y - s * x, c * z + s * w


@inner_kernel
def _rotation_matrix(rotation: _Quaternion) -> tuple[_Vector, _Vector, _Vector]:
    """Return the local axes in world coordinates, as rows of the matrix from local to world coordinates."""
    w, x, y, z = rotation
    return (
        (w * w + x * x - y * y - z * z, 2 * (x * y - w * z), 2 * (x * z + w * y)),
        (2 * (x * y + w * z), w * w - x * x + y * y - z * z, 2 * (y * z - w * x)),
        (2 * (x * z - w * y), 2 * (y * z + w * x), w * w - x * x - y * y + z * z),
    )


@inner_kernel
def _dot(first: _Vector, second: _Vector) -> float:
    return first[0] * second[0] + first[1] * second[1] + first[2] * second[2]


@inner_kernel
def _cross(first: _Vector, second: _Vector) -> _Vector:
    return (
        first[1] * second[2] - first[2] * second[1],
        first[2] * second[0] - first[0] * second[2],
        first[0] * second[1] - first[1] * second[0],
    )


@inner_kernel
def _tilt(rotation: Array, areas: Array, about_x: Array, about_z: Array) -> None:
    """Set the platforms of areas (int, k) level, then turn them by half of the angles (radians, k)."""
    for k, area in enumerate(areas):
        turned = _turn_about_z(_turn_about_x((1.0, 0.0, 0.0, 0.0), about_x[k]), about_z[k])
        for i in range(4):
            rotation[i, area] = turned[i]


@kernel
def _act(rotation: Array, offset: Array, actions: Array, reward: Array) -> Array:
    """Turn the platforms by one tick of `actions` (float32, areas × 2) and set the rewards.

    :return: Areas whose ball is lost, int (k).
    """
    lost = np.zeros(len(reward), np.bool_)
    for area in range(len(reward)):
        q = rotation[0, area], rotation[1, area], rotation[2, area], rotation[3, area]
        half = min(max(float(actions[area, 0]), -1.0), 1.0) * _HALF_TURN_PER_TICK
        if (q[3] if half > 0 else -q[3]) < _TILT_LIMIT:
            q = _turn_about_z(q, half)
        half = min(max(float(actions[area, 1]), -1.0), 1.0) * _HALF_TURN_PER_TICK
        if (q[1] if half > 0 else -q[1]) < _TILT_LIMIT:
            q = _turn_about_x(q, half)
        for i in range(4):
            rotation[i, area] = q[i]
        lost[area] = offset[1, area] < -2 or abs(offset[0, area]) > 3 or abs(offset[2, area]) > 3
        reward[area] = -1 if lost[area] else 0.1
    return np.flatnonzero(lost)


@inner_kernel
def _roll(rotation: Array, offset: Array, velocity: Array, spin: Array, radius: Array, gravity: float) -> None:
    """Move the balls by one tick: gravity, then one contact with friction at the platform's current tilt.

    The contact is inelastic, stops the approach before the surfaces meet, and corrects most of an overlap. Its friction
    acts against the slip of the ball's surface and turns the ball (Coulomb's law), up to rolling.
    """
    for area in range(len(radius)):
        r = radius[area]
        at = offset[0, area], offset[1, area], offset[2, area]
        v = velocity[0, area], velocity[1, area] - gravity * _TICK, velocity[2, area]
        damping = 1 - _ANGULAR_DRAG * _TICK
        turning = spin[0, area] * damping, spin[1, area] * damping, spin[2, area] * damping
        limit = min(1.0, MAX_SPIN / (sqrt(_dot(turning, turning)) + 1e-9))
        turning = turning[0] * limit, turning[1] * limit, turning[2] * limit

        right, up, ahead = _rotation_matrix(
            (rotation[0, area], rotation[1, area], rotation[2, area], rotation[3, area])
        )
        columns = (right[0], up[0], ahead[0]), (right[1], up[1], ahead[1]), (right[2], up[2], ahead[2])
        apart = _beyond_platform((_dot(columns[0], at), _dot(columns[1], at), _dot(columns[2], at)))
        distance = sqrt(_dot(apart, apart)) + 1e-9
        apart = apart[0] / distance, apart[1] / distance, apart[2] / distance
        normal = _dot(right, apart), _dot(up, apart), _dot(ahead, apart)
        gap = distance - r

        approach = -_dot(v, normal)
        push = max(approach - _LANDING * max(gap, 0.0) / _TICK, 0.0) if gap < _CONTACT_OFFSET else 0.0
        surface = _cross(normal, turning)
        slip = (
            v[0] + approach * normal[0] + r * surface[0],
            v[1] + approach * normal[1] + r * surface[1],
            v[2] + approach * normal[2] + r * surface[2],
        )
        share = min(_ROLLING, _FRICTION * push / (sqrt(_dot(slip, slip)) + 1e-9))
        drag = -share * slip[0], -share * slip[1], -share * slip[2]
        torque = _cross(normal, drag)
        out = min(DEPENETRATION * max(-gap, 0.0), DEPENETRATION_SPEED * _TICK)
        for i in range(3):
            velocity[i, area] = v[i] + push * normal[i] + drag[i]
            spin[i, area] = turning[i] - torque[i] / (_SPHERE_INERTIA * r)
            offset[i, area] = at[i] + velocity[i, area] * _TICK + out * normal[i]


@inner_kernel
def _beyond_platform(local: _Vector) -> _Vector:
    """Return the vector from the platform's nearest point to a point, in the platform's axes."""
    x, y, z = local
    half = _HALF_PLATFORM
    return x - min(max(x, -half), half), y - min(max(y, -half), half), z - min(max(z, -half), half)


class ThreeDBall(Scene):
    """Twelve platforms with one ball each.

    State, along the last axis one entry per area: `rotation` of the platform (quaternion w, x, y, z), `offset` of the
    ball from the platform's center (m), its `velocity` (m/s) and `spin` (rad/s), all in world axes.

    Each tick gives a reward of 0.1, or -1 if the ball is lost. As Unity's script *sets* the reward, a decision of five
    ticks gives 0.1, too.
    """

    default_areas = 12
    behavior = "3DBall"
    reads_scale_in_every_episode = True

    def __init__(self, academy: Academy, areas: int) -> None:
        super().__init__(academy, areas)
        self.rotation = np.zeros((4, areas))
        self.rotation[0] = 1
        self.offset = np.zeros((3, areas))
        self.velocity = np.zeros((3, areas))
        self.spin = np.zeros((3, areas))
        self.radius = np.full(areas, _RADIUS)
        self._read_scale(np.arange(areas))
        self.gravity = 9.81  # m/s²
        academy.parameters.watch("gravity", self._set_gravity)
        self.agents = Agents(
            academy,
            areas,
            self.behavior,
            self.sensors(),
            ActionSpec(2, ()),
            act=self._act,
            start_episode=self._start_episode,
            decision_period=5,
            max_step=5000,
        )

    def _set_gravity(self, value: float) -> None:
        self.gravity = value

    def sensors(self) -> list[Sensor]:
        """Return the sensors of the tilt (z, then x) and of the ball's offset and velocity."""
        return [VectorSensor("VectorSensor_size8", 8, self._observe)]

    def _observe(self, rows: Array) -> Array:
        observations: Array = np.concatenate([self.rotation[3:0:-2], self.offset, self.velocity])[:, rows].T
        return observations

    def _start_episode(self, rows: Array) -> None:
        rng, n = self.academy.rng, len(rows)
        about_x, about_z = np.radians(rng.uniform(-5, 5, (2, n)))
        _tilt(self.rotation, rows, about_x, about_z)
        self.offset[0, rows] = rng.uniform(-1.5, 1.5, n)
        self.offset[1, rows] = 4
        self.offset[2, rows] = rng.uniform(-1.5, 1.5, n)
        self.velocity[:, rows] = 0  # the spin does not change
        if self.reads_scale_in_every_episode:
            self._read_scale(rows)

    def _read_scale(self, rows: Array) -> None:
        self.radius[rows] = _RADIUS * self.academy.parameters.positive("scale", 1, len(rows))

    def _act(self, rows: Array) -> None:  # noqa: ARG002  # all agents act in every tick
        agents = self.agents
        lost = _act(self.rotation, self.offset, agents.continuous, agents.reward)
        if len(lost):
            agents.end_episode(lost)

    def render(self, area: int) -> Array:
        """Return an image of the platform and its ball in perspective, from slightly above."""
        w, x, y, z = self.rotation[:, area]
        solids = Solids(2)
        half = (_HALF_PLATFORM,) * 3
        solids.put(0, (0, 0, 0), BLUE, half, rotation=np.array([x, y, z, w]))
        solids.put(1, self.offset[:, area], ORANGE, radius=self.radius[area])
        return photograph(solids, _CAMERA)

    def simulate(self) -> None:
        """Move the balls by a tick."""
        _roll(self.rotation, self.offset, self.velocity, self.spin, self.radius, self.gravity)


class ThreeDBallHard(ThreeDBall):
    """3DBall without velocities: the agents observe the last nine offsets and tilts."""

    behavior = "3DBallHard"
    reads_scale_in_every_episode = False

    def sensors(self) -> list[Sensor]:
        """Return the sensors of the ball's offset and the platform's tilt (z, then x), the last nine of each."""
        member = "ObservableAttribute:Ball3DHardAgent"
        return [
            StackingSensor(
                VectorSensor(f"{member}.Rotation", 2, lambda rows: self.rotation[3:0:-2, rows].T), 9, self.areas
            ),
            StackingSensor(
                VectorSensor(f"{member}.PositionDelta", 3, lambda rows: self.offset[:, rows].T), 9, self.areas
            ),
        ]

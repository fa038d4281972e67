"""3DBall and 3DBallHard: a cube tilts about two axes to keep a ball from rolling off its top.

The platform has no body: its tilt is set, so it gives the ball no surface velocity and carries no impulse. That makes
the ball's mass cancel out of its motion; the parameter `mass` therefore has nothing to act on here.
"""

from __future__ import annotations

import re

import numpy as np

from unity_gym.scenes.academy import Academy
from unity_gym.scenes.agents import Agents
from unity_gym.scenes.drawing import BACKGROUND, BLUE, ORANGE, WHITE, Canvas
from unity_gym.scenes.scene import Scene
from unity_gym.scenes.sensors import Sensor, StackingSensor, VectorSensor
from unity_gym.specs import ActionSpec, Array

_TICK = 0.02  # seconds
_HALF_TURN_PER_TICK = np.radians(2.0) / 2
_TILT_LIMIT = 0.25  # of the quaternion's components, about 29 degrees
_HALF_PLATFORM = 2.5  # m; a cube of 5 m
_RADIUS = 0.5  # m, times the parameter `scale`
_FRICTION = 0.6
_SPHERE_INERTIA = 0.4  # of m r²
_ROLLING = 1 / (1 + 1 / _SPHERE_INERTIA)  # the share of the slip whose removal makes the ball roll
_ANGULAR_DRAG = 0.01  # 1/s
_CONTACT_OFFSET = 0.02  # m; surfaces that are nearer get a contact (0.01 m for each)
_DEPENETRATION = 10 * _TICK  # m a tick


def _linear(terms: str) -> Array:
    """The matrix (9, 16) that turns the products q_i q_j of a quaternion into 9 sums of them, such as "2xy-2wz"."""
    matrix = np.zeros((9, 16))
    for row, entry in enumerate(terms.split()):
        for sign, factor, i, j in re.findall(r"([+-]?)(2?)([wxyz])([wxyz])", entry):
            matrix[row, 4 * "wxyz".index(i) + "wxyz".index(j)] = float(f"{sign}{factor or 1}")
    return matrix


# The rotation matrix, row by row, of the unit quaternion q = (w, x, y, z).
_ROTATION = _linear("ww+xx-yy-zz 2xy-2wz 2xz+2wy 2xy+2wz ww+yy-xx-zz 2yz-2wx 2xz-2wy 2yz+2wx ww+zz-xx-yy")

# n × v = N v, with the 9 entries of N, row by row, linear in n.
_CROSS = np.zeros((9, 3))
for _entry, _component, _sign in ((1, 2, -1), (2, 1, 1), (3, 2, 1), (5, 0, -1), (6, 1, -1), (7, 0, 1)):
    _CROSS[_entry, _component] = _sign

# q · (cos h, sin h on one axis) = cos h · q + sin h · (q, permuted, with these signs)
_ABOUT_X = np.array([1, 0, 3, 2]), np.array([[-1.0], [1.0], [1.0], [-1.0]])
_ABOUT_Z = np.array([3, 2, 1, 0]), np.array([[-1.0], [1.0], [-1.0], [1.0]])


def _turn(rotation: Array, axis: tuple[Array, Array], half: Array) -> Array:
    """The quaternions (4, n) turned about one of their local axes; `half` of the angles (n) in radians."""
    permutation, signs = axis
    turned: Array = np.cos(half) * rotation + np.sin(half) * signs * rotation.take(permutation, axis=0)
    return turned


class ThreeDBall(Scene):
    """Twelve platforms with a ball each. State, one column an area: `rotation` of the platform (quaternion w, x, y, z),
    `offset` of the ball from the platform's centre (m), its `velocity` (m/s) and `spin` (rad/s), all world axes.

    Each tick pays 0.1 if the ball is there and -1 if it is lost; as Unity's script it *sets* the reward, so a decision
    of five ticks pays 0.1, too.
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
            begin_episode=self._begin_episode,
            decision_period=5,
            max_step=5000,
        )

    def _set_gravity(self, value: float) -> None:
        self.gravity = value

    def sensors(self) -> list[Sensor]:
        """What the agents observe: tilt (z, then x), the ball's offset and velocity."""
        return [VectorSensor("VectorSensor_size8", 8, self._observe)]

    def _observe(self, rows: Array) -> Array:
        observations: Array = np.concatenate([self.rotation[3:0:-2], self.offset, self.velocity])[:, rows].T
        return observations

    def _begin_episode(self, rows: Array) -> None:
        rng, n = self.academy.rng, len(rows)
        level = np.zeros((4, n))
        level[0] = 1
        tilted = _turn(level, _ABOUT_X, np.radians(rng.uniform(-5, 5, n)))
        self.rotation[:, rows] = _turn(tilted, _ABOUT_Z, np.radians(rng.uniform(-5, 5, n)))
        self.offset[0, rows] = rng.uniform(-1.5, 1.5, n)
        self.offset[1, rows] = 4
        self.offset[2, rows] = rng.uniform(-1.5, 1.5, n)
        self.velocity[:, rows] = 0  # the spin stays as it is
        if self.reads_scale_in_every_episode:
            self._read_scale(rows)

    def _read_scale(self, rows: Array) -> None:
        self.radius[rows] = _RADIUS * self.academy.parameters.column("scale", 1, len(rows))

    def _act(self, rows: Array) -> None:
        agents = self.agents  # all of them act in every tick
        half = np.minimum(np.maximum(agents.continuous.T, -1), 1) * _HALF_TURN_PER_TICK
        direction = np.sign(half)
        for action, (component, axis) in enumerate(((3, _ABOUT_Z), (1, _ABOUT_X))):
            within = direction[action] * self.rotation[component] < _TILT_LIMIT
            self.rotation = _turn(self.rotation, axis, half[action] * within)
        distance = np.abs(self.offset)
        lost = (self.offset[1] < -2) | (distance[0] > 3) | (distance[2] > 3)
        agents.reward[:] = np.where(lost, -1, 0.1)
        if lost.any():
            agents.end_episode(rows[lost])

    def render(self, area: int) -> Array:
        """The platform and its ball from the side, along z, and to the right of it, smaller, along x."""
        rotation = self.rotation[:, area]
        axes = (_ROTATION @ np.outer(rotation, rotation).ravel()).reshape(3, 3)
        ball, radius = self.offset[:, area], self.radius[area]
        views = []
        for across, reach, pixels, color in ((0, 5.0, 320, BACKGROUND), (2, 10.0, 160, WHITE)):
            canvas = Canvas(-5, 1 - reach, 5, 1 + reach, pixels, color)
            angle = np.arctan2(axes[1, across], axes[across, across])
            canvas.rectangle(0, 0, _HALF_PLATFORM, _HALF_PLATFORM, BLUE, angle)
            canvas.disc(ball[across], ball[1], radius, ORANGE)
            views.append(canvas.picture)
        return np.concatenate(views, axis=1)

    def simulate(self) -> None:
        """Move the balls by one tick: gravity, then one contact with friction at the platform's present tilt.

        The contact is inelastic, stops the approach before the surfaces meet, and takes back what they overlap. Its
        friction acts against the slip of the ball's surface and turns it (Coulomb's law), up to rolling.
        """
        velocity, spin = self.velocity, self.spin
        velocity[1] -= self.gravity * _TICK
        spin *= 1 - _ANGULAR_DRAG * _TICK
        products = (self.rotation[:, np.newaxis] * self.rotation).reshape(16, -1)
        axes = (_ROTATION @ products).reshape(3, 3, -1)  # world × local
        local = (axes * self.offset[:, np.newaxis]).sum(axis=0)
        apart = local - np.minimum(np.maximum(local, -_HALF_PLATFORM), _HALF_PLATFORM)
        distance = np.sqrt((apart * apart).sum(axis=0)) + 1e-9
        normal = (axes * (apart / distance)).sum(axis=1)
        gap = distance - self.radius

        approach = -(velocity * normal).sum(axis=0)
        push = np.maximum(approach - np.maximum(gap, 0) / _TICK, 0) * (gap < _CONTACT_OFFSET)
        normal_cross = (_CROSS @ normal).reshape(3, 3, -1)
        slip = velocity + approach * normal + self.radius * (normal_cross * spin).sum(axis=1)
        speed = np.sqrt((slip * slip).sum(axis=0)) + 1e-9
        drag = slip * -np.minimum(_ROLLING, _FRICTION * push / speed)
        velocity += push * normal + drag
        spin -= (normal_cross * drag).sum(axis=1) / (_SPHERE_INERTIA * self.radius)
        self.offset += velocity * _TICK + np.minimum(np.maximum(-gap, 0), _DEPENETRATION) * normal


class ThreeDBallHard(ThreeDBall):
    """The same without velocities: the agents see the last nine offsets and tilts."""

    behavior = "3DBallHard"
    reads_scale_in_every_episode = False

    def sensors(self) -> list[Sensor]:
        """The ball's offset, and the platform's tilt (z, then x), nine of each, the oldest first."""
        member = "ObservableAttribute:Ball3DHardAgent"
        return [
            StackingSensor(
                VectorSensor(f"{member}.Rotation", 2, lambda rows: self.rotation[3:0:-2, rows].T), 9, self.areas
            ),
            StackingSensor(
                VectorSensor(f"{member}.PositionDelta", 3, lambda rows: self.offset[:, rows].T), 9, self.areas
            ),
        ]

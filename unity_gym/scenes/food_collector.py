"""FoodCollector: five agents in an arena eat green food, avoid red food, and may freeze each other with a laser."""

from __future__ import annotations

from math import cos, sin, sqrt

import numpy as np

from unity_gym.scenes.academy import Academy
from unity_gym.scenes.agents import Agents
from unity_gym.scenes.bodies import FRICTION, MAX_SPIN, TICK, Bodies
from unity_gym.scenes.drawing import BLACK, BLUE, FLOOR, GREEN, RED, WALL, YELLOW, Canvas
from unity_gym.scenes.kernels import inner_kernel, kernel
from unity_gym.scenes.scene import Scene
from unity_gym.scenes.sensors import Sensor
from unity_gym.scenes.sensors.grid import GridSensor
from unity_gym.scenes.sensors.rays import Pose, Scenery, first_hit
from unity_gym.scenes.shapes import Shapes
from unity_gym.specs import ActionSpec, Array

_FOOD = 25  # of each kind per area
_HALF_ARENA = 50.0  # m; half of the floor, with the walls at its edges
_SPAWN = 45.0  # m
_SPEED = 2.0  # m/s gained per tick
_TOP_SPEED = 5.0  # m/s; faster agents are slowed down
_TURN = float(np.radians(300 * TICK))  # per tick
# The action is the length of the turn's axis, which Unity normalizes: only its sign counts, unless it is this short.
_LEAST_TURN = sqrt(1e-5)
_LASER_LENGTH, _LASER_RADIUS = 25.0, 2.0  # m
_FROZEN_TICKS = 200
_AGENT_MASS, _FOOD_MASS = 10.0, 5.0  # kg
_FOOD_RADIUS = 0.75  # m
_CONTACT_DISTANCE = 0.02  # m
_SPHERE_INERTIA = 0.4  # of m r²
_ANGULAR_DRAG = 0.05  # 1/s
_GRAVITY = 9.81  # m/s²
_ROLLING = 1 / (1 + 1 / _SPHERE_INERTIA)  # the share of the slip whose removal makes a sphere roll
_MAX_ROLLING = MAX_SPIN * _FOOD_RADIUS  # m/s
_RESTING = 0.1  # m/s; slower food hits nothing
_TAGS = ("food", "agent", "wall", "badFood", "frozenAgent")

# The things of an area: agents, food, bad food, walls.
_FOOD_REWARD = np.repeat([1.0, -1.0], _FOOD)
_WALLS = ("right wall", "left wall", "far wall", "near wall")


class FoodCollector(Scene):
    """Four areas of five agents, without groups.

    State: `shapes` and `bodies`; `food` (3, areas, food: the good pieces, then the bad ones) and its
    `food_velocity`; `scale`, `shooting` and `thaws_after` of the agents (areas, agents). Heights are above the
    floor.

    An agent that eats food pushes it before the food respawns elsewhere, so that it continues rolling there. It rolls
    at 5.25 m/s at most, as Unity limits its spin; friction slows faster food down to this speed.
    """

    default_areas = 4
    agents_per_area = 5
    behavior = "GridFoodCollector"

    def __init__(self, academy: Academy, areas: int) -> None:
        super().__init__(academy, areas)
        agents = self.agents_per_area
        names = [f"agent {i}" for i in range(agents)] + [f"food {i}" for i in range(2 * _FOOD)]
        tags = ["agent"] * agents + ["food"] * _FOOD + ["badFood"] * _FOOD + ["wall"] * len(_WALLS)
        shapes = self.shapes = Shapes(areas, [*names, *_WALLS], tags)
        shapes.tags = (*shapes.tags, "frozenAgent")
        self._tag_of_agent, self._tag_of_frozen = (shapes.tags.index(tag) for tag in ("agent", "frozenAgent"))
        near, far = _HALF_ARENA, _HALF_ARENA + 1
        shapes.place("right wall", (near, -1, -far), (far, 5, far))
        shapes.place("left wall", (-far, -1, -far), (-near, 5, far))
        shapes.place("far wall", (-near, -1, near), (near, 5, far))
        shapes.place("near wall", (-near, -1, -far), (near, 5, -near))
        food = slice(agents, agents + 2 * _FOOD)
        shapes.rounding[:, food] = _FOOD_RADIUS
        self.food = shapes.center[:, :, food]
        self.food_velocity = np.zeros_like(self.food)
        self._food_spin = np.zeros((2, areas, 2 * _FOOD))  # along x and z: the speed of rolling (m/s)
        self.bodies = Bodies(shapes, [_AGENT_MASS] * agents, [0.5] * agents, _WALLS, gravity=_GRAVITY)
        self._push = np.zeros((2, areas, agents))  # along x and z: change by the next physics tick (m/s)
        self.scale = np.ones((areas, agents))
        self.shooting = np.zeros((areas, agents), bool)
        self.thaws_after = np.zeros((areas, agents), np.int64)  # tick
        self._tick = 0
        count = areas * agents
        self._agent = np.arange(count) % agents
        self._area = np.arange(count) // agents
        self.agents = Agents(
            academy,
            count,
            self.behavior,
            self.sensors(),
            ActionSpec(3, (2,)),
            act=self._act,
            start_episode=self._start_episode,
            decision_period=5,
            max_step=5000,
        )

    def sensors(self) -> list[Sensor]:
        """Return the sensors of the kinds of things around the agents."""
        return [
            GridSensor(
                "GridSensor",
                self.shapes,
                self._pose,
                self._agent,
                _TAGS,
                size=40,
                half_height=0.01,
                scale=lambda rows: self.scale.ravel()[rows],
            )
        ]

    def _pose(self, rows: Array) -> Pose:
        area, agent = self._area[rows], self._agent[rows]
        return Pose(area, self.shapes.center[:, area, agent], self.shapes.yaw[area, agent])

    def reset_environment(self) -> None:
        """Place all food at random and at rest."""
        self._scatter_food(np.ones((self.areas, 2 * _FOOD), bool), _FOOD_RADIUS)
        self.food_velocity[:] = 0
        self._food_spin[:] = 0

    def _scatter_food(self, respawned: Array, height: float) -> None:
        """Place food (bool, areas × food) at random positions."""
        area, food = np.nonzero(respawned)
        x, z = self.academy.rng.uniform(-_SPAWN, _SPAWN, (2, len(area)))
        self.food[:, area, food] = x, np.full(len(area), height), z

    def _start_episode(self, rows: Array) -> None:
        rng, n = self.academy.rng, len(rows)
        place = area, agent = self._area[rows], self._agent[rows]
        self.shapes.tag[place] = self._tag_of_agent
        self.shooting[place] = False
        x, z = rng.uniform(-_SPAWN, _SPAWN, (2, n))
        self.shapes.center[:, area, agent] = x, np.full(n, 1.5), z
        self.shapes.yaw[place] = np.radians(rng.integers(0, 360, n))
        self.bodies.velocity[:, area, agent] = 0
        self.scale[place] = self.academy.parameters.positive("agent_scale", 1, n)
        self.shapes.half[:, area, agent] = 0.5 * self.scale[place]

    def _act(self, rows: Array) -> None:  # noqa: ARG002  # all agents act in every tick
        shapes, agents = self.shapes, self.agents
        _act(
            Scenery(shapes.center, shapes.half, shapes.rounding, shapes.yaw, shapes.visible),
            shapes.tag,
            self._tag_of_agent,
            self._tag_of_frozen,
            self.bodies.velocity,
            agents.continuous,
            agents.discrete,
            self.shooting,
            self.thaws_after,
            self._tick,
            self._push,
        )

    def simulate(self) -> None:
        """Move agents and food by a tick; eaten food appears again elsewhere."""
        self._tick += 1
        self.bodies.velocity[::2, :, : self.agents_per_area] += self._push
        shapes, food = self.shapes, self.food
        eaten = _eat(
            shapes.center, shapes.half, shapes.yaw, self.bodies.velocity, food, self.food_velocity, self.agents.reward
        )
        self.bodies.simulate()
        _roll(food, self.food_velocity, self._food_spin)
        if eaten.any():
            self._scatter_food(eaten, 2.5)

    def render(self, area: int) -> Array:
        """Return an image of the arena from above: agents blue, frozen ones black, good food green, bad food red."""
        canvas = Canvas(-_HALF_ARENA - 1, -_HALF_ARENA - 1, _HALF_ARENA + 1, _HALF_ARENA + 1, pixels=480, color=WALL)
        canvas.rectangle(0, 0, _HALF_ARENA, _HALF_ARENA, FLOOR)
        for (x, _, z), reward in zip(self.food[:, area].T, _FOOD_REWARD, strict=True):
            canvas.disc(x, z, _FOOD_RADIUS, GREEN if reward > 0 else RED)
        for agent in range(self.agents_per_area):
            x, _, z = self.shapes.center[:, area, agent]
            yaw, half = self.shapes.yaw[area, agent], self.shapes.half[0, area, agent]
            ahead = np.array([np.sin(yaw), np.cos(yaw)])
            if self.shooting[area, agent]:
                canvas.polyline([(x, z), (x, z) + _LASER_LENGTH * ahead], 0.4, YELLOW)
            frozen = self.shapes.tag[area, agent] == self._tag_of_frozen
            canvas.rectangle(x, z, 2 * half, 2 * half, BLACK if frozen else BLUE, -yaw)  # enlarged for visibility
            canvas.polyline([(x, z), (x, z) + 4 * half * ahead], 0.5, BLACK)
        return canvas.image


@kernel
def _act(
    scenery: Scenery,
    tag: Array,
    agent_tag: int,
    frozen_tag: int,
    velocity: Array,
    continuous: Array,
    discrete: Array,
    shooting: Array,
    thaws_after: Array,
    tick: int,
    push: Array,
) -> None:
    """Apply one tick of all agents: thaw, shoot, turn, and set the changes of velocity by the next physics tick."""
    agents = shooting.shape[1]
    acts = np.empty(agents, np.bool_)
    for area in range(len(shooting)):
        for agent in range(agents):
            if tag[area, agent] == frozen_tag and tick > thaws_after[area, agent]:
                tag[area, agent] = agent_tag
        for agent in range(agents):  # an agent frozen before its turn does not act
            row = area * agents + agent
            acts[agent] = tag[area, agent] == agent_tag
            shooting[area, agent] = acts[agent] and discrete[row, 0] > 0
            target = _shoot(scenery, area, agent, continuous[row, 2]) if shooting[area, agent] else -1
            if 0 <= target < agents:
                if tag[area, target] == agent_tag:
                    thaws_after[area, target] = tick + _FROZEN_TICKS
                tag[area, target] = frozen_tag
        for agent in range(agents):
            row = area * agents + agent
            yaw, braked = scenery.yaw[area, agent], 0.75 if shooting[area, agent] else 1.0
            gain = 0.0 if not acts[agent] else _SPEED / 2 if shooting[area, agent] else _SPEED
            forward, right = _clip(continuous[row, 0]), _clip(continuous[row, 1])
            push[0, area, agent] = gain * (sin(yaw) * forward + cos(yaw) * right)
            push[1, area, agent] = gain * (cos(yaw) * forward - sin(yaw) * right)
            speed_square = 0.0
            for axis in range(3):
                velocity[axis, area, agent] *= braked
                speed_square += velocity[axis, area, agent] ** 2
            if speed_square > _TOP_SPEED**2:
                for axis in range(3):
                    velocity[axis, area, agent] *= 0.95
            if acts[agent]:
                scenery.yaw[area, agent] = _turned(yaw, continuous[row, 2])


@inner_kernel
def _clip(action: float) -> float:
    return min(max(float(action), -1.0), 1.0)


@inner_kernel
def _turned(yaw: float, action: float) -> float:
    """Return the yaw after a tick of an action; positive actions turn left."""
    if abs(action) <= _LEAST_TURN:
        return yaw
    return yaw - _TURN if action > 0 else yaw + _TURN


@inner_kernel
def _shoot(scenery: Scenery, area: int, agent: int, turn: float) -> int:
    """Return the index of the thing that an agent's laser hits, after its action has turned it; -1 for none."""
    yaw = _turned(scenery.yaw[area, agent], turn)
    center = scenery.center[0, area, agent], scenery.center[1, area, agent], scenery.center[2, area, agent]
    _, target = first_hit(
        scenery, area, center, (_LASER_LENGTH * sin(yaw), 0.0, _LASER_LENGTH * cos(yaw)), _LASER_RADIUS
    )
    return target


@kernel
def _eat(
    center: Array, half: Array, yaw: Array, velocity: Array, food: Array, food_velocity: Array, reward: Array
) -> Array:
    """Give rewards for food that agents touch, and apply the push to both.

    :return: Eaten food, bool (areas, food).
    """
    areas, pieces = food.shape[1:]
    eaten = np.zeros((areas, pieces), np.bool_)
    agents = len(reward) // areas
    change, food_change = np.empty((3, agents)), np.empty((3, pieces))
    for area in range(areas):
        change[:] = 0
        food_change[:] = 0
        for agent in range(agents):
            turn_cos, turn_sin = cos(yaw[area, agent]), sin(yaw[area, agent])
            reach = _FOOD_RADIUS + _CONTACT_DISTANCE
            for piece in range(pieces):
                x, z = food[0, area, piece] - center[0, area, agent], food[2, area, piece] - center[2, area, agent]
                far = sqrt(2) * half[0, area, agent] + reach
                if abs(x) >= far or abs(z) >= far:
                    continue
                side = _beyond(turn_cos * x - turn_sin * z, half[0, area, agent])
                up = _beyond(food[1, area, piece] - center[1, area, agent], half[1, area, agent])
                ahead = _beyond(turn_sin * x + turn_cos * z, half[2, area, agent])
                distance = sqrt(side * side + up * up + ahead * ahead)
                if distance >= reach:
                    continue
                eaten[area, piece] = True
                reward[area * agents + agent] += _FOOD_REWARD[piece]
                normal = turn_cos * side + turn_sin * ahead, up, turn_cos * ahead - turn_sin * side
                approach = 0.0
                for axis in range(3):
                    speed = velocity[axis, area, agent] - food_velocity[axis, area, piece]
                    approach += speed * normal[axis] / max(distance, 1e-9)
                impulse = max(approach, 0.0) / (1 / _AGENT_MASS + 1 / _FOOD_MASS) / max(distance, 1e-9)
                for axis in range(3):
                    change[axis, agent] -= impulse * normal[axis] / _AGENT_MASS
                    food_change[axis, piece] += impulse * normal[axis] / _FOOD_MASS
        for axis in range(3):
            velocity[axis, area, :agents] += change[axis]
            food_velocity[axis, area] += food_change[axis]
    return eaten


@inner_kernel
def _beyond(place: float, half: float) -> float:
    """Return how far a position is beyond the nearer end of an interval around 0; 0 within it."""
    return place - min(max(place, -half), half)


@inner_kernel
def _roll(food: Array, velocity: Array, spin: Array) -> None:
    """Apply one tick to the food: it falls, rolls, stops at walls, and passes half of its speed on to what it hits."""
    limit = _HALF_ARENA - _FOOD_RADIUS
    areas, pieces = food.shape[1:]
    for area in range(areas):
        for piece in range(pieces):
            gap = food[1, area, piece] - _FOOD_RADIUS
            fall = velocity[1, area, piece] - _GRAVITY * TICK
            stop = max(-max(gap, 0.0) / TICK - fall, 0.0) if gap < _CONTACT_DISTANCE else 0.0
            velocity[1, area, piece] = fall + stop
            rolling = sqrt(spin[0, area, piece] ** 2 + spin[1, area, piece] ** 2)
            share = min(1.0, _MAX_ROLLING / max(rolling, 1e-9))
            for axis in range(2):
                spin[axis, area, piece] *= share
            slip_x, slip_z = (
                velocity[0, area, piece] - spin[0, area, piece],
                velocity[2, area, piece] - spin[1, area, piece],
            )
            share = min(_ROLLING, FRICTION * stop / max(sqrt(slip_x * slip_x + slip_z * slip_z), 1e-9))
            for axis, slip in ((0, slip_x), (1, slip_z)):
                velocity[2 * axis, area, piece] -= share * slip
                spin[axis, area, piece] += share * slip / _SPHERE_INERTIA
                spin[axis, area, piece] *= 1 - _ANGULAR_DRAG * TICK
        _collide(food[:, area], velocity[:, area])
        for piece in range(pieces):
            for axis in range(3):
                food[axis, area, piece] += velocity[axis, area, piece] * TICK
            food[1, area, piece] = max(food[1, area, piece], _FOOD_RADIUS)
            for axis in (0, 2):
                if abs(food[axis, area, piece]) > limit:
                    velocity[axis, area, piece] = 0
                    food[axis, area, piece] = min(max(food[axis, area, piece], -limit), limit)


@kernel
def _collide(food: Array, velocity: Array) -> None:
    """Apply contacts of moving food with other food of an area: without bounce, and separating overlaps."""
    pieces = food.shape[1]
    moving = np.zeros(pieces, np.bool_)
    for piece in range(pieces):
        moving[piece] = max(abs(velocity[0, piece]), abs(velocity[1, piece]), abs(velocity[2, piece])) > _RESTING
    if not moving.any():
        return
    change, shift = np.zeros((3, pieces)), np.zeros((3, pieces))
    for first in np.flatnonzero(moving):
        for second in range(pieces):
            if moving[second] and second <= first:
                continue  # each pair once
            x, y, z = (
                food[0, second] - food[0, first],
                food[1, second] - food[1, first],
                food[2, second] - food[2, first],
            )
            square = x * x + y * y + z * z
            if square >= (2 * _FOOD_RADIUS) ** 2 or square == 0:
                continue
            distance = sqrt(square)
            normal = x / distance, y / distance, z / distance
            approach = 0.0
            for axis in range(3):
                approach += (velocity[axis, first] - velocity[axis, second]) * normal[axis]
            for axis in range(3):
                half = max(approach, 0.0) / 2 * normal[axis]
                change[axis, first] -= half
                change[axis, second] += half
                half = (2 * _FOOD_RADIUS - distance) / 2 * normal[axis]
                shift[axis, first] -= half
                shift[axis, second] += half
    velocity += change
    food += shift

"""DungeonEscape: one of three agents dies to stop a dragon, and another one takes the dragon's key to the door."""

from __future__ import annotations

from math import atan2, hypot

import numpy as np

from unity_gym.scenes.academy import Academy
from unity_gym.scenes.agents import Agents
from unity_gym.scenes.bodies import CONTACT_DISTANCE, TICK, Bodies
from unity_gym.scenes.drawing import BLACK, BLUE, FLOOR, GREEN, ORANGE, PURPLE, RED, WALL, WHITE, YELLOW, Canvas
from unity_gym.scenes.kernels import inner_kernel, kernel
from unity_gym.scenes.movement import SEVEN_MOVES, Walkers, spawn
from unity_gym.scenes.scene import Scene
from unity_gym.scenes.sensors.rays import RayPerceptionSensor
from unity_gym.scenes.sensors.rigid_body import RigidBodySensor
from unity_gym.scenes.sensors.sensor import StackingSensor, VectorSensor
from unity_gym.scenes.shapes import Shapes, box, separation
from unity_gym.specs import Array

_AGENTS = 3  # per platform
_TAGS = ("wall", "agent", "dragon", "key", "lock", "portal")
_WALLS = ("right", "left", "far", "near")
_PILLARS = tuple(f"pillar {i}" for i in range(4))
_SOLID_PILLARS = tuple(f"foot of pillar {i}" for i in range(4))
_AGENT_NAMES = tuple(f"agent {i}" for i in range(_AGENTS))
_SOLIDS = ("dragon", "tombstone", "foot of tombstone", "lock", "portal", *_SOLID_PILLARS, *_WALLS)
_NAMES = (*_AGENT_NAMES, "key", "key on dragon", *_PILLARS, *_SOLIDS)
_NAMED_TAGS = (
    *["agent"] * _AGENTS,
    *["key"] * 2,
    *["wall"] * len(_PILLARS),
    *["dragon", "wall", "wall", "lock", "portal"],
    *["wall"] * (len(_SOLID_PILLARS) + len(_WALLS)),
)
_DRAGON, _TOMBSTONE, _FOOT, _LOCK, _PORTAL, _KEY, _DRAGON_KEY = (
    _NAMES.index(name)
    for name in ("dragon", "tombstone", "foot of tombstone", "lock", "portal", "key", "key on dragon")
)
_AWAY = 1000.0  # m; position of absent things
_CLEARANCE = 2.5  # m around a starting position
_MAX_TICKS = 15000
_DRAGON_START = 8.0  # m from the middle
_DRAGON_SPEEDS = 1.0, 7.0  # m/s
_TARGET = 11.58, -11.59  # of the dragon, x and z
_BEFORE_DRAGON, _NEXT_TO_DRAGON = 0.939, 0.186  # m from its middle to the key that it carries, ahead and to the right


class DungeonEscape(Scene):
    """Twelve platforms of three agents, each a group.

    Only opening the door gives a reward: a group reward of 1 for each agent that is alive. An agent that touches the
    dragon dies with it, and the dragon's key remains there. An agent that touches the portal dies, too. If it is the
    last one or has the key, or if the dragon reaches the portal, the episode ends. If the dragon eats the last agent,
    as in Unity nothing happens until 15000 ticks are over.

    State: `shapes` and `bodies`; `has_key` (bool, areas × agents), `dragon_speed` (m/s) and `ticks` (areas). A platform
    is stored as seen from above with its door at the top (+z) and its portal in the lower right corner. Unity rotates
    it by right angles, but not the position of the dragon, which therefore starts in one of four positions.
    """

    default_areas = 12

    def __init__(self, academy: Academy, areas: int) -> None:
        super().__init__(academy, areas)
        self.shapes = self._build(areas)
        self.bodies = Bodies(self.shapes, [10.0] * _AGENTS, [4.0] * _AGENTS, _SOLIDS, gravity=14.715)
        academy.parameters.watch("gravity", self.bodies.set_gravity)
        self.walkers = Walkers(self.bodies, _AGENTS)
        self.has_key = np.zeros((areas, _AGENTS), bool)
        self.dragon_speed = np.zeros(areas)
        self.ticks = np.zeros(areas, np.int64)
        count = areas * _AGENTS
        rays = RayPerceptionSensor(
            "RayPerceptionSensor",
            self.shapes,
            self.walkers.pose,
            _TAGS,
            rays_per_direction=7,
            max_degrees=60,
            length=40,
        )
        self.agents = Agents(
            academy,
            count,
            "DungeonEscape",
            [
                RigidBodySensor(self.walkers.pose, self.walkers.velocity),
                StackingSensor(rays, 3, count),
                VectorSensor("VectorSensor_size1", 1, lambda rows: self.has_key.reshape(-1, 1)[rows]),
            ],
            SEVEN_MOVES,
            act=lambda rows: self.walkers.move(rows, self.agents.discrete[rows, 0]),
            start_episode=self._start_episode,
            decision_period=5,
        )
        self._groups = np.repeat([academy.new_group() for _ in range(areas)], _AGENTS)
        self.agents.group_id[:] = self._groups
        self._start(np.arange(areas))

    def _build(self, areas: int) -> Shapes:
        shapes = Shapes(areas, _NAMES, _NAMED_TAGS)
        shapes.half[:, :, :_AGENTS] = 0.5
        shapes.place("dragon", (-0.75, 0, -0.75), (0.75, 1.5, 0.75))
        shapes.place("tombstone", (-0.525, 0, -0.165), (0.525, 1.42, 0.165))
        shapes.place("foot of tombstone", (-0.605, 0, -0.26), (0.605, 0.44, 0.26))
        shapes.place("key", (-0.605, 0.52, -0.09), (0.605, 0.98, 0.09))
        shapes.place("key on dragon", (-0.605, 0.195, -0.09), (0.605, 0.651, 0.09))
        shapes.place("lock", (-1.5, 0.085, 12.065), (1.5, 2.685, 13.135))
        shapes.place("portal", (9.485, -0.535, -12.65), (14.175, 4.195, -10.89), yaw=-np.pi / 4)
        shapes.place("right", (12.5, 0, -12.5), (13, 5, 12.5))
        shapes.place("left", (-13, 0, -12.5), (-12.5, 5, 12.5))
        shapes.place("far", (-12.5, 0, 12.5), (12.5, 5, 13))
        shapes.place("near", (-12.5, 0, -13), (12.5, 5, -12.5))
        places = [(x, z) for x in (-4.5, 4.5) for z in (-4, 4)]
        for pillar, foot, (x, z) in zip(_PILLARS, _SOLID_PILLARS, places, strict=True):
            # Rays hit the round pillar or, slightly earlier, its low square foot, into which agents run.
            shapes.place(pillar, (x, 0, z), (x, 2.7, z))
            shapes.rounding[:, shapes.index(pillar)] = 0.8
            shapes.place(foot, (x - 0.8475, 0, z - 0.8475), (x + 0.8475, 3.46, z + 0.8475))
            shapes.visible[:, shapes.index(foot)] = False
        for thing in (*range(_AGENTS), _DRAGON, _TOMBSTONE, _FOOT, _KEY, _DRAGON_KEY):
            self._remove(shapes, np.arange(areas), thing)
        return shapes

    @staticmethod
    def _remove(shapes: Shapes, areas: Array, thing: Array | int) -> None:
        shapes.visible[areas, thing] = False
        shapes.center[::2, areas, thing] = _AWAY + 10 * np.asarray(thing)  # apart from each other

    def _start_episode(self, rows: Array) -> None:
        self.has_key[self.walkers.place(rows)] = False

    def _start(self, areas: Array) -> None:
        """Place agents, restore dead ones, and start a dragon, in areas (int, k)."""
        rng, shapes, n = self.academy.rng, self.shapes, len(areas)
        for column in range(_AGENTS):
            spawn(shapes, rng, areas, column, _CLEARANCE)
        shapes.yaw[areas, :_AGENTS] = rng.uniform(0, 2 * np.pi, (n, _AGENTS))
        shapes.visible[areas, :_AGENTS] = True
        self.bodies.velocity[:, areas] = 0
        self.has_key[areas] = False
        members = self._members(areas)
        inactive = members[~self.agents.enabled[members]]
        if len(inactive):
            self.agents.enable(inactive)
            self.agents.group_id[inactive] = self._groups[inactive]
        self._remove(shapes, areas, _TOMBSTONE)
        self._remove(shapes, areas, _FOOT)
        self._remove(shapes, areas, _KEY)
        quarter = rng.integers(4, size=n) * np.pi / 2
        start = _DRAGON_START * np.stack([np.sin(quarter), np.cos(quarter)])
        shapes.center[::2, areas, _DRAGON] = start
        shapes.visible[areas, _DRAGON] = shapes.visible[areas, _DRAGON_KEY] = True
        self.dragon_speed[areas] = rng.uniform(*_DRAGON_SPEEDS, n)
        self._walk_dragons(0)
        self.ticks[areas] = 0

    def _members(self, areas: Array) -> Array:
        """Return the rows of the agents of areas."""
        return (areas[:, np.newaxis] * _AGENTS + np.arange(_AGENTS)).reshape(-1)

    def _end(self, areas: Array, interrupted: bool = False) -> None:
        members = self._members(areas)
        self.agents.end_episode(members[self.agents.enabled[members]], interrupted)
        self._start(areas)

    def _walk_dragons(self, time: float) -> None:
        """Move dragons straight to their portals, with their keys in front of them."""
        shapes = self.shapes
        _walk(shapes.center, shapes.yaw, shapes.visible, self.dragon_speed, time)

    def after_step(self) -> None:
        """End episodes at the time limit and move the dragons."""
        self.ticks += 1
        over = np.flatnonzero(self.ticks >= _MAX_TICKS)
        if len(over):
            self._end(over, interrupted=True)
        self._walk_dragons(TICK)

    def simulate(self) -> None:
        """Move the agents by a tick, then resolve contacts with keys, dragons, portals and locks."""
        shapes = self.shapes
        boxes = shapes.center, shapes.half, shapes.yaw, shapes.visible
        picked = _overlaps_key(*boxes)
        self.bodies.simulate()
        escaped = _reaches_portal(*boxes)
        touches = {thing: self.bodies.entered_by(_AGENT_NAMES, thing) for thing in ("dragon", "portal", "lock")}
        if not (picked.any() or escaped.any() or any(entered.any() for entered in touches.values())):
            return
        self.has_key |= picked
        self._remove(shapes, np.flatnonzero(picked.any(axis=1)), _KEY)
        eaten, portal = touches["dragon"], touches["portal"]
        if eaten.any():
            self._feed(eaten)
            escaped &= shapes.visible[:, _DRAGON]
        alive = self.agents.enabled.reshape(-1, _AGENTS)
        portal = portal & alive
        last = alive.sum(axis=1) == portal.sum(axis=1)
        ends = (portal & self.has_key).any(axis=1) | (portal.any(axis=1) & last) | escaped
        opened = (touches["lock"] & self.has_key & alive).any(axis=1)
        self.agents.group_reward += np.repeat(opened & ~ends, _AGENTS) * (self.agents.group_id != 0)
        killed = np.flatnonzero(portal & ~(ends | opened)[:, np.newaxis])
        if len(killed):
            self._kill(killed)
        ended = np.flatnonzero(ends | opened)
        if len(ended):
            self._end(ended)

    def _feed(self, eaten: Array) -> None:
        """Remove agents (bool, areas × agents) and their dragons; a key and a tombstone remain."""
        shapes = self.shapes
        area, agent = np.nonzero(eaten)
        for stone in (_TOMBSTONE, _FOOT):
            shapes.center[::2, area, stone] = shapes.center[::2, area, agent]
            shapes.yaw[area, stone] = shapes.yaw[area, agent]
            shapes.visible[area, stone] = True
        yaw = shapes.yaw[area, _KEY] = shapes.yaw[area, _DRAGON]
        right = np.stack([np.cos(yaw), -np.sin(yaw)])  # the dropped key's box is to the left of the dragon
        shapes.center[::2, area, _KEY] = shapes.center[::2, area, _DRAGON] - _NEXT_TO_DRAGON * right
        shapes.visible[area, _KEY] = True
        self._remove(shapes, area, _DRAGON)
        self._remove(shapes, area, _DRAGON_KEY)
        self._kill(np.flatnonzero(eaten))

    def _kill(self, rows: Array) -> None:
        """Send the last observations of the agents and remove them."""
        self.agents.disable(rows)
        area, agent = self.walkers.place(rows)
        self._remove(self.shapes, area, agent)
        self.bodies.velocity[:, area, agent] = 0

    def render(self, area: int) -> Array:
        """Return an image from above: blue agents (keys yellow), red dragon, green door, purple portal."""
        shapes = self.shapes
        canvas = Canvas(-13, -13, 13, 13, color=WALL)
        canvas.rectangle(0, 0, 12.5, 12.5, FLOOR)
        for x, _, z in shapes.center[:, area, shapes.index(_SOLID_PILLARS[0]) :].T[: len(_PILLARS)]:
            canvas.rectangle(x, z, 0.8475, 0.8475, WALL)
        colors = {_LOCK: GREEN, _PORTAL: PURPLE, _TOMBSTONE: BLACK, _KEY: YELLOW, _DRAGON: RED, _DRAGON_KEY: ORANGE}
        colors |= {agent: YELLOW if self.has_key[area, agent] else BLUE for agent in range(_AGENTS)}
        for thing, color in colors.items():
            if shapes.visible[area, thing]:
                x, _, z = shapes.center[:, area, thing]
                half, yaw = shapes.half[:, area, thing], shapes.yaw[area, thing]
                canvas.rectangle(x, z, half[0], half[2], color, angle=-yaw)
                if thing < _AGENTS:
                    canvas.line(x, z, x + 0.35 * np.sin(yaw), z + 0.35 * np.cos(yaw), 0.2, WHITE)
        return canvas.image


@inner_kernel
def _walk(center: Array, yaw: Array, visible: Array, speed: Array, time: float) -> None:
    """Move dragons towards their portals, with the keys that they carry."""
    for area in range(len(speed)):
        if visible[area, _DRAGON]:
            x, z = _TARGET[0] - center[0, area, _DRAGON], _TARGET[1] - center[2, area, _DRAGON]
            distance = max(hypot(x, z), 1e-9)
            x, z = x / distance, z / distance
            center[0, area, _DRAGON] += x * speed[area] * time
            center[2, area, _DRAGON] += z * speed[area] * time
            center[0, area, _DRAGON_KEY] = center[0, area, _DRAGON] + x * _BEFORE_DRAGON + z * _NEXT_TO_DRAGON
            center[2, area, _DRAGON_KEY] = center[2, area, _DRAGON] + z * _BEFORE_DRAGON - x * _NEXT_TO_DRAGON
            yaw[area, _DRAGON] = yaw[area, _DRAGON_KEY] = atan2(x, z)


@kernel
def _overlaps_key(center: Array, half: Array, yaw: Array, visible: Array) -> Array:
    """Return which agents overlap a key on the ground, bool (areas, agents); of several, only the first."""
    overlaps = np.zeros((len(visible), _AGENTS), np.bool_)
    for area in range(len(visible)):
        if visible[area, _KEY]:
            key = box(center, half, yaw, area, _KEY)
            for agent in range(_AGENTS):
                if separation(key, box(center, half, yaw, area, agent))[0] < 0:
                    overlaps[area, agent] = True
                    break
    return overlaps


@kernel
def _reaches_portal(center: Array, half: Array, yaw: Array, visible: Array) -> Array:
    """Return whether dragons touch their portals, bool (areas)."""
    reaches = np.zeros(len(visible), np.bool_)
    for area in range(len(visible)):
        if visible[area, _DRAGON]:
            dragon, portal = box(center, half, yaw, area, _DRAGON), box(center, half, yaw, area, _PORTAL)
            reaches[area] = separation(dragon, portal)[0] < CONTACT_DISTANCE
    return reaches

"""SoccerTwos and StrikersVsGoalie: two teams play football; almost all rewards are for goals."""

from __future__ import annotations

from functools import partial
from math import cos, sin
from typing import ClassVar, NamedTuple, TypeAlias

import numpy as np

from unity_gym.scenes import pitch
from unity_gym.scenes.academy import Academy
from unity_gym.scenes.agents import Agents
from unity_gym.scenes.drawing import BLACK, BLUE, FLOOR, PURPLE, WALL, WHITE, Canvas
from unity_gym.scenes.kernels import inner_kernel
from unity_gym.scenes.pitch import Pitch
from unity_gym.scenes.scene import Scene
from unity_gym.scenes.sensors.rays import Pose, RayPerceptionSensor
from unity_gym.scenes.sensors.sensor import Sensor, StackingSensor
from unity_gym.scenes.shapes import Shapes
from unity_gym.specs import ActionSpec, Array

_SPEED = 2.0  # m/s that a push of 1 adds per tick
_TURN = float(np.radians(2))  # per tick
_SIGNS = np.array([0.0, 1.0, -1.0])  # direction of a branch index
_START = 5.0  # m; starting positions are shifted forward or backward by up to this distance
_BALL_START = 2.5  # m from the middle, along either axis
_LOOKING = np.radians([80, 100])  # yaw at the start, to the opponents' goal
_MAX_TICKS = 5000
_TOUCH = 0.2  # reward of a touch, times the parameter ball_touch
_RAY_HEIGHT = 0.5  # m above the players' centers
_COLORS = ("blue", "purple")
_Point: TypeAlias = tuple[float, float, float]


class Fan(NamedTuple):
    """A ray sensor.

    Name, tags, number of rays on each side of the middle one, angle to the outermost rays (degrees), and whether it
    looks backward.
    """

    name: str
    tags: tuple[str, ...]
    rays: int
    degrees: float
    backward: bool = False


class Team(NamedTuple):
    """The properties of the players of a team.

    Speeds are in pushes of 2 m/s per tick; `existence` is the reward per tick; `places` are the starting positions
    (x, z), which vary by some meters along x.
    """

    behavior: str
    fans: tuple[Fan, ...]
    places: tuple[tuple[float, float], ...]
    forward: float = 1.0
    aside: float = 0.3
    existence: float = 0.0
    always_kicks: bool = False


class Soccer(Scene):
    """Football on pitches with two goals.

    A goal gives the scoring team a reward of 1, reduced by the share of 5000 ticks that have passed, and the other team
    -1. It ends the episode of both.

    State: `shapes`, which start with the players (blue first) and then the ball, `pitch`, and `ticks` (areas). A reset
    that the client commands changes no positions, as in Unity.
    """

    teams: ClassVar[tuple[Team, Team]]
    blocked: ClassVar[bool] = False

    def __init__(self, academy: Academy, areas: int) -> None:
        super().__init__(academy, areas)
        numbers = [len(team.places) for team in self.teams]
        self._columns = (slice(0, numbers[0]), slice(numbers[0], sum(numbers)))
        self._ball = sum(numbers)
        self.shapes = self._build(areas)
        self.pitch = Pitch(self.shapes.center[::2, :, : self._ball + 1], self.blocked)
        self.ticks = np.zeros(areas, np.int64)
        self._power = np.zeros((areas, self._ball), bool)  # whether a touch of the ball kicks it
        self._touch_pay = np.zeros((areas, self._ball))
        self._has_started = False
        # Unity's order of the teams is unknown. PettingZoo's api_test fails if the first agent has a dict
        # observation and another one does not, so the goalie, which has one sensor, comes first.
        purple, blue = self._agents(1), self._agents(0)
        self.agents = (blue, purple)
        for area in range(areas):
            for agents, number in zip(self.agents, numbers, strict=True):
                agents.group_id[area * number : (area + 1) * number] = academy.new_group()
        academy.parameters.watch("gravity", self._set_gravity)
        self._start(np.arange(areas))

    def _set_gravity(self, value: float) -> None:
        self.pitch.gravity = value

    def _build(self, areas: int) -> Shapes:
        """Return the players, the ball, and the surroundings of the pitch."""
        names = [
            f"{color} {i}" for color, team in zip(_COLORS, self.teams, strict=True) for i in range(len(team.places))
        ]
        tags = [f"{name.split()[0]}Agent" for name in names]
        boxes: list[tuple[str, _Point, _Point, float]] = []  # tag, low, high, yaw
        for sign, color, front, inside in zip((-1, 1), _COLORS, pitch.NET_FRONT, pitch.NET_BACK, strict=True):
            goal, near, far, back = f"{color}Goal", sign * front, sign * 17.5, sign * inside
            for z in (-4.25, 4.15):
                boxes.append((goal, (min(near, far), 0, z), (max(near, far), 3.84, z + 0.1), 0))
            boxes.append((goal, (min(back, far), 0, -4.15), (max(back, far), 3.84, 4.15), 0))
            near, far = sign * pitch.SIDE, sign * (pitch.SIDE + 0.46)
            boxes.append(("wall", (-15.5, 0, min(near, far)), (15.5, 4.02, max(near, far)), 0))
            for side in (-1, 1):
                x, z, (length, thickness) = sign * pitch.CORNER[0], side * pitch.CORNER[1], pitch.CORNER_HALF
                turned = sign * side * np.radians(60)
                boxes.append(("wall", (x - length, 0, z - thickness), (x + length, 4.02, z + thickness), turned))
        if self.blocked:
            boxes.append(("wall", (-16.01, 0, -3.9575), (-pitch.BLOCKED, 3.53, 3.9575), 0))
        around = [f"{tag} {i}" for i, (tag, *_) in enumerate(boxes)]
        shapes = Shapes(areas, [*names, "ball", *around], [*tags, "ball", *(tag for tag, *_ in boxes)])
        for name, (_, low, high, yaw) in zip(around, boxes, strict=True):
            shapes.place(name, low, high, yaw)
        shapes.rounding[:, : self._ball] = pitch.PLAYER_RADIUS
        shapes.rounding[:, self._ball] = pitch.BALL_RADIUS
        shapes.center[1, :, : self._ball + 1] = pitch.BALL_HEIGHT
        return shapes

    def _agents(self, index: int) -> Agents:
        team, columns = self.teams[index], self._columns[index]
        number = len(team.places)
        count = self.areas * number

        def place(rows: Array) -> tuple[Array, Array]:
            return rows // number, columns.start + rows % number

        def pose(backward: bool, rows: Array) -> Pose:
            area, column = place(rows)
            yaw = self.shapes.yaw[area, column]
            return Pose(area, self.shapes.center[:, area, column], yaw + np.pi if backward else yaw)

        sensors: list[Sensor] = [
            StackingSensor(
                RayPerceptionSensor(
                    fan.name,
                    self.shapes,
                    partial(pose, fan.backward),
                    fan.tags,
                    rays_per_direction=fan.rays,
                    max_degrees=fan.degrees,
                    length=20,
                    start_offset=_RAY_HEIGHT,
                    end_offset=_RAY_HEIGHT,
                ),
                3,
                count,
            )
            for fan in team.fans
        ]
        return Agents(
            self.academy,
            count,
            team.behavior,
            sensors,
            ActionSpec(0, (3, 3, 3)),
            act=lambda rows: self._act(index, rows),
            start_episode=lambda rows: self._start_episode(*place(rows)),
            team=index,
            decision_period=5,
        )

    def _start_episode(self, area: Array, column: Array) -> None:
        self._touch_pay[area, column] = _TOUCH * self.academy.parameters.values("ball_touch", 0, len(area))

    def _start(self, areas: Array) -> None:
        """Place players and balls in areas (int, k) and reset their tick counts."""
        rng, shapes, n = self.academy.rng, self.shapes, len(areas)
        for team, columns, sign in zip(self.teams, self._columns, (1, -1), strict=True):
            places = np.array(team.places)
            size = (n, len(places))
            shapes.center[0, areas, columns] = places[:, 0] + rng.uniform(-_START, _START, size)
            shapes.center[2, areas, columns] = places[:, 1]
            shapes.yaw[areas, columns] = sign * rng.uniform(_LOOKING[0], _LOOKING[1], size)
        shapes.center[::2, areas, self._ball] = rng.uniform(-_BALL_START, _BALL_START, (2, n))
        self.pitch.clear(areas)
        self.ticks[areas] = 0

    def _act(self, index: int, rows: Array) -> None:
        team, agents = self.teams[index], self.agents[index]
        first, number = self._columns[index].start, len(team.places)
        speeds = _SPEED * team.forward, _SPEED * team.aside
        state = self.shapes.yaw, self.pitch.velocity, self._power
        _move(rows, agents.discrete, first, number, speeds, team.always_kicks, *state)
        if team.existence:
            agents.reward[rows] += team.existence

    def after_step(self) -> None:
        """End matches at the time limit."""
        self.ticks += 1
        (over,) = (self.ticks >= _MAX_TICKS).nonzero()
        if len(over):
            self._end(over, (0, 1), interrupted=True)

    def _end(self, areas: Array, order: tuple[int, int], interrupted: bool) -> None:
        for index in order:
            number = len(self.teams[index].places)
            members = (areas[:, np.newaxis] * number + np.arange(number)).reshape(-1)
            self.agents[index].end_episode(members, interrupted)
        self._start(areas)

    def simulate(self) -> None:
        """Move players and balls by a tick; touches kick the ball, and a goal ends the match."""
        if not self.pitch.simulate():
            return
        struck, goals = self.pitch.struck, self.pitch.in_goal
        if struck.any():
            self.pitch.kick(struck & self._power)
            pay = struck * self._touch_pay
            for agents, columns in zip(self.agents, self._columns, strict=True):
                agents.reward += pay[:, columns].reshape(-1)
        scored = np.flatnonzero(goals.any(axis=1))
        if len(scored):
            for index, conceded in enumerate(goals.T):
                pay = np.where(conceded, -1.0, 1 - self.ticks / _MAX_TICKS) * goals.any(axis=1)
                self.agents[index].group_reward += np.repeat(pay, len(self.teams[index].places))
            self._end(scored, (1, 0), interrupted=False)

    def render(self, area: int) -> Array:
        """Return an image from above: blue and purple players with lines in their directions, goals left and right."""
        shapes = self.shapes
        canvas = Canvas(-18, -9, 18, 9, pixels=540)
        canvas.rectangle(0, 0, pitch.GOAL_LINE, pitch.SIDE, FLOOR)
        for x, color in ((-16.5, BLUE), (16.5, PURPLE)):
            canvas.rectangle(x, 0, 1, pitch.MOUTH, color)
        canvas.line(0, -pitch.SIDE, 0, pitch.SIDE, 0.1, WHITE)
        canvas.ring(0, 0, 2.5, 0.1, WHITE)
        for thing in range(self._ball + 1, len(shapes.names)):
            x, _, z = shapes.center[:, area, thing]
            half = shapes.half[:, area, thing]
            if shapes.tags[shapes.tag[area, thing]] == "wall":
                canvas.rectangle(x, z, half[0], half[2], WALL, angle=-shapes.yaw[area, thing])
        for columns, color in zip(self._columns, (BLUE, PURPLE), strict=True):
            for (x, z), yaw in zip(shapes.center[::2, area, columns].T, shapes.yaw[area, columns], strict=True):
                canvas.disc(x, z, pitch.PLAYER_RADIUS, color)
                canvas.line(x, z, x + 0.45 * np.sin(yaw), z + 0.45 * np.cos(yaw), 0.2, WHITE)
        x, _, z = shapes.center[:, area, self._ball]
        canvas.disc(x, z, pitch.BALL_RADIUS, WHITE)
        canvas.ring(x, z, pitch.BALL_RADIUS - 0.1, 0.2, BLACK)
        return canvas.image


@inner_kernel
def _move(
    rows: Array,
    actions: Array,
    first: int,
    number: int,
    speeds: tuple[float, float],
    always_kicks: bool,
    yaw: Array,
    velocity: Array,
    power: Array,
) -> None:
    """Apply one tick of actions of the `number` players of a team, whose indices start at `first`.

    :param rows: Rows of the agents in `actions`, int (k).
    :param speeds: Speeds that a push adds ahead and sideways, in m/s.
    """
    for row in rows:
        area, column = row // number, first + row % number
        forward, aside, turn = actions[row, 0], actions[row, 1], actions[row, 2]
        right = speeds[1] * _SIGNS[aside]
        ahead = 0.0 if aside > 0 else speeds[0] * _SIGNS[forward]
        turn_sin, turn_cos = sin(yaw[area, column]), cos(yaw[area, column])
        velocity[0, area, column] += ahead * turn_sin + right * turn_cos
        velocity[1, area, column] += ahead * turn_cos - right * turn_sin
        yaw[area, column] -= _TURN * _SIGNS[turn]
        power[area, column] = always_kicks or forward == 1


def _both_sides(color: str, tags: tuple[str, ...]) -> tuple[Fan, ...]:
    """Return eleven rays ahead and three behind."""
    name = f"{color.capitalize()}RayPerceptionSensor"
    return Fan(name, tags, 5, 60), Fan(f"{name}Reverse", tags, 1, 45, backward=True)


def _sights(own: str, other: str) -> tuple[str, ...]:
    return "ball", f"{own}Goal", f"{other}Goal", "wall", f"{own}Agent", f"{other}Agent"


class SoccerTwos(Soccer):
    """One pitch with two players on each side."""

    default_areas = 1
    teams = (
        Team("SoccerTwos", _both_sides("blue", _sights("blue", "purple")), ((-8.19, 1.2), (-8.19, -1.2))),
        Team("SoccerTwos", _both_sides("purple", _sights("purple", "blue")), ((8.19, 1.2), (8.19, -1.2))),
    )


class StrikersVsGoalie(Soccer):
    """Eight pitches with two strikers (negative reward per tick) and a goalie (positive one). One goal is walled up."""

    default_areas = 8
    blocked = True
    teams = (
        Team(
            "Striker",
            _both_sides("blue", ("ball", "purpleGoal", "wall", "blueAgent", "purpleAgent")),
            ((-8.19, 1.2), (-8.19, -1.2)),
            forward=1.3,
            existence=-1 / _MAX_TICKS,
        ),
        Team(
            "Goalie",
            (Fan("PurpleGoalieRayPerceptionSensor", ("ball", "purpleGoal", "wall", "blueAgent"), 20, 180),),
            ((9.0, 0.0),),
            aside=1.0,
            existence=1 / _MAX_TICKS,
            always_kicks=True,
        ),
    )

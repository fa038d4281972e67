"""CooperativePushBlock: three cubes push blocks of three sizes onto the goal, the larger ones together."""

from __future__ import annotations

import numpy as np

from unity_gym.scenes.academy import Academy
from unity_gym.scenes.agents import Agents
from unity_gym.scenes.bodies import Bodies
from unity_gym.scenes.drawing import BLUE, FLOOR, GREEN, ORANGE, RED, WALL, WHITE, YELLOW, Canvas
from unity_gym.scenes.kernels import kernel
from unity_gym.scenes.movement import SEVEN_MOVES, Walkers, spawn
from unity_gym.scenes.scene import Scene
from unity_gym.scenes.sensors.grid import GridSensor
from unity_gym.scenes.sensors.rays import Pose
from unity_gym.scenes.sensors.rigid_body import RigidBodySensor
from unity_gym.scenes.shapes import Shapes, box, separation
from unity_gym.specs import Array

_AGENTS = 3  # per area
_TAGS = ("wall", "agent", "goal", "blockSmall", "blockLarge", "blockVeryLarge")
_WALLS = ("right", "left", "far", "near")
# Of the six blocks: the tag, the edge (m), the mass (kg) and the reward.
_BLOCK_TAGS = np.repeat(_TAGS[3:], 2).tolist()
_EDGES = np.repeat([1.0, 2.0, 3.0], 2)
_MASSES = np.repeat([10.0, 100.0, 150.0], 2)
_REWARDS = np.repeat([1.0, 2.0, 3.0], 2)
_HEIGHT = 0.75  # m, height of the blocks
_NAMES = (*(f"agent {i}" for i in range(_AGENTS)), *(f"block {i}" for i in range(len(_EDGES))), "goal", *_WALLS)
_BLOCKS = slice(_AGENTS, _AGENTS + len(_EDGES))
_GOAL = _NAMES.index("goal")
_AWAY = 1000.0  # m; position of the scored blocks
_VIEW = 10.0  # m from the agent to the middle of the grid, ahead
_CLEARANCE = 1.5  # m around a starting position
_MAX_TICKS = 5000
_COST = 0.5 / _MAX_TICKS


class CooperativePushBlock(Scene):
    """Four areas of three agents, each a group.

    All rewards are group rewards: 1, 2 or 3 per block, and -0.5 over 5000 ticks. A block in the goal disappears, and
    the last one ends the episode. One agent can push the 1 m blocks, two the 2 m blocks, and three the 3 m blocks.

    State: `shapes`, whose blocks are invisible once they are scored, `bodies`, and `ticks` of the episode (areas). An
    area is stored as seen from above with the goal at the bottom (-z). A reset that the client commands changes nothing
    here, as in Unity.
    """

    default_areas = 4

    def __init__(self, academy: Academy, areas: int) -> None:
        super().__init__(academy, areas)
        shapes = self.shapes = Shapes(areas, _NAMES, ["agent"] * _AGENTS + _BLOCK_TAGS + ["goal"] + ["wall"] * 4)
        shapes.half[:, :, :_AGENTS] = 0.5
        shapes.half[:, :, _BLOCKS] = np.stack([_EDGES, np.full(len(_EDGES), _HEIGHT), _EDGES])[:, np.newaxis] / 2
        shapes.place("goal", (-12.5, -0.53, -12.65), (12.5, 2.47, -8.35))
        # The corners belong to the walls on the right and left; agents see them in the grid.
        shapes.place("right", (12.5, -0.5, -13), (13, 4.5, 13))
        shapes.place("left", (-13, -0.5, -13), (-12.5, 4.5, 13))
        shapes.place("far", (-12.5, -0.5, 12.5), (12.5, 4.5, 13))
        shapes.place("near", (-12.5, -0.5, -13), (12.5, 4.5, -12.5))
        self.bodies = Bodies(
            shapes,
            [*[10.0] * _AGENTS, *_MASSES],
            [*[4.0] * _AGENTS, *[0.5] * len(_EDGES)],
            _WALLS,
            gravity=14.715,
            turning=_NAMES[_BLOCKS],
        )
        academy.parameters.watch("gravity", self.bodies.set_gravity)
        self.walkers = Walkers(self.bodies, _AGENTS)
        self.ticks = np.zeros(areas, np.int64)
        count = areas * _AGENTS
        self.agents = Agents(
            academy,
            count,
            "PushBlockCollab",
            [
                GridSensor(
                    "GridSensor", shapes, self._view, np.arange(count) % _AGENTS, _TAGS, size=20, half_height=0.5
                ),
                RigidBodySensor(self.walkers.pose, self.walkers.velocity),
            ],
            SEVEN_MOVES,
            act=lambda rows: self.walkers.move(rows, self.agents.discrete[rows, 0]),
            start_episode=lambda _: None,  # all agents of an area start together
            decision_period=5,
        )
        self.agents.group_id[:] = np.repeat([academy.new_group() for _ in range(areas)], _AGENTS)
        shapes.center[::2, :, : _BLOCKS.stop] = _AWAY
        self._start(np.arange(areas))

    def _view(self, rows: Array) -> Pose:
        area, position, yaw = self.walkers.pose(rows)
        return Pose(area, position + _VIEW * np.stack([np.sin(yaw), np.zeros(len(rows)), np.cos(yaw)]), yaw)

    def _start(self, areas: Array) -> None:
        """Place agents, then blocks, in areas (int, k) and reset their tick counts."""
        rng, shapes = self.academy.rng, self.shapes
        for column in range(_BLOCKS.stop):
            spawn(shapes, rng, areas, column, _CLEARANCE)
        shapes.yaw[areas, : _BLOCKS.stop] = rng.uniform(0, 2 * np.pi, (len(areas), _BLOCKS.stop))
        shapes.visible[areas] = True
        self.bodies.velocity[:, areas] = 0
        self.bodies.spin[areas] = 0
        self.ticks[areas] = 0

    def _end(self, areas: Array, interrupted: bool) -> None:
        if len(areas):
            members = (areas[:, np.newaxis] * _AGENTS + np.arange(_AGENTS)).reshape(-1)
            self.agents.end_episode(members, interrupted)
            self._start(areas)

    def after_step(self) -> None:
        """End episodes at the time limit and give the groups the reward of a step."""
        self.ticks += 1
        self._end(np.flatnonzero(self.ticks >= _MAX_TICKS), interrupted=True)
        self.agents.group_reward -= _COST  # counts for the new episode where one has just started

    def simulate(self) -> None:
        """Move the bodies by a tick; a block in the goal disappears and gives its group a reward."""
        shapes = self.shapes
        scored = _overlap_goal(shapes.center, shapes.half, shapes.yaw, shapes.visible)
        self.bodies.simulate()
        area, block = np.nonzero(scored)
        if not len(area):
            return
        column = _AGENTS + block
        self.agents.group_reward += np.repeat(scored @ _REWARDS, _AGENTS)
        self.shapes.visible[area, column] = False
        self.shapes.center[::2, area, column] = _AWAY + 10 * block  # apart from each other
        self.bodies.velocity[:, area, column] = 0
        self.bodies.spin[area, column] = 0
        self._end(np.flatnonzero(scored.any(axis=1) & ~self.shapes.visible[:, _BLOCKS].any(axis=1)), interrupted=False)

    def render(self, area: int) -> Array:
        """Return an image of an area from above."""
        shapes = self.shapes
        canvas = Canvas(-13, -13, 13, 13, color=WALL)
        canvas.rectangle(0, 0, 12.5, 12.5, FLOOR)
        canvas.rectangle(0, -10.425, 12.5, 2.075, GREEN)
        colors = [BLUE] * _AGENTS + np.repeat([YELLOW, ORANGE, RED], 2, axis=0).tolist()
        for thing, color in enumerate(colors):
            if shapes.visible[area, thing]:
                x, _, z = shapes.center[:, area, thing]
                half = shapes.half[0, area, thing]
                canvas.rectangle(x, z, half, half, color, angle=-shapes.yaw[area, thing])
        for agent in range(_AGENTS):
            x, _, z = shapes.center[:, area, agent]
            yaw = shapes.yaw[area, agent]
            canvas.line(x, z, x + 0.35 * np.sin(yaw), z + 0.35 * np.cos(yaw), 0.2, WHITE)
        return canvas.image


@kernel
def _overlap_goal(center: Array, half: Array, yaw: Array, visible: Array) -> Array:
    """Return which blocks overlap the goal, bool (areas, blocks)."""
    overlap = np.zeros((len(visible), len(_EDGES)), np.bool_)
    for area in range(len(visible)):
        for block in range(len(_EDGES)):
            thing = _AGENTS + block
            near = abs(center[2, area, _GOAL] - center[2, area, thing]) < half[2, area, _GOAL] + _EDGES[block]
            if visible[area, thing] and near:
                goal = box(center, half, yaw, area, _GOAL)
                overlap[area, block] = separation(box(center, half, yaw, area, thing), goal)[0] < 0
    return overlap

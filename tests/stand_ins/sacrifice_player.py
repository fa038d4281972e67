"""A player of one scene, in which a group of three wins only if one member sacrifices itself.

An episode has 6 decisions. With the third the dragon appears: if the first agent, which has the sword, then selects
`STRIKE`, both of them die. The agents that are left at the end get the group's reward: 1 if the dragon is dead, and
`SHARE` if it lives. An agent that dies gets no reward. All other actions have no effect.

Every agent observes its number and the decision, each one-hot, and whether the dragon is dead.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from stand_ins.scene_launcher import scene_launcher
from unity_gym.scenes.academy import Academy
from unity_gym.scenes.agents import Agents
from unity_gym.scenes.scene import Scene
from unity_gym.scenes.sensors import VectorSensor
from unity_gym.specs import ActionSpec, Array

MEMBERS, DECISIONS = 3, 6
DRAGON, STRIKE = 2, 2  # the decision at which the dragon appears, and the action that kills it
SHARE = 0.2


class Sacrifice(Scene):
    default_areas = 16

    def __init__(self, academy: Academy, areas: int) -> None:
        super().__init__(academy, areas)
        self.time = np.full(areas, -1)  # the decision of the episode, from 0
        self.is_slain = np.zeros(areas, bool)
        self.knights = Agents(
            academy,
            MEMBERS * areas,
            "Knight",
            [VectorSensor("view", MEMBERS + DECISIONS + 1, self.see)],
            ActionSpec(0, (3,)),
            act=self.act,
            start_episode=lambda _: None,
            decision_period=1,
        )
        self.area = self.knights.rows // MEMBERS
        self.group = np.array([academy.new_group() for _ in range(areas)])
        self.knights.group_id[:] = self.group[self.area]

    def see(self, rows: Array) -> Array:
        area = self.area[rows]
        number, time = np.eye(MEMBERS)[rows % MEMBERS], np.eye(DECISIONS)[self.time[area]]
        return np.concatenate([number, time, self.is_slain[area, np.newaxis]], 1)

    def act(self, rows: Array) -> None:
        has_sword = rows[(rows % MEMBERS == 0) & (self.time[self.area[rows]] == DRAGON)]
        strikes = has_sword[self.knights.discrete[has_sword, 0] == STRIKE]
        self.is_slain[self.area[strikes]] = True
        self.knights.disable(strikes)

    def before_step(self) -> None:
        self.time += 1

    def after_step(self) -> None:
        if self.time[0] < DECISIONS - 1:  # all episodes start and end together
            return
        living = np.flatnonzero(self.knights.enabled)
        self.knights.group_reward[living] += np.where(self.is_slain[self.area[living]], 1, SHARE)
        self.knights.end_episode(living)
        self.reset_environment()

    def reset_environment(self) -> None:
        self.time[:] = -1
        self.is_slain[:] = False
        dead = np.flatnonzero(~self.knights.enabled)
        self.knights.enable(dead)
        self.knights.group_id[dead] = self.group[self.area[dead]]

    def render(self, area: int) -> Array:  # noqa: ARG002
        return np.zeros((2, 2, 3), np.uint8)


def launcher(folder: Path) -> str:
    """Return the path of an executable, written into `folder`, that plays the scene."""
    return scene_launcher(__name__, folder, "Sacrifice")

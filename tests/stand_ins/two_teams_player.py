"""A player of two scenes with two teams. In `Duel`, both have one behavior and two members.
In `Hunt`, two hunters meet one prey.

In area i a match has 3 + i decisions. With the last one the team whose mean action is larger gets 1 as its group's
reward and the other −1, both 0 if they are equal. Every third match of area 0 is interrupted without a result. An
agent observes its area, the decision, its team and its index in the team.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np

from stand_ins.scene_launcher import scene_launcher
from unity_gym.scenes.academy import Academy
from unity_gym.scenes.agents import Agents
from unity_gym.scenes.scene import Scene
from unity_gym.scenes.sensors import VectorSensor
from unity_gym.specs import ActionSpec, Array

AREAS, CHOICES = 3, 3
INTERRUPTED = 3  # every third match of area 0
LATE = 9  # tick at which the prey of LateHunt spawns
AREA, TIME, TEAM, MEMBER = range(4)  # indices in the observation


class Duel(Scene):
    default_areas = AREAS
    teams = (("Duelist", 2), ("Duelist", 2))

    def __init__(self, academy: Academy, areas: int) -> None:
        super().__init__(academy, areas)
        self.time, self.games = np.zeros(areas, np.int64), np.zeros(areas, np.int64)
        self.agents = [self.team(team) for team in (0, 1)]

    def team(self, team: int) -> Agents:
        behavior, members = self.teams[team]
        agents = Agents(
            self.academy,
            members * self.areas,
            behavior,
            [VectorSensor("view", 4, partial(self.see, team))],
            ActionSpec(0, (CHOICES,)),
            act=lambda _: None,
            start_episode=lambda _: None,
            team=team,
            decision_period=1,
        )
        agents.group_id[:] = np.repeat([self.academy.new_group() for _ in range(self.areas)], members)
        return agents

    def see(self, team: int, rows: Array) -> Array:
        area, member = np.divmod(rows, self.teams[team][1])
        return np.stack([area, self.time[area], np.full(len(rows), team), member], 1)

    def after_step(self) -> None:
        self.time += 1
        over = self.time == 3 + np.arange(self.areas)
        self.games += over
        interrupted = over & (self.games % INTERRUPTED == 0) & (np.arange(self.areas) == 0)
        means = [agents.discrete[:, 0].reshape(self.areas, -1).mean(1) for agents in self.agents]
        for agents, sign in zip(self.agents, (1, -1), strict=True):
            members = len(agents) // self.areas
            score = np.where(over & ~interrupted, sign * np.sign(means[0] - means[1]), 0)
            agents.group_reward += np.repeat(score, members)
            agents.end_episode(np.flatnonzero(np.repeat(over & ~interrupted, members)))
            agents.end_episode(np.flatnonzero(np.repeat(interrupted, members)), interrupted=True)
        self.time[over] = 0

    def reset_environment(self) -> None:
        self.time[:] = 0

    def render(self, area: int) -> Array:  # noqa: ARG002
        return np.zeros((2, 2, 3), np.uint8)


class Hunt(Duel):
    teams = (("Hunter", 2), ("Prey", 1))


class LateHunt(Hunt):
    """The hunters wait for the prey, which spawns late."""

    def __init__(self, academy: Academy, areas: int) -> None:
        super().__init__(academy, areas)
        self.ticks = 0
        self.agents[1].enabled[:] = False

    def after_step(self) -> None:
        self.ticks += 1
        if self.ticks == LATE:
            self.agents[1].enabled[:] = True
        elif self.ticks > LATE:
            super().after_step()


def launcher(folder: Path, scene: str = "Duel") -> str:
    """Return the path of an executable, written into `folder`, that plays the scene."""
    return scene_launcher(__name__, folder, scene)

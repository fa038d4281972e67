"""A player of four scenes. In `Pairs`, an area has two agents. In `Camera`, one agent has a camera that is
blank without graphics, and observes the display of the player. In `Counter`, one agent's scene sends statistics of all
kinds. In `Arena`, agents differ, spawn late and leave early: there are two strikers in each of two teams and up to two
keepers.

An episode in the arena has 8 ticks, each with a decision of every active agent. In tick 3 the first striker of team 0
leaves, in tick 5 a second keeper spawns. In tick 8 team 1 is interrupted and the other agents terminate.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np

from stand_ins.scene_launcher import scene_launcher
from unity_gym.scenes.academy import Academy
from unity_gym.scenes.agents import Agents
from unity_gym.scenes.scene import Scene
from unity_gym.scenes.sensors import ImageSensor, VectorSensor
from unity_gym.specs import ActionSpec, Array

LEAVES, COMES, ENDS = 3, 5, 8
BRANCHES = (3, 2)
FORBIDDEN = 2  # the last action of the first branch, for the second striker of each team
GROUP_REWARD = 0.5
AVERAGE, MOST_RECENT, SUM, HISTOGRAM = range(4)  # how statistics are aggregated
FIRST, BOTH = np.array([0]), np.array([0, 1])


class Arena(Scene):
    """Rewards are the strikers' first discrete and the keepers' first continuous action. Observations: (row, tick)."""

    default_areas = 1

    def __init__(self, academy: Academy, areas: int) -> None:
        super().__init__(academy, areas)
        self.ticks = 0
        self.strikers = [self._striker_team(team) for team in (0, 1)]
        self.keepers = Agents(
            academy,
            2,
            "Keeper",
            [VectorSensor("clock", 2, self._clock), VectorSensor("map", (2, 2), self._map)],
            ActionSpec(2, (3,)),
            act=self._act_of_keepers,
            start_episode=lambda _: None,
            decision_period=1,
        )
        self.keepers.enabled[1] = False
        self._group()

    def _striker_team(self, team: int) -> Agents:
        def act(rows: Array) -> None:
            agents = self.strikers[team]
            if (agents.discrete[agents.rows == 1, 0] == FORBIDDEN).any():
                raise AssertionError("a forbidden choice")
            agents.reward[rows] += agents.discrete[rows, 0]
            agents.group_reward[rows] += GROUP_REWARD

        def mask(rows: Array) -> Array:
            forbidden: Array = (rows[:, None] == 1) & (np.arange(sum(BRANCHES)) == FORBIDDEN)
            return forbidden

        return Agents(
            self.academy,
            2,
            "Striker",
            [VectorSensor("clock", 2, self._clock)],
            ActionSpec(0, BRANCHES),
            act=act,
            start_episode=lambda _: None,
            read_mask=mask,
            team=team,
            decision_period=1,
        )

    def _group(self) -> None:
        for agents in self.strikers:
            agents.group_id[agents.enabled] = self.academy.new_group()

    def _clock(self, rows: Array) -> Array:
        return np.stack([rows, np.full(len(rows), self.ticks)], axis=1)

    def _map(self, rows: Array) -> Array:
        return np.ones((len(rows), 2, 2)) * rows[:, None, None]

    def _act_of_keepers(self, rows: Array) -> None:
        self.keepers.reward[rows] += self.keepers.continuous[rows, 0]

    def render(self, area: int) -> Array:  # noqa: ARG002
        return np.zeros((2, 2, 3), np.uint8)

    def reset_environment(self) -> None:
        self._start_game()

    def _start_game(self) -> None:
        self.ticks = 0
        if not self.strikers[0].enabled[0]:
            self.strikers[0].enable(FIRST)
        self.keepers.disable(FIRST[self.keepers.enabled[1:]] + 1)
        self._group()

    def after_step(self) -> None:
        self.ticks += 1
        self.academy.communicator.add_statistic("arena/tick", self.ticks, MOST_RECENT)
        self.academy.communicator.add_statistic("arena/ticks", 1, SUM)
        if self.ticks == LEAVES:
            self.strikers[0].disable(FIRST)
        elif self.ticks == COMES:
            self.keepers.enable(FIRST + 1)
        elif self.ticks == ENDS:
            self.strikers[0].end_episode(FIRST + 1)
            self.strikers[1].end_episode(BOTH, interrupted=True)
            self.keepers.end_episode(BOTH)
            self._start_game()


class Pairs(Scene):
    """Two agents per area, without rewards and episode ends."""

    default_areas = 1

    def __init__(self, academy: Academy, areas: int) -> None:
        super().__init__(academy, areas)
        self.agents = Agents(
            academy,
            2 * areas,
            "Pair",
            [VectorSensor("one", 1, lambda rows: np.ones((len(rows), 1)))],
            ActionSpec(1, ()),
            act=lambda _: None,
            start_episode=lambda _: None,
            decision_period=1,
        )

    def render(self, area: int) -> Array:  # noqa: ARG002
        return np.zeros((2, 2, 3), np.uint8)


class Camera(Scene):
    """One agent, without rewards and episode ends."""

    default_areas = 1

    def __init__(self, academy: Academy, areas: int) -> None:
        super().__init__(academy, areas)
        number = float(os.environ.get("DISPLAY", ":-1").partition(":")[2].partition(".")[0])
        self.agents = Agents(
            academy,
            1,
            "Watcher",
            [
                ImageSensor("camera", (3, 4, 4), self._look),
                VectorSensor("display", 1, lambda rows: np.full((len(rows), 1), number)),
            ],
            ActionSpec(1, ()),
            act=lambda _: None,
            start_episode=lambda _: None,
            decision_period=1,
        )

    def _look(self, rows: Array) -> Array:
        image = np.full((len(rows), 3, 4, 4), 205, np.uint8)
        if "-nographics" not in sys.argv:
            image[:, :, 1] = 7
        return image

    def render(self, area: int) -> Array:  # noqa: ARG002
        return np.zeros((2, 2, 3), np.uint8)


class Counter(Scene):
    """One agent, without rewards and episode ends. The most recent value is the tick plus `first_number`."""

    default_areas = 1

    def __init__(self, academy: Academy, areas: int) -> None:
        super().__init__(academy, areas)
        self.first = first_number(academy.rng)
        self.ticks = 0
        self.agents = Agents(
            academy,
            1,
            "Counter",
            [VectorSensor("one", 1, lambda rows: np.ones((len(rows), 1)))],
            ActionSpec(1, ()),
            act=lambda _: None,
            start_episode=lambda _: None,
            decision_period=1,
        )

    def after_step(self) -> None:
        self.ticks += 1
        send = self.academy.communicator.add_statistic
        send("tick/average", self.ticks, AVERAGE)
        send("tick/latest", self.first + self.ticks, MOST_RECENT)
        send("tick/sum", 1, SUM)
        send("tick/distribution", self.ticks, HISTOGRAM)

    def render(self, area: int) -> Array:  # noqa: ARG002
        return np.zeros((2, 2, 3), np.uint8)


def first_number(rng: np.random.Generator) -> int:
    """Return a number that identifies the player of `Counter`, by its seed."""
    return 1000 * int(rng.integers(1000))


def launcher(folder: Path, scene: str = "Arena") -> str:
    """Return the path of an executable, written into `folder`, that plays the scene."""
    return scene_launcher(__name__, folder, scene)

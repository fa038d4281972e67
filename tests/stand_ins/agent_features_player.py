"""A player of one scene, `Yard`, that uses every feature of agents.

    python agent_features_player.py Yard --mlagents-port PORT

There are two kinds of agents. The walkers, two per area, have a hybrid action (one continuous, branches of 2 and 3),
an image, a stacked sensor and a group per area. The second branch of the first walker in the first area controls all
walkers: 1 ends the group's episode with group reward 1, 2 disables the second walker of each area, which returns in
the next tick. The switchers have two behaviors, and change to the other one at each episode end, every third tick.
"""

from __future__ import annotations

import sys

import numpy as np

import unity_gym.scenes.__main__ as player
from unity_gym.scenes.academy import Academy
from unity_gym.scenes.agents import Agents
from unity_gym.scenes.scene import Scene
from unity_gym.scenes.sensors import ImageSensor, StackingSensor, VectorSensor
from unity_gym.specs import ActionSpec, Array, ObservationType


class Yard(Scene):
    default_areas = 2

    def __init__(self, academy: Academy, areas: int) -> None:
        super().__init__(academy, areas)
        n = 2 * areas
        self.moved = np.zeros(n)
        self.walkers = Agents(
            academy,
            n,
            "Walker",
            [
                StackingSensor(VectorSensor("steps", 1, self.steps), 3, n),
                VectorSensor("goal", (2, 2), self.goals, kind=ObservationType.GOAL_SIGNAL),
                ImageSensor("camera", (4, 5, 6), self.images),
            ],
            ActionSpec(1, (2, 3)),
            act=self.act,
            start_episode=self.start,
            read_mask=self.mask,
            decision_period=1,
        )
        self.walkers.group_id[:] = np.repeat([academy.new_group() for _ in range(areas)], 2)
        self.switchers = Agents(
            academy,
            1,
            ("Day", "Night"),
            [VectorSensor("steps", 1, lambda rows: self.switchers.step_count[rows, np.newaxis])],
            ActionSpec(0, (2,)),
            act=lambda _: None,
            start_episode=lambda _: None,
            team=1,
            decision_period=2,
            max_step=3,
        )

    def render(self, area: int) -> Array:
        return np.full((4, 4, 3), area, np.uint8)

    def steps(self, rows: Array) -> Array:
        return self.walkers.step_count[rows, np.newaxis]

    def goals(self, rows: Array) -> Array:
        return self.moved[rows, np.newaxis, np.newaxis] + np.arange(4).reshape(2, 2)

    def images(self, rows: Array) -> Array:
        return np.arange(4 * 5 * 6, dtype=np.uint8).reshape(4, 5, 6) + self.walkers.id[rows].astype(np.uint8).reshape(
            -1, 1, 1, 1
        )

    def mask(self, rows: Array) -> Array:
        mask = np.zeros((len(rows), 5), bool)
        mask[:, 4] = rows % 2  # the second walkers must not choose 2
        return mask

    def start(self, rows: Array) -> None:
        self.moved[rows] = 0

    def act(self, rows: Array) -> None:
        self.moved[rows] += self.walkers.continuous[rows, 0]
        self.walkers.reward[rows] += self.walkers.discrete[rows, 0]

    def after_step(self) -> None:
        walkers = self.walkers
        away = np.flatnonzero(~walkers.enabled)
        if len(away):
            walkers.enable(away)
            walkers.group_id[away] = walkers.group_id[away - 1]
            return
        wish = walkers.discrete[0, 1]
        if wish == 1:
            for group in np.unique(walkers.group_id):
                members = np.flatnonzero(walkers.group_id == group)
                walkers.group_reward[members] += group
                walkers.end_episode(members)
        elif wish == 2:
            walkers.disable(walkers.rows[1::2])

    def simulate(self) -> None:
        if self.switchers.step_count[0] == 0:
            self.switchers.behavior[0] = 1 - self.switchers.behavior[0]


if __name__ == "__main__":
    sys.exit(player.main([f"__main__:{sys.argv[1]}", *sys.argv[2:]]))

"""A player of one scene, whose agents have all types of sensors and actions and request decisions at different times.

Agent r of 4 requests a decision every r + 1 ticks and gets reward 1 per tick. Its episodes are interrupted after 12
ticks; those of agent 0 terminate after 5. The mask of odd agents forbids 2 in the first branch.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from stand_ins.scene_launcher import scene_launcher
from unity_gym.scenes.academy import Academy
from unity_gym.scenes.agents import Agents
from unity_gym.scenes.scene import Scene
from unity_gym.scenes.sensors import ImageSensor, VectorSensor
from unity_gym.specs import ActionSpec, Array, DimensionProperty, ObservationType

COUNT = 4
VARIABLE, NONE = DimensionProperty.VARIABLE_SIZE, DimensionProperty.NONE
ACTIONS = ActionSpec(2, (3, 2))


class Meadow(Scene):
    default_areas = 1

    def __init__(self, academy: Academy, areas: int) -> None:
        super().__init__(academy, areas)
        self.ticks = 0
        self.agents = Agents(
            academy,
            COUNT,
            "Cow",
            [
                VectorSensor("place", 2, lambda rows: np.stack([rows, self.agents.step_count[rows]], 1)),
                VectorSensor("wish", 3, lambda rows: np.eye(3)[rows % 3], kind=ObservationType.GOAL_SIGNAL),
                VectorSensor("herd", (4, 2), self.see_herd, properties=(VARIABLE, NONE)),
                ImageSensor("eye", (3, 20, 20), self.look),
            ],
            ACTIONS,
            act=self.act,
            start_episode=lambda _: None,
            read_mask=lambda rows: (rows[:, None] % 2 == 1) & (np.arange(5) == 2),
            max_step=12,
        )

    def act(self, rows: Array) -> None:
        if (self.agents.discrete[rows[rows % 2 == 1], 0] == 2).any():
            raise AssertionError("a forbidden choice")
        if (np.abs(self.agents.continuous[rows]) > 1).any():
            raise AssertionError("a number outside -1...1")

    def look(self, rows: Array) -> Array:
        return self.academy.rng.integers(0, 256, (len(rows), 3, 20, 20), np.uint8)

    def see_herd(self, rows: Array) -> Array:
        others = np.ones((len(rows), 4, 2))
        others[:, 2:] = 0  # two are too far away
        return others

    def render(self, area: int) -> Array:  # noqa: ARG002
        return np.zeros((2, 2, 3), np.uint8)

    def before_step(self) -> None:
        self.ticks += 1
        self.agents.request_decision(np.flatnonzero(self.ticks % (self.agents.rows + 1) == 0))

    def after_step(self) -> None:
        self.agents.reward += 1
        if self.agents.step_count[0] >= 5:
            self.agents.end_episode(np.array([0]))


def launcher(folder: Path) -> str:
    """Return the path of an executable, written into `folder`, that plays the scene."""
    return scene_launcher(__name__, folder, "Meadow")

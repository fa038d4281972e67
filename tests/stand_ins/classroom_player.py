"""A player of two behaviors with equal observations and actions, Teacher and Student.

An agent observes one of three numbers as a one-hot vector. Its action gets reward 1 if it equals the number. Episodes
have 5 decisions. In the scene `Mismatch`, the teacher has one more action.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import ClassVar

import numpy as np

from stand_ins.scene_launcher import scene_launcher
from unity_gym.scenes.academy import Academy
from unity_gym.scenes.agents import Agents
from unity_gym.scenes.scene import Scene
from unity_gym.scenes.sensors import VectorSensor
from unity_gym.specs import ActionSpec, Array

CHOICES, DECISIONS = 3, 5


class Classroom(Scene):
    default_areas = 20
    branch_sizes: ClassVar[dict[str, int]] = {"Teacher": CHOICES, "Student": CHOICES}

    def __init__(self, academy: Academy, areas: int) -> None:
        super().__init__(academy, areas)
        self.rng, self.time = np.random.default_rng(0), 0
        self.numbers = {name: self.draw() for name in self.branch_sizes}
        self.agents = {
            name: Agents(
                academy,
                areas,
                name,
                [VectorSensor("number", CHOICES, partial(self.see, name))],
                ActionSpec(0, (branch_size,)),
                act=partial(self.act, name),
                start_episode=lambda _: None,
                decision_period=1,
            )
            for name, branch_size in self.branch_sizes.items()
        }

    def draw(self) -> Array:
        return self.rng.integers(CHOICES, size=self.areas)

    def see(self, name: str, rows: Array) -> Array:
        return np.eye(CHOICES)[self.numbers[name][rows]]

    def act(self, name: str, rows: Array) -> None:
        agents = self.agents[name]
        agents.reward[rows] += agents.discrete[rows, 0] == self.numbers[name][rows]

    def after_step(self) -> None:
        self.time += 1
        for name, agents in self.agents.items():
            self.numbers[name] = self.draw()
            if self.time % DECISIONS == 0:
                agents.end_episode(np.arange(len(agents)))

    def reset_environment(self) -> None:
        self.time = 0

    def render(self, area: int) -> Array:  # noqa: ARG002
        return np.zeros((2, 2, 3), np.uint8)


class Mismatch(Classroom):
    branch_sizes: ClassVar[dict[str, int]] = {"Teacher": CHOICES + 1, "Student": CHOICES}


def launcher(folder: Path, scene: str = "Classroom") -> str:
    """Return the path of an executable, written into `folder`, that plays the scene."""
    return scene_launcher(__name__, folder, scene)

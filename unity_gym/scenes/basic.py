"""Basic: an agent on a line of 21 positions. Seven steps right give a reward of 1, three steps left 0.1."""

from __future__ import annotations

import numpy as np

from unity_gym.scenes.academy import Academy
from unity_gym.scenes.agents import Agents
from unity_gym.scenes.drawing import BLUE, FLOOR, GREEN, Canvas
from unity_gym.scenes.scene import Scene
from unity_gym.scenes.sensors import VectorSensor
from unity_gym.specs import ActionSpec, Array

_START, _SMALL_GOAL, _LARGE_GOAL, _LAST = 10, 7, 17, 20
_MOVES = np.array([0, -1, 1])  # stay, left, right


class Basic(Scene):
    """Each step gives a reward of -0.01. The number of steps is unlimited.

    Unity reloads the scene after an episode, so the agent has a new id in every episode. A reset that the client
    commands does not move an agent.
    """

    default_areas = 1

    def __init__(self, academy: Academy, areas: int) -> None:
        super().__init__(academy, areas)
        self.position = np.full(areas, _START)
        self.agents = Agents(
            academy,
            areas,
            "Basic",
            [VectorSensor("Basic", _LAST, self._observe)],
            ActionSpec(0, (3,)),
            act=self._act,
            start_episode=lambda _: None,
        )

    def before_step(self) -> None:
        """Request a decision of every agent in every step."""
        self.agents.request_decision(self.agents.rows)

    def render(self, area: int) -> Array:
        """Return an image of the line from above: the agent in blue, the goals in green."""
        canvas = Canvas(-1, -1.5, _LAST + 1, 1.5, pixels=660)
        for position in range(_LAST + 1):
            canvas.rectangle(position, 0, 0.45, 0.45, FLOOR)
        canvas.disc(_SMALL_GOAL, 0, 0.25, GREEN)
        canvas.disc(_LARGE_GOAL, 0, 0.45, GREEN)
        canvas.rectangle(float(self.position[area]), 0, 0.3, 0.3, BLUE)
        return canvas.image

    def _observe(self, rows: Array) -> Array:
        return np.asarray(self.position[rows, np.newaxis] == np.arange(_LAST))

    def _act(self, rows: Array) -> None:
        self.position[rows] += _MOVES[self.agents.discrete[rows, 0]]  # the goals are inside the line's ends
        self.agents.reward[rows] -= 0.01
        for goal, reward in ((_SMALL_GOAL, 0.1), (_LARGE_GOAL, 1.0)):
            arrived = rows[self.position[rows] == goal]
            if len(arrived):
                self.agents.reward[arrived] += reward
                self.agents.end_episode(arrived)
                self.agents.disable(arrived)
                self.position[arrived] = _START
                self.agents.enable(arrived)

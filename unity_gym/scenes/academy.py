"""The order of one tick, as in Unity's academy.

A tick is one fixed update: the agents' own code, the academy's step (`step`), the controllers' code, then physics with
its callbacks. The step consists of decision requests by the counter, the counters, sending, one exchange, and acting.
So an episode end in the acting or the physics of tick t is sent in tick t + 1. After a reset that the client commands,
the tick continues with its acting (with zero actions) and physics.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from unity_gym.scenes.communicator import Acting, Communicator
from unity_gym.specs import ActionSpec, Array


class Ticked(Protocol):
    """The methods of a scene that the academy calls in a tick; see `Scene`."""

    def reset_environment(self) -> None:
        """See `Scene.reset_environment`."""

    def before_step(self) -> None:
        """See `Scene.before_step`."""

    def after_step(self) -> None:
        """See `Scene.after_step`."""

    def simulate(self) -> None:
        """See `Scene.simulate`."""


class Stepped(Acting, Protocol):
    """The methods of a kind of agents that the academy calls in its step; see `Agents`."""

    behaviors: tuple[str, ...]
    actions: ActionSpec
    step_count: Array

    def request_periodic_decisions(self, academy_step: int) -> None:
        """See `Agents.request_periodic_decisions`."""

    def send_requests(self) -> None:
        """See `Agents.send_requests`."""

    def act_and_count(self) -> None:
        """See `Agents.act_and_count`."""

    def reset(self) -> None:
        """See `Agents.reset`."""


class Academy:
    """State that all agents of a scene share. A scene that is built from scratch gets a new academy.

    :param communicator: Connection with the client, which outlives scenes.
    :param seed: Seed of `rng`, the only random stream of a scene.
    """

    def __init__(self, communicator: Communicator, seed: int) -> None:
        communicator.start()
        self.communicator = communicator
        self.parameters = communicator.parameters
        self.rng = np.random.default_rng(seed & 0xFFFFFFFF)
        self.step_count = 0
        self._agents: list[Stepped] = []
        self._ids = 0
        self._groups = 0
        self._has_started = False

    def new_ids(self, count: int) -> Array:
        """Return the next agent ids, int64 (count)."""
        self._ids += count
        return np.arange(self._ids - count, self._ids)

    def new_group(self) -> int:
        """Return the next group id; 0 means no group."""
        self._groups += 1
        return self._groups

    def add_agents(self, agents: Stepped) -> None:
        """Add a kind of agents to the academy's steps, after the existing ones."""
        self._agents.append(agents)
        for behavior in agents.behaviors:
            self.communicator.subscribe(behavior, agents.actions)

    def tick(self, scene: Ticked) -> None:
        """Advance the scene by one fixed update.

        :param scene: Scene to advance.
        :raises Quit: If the client closes the connection.
        :raises Reseeded: If the client requests the scene from scratch; the rest of this tick is skipped.
        """
        scene.before_step()
        self._step(scene)
        scene.after_step()
        scene.simulate()

    def _step(self, scene: Ticked) -> None:
        if not self._has_started:
            self._has_started = True
            self._reset(scene)
        for agents in self._agents:
            agents.request_periodic_decisions(self.step_count)
        self.step_count += 1
        for agents in self._agents:
            agents.step_count += 1
        for agents in self._agents:
            agents.send_requests()
        if self.communicator.exchange_messages():
            self._reset(scene)
        for agents in self._agents:
            agents.act_and_count()

    def _reset(self, scene: Ticked) -> None:
        self.step_count = 0
        scene.reset_environment()
        for agents in self._agents:
            agents.reset()

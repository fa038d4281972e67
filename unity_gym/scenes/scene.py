"""What a scene provides to the academy."""

from __future__ import annotations

from typing import ClassVar

from unity_gym.scenes.academy import Academy


class Scene:
    """One of Unity's example scenes, all its areas in numpy columns.

    A subclass's constructor `__init__(self, academy, areas)` builds the state and the `Agents`, whose callbacks hold
    what Unity's agent scripts do. All randomness comes from `academy.rng`, so that a seed settles a scene's course. The
    methods below are Unity's other entry points in a tick, in their order; by default nothing happens there.
    """

    default_areas: ClassVar[int]

    def __init__(self, academy: Academy, areas: int) -> None:
        self.academy = academy
        self.areas = areas

    def reset_environment(self) -> None:
        """At every full reset, also the first, before the agents' episodes begin (`OnEnvironmentReset`)."""

    def before_step(self) -> None:
        """Before the academy's step: the `FixedUpdate` of agents, where some request their own decisions."""

    def after_step(self) -> None:
        """After the academy's step: the `FixedUpdate` of the scene's controllers."""

    def simulate(self) -> None:
        """One physics tick, then the trigger and collision callbacks."""

"""What a scene provides to the academy."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from unity_gym.scenes.academy import Academy
from unity_gym.specs import Array


class Scene(ABC):
    """One of Unity's example scenes, all its areas in numpy columns.

    A subclass's constructor `__init__(self, academy, areas)` builds the state and the `Agents`, whose callbacks hold
    what Unity's agent scripts do. All randomness comes from `academy.rng`, so that a seed settles a scene's course. The
    methods below are Unity's other entry points in a tick, in their order; by default nothing happens there.
    """

    default_areas: ClassVar[int]

    def __init__(self, academy: Academy, areas: int) -> None:
        self.academy = academy
        self.areas = areas
        academy.communicator.scene = self

    @abstractmethod
    def render(self, area: int) -> Array:
        """Return an image of an area as it is now, uint8 (height, width, 3); `drawing.py` is there for it."""

    def reset_environment(self) -> None:  # noqa: B027
        """At every full reset, also the first, before the agents' episodes start (`OnEnvironmentReset`)."""

    def before_step(self) -> None:  # noqa: B027
        """Before the academy's step: the `FixedUpdate` of agents, where some request their own decisions."""

    def after_step(self) -> None:  # noqa: B027
        """After the academy's step: the `FixedUpdate` of the scene's controllers."""

    def simulate(self) -> None:  # noqa: B027
        """One physics tick, then the trigger and collision callbacks."""

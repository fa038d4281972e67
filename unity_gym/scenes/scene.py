"""The interface between scenes and the academy."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from unity_gym.scenes.academy import Academy
from unity_gym.specs import Array


class Scene(ABC):
    """One of Unity's example scenes: all its areas in NumPy arrays.

    The constructor `__init__(self, academy, areas)` of a subclass builds the state and the `Agents`. Their callbacks
    implement Unity's agent scripts. All randomness comes from `academy.rng`, so that a seed determines all episodes.
    The methods below are Unity's other entry points in a tick, in their order; by default they do nothing.
    """

    default_areas: ClassVar[int]

    def __init__(self, academy: Academy, areas: int) -> None:
        self.academy = academy
        self.areas = areas
        academy.communicator.scene = self

    @abstractmethod
    def render(self, area: int) -> Array:
        """Return an image of the current state of an area, uint8 (height, width, 3), usually made with `drawing.py`."""

    def reset_environment(self) -> None:  # noqa: B027
        """Reset the environment at each full reset, before the agents' episodes start (`OnEnvironmentReset`)."""

    def before_step(self) -> None:  # noqa: B027
        """Run the `FixedUpdate` of agents before the academy's step; some agents request their own decisions there."""

    def after_step(self) -> None:  # noqa: B027
        """Run the `FixedUpdate` of the scene's controllers after the academy's step."""

    def simulate(self) -> None:  # noqa: B027
        """Run one physics tick, then the trigger and collision callbacks."""

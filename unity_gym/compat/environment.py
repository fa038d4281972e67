"""`UnityEnvironment` and its base class, with the features that old scripts need beyond `unity_gym.environment`."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, SimpleNamespace

import numpy as np

from unity_gym.compat.exceptions import UnityActionException, UnityEnvironmentException, raised_as
from unity_gym.compat.side_channel_manager import SideChannelManager
from unity_gym.compat.timers import timed
from unity_gym.environment import UnityEnvironment as _UnityEnvironment
from unity_gym.errors import (
    ActionError,
    InvalidValueError,
    NotReadyError,
    PlayerError,
    ProtocolError,
    UnityGymError,
)
from unity_gym.player import EMBEDDED
from unity_gym.registration import SCENES
from unity_gym.side_channels import SideChannel
from unity_gym.specs import ActionTuple, Array, BehaviorSpec, ObservationSpec, TerminalSteps
from unity_gym.specs import DecisionSteps as _DecisionSteps

__version__ = "1.1.0"

AgentId = int
GroupId = int
BehaviorName = str


@dataclass
class ScriptOptions:
    """Options of `install` for the environments that a script creates."""

    scene: str | None = None
    areas: int | None = None
    image_layout: str = "CHW"

    def update(self, other: ScriptOptions) -> None:
        """Adopt the other options.

        :raises InvalidValueError: If the scene or the image layout is unknown, or areas is below 1.
        """
        if other.scene is not None and other.scene not in SCENES:
            raise InvalidValueError(f"scene must be one of {sorted(SCENES)}, got {other.scene!r}")
        if other.image_layout not in ("CHW", "HWC"):
            raise InvalidValueError(f"image_layout must be 'CHW' or 'HWC', got {other.image_layout!r}")
        if other.areas is not None and other.areas < 1:
            raise InvalidValueError(f"areas must be at least 1, got {other.areas}")
        self.scene, self.areas, self.image_layout = other.scene, other.areas, other.image_layout


options = ScriptOptions()


_unitys_errors = raised_as(UnityEnvironmentException, NotReadyError, PlayerError, UnityGymError)


class DecisionSteps(_DecisionSteps):
    """`unity_gym.specs.DecisionSteps`, whose `action_mask` is None where no agent requests a decision."""

    @staticmethod
    def empty(spec: BehaviorSpec, visual_dtype: str = "float32") -> DecisionSteps:
        """Return decision steps of no agents, with the shapes of `spec`."""
        return DecisionSteps.from_steps(_DecisionSteps.empty(spec, visual_dtype))

    @staticmethod
    def from_steps(steps: _DecisionSteps) -> DecisionSteps:
        """Return decision steps with the same arrays."""
        mask = steps.action_mask if len(steps) else None
        return DecisionSteps(steps.obs, steps.reward, steps.agent_id, mask, steps.group_id, steps.group_reward)


class BehaviorMapping(Mapping[str, BehaviorSpec]):
    """Read-only mapping from behavior names to their specifications."""

    def __init__(self, specs: Mapping[str, BehaviorSpec]) -> None:
        self._specs = specs

    def __len__(self) -> int:
        return len(self._specs)

    def __getitem__(self, behavior: str) -> BehaviorSpec:
        return self._specs[behavior]

    def __iter__(self) -> Iterator[str]:
        return iter(self._specs)


class BaseEnv(ABC):
    """Low-level interface, for scripts that test for it or implement it themselves."""

    @abstractmethod
    def step(self) -> None:
        """Send the actions that were set and receive the next state."""

    @abstractmethod
    def reset(self) -> None:
        """Start new episodes."""

    @abstractmethod
    def close(self) -> None:
        """Close the environment."""

    @property
    @abstractmethod
    def behavior_specs(self) -> Mapping[str, BehaviorSpec]:
        """The specification of each behavior that has had an agent."""

    @abstractmethod
    def set_actions(self, behavior_name: str, action: ActionTuple) -> None:
        """Set the actions of all agents of a behavior that request a decision."""

    @abstractmethod
    def set_action_for_agent(self, behavior_name: str, agent_id: int, action: ActionTuple) -> None:
        """Set the action of one agent."""

    @abstractmethod
    def get_steps(self, behavior_name: str) -> tuple[DecisionSteps, TerminalSteps]:
        """Return the agents that request a decision and those whose episode ended."""


class UnityEnvironment(_UnityEnvironment, BaseEnv):
    """`unity_gym.environment.UnityEnvironment` with the behavior of Unity's own class.

    A `step()` before the first `reset()` resets, and `behavior_specs` is a `BehaviorMapping`. After `close()`,
    `get_steps` returns the last state. Errors have the classes that scripts catch. For the parameters, see
    `unity_gym.environment.UnityEnvironment`.

    :raises UnityEnvironmentException: If the player could not be started, ended or has another version.
    :raises UnityTimeOutException: If the player did not connect in time.
    :raises UnityWorkerInUseException: If the port is in use.
    """

    _registry = SideChannelManager

    @_unitys_errors
    def __init__(
        self,
        file_name: str | Path | None = None,
        worker_id: int = 0,
        base_port: int | None = None,
        seed: int = 0,
        no_graphics: bool = False,
        no_graphics_monitor: bool = False,
        timeout_wait: float = 60,
        additional_args: Sequence[str] | None = None,
        side_channels: Sequence[SideChannel] | None = None,
        log_folder: str | Path | None = None,
        num_areas: int = 1,
    ) -> None:
        self.image_layout = options.image_layout
        self.side_channels = {type(channel).__name__: channel for channel in side_channels or ()}
        if options.scene is not None:
            file_name = EMBEDDED + options.scene
        if options.areas is not None and str(file_name).startswith(EMBEDDED):
            additional_args = [*(additional_args or ()), "--areas", str(options.areas)]
        super().__init__(
            file_name,
            worker_id,
            base_port,
            seed,
            no_graphics,
            no_graphics_monitor,
            timeout_wait,
            additional_args,
            side_channels,
            log_folder,
            num_areas,
        )

    @_unitys_errors
    def reset(self, seed: int | None = None, timeout: float | None = None) -> None:
        """Start new episodes; see `unity_gym.environment.UnityEnvironment.reset`."""
        super().reset(seed, timeout)

    @timed
    @_unitys_errors
    def step(self) -> None:
        """Send the actions that were set and receive the next state; before the first `reset()`, reset."""
        if super().behavior_specs:
            super().step()
        else:
            self.reset()

    @property
    def academy_capabilities(self) -> SimpleNamespace:
        """What the player supports, as it announced when it connected."""
        announced = self._capabilities
        return SimpleNamespace(
            baseRLCapabilities=announced.base_rl,
            concatenatedPngObservations=announced.concatenated_png_observations,
            compressedChannelMapping=announced.compressed_channel_mapping,
            hybridActions=announced.hybrid_actions,
            trainingAnalytics=announced.training_analytics,
            variableLengthObservation=announced.variable_length_observation,
            multiAgentGroups=announced.multi_agent_groups,
        )

    @property
    def behavior_specs(self) -> BehaviorMapping:
        """The specification of each behavior that has had an agent; empty before the first `reset` or `step`."""
        specs = super().behavior_specs
        if self.image_layout == "HWC":
            specs = MappingProxyType({name: channel_last_spec(spec) for name, spec in specs.items()})
        return BehaviorMapping(specs)

    def _read(self, data: bytes | bytearray) -> None:
        super()._read(data)
        self._steps = {name: (DecisionSteps.from_steps(steps), ends) for name, (steps, ends) in self._steps.items()}

    def get_steps(self, behavior_name: str) -> tuple[DecisionSteps, TerminalSteps]:
        """Return the agents that request a decision and those whose episode ended."""
        decisions, terminals = super().get_steps(behavior_name)
        assert isinstance(decisions, DecisionSteps)  # by `_read`
        if self.image_layout == "HWC":
            decisions = DecisionSteps(
                [channel_last(array) for array in decisions.obs],
                decisions.reward,
                decisions.agent_id,
                decisions.action_mask,
                decisions.group_id,
                decisions.group_reward,
            )
            terminals = TerminalSteps(
                [channel_last(array) for array in terminals.obs],
                terminals.reward,
                terminals.interrupted,
                terminals.agent_id,
                terminals.group_id,
                terminals.group_reward,
            )
        return decisions, terminals

    def _require_behavior(self, name: str) -> None:
        if self._closed_because is not None and name in self._specs:
            return  # scripts read the last state after close(); step() and reset() raise
        try:
            super()._require_behavior(name)
        except (InvalidValueError, NotReadyError) as error:
            raise UnityActionException(str(error)) from error  # by it, scripts find out which behaviors there are

    def _row(self, behavior_name: str, agent_id: int) -> int:
        try:
            return super()._row(behavior_name, agent_id)
        except ActionError as error:
            raise IndexError(str(error)) from error

    @raised_as(UnityEnvironmentException, ProtocolError)
    def _check_version(self, communication_version: str, package_version: str) -> None:
        super()._check_version(communication_version, package_version)


def channel_last(observations: Array) -> Array:
    """View images (n, channels, height, width) as (n, height, width, channels); return other arrays as they are."""
    return np.moveaxis(observations, 1, -1) if observations.ndim == 4 else observations


def channel_last_spec(spec: BehaviorSpec) -> BehaviorSpec:
    """Return the specification with the shapes of images as (height, width, channels)."""
    return BehaviorSpec([_channel_last_sensor(sensor) for sensor in spec.observation_specs], spec.action_spec)


def _channel_last_sensor(sensor: ObservationSpec) -> ObservationSpec:
    if not sensor.is_visual:
        return sensor
    order = (1, 2, 0)
    return sensor._replace(
        shape=tuple(sensor.shape[axis] for axis in order),
        dimension_property=tuple(sensor.dimension_property[axis] for axis in order),
    )


def get_logger(name: str) -> logging.Logger:
    """Return the standard library's logger of this name."""
    return logging.getLogger(name)


def set_log_level(log_level: int) -> None:
    """Set the level of the root logger."""
    logging.getLogger().setLevel(log_level)

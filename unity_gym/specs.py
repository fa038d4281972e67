"""Specifications of behaviors, and the decision and terminal steps of their agents, named as in Unity's Python API.

Action masks follow Unity here: True = **forbidden**. The Gymnasium and SB3 environments invert them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum, IntFlag
from functools import cache, cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from unity_gym.errors import ActionError

Array = npt.NDArray[Any]


class DimensionProperty(IntFlag):
    """How a model may process one dimension of an observation."""

    UNSPECIFIED = 0
    NONE = 1
    TRANSLATIONAL_EQUIVARIANCE = 2
    VARIABLE_SIZE = 4


class ObservationType(Enum):
    """Whether an observation is a normal one or a goal signal."""

    DEFAULT = 0
    GOAL_SIGNAL = 1


class ObservationSpec(NamedTuple):
    """Specification of one sensor.

    - `shape`: shape per agent (images are always C×H×W)
    - `dimension_property`: one property per dimension
    - `observation_type`: type of the observation
    - `name`: name of the sensor
    """

    shape: tuple[int, ...]
    dimension_property: tuple[DimensionProperty, ...]
    observation_type: ObservationType
    name: str

    @property
    def is_visual(self) -> bool:
        """Whether observations are images (cameras, grid sensors), which have rank 3."""
        return len(self.shape) == 3

    def array_dtype(self, visual_dtype: str) -> np.dtype[Any]:
        """Return the dtype of this sensor's array: `visual_dtype` for images, float32 for everything else."""
        return np.dtype(visual_dtype if self.is_visual else np.float32)


class ActionTuple:
    """The actions of n agents: `continuous` float32 (n, continuous size), `discrete` int32 (n, number of branches)."""

    discrete_dtype = np.dtype(np.int32)

    def __init__(self, continuous: Array | None = None, discrete: Array | None = None) -> None:
        self._continuous: Array | None = None
        self._discrete: Array | None = None
        if continuous is not None:
            self.add_continuous(continuous)
        if discrete is not None:
            self.add_discrete(discrete)

    @property
    def continuous(self) -> Array:
        """The continuous actions, float32 (n, continuous size)."""
        if self._continuous is None:
            return np.zeros((len(self), 0), np.float32)
        return self._continuous

    @property
    def discrete(self) -> Array:
        """The chosen index of each branch, int32 (n, number of branches)."""
        if self._discrete is None:
            return np.zeros((len(self), 0), np.int32)
        return self._discrete

    def add_continuous(self, continuous: Array) -> None:
        """Set the continuous part, an array (n, continuous size) of any float type.

        :raises ActionError: If it is not a 2-dimensional array of numbers.
        """
        array = np.asarray(continuous)
        if array.dtype.kind not in "fiu" or array.ndim != 2:
            raise ActionError(
                f"continuous actions must be a float array of shape (agents, actions), got dtype {array.dtype}, "
                f"shape {array.shape}"
            )
        self._continuous = array.astype(np.float32, copy=False)

    def add_discrete(self, discrete: Array) -> None:
        """Set the discrete part, an array (n, number of branches) of whole numbers of any type.

        :raises ActionError: If it is not a 2-dimensional array of whole numbers that int32 can hold.
        """
        array = np.asarray(discrete)
        if array.dtype.kind not in "biuf" or array.ndim != 2:
            raise ActionError(
                f"discrete actions must be an integer array of shape (agents, branches), got dtype {array.dtype}, "
                f"shape {array.shape}"
            )
        if array.dtype != self.discrete_dtype:
            with np.errstate(invalid="ignore"):  # NaN and infinite values, which the comparison finds
                converted = array.astype(self.discrete_dtype)
            if not np.array_equal(converted, array):
                raise ActionError(f"there is no branch with the index {array[converted != array][0]}")
            array = converted
        self._discrete = array

    def __len__(self) -> int:
        for part in (self._continuous, self._discrete):
            if part is not None:
                return len(part)
        return 0


class ActionSpec(NamedTuple):
    """Action specification: `continuous_size` values in [-1, 1] and one index per branch of `discrete_branches`."""

    continuous_size: int
    discrete_branches: tuple[int, ...]

    def __str__(self) -> str:
        return f"Continuous: {self.continuous_size}, Discrete: {self.discrete_branches}"

    @property
    def discrete_size(self) -> int:
        """The number of discrete branches."""
        return len(self.discrete_branches)

    def is_discrete(self) -> bool:
        """Return True when there are discrete branches and no continuous actions."""
        return self.discrete_size > 0 and self.continuous_size == 0

    def is_continuous(self) -> bool:
        """Return True when there are continuous actions and no discrete branches."""
        return self.discrete_size == 0 and self.continuous_size > 0

    def empty_action(self, n_agents: int) -> ActionTuple:
        """Return the zero action (0.0, branch index 0) for `n_agents` agents."""
        return ActionTuple(
            np.zeros((n_agents, self.continuous_size), np.float32), np.zeros((n_agents, self.discrete_size), np.int32)
        )

    def random_action(self, n_agents: int, rng: np.random.Generator | None = None) -> ActionTuple:
        """Return uniform actions for `n_agents` agents; action masks are ignored.

        :param rng: Generator of the random numbers; by default numpy's global one, which `numpy.random.seed` seeds.
        """
        uniform = np.random.uniform if rng is None else rng.uniform
        integers = np.random.randint if rng is None else rng.integers
        action = self.empty_action(n_agents)
        action.continuous[:] = uniform(-1, 1, action.continuous.shape)
        for branch, size in enumerate(self.discrete_branches):
            action.discrete[:, branch] = integers(0, size, n_agents)
        return action

    def validate(self, action: ActionTuple, n_agents: int, behavior: str) -> None:
        """Check an action's shape and values against this specification.

        :raises ActionError: If it is no `ActionTuple`, its shape is wrong, a value is NaN or infinite, or an index is
            outside its branch.
        """
        if not isinstance(action, ActionTuple):
            raise ActionError(
                f"the actions of behavior {behavior!r} must be an ActionTuple, got {type(action).__name__}: "
                "wrap the arrays, ActionTuple(continuous=..., discrete=...)"
            )
        for kind, part, width in (
            ("continuous", action.continuous, self.continuous_size),
            ("discrete", action.discrete, self.discrete_size),
        ):
            if part.shape != (n_agents, width):
                raise ActionError(
                    f"behavior {behavior!r} has {n_agents} agents that wait for an action and takes {kind} actions "
                    f"of shape ({n_agents}, {width}), got {part.shape}"
                )
        if self.continuous_size and np.count_nonzero(np.isfinite(action.continuous)) < action.continuous.size:
            raise ActionError(f"the continuous actions for behavior {behavior!r} hold NaN or infinite values")
        if self.discrete_size and n_agents:
            chosen = action.discrete
            # as unsigned numbers, negative ones are larger than any branch
            if np.count_nonzero(chosen.view(np.uint32) >= _branch_sizes(tuple(self.discrete_branches))):
                raise ActionError(
                    f"the discrete actions for behavior {behavior!r} lie outside its branches "
                    f"{self.discrete_branches}: smallest {chosen.min(axis=0)}, largest {chosen.max(axis=0)}"
                )

    @staticmethod
    def create_continuous(continuous_size: int) -> ActionSpec:
        """Return a specification with continuous actions only."""
        return ActionSpec(continuous_size, ())

    @staticmethod
    def create_discrete(discrete_branches: tuple[int, ...]) -> ActionSpec:
        """Return a specification with discrete actions only."""
        return ActionSpec(0, discrete_branches)

    @staticmethod
    def create_hybrid(continuous_size: int, discrete_branches: tuple[int, ...]) -> ActionSpec:
        """Return a specification with continuous and discrete actions (hybrid actions)."""
        return ActionSpec(continuous_size, discrete_branches)


@cache
def _branch_sizes(branches: tuple[int, ...]) -> Array:
    return np.array(branches, np.uint32)


class BehaviorSpec(NamedTuple):
    """Observations (one `ObservationSpec` per sensor, in sensor order) and actions of each agent of a behavior."""

    observation_specs: list[ObservationSpec]
    action_spec: ActionSpec

    def is_like(self, other: BehaviorSpec) -> bool:
        """Return whether the other behavior has the same observations and actions; sensor names may differ."""
        own, others = ([sensor._replace(name="") for sensor in spec.observation_specs] for spec in (self, other))
        return self.action_spec == other.action_spec and own == others


class DecisionStep(NamedTuple):
    """One agent that requests a decision; see `DecisionSteps`."""

    obs: list[Array]
    reward: np.float32
    agent_id: int
    action_mask: list[Array] | None
    group_id: int
    group_reward: np.float32


class TerminalStep(NamedTuple):
    """One agent whose episode ended; see `TerminalSteps`."""

    obs: list[Array]
    reward: np.float32
    interrupted: np.bool_
    agent_id: int
    group_id: int
    group_reward: np.float32


class _Steps:
    """The arrays that decision and terminal steps share, with lookup by agent id."""

    def __init__(self, obs: list[Array], reward: Array, agent_id: Array, group_id: Array, group_reward: Array) -> None:
        self.obs = obs
        self.reward = reward
        self.agent_id = agent_id
        self.group_id = group_id
        self.group_reward = group_reward

    @cached_property
    def agent_id_to_index(self) -> dict[int, int]:
        """The row of each agent id."""
        return {agent_id: row for row, agent_id in enumerate(self.agent_id.tolist())}

    def __len__(self) -> int:
        return len(self.agent_id)

    def __iter__(self) -> Iterator[int]:
        return iter(self.agent_id.tolist())

    def _row(self, agent_id: int) -> int:
        try:
            return self.agent_id_to_index[agent_id]
        except KeyError:
            raise KeyError(f"agent {agent_id} is not among these steps; they hold {self.agent_id.tolist()}") from None


class DecisionSteps(_Steps, Mapping[int, DecisionStep]):
    """The n agents of one behavior that request a decision.

    - `obs`: one float32 array (n, *shape) per sensor (images may be uint8, see `UnityEnvironment`)
    - `reward`, `group_reward`: float32 (n,), the sum since the agent's last decision
    - `agent_id`, `group_id`: int32 (n,)
    - `action_mask`: one bool array (n, branch size) per discrete branch, True = forbidden; None without branches
    """

    def __init__(
        self,
        obs: list[Array],
        reward: Array,
        agent_id: Array,
        action_mask: list[Array] | None,
        group_id: Array,
        group_reward: Array,
    ) -> None:
        super().__init__(obs, reward, agent_id, group_id, group_reward)
        self.action_mask = action_mask

    def __getitem__(self, agent_id: int) -> DecisionStep:
        row = self._row(agent_id)
        return DecisionStep(
            [array[row] for array in self.obs],
            self.reward[row],
            agent_id,
            None if self.action_mask is None else [branch[row] for branch in self.action_mask],
            int(self.group_id[row]),
            self.group_reward[row],
        )

    @staticmethod
    def empty(spec: BehaviorSpec, visual_dtype: str = "float32") -> DecisionSteps:
        """Return decision steps of no agents, with the shapes of `spec`."""
        branches = spec.action_spec.discrete_branches
        return DecisionSteps(
            [np.zeros((0, *sensor.shape), sensor.array_dtype(visual_dtype)) for sensor in spec.observation_specs],
            np.zeros(0, np.float32),
            np.zeros(0, np.int32),
            [np.zeros((0, size), bool) for size in branches] if branches else None,
            np.zeros(0, np.int32),
            np.zeros(0, np.float32),
        )


class TerminalSteps(_Steps, Mapping[int, TerminalStep]):
    """The n agents of one behavior whose episodes ended.

    - `obs`: one array (n, *shape) per sensor: the last state of the episode
    - `reward`, `group_reward`: float32 (n,), the sum since the agent's last decision
    - `interrupted`: bool (n,), True where the episode was truncated (step limit), False where it terminated
    - `agent_id`, `group_id`: int32 (n,)
    """

    def __init__(
        self,
        obs: list[Array],
        reward: Array,
        interrupted: Array,
        agent_id: Array,
        group_id: Array,
        group_reward: Array,
    ) -> None:
        super().__init__(obs, reward, agent_id, group_id, group_reward)
        self.interrupted = interrupted

    def __getitem__(self, agent_id: int) -> TerminalStep:
        row = self._row(agent_id)
        return TerminalStep(
            [array[row] for array in self.obs],
            self.reward[row],
            self.interrupted[row],
            agent_id,
            int(self.group_id[row]),
            self.group_reward[row],
        )

    @staticmethod
    def empty(spec: BehaviorSpec, visual_dtype: str = "float32") -> TerminalSteps:
        """Return terminal steps of no agents, with the shapes of `spec`."""
        return TerminalSteps(
            [np.zeros((0, *sensor.shape), sensor.array_dtype(visual_dtype)) for sensor in spec.observation_specs],
            np.zeros(0, np.float32),
            np.zeros(0, bool),
            np.zeros(0, np.int32),
            np.zeros(0, np.int32),
            np.zeros(0, np.float32),
        )


def joined(steps: Sequence[tuple[DecisionSteps, TerminalSteps]]) -> tuple[DecisionSteps, TerminalSteps]:
    """Return the agents of several behaviors with equal specifications as those of one behavior."""
    if len(steps) == 1:
        return steps[0]
    decisions, terminals = zip(*steps, strict=True)

    def concatenate(parts: Sequence[DecisionSteps] | Sequence[TerminalSteps], name: str) -> Array:
        return np.concatenate([getattr(part, name) for part in parts])

    def sensors(parts: Sequence[DecisionSteps] | Sequence[TerminalSteps]) -> list[Array]:
        return [np.concatenate(arrays) for arrays in zip(*(part.obs for part in parts), strict=True)]

    names = ("agent_id", "reward", "group_id", "group_reward")
    masks = [part.action_mask for part in decisions if part.action_mask is not None]
    return (
        DecisionSteps(
            obs=sensors(decisions),
            action_mask=[np.concatenate(branch) for branch in zip(*masks, strict=True)] if masks else None,
            **{name: concatenate(decisions, name) for name in names},
        ),
        TerminalSteps(
            obs=sensors(terminals),
            interrupted=concatenate(terminals, "interrupted"),
            **{name: concatenate(terminals, name) for name in names},
        ),
    )

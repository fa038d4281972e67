"""The agents that an algorithm trains, as arrays: those of `UnityVecEnv`, or of any other SB3 `VecEnv`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from sb3_contrib.common.maskable.utils import get_action_masks, is_masking_supported
from stable_baselines3.common.preprocessing import is_image_space
from stable_baselines3.common.vec_env import SubprocVecEnv, VecEnv, unwrap_vec_normalize

from sb3_ext.vec_env import UnityVecEnv
from unity_gym.errors import ActionError, InvalidValueError, UnityGymError
from unity_gym.slots import AgentTable
from unity_gym.spaces import ObservationLayout
from unity_gym.specs import (
    ActionSpec,
    ActionTuple,
    Array,
    BehaviorSpec,
    DimensionProperty,
    ObservationSpec,
    ObservationType,
)


class SpaceAdapter:
    """Conversion of observations and actions between the spaces of an environment and arrays.

    `spec` describes the arrays: each key of a `Dict` space is a sensor; images stay C×H×W, discrete observations become
    one-hot vectors, everything else a flat vector. `low` and `high` are the bounds of the continuous actions.

    :param observation_space: Observation space of one agent.
    :param action_space: Action space of one agent, as `unity_gym.spaces.action_space` returns it, or `MultiBinary`.
    :param unity: Specification and layout of a Unity behavior, whose sensors are then the arrays.
    :raises ActionError: If the action space is none of these.
    """

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        unity: tuple[BehaviorSpec, ObservationLayout] | None = None,
    ) -> None:
        self.observation_space, self._action_space = observation_space, action_space
        self._unity = unity
        if unity is not None:
            self.spec = unity[0]
        else:
            parts = observation_space.spaces if isinstance(observation_space, spaces.Dict) else {"": observation_space}
            self.spec = BehaviorSpec([_sensor(name, part) for name, part in parts.items()], _action_spec(action_space))
        box = action_space["continuous"] if isinstance(action_space, spaces.Dict) else action_space
        shape = (self.spec.action_spec.continuous_size,)
        self.low = box.low.reshape(shape) if isinstance(box, spaces.Box) else np.zeros(shape, np.float32)
        self.high = box.high.reshape(shape) if isinstance(box, spaces.Box) else np.zeros(shape, np.float32)

    @property
    def has_unity_sensors(self) -> bool:
        """Whether the arrays are the sensors of a Unity behavior."""
        return self._unity is not None

    def sensor_arrays(self, observations: Any) -> list[Array]:
        """Return one array (n, *shape) per sensor, from a batch of n observations."""
        if self._unity is not None:
            return [_as_number(array) for array in self._unity[1].sensor_arrays(observations)]
        if isinstance(self.observation_space, spaces.Dict):
            return [_array(space, observations[key]) for key, space in self.observation_space.spaces.items()]
        return [_array(self.observation_space, observations)]

    def tensors(self, sensors: Sequence[torch.Tensor]) -> torch.Tensor | dict[str, torch.Tensor]:
        """Return observations in the form of the space, from one tensor (n, *shape) per sensor.

        Discrete observations stay one-hot vectors.
        """
        space = self.observation_space
        if self._unity is not None:
            formed = {
                key: torch.cat([sensors[index] for index in indices], -1) if len(indices) > 1 else sensors[indices[0]]
                for key, indices in self._unity[1].parts.items()
            }
        else:
            entries = space.spaces if isinstance(space, spaces.Dict) else {"": space}
            formed = {
                key: sensor.reshape(-1, *entry.shape) if isinstance(entry, spaces.Box) else sensor
                for (key, entry), sensor in zip(entries.items(), sensors, strict=True)
            }
        return formed if isinstance(space, spaces.Dict) else next(iter(formed.values()))

    def actions(self, actions: ActionTuple) -> Any:
        """Return a batch of n actions of the action space."""
        space = self._action_space
        if isinstance(space, spaces.Dict):
            discrete = _choices(space["discrete"], actions.discrete)
            return HybridActions({"continuous": actions.continuous, "discrete": discrete})
        if isinstance(space, spaces.Box):
            return actions.continuous.reshape(-1, *space.shape).astype(space.dtype)
        return _choices(space, actions.discrete)


Env: TypeAlias = VecEnv | gym.Env[Any, Any] | gym.vector.VectorEnv[Any, Any, Any]


def agent_spaces(env: Env) -> tuple[spaces.Space[Any], spaces.Space[Any]]:
    """Return the observation and action space of one agent."""
    if isinstance(env, gym.vector.VectorEnv):
        return env.single_observation_space, env.single_action_space
    return env.observation_space, env.action_space


def unity_behavior(env: Env) -> tuple[BehaviorSpec, ObservationLayout] | None:
    """Return the specification and layout of the Unity behavior of an environment, also behind wrappers.

    The sensors are those of the behavior, the actions those of the action space, which a wrapper may change.

    :return: None for other environments, and if a wrapper changes the observation space or `VecNormalize` normalizes
        observations, so that lists of entities have no empty rows.
    """
    if isinstance(env, VecEnv) and (normalizing := unwrap_vec_normalize(env)) is not None and normalizing.norm_obs:
        return None
    base: Any = env.unwrapped
    if isinstance(base, SubprocVecEnv):
        is_unity = base.has_attr("behavior_name") and base.has_attr("layout")
        layout = base.get_attr("layout", 0)[0] if is_unity else None
    else:
        if envs := getattr(base, "envs", None):  # of SB3's DummyVecEnv and Gymnasium's SyncVectorEnv
            base = envs[0].unwrapped
        layout = getattr(base, "layout", None)
    observation_space, action_space = agent_spaces(env)
    if not isinstance(layout, ObservationLayout) or layout.space != observation_space:
        return None
    return BehaviorSpec(layout.spec.observation_specs, _action_spec(action_space)), layout


class HybridActions(dict[Any, Any]):
    """Hybrid actions of n agents by kind; an index returns those of one agent, as SB3's `DummyVecEnv` reads them."""

    def __missing__(self, row: Any) -> dict[Any, Any]:
        if not isinstance(row, int):
            raise KeyError(row)
        return {kind: part[row] for kind, part in self.items()}


def _as_number(array: Array) -> Array:
    """Return observations in a dtype of the networks; users pass float64 and integers, too."""
    return array if array.dtype in (np.float32, np.uint8) else array.astype(np.float32)


def _choices(space: spaces.Space[Any], branches: Array) -> Array:
    """Return discrete actions (n, branches) in the form of their space."""
    if isinstance(space, spaces.Discrete):
        return branches[:, 0] + int(space.start)
    if isinstance(space, spaces.MultiDiscrete):
        branches = branches + space.start.astype(branches.dtype)
    return branches


def _sensor(name: str, space: spaces.Space[Any]) -> ObservationSpec:
    image = isinstance(space, spaces.Box) and is_image_space(space)
    shape = space.shape if image and space.shape is not None else (spaces.flatdim(space),)
    return ObservationSpec(shape, (DimensionProperty.NONE,) * len(shape), ObservationType.DEFAULT, name)


def _array(space: spaces.Space[Any], part: Array) -> Array:
    """Return a batch of n observations of one space as an array (n, *shape)."""
    if isinstance(space, spaces.Discrete):
        one_hot: Array = np.eye(int(space.n), dtype=np.float32)[part.reshape(-1) - int(space.start)]
        return one_hot
    if isinstance(space, spaces.MultiDiscrete):
        digits = (part - space.start).reshape(len(part), -1)
        sizes = space.nvec.reshape(-1)
        return np.concatenate(
            [np.eye(size, dtype=np.float32)[digit] for size, digit in zip(sizes, digits.T, strict=True)], 1
        )
    if is_image_space(space):
        return part
    return part.reshape(len(part), -1).astype(np.float32, copy=False)


def _action_spec(space: spaces.Space[Any]) -> ActionSpec:
    if isinstance(space, spaces.Dict) and set(space.spaces) == {"continuous", "discrete"}:
        return ActionSpec(
            _action_spec(space["continuous"]).continuous_size, _action_spec(space["discrete"]).discrete_branches
        )
    if isinstance(space, spaces.Box):
        return ActionSpec(int(np.prod(space.shape)), ())
    if isinstance(space, spaces.Discrete):
        return ActionSpec(0, (int(space.n),))
    if isinstance(space, spaces.MultiDiscrete) and space.nvec.ndim == 1:
        return ActionSpec(0, tuple(space.nvec.tolist()))
    if isinstance(space, spaces.MultiBinary) and isinstance(space.n, int):
        return ActionSpec(0, (2,) * space.n)
    raise ActionError(
        f"no distribution for the action space {space}: a space is Box, Discrete, MultiDiscrete, MultiBinary, or a "
        "Dict of 'continuous' (Box) and 'discrete' (Discrete or MultiDiscrete)"
    )


def memory_before(state: tuple[np.ndarray, ...] | None, episode_start: np.ndarray | None, n: int, size: int) -> Array:
    """Return the recurrent states before the next decision of n agents, float32 (n, size).

    :param state: Recurrent state that the last decision returned; None at the start, and without recurrence.
    :param episode_start: Agents whose recurrent state is reset, bool (n,). None: all without a state, else none.
    :raises UnityGymError: If there is no state in mid-episode.
    """
    starts = np.full(n, state is None) if episode_start is None else np.asarray(episode_start, bool).reshape(n)
    if state is not None:
        return np.where(starts[:, np.newaxis], np.float32(0), np.asarray(state[0], np.float32))
    if size and not starts.all():
        raise UnityGymError(
            "predict() got no state in mid-episode: pass the state that the previous call returned. Evaluate with "
            "stable_baselines3's evaluate_policy in the model's own environment; sb3-contrib's drops the state"
        )
    return np.zeros((n, size), np.float32)


def allowed_actions(action_masks: Any, n: int, branches: tuple[int, ...]) -> Array:
    """Return the mask of allowed discrete actions, bool (n, sum of branches), that was passed to `predict`.

    :param action_masks: This mask; that of one agent may be flat. None allows all.
    :raises InvalidValueError: If it has another size.
    """
    shape = n, sum(branches)
    masks = np.ones(shape, bool) if action_masks is None else np.asarray(action_masks, bool)
    if masks.size != n * sum(branches):
        raise InvalidValueError(f"action_masks must have the shape {shape}, got {masks.shape}")
    return masks.reshape(shape)


class AgentTableLike(Protocol):
    """Attributes of `unity_gym.slots.AgentTable`, which documents the arrays."""

    observations: list[Array]
    final_observations: list[Array]
    reward: Array
    group_reward: Array
    requests_decision: Array
    terminated: Array
    truncated: Array
    action_mask: Array

    @property
    def group(self) -> Array:
        """Number of each row's group, int64 (rows,); see `AgentTable.group`."""

    def __len__(self) -> int: ...


class Agents(Protocol):
    """Agents that take actions: their arrays in `table`, and a step."""

    @property
    def table(self) -> AgentTableLike:
        """Current observations and outcomes of the agents."""

    @property
    def last_observations(self) -> Any:
        """Current observations, in the form of the environment."""

    @property
    def are_current(self) -> bool:
        """Whether nothing else has reset or stepped the environment; True if the environment does not count this."""

    def step(self, actions: ActionTuple) -> tuple[Array, Array, list[dict[str, Any]]]:
        """Let the rows with `requests_decision` act.

        :return: Rewards (rows,), dones (rows,) and infos, as of a `VecEnv`.
        """


class UnityAgents:
    """Agents of a `UnityVecEnv`; each acts as soon as it requests a decision."""

    def __init__(self, env: UnityVecEnv) -> None:
        self._env, self._changes = env, env.changes

    @property
    def table(self) -> AgentTable:
        """Agent table."""
        return self._env.table

    @property
    def last_observations(self) -> Any:
        """Current observations, in the form of the environment."""
        return self._env.layout.select(self._env.table.observations)

    @property
    def are_current(self) -> bool:
        """Whether nothing else has reset or stepped the environment."""
        return self._changes == self._env.changes

    def step(self, actions: ActionTuple) -> tuple[Array, Array, list[dict[str, Any]]]:
        """Step each player once."""
        results = self._env.step_once(actions)
        self._changes = self._env.changes
        return results


class VecEnvAgents:
    """Sub-environments of any `VecEnv`, each of which acts at every step. The object is its own table.

    Of a wrapped `UnityVecEnv`, rows do not act whose info has `alive` False (no agent) or `requests_decision` False.

    :param env: Environment, after its reset.
    :param space: Conversion of its observations and actions.
    :param observations: Observations that its reset returned.
    """

    def __init__(self, env: VecEnv, space: SpaceAdapter, observations: Any) -> None:
        self._env, self._space = env, space
        self._changes = _changes_of(env)
        n = env.num_envs
        self.last_observations = observations
        self.observations = space.sensor_arrays(observations)
        self.final_observations = [array.copy() for array in self.observations]
        self.reward, self.group_reward = np.zeros(n, np.float32), np.zeros(n, np.float32)
        self._read_requests(env.unwrapped.reset_infos)  # wrappers do not forward them
        self.terminated, self.truncated = np.zeros(n, bool), np.zeros(n, bool)
        branches = space.spec.action_spec.discrete_branches
        self._masked = bool(branches) and is_masking_supported(env)
        self.action_mask = np.ones((n, sum(branches)), bool)
        self._read_masks()

    def __len__(self) -> int:
        return len(self.requests_decision)

    @property
    def group(self) -> Array:
        """Groups, int64 (rows,): each agent has its own."""
        return -1 - np.arange(len(self))

    @property
    def table(self) -> VecEnvAgents:
        """The object itself."""
        return self

    @property
    def are_current(self) -> bool:
        """Whether nothing else has reset or stepped a `UnityVecEnv` in wrappers; True for other environments."""
        return self._changes == _changes_of(self._env)

    def step(self, actions: ActionTuple) -> tuple[Array, Array, list[dict[str, Any]]]:
        """Step the environment, and store the results in the arrays."""
        given = self._space.actions(actions)
        if isinstance(given, HybridActions) and isinstance(self._env.unwrapped, SubprocVecEnv):
            given = [given[row] for row in range(len(self))]  # which it sends one by one
        self.last_observations, rewards, dones, infos = self._env.step(given)
        self._changes = _changes_of(self._env)
        self.observations = self._space.sensor_arrays(self.last_observations)
        self.reward = np.asarray(rewards, np.float32)
        self.terminated, self.truncated = dones.copy(), np.zeros(len(self), bool)
        for row in np.flatnonzero(dones).tolist():
            self._end(row, infos[row])
        self._read_requests(infos)
        self._read_masks()
        return rewards, dones, infos

    def _read_requests(self, infos: list[dict[str, Any]]) -> None:
        key = next((key for key in ("requests_decision", "alive") if infos and key in infos[0]), None)
        self.requests_decision = (
            np.ones(self._env.num_envs, bool) if key is None else np.array([info[key] for info in infos])
        )

    def _end(self, row: int, info: dict[str, Any]) -> None:
        self.truncated[row] = info.get("TimeLimit.truncated", False)
        self.terminated[row] = not self.truncated[row]
        final = info["terminal_observation"]
        batch = (
            {key: part[np.newaxis] for key, part in final.items()} if isinstance(final, dict) else np.asarray([final])
        )
        for stored, array in zip(self.final_observations, self._space.sensor_arrays(batch), strict=True):
            stored[row] = array[0]

    def _read_masks(self) -> None:
        if self._masked:
            self.action_mask = np.asarray(get_action_masks(self._env), bool).reshape(len(self), -1)


def _changes_of(env: VecEnv) -> int:
    return env.unwrapped.changes if isinstance(env.unwrapped, UnityVecEnv) else 0

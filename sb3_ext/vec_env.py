"""`UnityVecEnv`: all agents of a behavior as one Stable-Baselines3 `VecEnv`."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnvIndices, VecEnvObs, VecEnvStepReturn
from typing_extensions import Unpack

from sb3_ext.player_copies import PlayerCopies
from unity_gym.envs.launching import launch_rows, require_wait_for
from unity_gym.envs.rendering import render_frames
from unity_gym.errors import InvalidValueError, UnityGymError
from unity_gym.options import PlayerKeywords, PlayerOptions, takes_player_options
from unity_gym.pool import PlayerPool
from unity_gym.registration import registered_options
from unity_gym.side_channels import EnvironmentParametersChannel
from unity_gym.slots import AgentTable
from unity_gym.spaces import ObservationLayout, action_space, action_tuple, require_form
from unity_gym.specs import ActionTuple, Array

_EVERY_AREA = 2**31 - 1


class UnityVecEnv(VecEnv):
    """Vectorized environment whose sub-environments are the agents of one or more players, also for SB3's algorithms.

    With `wait_for="all"`, a step ends when each agent with a running episode requests a decision. An agent that
    requests one sooner repeats its action, and a warning reports it. With `wait_for="any"`, each player makes one
    environment step. The info contains `requests_decision`. A row where it is False keeps its observation, gets no
    reward and ignores its next action. SB3's algorithms learn from such rows as if their agents had acted; those of
    this package treat each row separately in both modes.

    If an episode ended, the returned observation is the first of the next one (same-step reset). The info then contains
    `terminal_observation`, `TimeLimit.truncated` and, in the format of SB3's `Monitor`, `episode` (return `r`, length
    `l` in decisions, time `t` in seconds). The reward is the sum of individual and group reward. The first info
    contains `stats`, numbers by name, if the scene sent statistics; `StatsCallback` logs them.
    `env_method("action_masks")` returns the masks, True = allowed.

    Agents may spawn and disappear while there are enough rows. A row without an active agent returns an old observation
    (zeros before its first agent), reward 0 and done False. Its info contains `alive` False, and its action is ignored.

    :param env_id: Registered id, such as "Unity-3DBall-v0" or, with `file_name`, "Unity-v0".
    :param n_instances: Number of players to launch.
    :param num_envs: Number of rows, the maximum of agents of all players at once. The embedded player builds as many
        areas as they need, unless `num_areas` is given. By default one row per agent at the start of the scenes.
    :param behavior: Names of the behaviors whose agents have the rows, one or several, each with or without "?team=…".
        Their agents may appear later. By default all behaviors, which must have the same observations and actions.
    :param observations: "split" (rank-1 sensors concatenated) or "sensors" (one key per sensor).
    :param wait_for: "all" or "any".
    :param render_mode: "rgb_array" if `render()` is to return the images of all agents side by side; see
        `unity_gym.envs.rendering.render_frames`.
    :param options: Options of `unity_gym.options.PlayerOptions`.
    :raises InvalidValueError: If the id or the behavior does not exist.
    :raises UnityGymError: If behaviors differ and none is named, or there are more agents than `num_envs`.
    """

    _sees_all_behaviors: ClassVar[bool] = False
    """Whether all behaviors have tables, also those that `behavior` does not name."""

    @takes_player_options
    def __init__(
        self,
        env_id: str = "Unity-v0",
        n_instances: int = 1,
        *,
        num_envs: int | None = None,
        behavior: str | Sequence[str] | None = None,
        observations: str = "split",
        wait_for: str = "all",
        render_mode: str | None = None,
        **options: Unpack[PlayerKeywords],
    ) -> None:
        if render_mode not in (None, "rgb_array"):
            raise InvalidValueError(f"render_mode must be None or 'rgb_array', got {render_mode!r}")
        require_form(observations)
        require_wait_for(wait_for)
        settings = PlayerOptions(**{**registered_options(env_id), **options})
        self._launched = (settings, n_instances, num_envs, behavior)
        self._seed_of_reset: int | None = None
        self._parameters: dict[str, float] = {}  # environment parameters that `set_options` has set
        self.render_mode = render_mode
        areas_to_draw = _EVERY_AREA if render_mode else 0
        if self._sees_all_behaviors:
            self._pool = PlayerPool(settings, n_instances, None, areas_to_draw, rows=num_envs or 0)
        else:
            self._pool = launch_rows(settings, num_envs, n_instances, behavior, areas_to_draw)
        try:
            if self._sees_all_behaviors:
                self._pool.reset()
            self.behavior, self._table = self._choose(behavior)
            self._layout = ObservationLayout(self._table.spec, observations, settings.visual_dtype)
            self._table.is_fixed = True
            n = num_envs or len(self._table)
            self._pool.require_rows(self.behavior, n)
            super().__init__(n, self._layout.space, action_space(self._table.spec.action_spec))
        except BaseException:
            self._pool.close()
            raise
        self._waits_for_all = wait_for == "all"
        self._has_warned = False
        self.changes = 0
        """Number of resets and steps so far."""
        self._returns, self._lengths = np.zeros(n), np.zeros(n, np.int64)
        self._started = time.monotonic()
        self._actions: ActionTuple = self._table.spec.action_spec.empty_action(n)

    def _choose(self, behavior: str | Sequence[str] | None) -> tuple[str, AgentTable]:  # noqa: ARG002
        """Return the name, with the team, and the table of the behavior whose agents the sub-environments are."""
        return self._pool.only_table()

    def set_options(self, options: list[dict[str, Any]] | dict[str, Any] | None = None) -> None:
        """Set environment parameters by name, for the next `reset()`.

        :param options: Parameters of the scene, which all agents share; also a list with the same ones for each row.
        :raises UnityGymError: If a list contains different parameters, or too few or many.
        :raises InvalidValueError: If a value is no finite number.
        """
        if isinstance(options, list) and (not options or options != options[:1] * self.num_envs):
            raise UnityGymError(
                f"options must be one dict, or {self.num_envs} equal ones, got {options}: all agents of a UnityVecEnv "
                "share its environment parameters"
            )
        for parameters in (options if isinstance(options, list) else [options or {}])[:1]:
            EnvironmentParametersChannel.check(parameters)
        super().set_options(options)

    def reset(self) -> VecEnvObs:
        """Start new episodes of all agents, with the seed of `seed()` and the options of `set_options()`."""
        self.changes += 1
        seed, options = self._seeds[0], self._options[0]
        self._pool.start_episodes(seed, options)
        self._pool.require_rows(self.behavior, self.num_envs)
        self._parameters |= options
        if seed is not None:
            self._seed_of_reset = seed
        self._returns.fill(0)
        self._lengths.fill(0)
        self._reset_seeds()
        self._reset_options()
        self.reset_infos = self._new_infos()
        self._add_stats(self.reset_infos)
        return self._layout.select(self._table.observations)  # type: ignore[no-any-return]

    def is_current(self, observations: VecEnvObs) -> bool:
        """Return whether these are the present observations, which the last step or reset returned."""
        present = self._layout.select(self._table.observations)
        if not isinstance(present, dict):
            return not isinstance(observations, dict) and np.array_equal(observations, present)
        return (
            isinstance(observations, dict)
            and observations.keys() == present.keys()
            and all(np.array_equal(observations[key], part) for key, part in present.items())
        )

    def step_async(self, actions: np.ndarray) -> None:
        """Store the actions of all agents for `step_wait`."""
        self._actions = action_tuple(self._table.spec.action_spec, actions, self.num_envs)

    def step_wait(self) -> VecEnvStepReturn:
        """Act, and advance by one step; see `wait_for`."""
        if self._waits_for_all:
            rewards, dones, infos = self._advance(self._pool.step, self._actions)
        else:
            rewards, dones, infos = self._advance(self._pool.step_once, self._actions)
            self._warn_of_rows_that_wait()
        return self._layout.select(self._table.observations), rewards, dones, infos

    def step_once(self, actions: ActionTuple) -> tuple[Array, Array, list[dict[str, Any]]]:
        """Step each player once: the rows of `table` that request a decision act, and the step waits for no agent.

        The method is for algorithms in which agents act at different times.

        :param actions: Actions of all rows of the table; only those of rows that request a decision are sent.
        :return: Rewards (rows,), dones (rows,) and infos, as in `step`.
        """
        self._actions = actions
        return self._advance(self._pool.step_once, actions)

    def copies(self) -> PlayerCopies:
        """Return a description with which other processes launch players like those of this environment.

        :raises UnityGymError: If they cannot be launched there.
        """
        settings, n_instances, num_envs, behavior = self._launched
        parameters = {**settings.environment_parameters, **self._parameters}
        settings = replace(settings, environment_parameters=parameters)
        return PlayerCopies(settings, n_instances, self._seed_of_reset, True, num_envs, behavior)

    @property
    def table(self) -> AgentTable:
        """Table of the agents, one row per agent."""
        return self._table

    @property
    def last_actions(self) -> ActionTuple:
        """Actions of all rows that the last step received, behind all wrappers; zeros before the first step."""
        return self._actions

    @property
    def layout(self) -> ObservationLayout:
        """Form of the observations."""
        return self._layout

    def _advance(
        self, advance: Callable[[Mapping[str, ActionTuple]], None], actions: ActionTuple
    ) -> tuple[Array, Array, list[dict[str, Any]]]:
        table = self._table
        self.changes += 1
        acting = table.requests_decision.copy()
        advance({self.behavior: actions})
        self._pool.require_rows(self.behavior, self.num_envs)
        rewards = table.reward + table.group_reward
        dones = table.terminated | table.truncated
        self._returns += rewards
        self._lengths += acting
        infos = self._new_infos()
        if np.count_nonzero(dones):
            self._add_final_infos(infos, np.flatnonzero(dones))
        self._add_stats(infos)
        return rewards, dones, infos

    def _add_stats(self, infos: list[dict[str, Any]]) -> None:
        if stats := self._pool.pop_stats():
            infos[0]["stats"] = stats

    def _new_infos(self) -> list[dict[str, Any]]:
        alive = self._table.alive.tolist()
        if self._waits_for_all:
            return [{"alive": one} for one in alive]  # in less time than `records`
        requests = self._table.requests_decision.tolist()
        return [{"alive": one, "requests_decision": other} for one, other in zip(alive, requests, strict=True)]

    def _warn_of_rows_that_wait(self) -> None:
        rows = np.flatnonzero(self._table.alive & ~self._table.requests_decision)
        if len(rows) and not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"with wait_for='any' the rows {rows[:10].tolist()} have not requested a decision: algorithms of SB3 "
                "learn from such rows as if they had acted. Use those of sb3_ext, or skip rows whose info has "
                "requests_decision False",
                stacklevel=3,
            )

    def _add_final_infos(self, infos: list[dict[str, Any]], rows: Array) -> None:
        """Fill the infos of the rows whose episode ended."""
        table = self._table
        final = self._layout.select(table.final_observations, rows)
        elapsed = round(time.monotonic() - self._started, 6)
        for position, row in enumerate(rows.tolist()):
            infos[row]["terminal_observation"] = (
                {key: part[position] for key, part in final.items()} if isinstance(final, dict) else final[position]
            )
            infos[row]["TimeLimit.truncated"] = bool(table.truncated[row])
            infos[row]["episode"] = {"r": float(self._returns[row]), "l": int(self._lengths[row]), "t": elapsed}
        self._returns[rows] = 0
        self._lengths[rows] = 0

    def action_masks(self) -> Array:
        """Return a bool array (agents, sum of the branch sizes), True = allowed."""
        masks: Array = self._table.action_mask.copy()
        return masks

    def close(self) -> None:
        """Close the players; further calls have no effect."""
        self._pool.close()

    def has_attr(self, attr_name: str) -> bool:
        """Return whether the agents have this attribute, such as `action_masks`, for which SB3 checks."""
        if attr_name == "action_masks":
            return self._table.spec.action_spec.discrete_size > 0
        return hasattr(self, attr_name)

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        """Return the attribute of this environment, once for each agent of `indices`."""
        return [getattr(self, attr_name)] * len(list(self._get_indices(indices)))

    def set_attr(self, attr_name: str, value: Any, indices: VecEnvIndices = None) -> None:  # noqa: ARG002
        """Raise an error, as the agents are rows of one table and have no separate attributes.

        :raises UnityGymError: Always.
        """
        raise UnityGymError(
            f"cannot set {attr_name!r} for {indices}: the agents of a UnityVecEnv are no objects of their own; set "
            "environment parameters with env.set_options({name: value}) before reset()"
        )

    def env_method(
        self, method_name: str, *method_args: Any, indices: VecEnvIndices = None, **method_kwargs: Any
    ) -> list[Any]:
        """Call `action_masks` for each agent of `indices`.

        :raises UnityGymError: If `method_name` is another method.
        """
        if method_name != "action_masks" or method_args or method_kwargs:
            raise UnityGymError(f"the agents of a UnityVecEnv have the method 'action_masks' only, got {method_name!r}")
        return list(self.action_masks()[list(self._get_indices(indices))])

    def env_is_wrapped(
        self, wrapper_class: type[gym.Wrapper[Any, Any, Any, Any]], indices: VecEnvIndices = None
    ) -> list[bool]:
        """Return True for SB3's `Monitor`, as the infos of this environment contain its `episode` statistics."""
        return [issubclass(Monitor, wrapper_class)] * len(list(self._get_indices(indices)))

    def get_images(self) -> Sequence[np.ndarray | None]:
        """Return the image of each agent, uint8 (height, width, 3), with `render_mode="rgb_array"`, otherwise None."""
        return render_frames(self._pool, self._table) if self.render_mode else [None] * self.num_envs

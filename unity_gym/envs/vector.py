"""Many agents as a `gymnasium.vector.VectorEnv`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space
from typing_extensions import Unpack

from unity_gym.envs.launching import launch_rows, require_wait_for
from unity_gym.envs.rendering import open_window, render_frames, rendering_metadata, returns_image, tiled
from unity_gym.errors import InvalidValueError
from unity_gym.options import PlayerKeywords, PlayerOptions, takes_player_options
from unity_gym.slots import AgentTable
from unity_gym.spaces import ObservationLayout, action_space, action_tuple, require_form, split_rows
from unity_gym.specs import ActionTuple, Array

_Outcome = tuple[Any, Array, Array, Array, dict[str, Any]]


class UnityVectorEnv(gym.vector.VectorEnv[Any, Any, Array]):
    """Vector environment whose sub-environments are the agents of one or more players.

    `gymnasium.make_vec` creates it. With `wait_for="all"` a step ends when every agent with a running episode requests
    a decision. An agent that requests one sooner repeats its action, and a warning reports this. With `wait_for="any"`
    a step is one environment step of each player. Rows whose agent has not requested a decision keep their observation,
    get no reward and ignore their next action.

    Unity starts the next episode of an agent by itself. `autoreset_mode` defines what is returned when an episode ends:

    - `AutoresetMode.NEXT_STEP` (default, as in Gymnasium): the step returns the last observation. The next step ignores
      the row's action and returns the first observation of the new episode and the reward 0. A player that waits only
      for such first decisions is not stepped. But it cannot pause one agent. With `wait_for="all"` an agent whose first
      decision is due while others are in mid-episode takes the zero action, and the reward counts for the row's next
      step. If the episode ends with that decision, it is left out. With `wait_for="any"` no decision is lost. A step in
      which episodes ended returns only these rows; the next one returns the others without stepping the players.
    - `AutoresetMode.SAME_STEP`: the step returns the first observation of the next episode. `infos["final_obs"]` holds
      the last one of the ended episode (object array (num_envs,), None where no episode ended).

    Rewards are float64 (num_envs,), the agent's own plus its group's. `infos` holds arrays. As in Gymnasium, the entry
    "_<key>" is a bool array (num_envs,) of the rows that have the key:

    - `action_mask`: bool (num_envs, sum of the branch sizes), True = allowed in the next step; with discrete actions
    - `group_reward`: float64 (num_envs,), the group's part of the reward; for agents in groups
    - `alive`: bool (num_envs,). False: the row is between two episodes, or has had no agent yet. Its observation is an
      old one (zeros before its first agent), its reward is 0, and its next action is ignored.
    - `requests_decision`: bool (num_envs,), with `wait_for="any"`. False: the row's next action is ignored
    - `stats`: the statistics that the scenes sent with this step, by name, each as float64 (num_envs,). All rows hold
      the same value, because the statistics describe the players as a whole; see `PlayerPool.pop_stats`
    - `final_obs`, `final_info` (with `group_reward`): for the rows whose episode ended, with SAME_STEP

    Agents may spawn and be removed as long as there are enough rows.

    :param num_envs: Number of rows: the largest number of agents of all players that are alive at once. The embedded
        player lays out the areas that this takes, unless `num_areas` sets their number.
    :param n_instances: Number of players to launch.
    :param behavior: Names of the behaviors whose agents have the rows, one or several, each with or without its
        "?team=…"; they may appear later. By default all, which must have the same observations and actions.
    :param observations: Form of the observations: "split" (rank-1 sensors concatenated) or "sensors" (one key per
        sensor); see `ObservationLayout`.
    :param wait_for: Agents that a step waits for: "all" or "any".
    :param autoreset_mode: SAME_STEP or NEXT_STEP, or their values "SameStep" and "NextStep".
    :param render_mode: Mode of `render()`. "rgb_array": an image per agent, uint8 (height, width, 3), shared by the
        agents of one area; of a build, the image of the agent's first camera. "human": a window shows the images side
        by side.
    :param options: Player options, see `PlayerOptions`.
    :raises UnityGymError: If there are more agents than rows, or if behaviors differ and none is selected.
    :raises InvalidValueError: If an option has an unsupported value, or no agent has the behavior.
    """

    metadata = rendering_metadata() | {"autoreset_mode": AutoresetMode.NEXT_STEP}

    @takes_player_options
    def __init__(
        self,
        num_envs: int = 1,
        *,
        n_instances: int = 1,
        behavior: str | Sequence[str] | None = None,
        observations: str = "split",
        wait_for: str = "all",
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        render_mode: str | None = None,
        **options: Unpack[PlayerKeywords],
    ) -> None:
        modes = {mode.value: mode for mode in (AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP)}
        name = autoreset_mode.value if isinstance(autoreset_mode, AutoresetMode) else autoreset_mode
        if name not in modes:
            raise InvalidValueError(
                f"autoreset_mode must be one of {sorted(modes)}, got {name!r}: Unity starts the next episode by itself"
            )
        require_form(observations)
        require_wait_for(wait_for)
        self.num_envs = num_envs
        self.autoreset_mode = modes[name]
        self.metadata = rendering_metadata() | {"autoreset_mode": self.autoreset_mode}  # own copy
        self._same_step = self.autoreset_mode is AutoresetMode.SAME_STEP
        self._waits_for_all = wait_for == "all"
        settings = PlayerOptions(**options)
        self.render_mode = render_mode
        with ExitStack() as on_error:
            self._window = open_window(render_mode, str(settings.file_name or "Unity"))
            if self._window is not None:
                on_error.callback(self._window.close)
            self._pool = launch_rows(settings, num_envs, n_instances, behavior, num_envs if render_mode else 0)
            on_error.callback(self._pool.close)
            self._behavior, self._table = self._pool.only_table()
            spec = self._table.spec
            self._layout = ObservationLayout(spec, observations, settings.visual_dtype)
            self.single_observation_space = self._layout.space
            self.single_action_space = action_space(spec.action_spec)
            if render_mode is not None:
                render_frames(self._pool, self._table)  # raises if there are none
            on_error.pop_all()
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._actions = spec.action_spec.empty_action(num_envs)
        self._start()

    def _start(self) -> None:
        """Reset the state that one step leaves for the next."""
        self._ended = np.zeros(self.num_envs, bool)  # the rows whose episode ended in the last step
        self._pending_reward = np.zeros(self.num_envs)  # rewards not yet returned
        self._pending_group_reward = np.zeros(self.num_envs)
        self._withholds_results = False  # the last step returned only the rows whose episode ended

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start a new episode in all rows.

        :param seed: Seed with which the scenes start from scratch (player i with seed + i). A list is reduced to one
            seed, as the agents of a player share its random numbers; one of None has no seed.
        :param options: Environment parameters by name, sent before the reset.
        """
        if seed is not None and not isinstance(seed, int | np.integer):
            parts = [part for part in seed if part is not None and part >= 0]
            if len(seed) != self.num_envs or (len(parts) < self.num_envs and any(part is not None for part in seed)):
                raise InvalidValueError(
                    f"seed must be an integer or a list of {self.num_envs} of them, one per row, none negative, got "
                    f"{list(seed)}"
                )
            seed = int(np.random.SeedSequence(parts).generate_state(1)[0] >> 1) if parts else None
        seed = None if seed is None else int(seed)
        super().reset(seed=seed)
        self._pool.start_episodes(seed, options)
        self._pool.require_rows(self._behavior, self.num_envs)
        self._start()
        self._show()
        return self._layout.select(self._table.observations), self._infos(self._table.group_reward)

    def step(self, actions: Any) -> _Outcome:
        """Act, and advance as `wait_for` defines.

        :raises ActionError: If the actions do not fit the action space.
        """
        self._actions = action_tuple(self._table.spec.action_spec, actions, self.num_envs)
        outcome = self._step_all(self._actions) if self._waits_for_all else self._step_any(self._actions)
        self._show()
        return outcome

    def _step_all(self, actions: ActionTuple) -> _Outcome:
        table = self._table
        is_acting = np.ones(self.num_envs, bool) if self._same_step else ~self._ended
        is_restarted = ~is_acting & table.requests_decision  # their first observation has not been returned
        workers = self._players_to_step(is_restarted) if is_restarted.any() else None
        if workers is not None:
            is_restarted &= np.isin(table.player, workers)
        first_observations = self._layout.select(table.observations, is_restarted) if is_restarted.any() else None
        if not is_acting.all():
            continuous, discrete = (
                np.where(is_acting[:, None], part, 0) for part in (actions.continuous, actions.discrete)
            )
            actions = ActionTuple(continuous, discrete)
        self._pool.step({self._behavior: actions}, autoreset=self._same_step, workers=workers)
        self._pool.require_rows(self._behavior, self.num_envs)
        observations = self._layout.select(table.observations)
        if first_observations is not None:
            shows_first = is_restarted & ~(table.terminated | table.truncated)
            rows = np.flatnonzero(shows_first)
            self._layout.overwrite(
                observations, rows, self._layout.select_rows(first_observations, shows_first[is_restarted])
            )
        else:
            shows_first = is_restarted
        reward, group_reward = self._pending_reward + table.reward, self._pending_group_reward + table.group_reward
        self._pending_reward, self._pending_group_reward = reward * shows_first, group_reward * shows_first
        return self._outcome(observations, reward * is_acting, group_reward * is_acting, is_acting)

    def _players_to_step(self, is_restarted: Array) -> list[int]:
        """Return the players to step: all except those whose only requests are the first of an episode.

        :param is_restarted: Rows with such a request, bool (num_envs,).
        """
        player, requests = self._table.player, self._table.requests_decision
        waiting = np.setdiff1d(player[is_restarted], player[requests & ~is_restarted])
        return [worker for worker in range(len(self._pool.players)) if worker not in waiting]

    def _step_any(self, actions: ActionTuple) -> _Outcome:
        table = self._table
        if self._withholds_results:
            self._withholds_results = False
            others = ~self._ended
            observations = self._layout.select(table.observations)
            none = np.zeros(self.num_envs, bool)
            return self._outcome(observations, table.reward * others, table.group_reward * others, none)
        before = None if self._same_step else self._layout.select(table.observations)
        self._pool.step_once({self._behavior: actions})
        self._pool.require_rows(self._behavior, self.num_envs)
        ended = table.terminated | table.truncated
        self._withholds_results = not self._same_step and bool((ended & table.requests_decision).any())
        is_reported = ended if self._withholds_results else np.ones(self.num_envs, bool)
        observations = before if self._withholds_results else self._layout.select(table.observations)
        return self._outcome(observations, table.reward * is_reported, table.group_reward * is_reported, is_reported)

    def _outcome(self, observations: Any, reward: Array, group_reward: Array, is_reported: Array) -> _Outcome:
        """Return the values that `step` returns.

        :param reward: Rewards of the agents.
        :param group_reward: Rewards of their groups.
        :param is_reported: Rows whose episode ends are returned, bool (num_envs,).
        """
        table = self._table
        terminated, truncated = table.terminated & is_reported, table.truncated & is_reported
        self._ended = terminated | truncated
        infos = self._infos(group_reward)
        if self._ended.any():
            rows = np.flatnonzero(self._ended)
            final = self._layout.select(table.final_observations, rows)
            if self._same_step:
                self._add_final_infos(infos, rows, final)
            else:
                self._layout.overwrite(observations, rows, final)
        return observations, np.add(reward, group_reward, dtype=np.float64), terminated, truncated, infos

    def _infos(self, group_reward: Array) -> dict[str, Any]:
        table = self._table
        all_rows = np.ones(self.num_envs, bool)
        infos: dict[str, Any] = {"alive": table.alive.copy(), "_alive": all_rows}
        if not self._waits_for_all:
            infos |= {
                "requests_decision": table.requests_decision & (not self._withholds_results),
                "_requests_decision": all_rows.copy(),
            }
        if table.spec.action_spec.discrete_size:
            infos |= {"action_mask": self.action_masks(), "_action_mask": all_rows.copy()}
        has_group = (table.group_id != 0) | (group_reward != 0)  # one that has left may still get its group's reward
        if has_group.any():
            infos |= {"group_reward": group_reward.astype(np.float64), "_group_reward": has_group}
        if stats := self._pool.pop_stats():
            arrays: dict[str, Array] = {name: np.full(self.num_envs, value) for name, value in stats.items()}
            infos |= {"stats": arrays | {f"_{name}": all_rows.copy() for name in stats}, "_stats": all_rows.copy()}
        return infos

    def _add_final_infos(self, infos: dict[str, Any], rows: Array, final: Any) -> None:
        """Add the SAME_STEP entries for `rows`, whose episodes ended, in the form of Gymnasium's SyncVectorEnv."""
        final_obs = np.full(self.num_envs, None, object)
        final_obs[rows] = np.fromiter(split_rows(final), object, len(rows))
        final_info: dict[str, Any] = {}
        if "group_reward" in infos:
            final_info["group_reward"] = infos["group_reward"] * self._ended
            final_info["_group_reward"] = infos["_group_reward"] & self._ended
        infos |= {"final_obs": final_obs, "_final_obs": self._ended.copy()}
        infos |= {"final_info": final_info, "_final_info": self._ended.copy()}

    @property
    def table(self) -> AgentTable:
        """The agents' rows as the last `reset` or `step` left them."""
        return self._table

    @property
    def layout(self) -> ObservationLayout:
        """Form of the observations."""
        return self._layout

    @property
    def last_actions(self) -> ActionTuple:
        """Actions of all rows that the last step received, behind all wrappers; zeros before the first step."""
        return self._actions

    @property
    def behavior(self) -> str:
        """The name of the table's first behavior."""
        return self._behavior

    def action_masks(self) -> Array:
        """Return a bool array (num_envs, sum of the branch sizes), True = allowed."""
        masks: Array = self._table.action_mask.copy()
        return masks

    def render(self) -> tuple[Array, ...] | None:
        """Return the image of each agent's present state, uint8 (height, width, 3), with `render_mode="rgb_array"`."""
        return render_frames(self._pool, self._table) if returns_image(self.render_mode) else None

    def _show(self) -> None:
        if self._window is not None:
            self._window.show(tiled(render_frames(self._pool, self._table)))

    def close_extras(self, **kwargs: Any) -> None:  # noqa: ARG002  # gymnasium's signature
        """Close the players."""
        self._pool.close()
        if self._window is not None:
            self._window.close()

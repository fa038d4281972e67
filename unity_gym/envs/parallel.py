"""All agents of a scene as a PettingZoo `ParallelEnv`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from copy import deepcopy
from itertools import accumulate, chain, repeat
from operator import itemgetter
from typing import Any, TypeAlias

import gymnasium as gym
import numpy as np
from gymnasium.utils import EzPickle
from pettingzoo import ParallelEnv
from typing_extensions import Unpack

from unity_gym.envs.launching import require_wait_for
from unity_gym.envs.rendering import open_window, render_frames, rendering_metadata, returns_image
from unity_gym.errors import ActionError, InvalidValueError, NotReadyError
from unity_gym.options import PlayerKeywords, PlayerOptions, takes_player_options
from unity_gym.pool import PlayerPool
from unity_gym.slots import AgentTable
from unity_gym.spaces import (
    ObservationLayout,
    action_space,
    action_tuple,
    records,
    require_form,
    single_action_tuple,
    split_rows,
)
from unity_gym.specs import ActionTuple, Array, BehaviorSpec

# observations, rewards, terminations, truncations and infos, by agent
_Results: TypeAlias = tuple[
    dict[str, Any], dict[str, float], dict[str, bool], dict[str, bool], dict[str, dict[str, Any]]
]


_DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
_MASK_PLACES = ("observation", "info", None)


class UnityParallelEnv(ParallelEnv[str, Any, Any], EzPickle):  # type: ignore[misc]  # PettingZoo has no types
    """PettingZoo `ParallelEnv` of the agents of all behaviors and teams of one player, from decision to decision.

    An agent is named after its behavior and row: "pushblock_3". Where the scene has several teams, it is named after
    behavior, team and row: "soccertwos_1_0" is the first agent of team 1. A behavior's name is written in lower-case
    letters ("3DBall" is "threedball"). Rows are independent of Unity's agent ids.

    An agent whose episode ended stays dead until `reset()`: its row takes the zero action until then. An agent that
    spawns mid-episode is in `agents` from then on, with the observation of its first decision. If its row is new, its
    name is appended to `possible_agents`. The row of an agent that died in this episode stays inactive even if another
    agent takes it. So `possible_agents` may grow, and names are never removed from it.

    With `wait_for="all"` a step ends when every agent requests a decision or has ended. An agent that requests one
    sooner repeats its action, and a warning reports this. With `wait_for="any"` a step is one environment step of the
    player, and `info["requests_decision"]` marks the agents that act next. The others keep their observation, get no
    reward and need no action.

    With discrete actions, an observation is `{"observation": …, "action_mask": …}` as in PettingZoo's classic games.
    The mask is int8 (sum of the branch sizes,), 1 = allowed, and `action_space(agent).sample(mask)` takes it, also
    where actions are `MultiDiscrete` or `Dict(continuous, discrete)`. The mask of an agent that ended allows
    everything. Wrappers that support no `Dict` observations, such as SuperSuit's, need `action_mask="info"`.

    A reward is the agent's own plus its group's. An info holds `stats` (the scene's statistics by name, if it sent any
    with this step), `action_mask` and, in behaviors with groups, `group_reward`.

    The environment is pickled as its arguments: the copy launches its own player.

    :param behavior: Names of the behaviors to control, one or several, each with or without its "?team=…"; the agents
        of the others take the zero action. By default all.
    :param observations: Form of the observations: "split" (rank-1 sensors concatenated) or "sensors" (one key per
        sensor); see `ObservationLayout`.
    :param wait_for: Agents that a step waits for: "all" or "any".
    :param action_mask: Place of the action masks: "observation" (and also in the info), "info", or None for nowhere.
    :param max_cycles: Number of steps after which all agents are truncated. With `wait_for="any"` a step after which no
        agent requests a decision does not count. By default only the scene limits an episode.
    :param render_mode: Mode of `render()`. "rgb_array": an image of the player's first area, uint8 (height, width, 3);
        of a build, the image of the first agent's first camera. "human": a window shows it.
    :param options: Player options, see `PlayerOptions`.
    :raises InvalidValueError: If an option has an unsupported value.
    """

    metadata = rendering_metadata() | {"name": "unity_v0", "is_parallelizable": True}

    @takes_player_options
    def __init__(
        self,
        *,
        behavior: str | Sequence[str] | None = None,
        observations: str = "split",
        wait_for: str = "all",
        action_mask: str | None = "observation",
        max_cycles: int | None = None,
        render_mode: str | None = None,
        **options: Unpack[PlayerKeywords],
    ) -> None:
        EzPickle.__init__(
            self,
            behavior=behavior,
            observations=observations,
            wait_for=wait_for,
            action_mask=action_mask,
            max_cycles=max_cycles,
            render_mode=render_mode,
            **options,
        )
        require_form(observations)
        require_wait_for(wait_for)
        if action_mask not in _MASK_PLACES:
            raise InvalidValueError(f"action_mask must be 'observation', 'info' or None, got {action_mask!r}")
        if max_cycles is not None and max_cycles < 1:
            raise InvalidValueError(f"max_cycles must be at least 1, got {max_cycles}")
        settings = PlayerOptions(**options)
        self.metadata = deepcopy(type(self).metadata)  # not shared between environments
        self.agents: list[str] = []
        self.possible_agents: list[str] = []
        self.timeout_wait = settings.timeout_wait
        self._waits_for_all = wait_for == "all"
        self._mask_place, self._max_cycles, self._cycles = action_mask, max_cycles, 0
        self._observations, self._visual_dtype = observations, settings.visual_dtype
        self._labels: dict[str, str] = {}  # behaviors, without the team, by the prefix of their agents' names
        self._has_teams = False
        self._behaviors: dict[str, _BehaviorAgents] = {}
        self._behavior_of: dict[str, _BehaviorAgents] = {}
        self._spaces: dict[tuple[str, str], gym.Space[Any]] = {}
        self.render_mode = render_mode
        self._can_resume = False
        with ExitStack() as on_error:
            self._window = open_window(render_mode, str(settings.file_name or "Unity"))
            if self._window is not None:
                on_error.callback(self._window.close)
            self._pool = PlayerPool(settings, behavior=behavior, areas_to_draw=int(render_mode is not None))
            on_error.callback(self._pool.close)
            self._pool.reset()
            self._add_new_agents()
            if render_mode is not None:
                self._image()  # raises if there is none
            on_error.pop_all()

    def _add_new_agents(self) -> None:
        """Name the rows that were added since the last environment step."""
        self._has_teams |= len({_team(name) for name in self._pool.announced_behaviors}) > 1
        for name, table in self._pool.tables.items():
            behavior = self._behaviors.get(name)
            if behavior is None:
                layout = ObservationLayout(table.spec, self._observations, self._visual_dtype)
                behavior = self._behaviors[name] = _BehaviorAgents(
                    self._agent_name(name), table, layout, self._mask_place
                )
            if names := behavior.add_rows():
                self.possible_agents += names  # in place: PettingZoo's conversion to AEC holds this list
                self._behavior_of.update(zip(names, repeat(behavior), strict=False))

    def _agent_name(self, behavior: str) -> str:
        """Return the prefix of the names of a behavior's agents."""
        plain = behavior.partition("?")[0]
        letters = re.sub("[0-9]", lambda digit: _DIGITS[int(digit[0])], plain.lower())
        label = re.sub("[^a-z]", "", letters) or "agent"
        while self._labels.setdefault(label, plain) != plain:
            label += "x"
        return f"{label}_{_team(behavior)}" if self._has_teams else label

    @property
    def behavior_specs(self) -> dict[str, BehaviorSpec]:
        """The specification of each behavior whose agents have appeared, by its name with the team."""
        return {name: table.spec for name, table in self._pool.tables.items()}

    @property
    def observation_spaces(self) -> dict[str, gym.Space[Any]]:
        """The observation space of each possible agent."""
        return {agent: self.observation_space(agent) for agent in self.possible_agents}

    @property
    def action_spaces(self) -> dict[str, gym.Space[Any]]:
        """The action space of each possible agent."""
        return {agent: self.action_space(agent) for agent in self.possible_agents}

    def observation_space(self, agent: str) -> gym.Space[Any]:
        """Return the agent's own observation space, always the same object.

        :raises InvalidValueError: If no such agent exists.
        """
        return self._space(agent, "observation_space")

    def action_space(self, agent: str) -> gym.Space[Any]:
        """Return the agent's own action space, always the same object.

        :raises InvalidValueError: If no such agent exists.
        """
        return self._space(agent, "action_space")

    def _space(self, agent: str, kind: str) -> gym.Space[Any]:
        if agent not in self._behavior_of:
            raise InvalidValueError(f"no agent {agent!r}; the possible ones are {self.possible_agents}")
        if (agent, kind) not in self._spaces:
            self._spaces[agent, kind] = deepcopy(getattr(self._behavior_of[agent], kind))
        return self._spaces[agent, kind]

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        """Start an episode with all agents that request a decision.

        Where all agents ended together and start their next episodes together, these continue. Otherwise, with a seed
        or options, or with messages that are queued on side channels, RESET is sent.

        :param seed: Seed with which the scene starts from scratch.
        :param options: Environment parameters by name, sent before the reset.
        """
        self._pool.start_episodes(seed, options, all_have_ended=self._can_resume)
        self._can_resume = False
        self._cycles = 0
        self._add_new_agents()
        for behavior in self._behaviors.values():
            behavior.start()
        observations, *_, infos = self._collect_results()
        self._show()
        return observations, infos

    def step(self, actions: Mapping[str, Any]) -> _Results:
        """Act, and advance as `wait_for` defines.

        :param actions: Action of each agent in `agents`; agents that request no decision need none. Those of agents
            that have ended are ignored, as in PettingZoo's own environments.
        :raises NotReadyError: If no agent is alive.
        :raises ActionError: If an agent has no action, a name is not in `possible_agents`, or an action does not fit
            its space.
        """
        if not self.agents:
            raise NotReadyError("step() without a living agent: call reset() first")
        missing = [agent for agent in self.requesting_agents() if agent not in actions]
        unknown = sorted(actions.keys() - self.possible_agents)
        if missing or unknown:
            raise ActionError(
                f"step() takes one action for each agent in env.agents; missing are {missing}, unknown are {unknown}"
            )
        action_tuples = {name: behavior.action_tuple(actions) for name, behavior in self._behaviors.items()}
        if self._waits_for_all:
            self._pool.step(action_tuples, autoreset=False)
        else:
            self._pool.step_once(action_tuples)
        self._add_new_agents()
        for behavior in self._behaviors.values():
            behavior.advance()
        self._cycles += bool(self.requesting_agents())
        results = self._collect_results()
        self._show()
        self._can_resume = not self.agents and self._start_together()
        if self._cycles == self._max_cycles:
            results[3].update(dict.fromkeys(self.agents, True))
            self.agents = []
        return results

    def _start_together(self) -> bool:
        """Return whether the last step ended all running episodes, and the agents start the next ones together.

        They do not where only agents that had left request a decision: these return in the exchange in which the others
        end, and start before them. An agent that changes its behavior has ended in one and continues in another.
        """
        if any(behavior.is_running() for behavior in self._behaviors.values()):
            return False
        tables = self._pool.tables.values()
        requesting = {agent for table in tables for agent in table.agent_id[table.requests_decision].tolist()}
        ended = {agent for table in tables for agent in table.agent_id[table.terminated | table.truncated].tolist()}
        return not requesting or not requesting.isdisjoint(ended)

    def requesting_agents(self) -> list[str]:
        """Return the agents that request a decision now; with `wait_for="all"` those in `agents`."""
        return list(chain.from_iterable(behavior.requesting_agents() for behavior in self._behaviors.values()))

    def _collect_results(self) -> _Results:
        """Set `agents` and return the values that `step` returns."""
        self.agents = list(chain.from_iterable(behavior.active_agents() for behavior in self._behaviors.values()))
        names, *values = (
            list(chain(*parts))
            for parts in zip(*(behavior.collect_results() for behavior in self._behaviors.values()), strict=True)
        )
        observations, rewards, terminations, truncations, infos = (
            dict(zip(names, value, strict=True)) for value in values
        )
        if stats := self._pool.pop_stats():
            for info in infos.values():
                info["stats"] = stats
        if not self._waits_for_all:
            requesting_agents = set(self.requesting_agents())
            for agent, info in infos.items():
                info["requests_decision"] = agent in requesting_agents
        return observations, rewards, terminations, truncations, infos

    def render(self) -> Array | None:
        """Return the current frame, uint8 (height, width, 3), with `render_mode="rgb_array"`.

        None with any other mode, and a warning without one.

        When no agent is left, the frame shows the last state of the episode.
        """
        return self._image() if returns_image(self.render_mode) else None

    def _image(self) -> Array:
        ended = not (self.agents or self._pool.is_at_start)
        return render_frames(self._pool, next(iter(self._pool.tables.values())), ended)[0]

    def _show(self) -> None:
        if self._window is not None:
            self._window.show(self._image())

    def close(self) -> None:
        """Close the player. Can be called any number of times."""
        self._pool.close()
        if self._window is not None:
            self._window.close()


class _BehaviorAgents:
    """The agents of one behavior under their PettingZoo names, and which of them are active.

    :param name: Prefix of the names of its agents.
    :param table: Table of its agents.
    :param layout: Layout of their observations.
    :param mask_place: Place of the action masks: "observation", "info" or None.
    """

    def __init__(self, name: str, table: AgentTable, layout: ObservationLayout, mask_place: str | None) -> None:
        self._name, self._table, self._layout = name, table, layout
        self._names = np.zeros(0, object)
        self._is_active, self._has_ended, self._has_just_ended, self._was_alive = (np.zeros(0, bool) for _ in range(4))
        self._rows = np.zeros(0, np.intp)
        actions = table.spec.action_spec
        self._returns_masks = actions.discrete_size > 0 and mask_place is not None
        self._observes_masks = self._returns_masks and mask_place == "observation"
        self.action_space = _sampling_with_flat_masks(action_space(actions))
        self.observation_space = layout.space
        if self._observes_masks:
            mask = gym.spaces.Box(0, 1, (sum(actions.discrete_branches),), np.int8)
            self.observation_space = gym.spaces.Dict({"observation": layout.space, "action_mask": mask})

    def add_rows(self) -> list[str]:
        """Follow the table's growth, and return the names of the new rows."""
        new = [f"{self._name}_{row}" for row in range(len(self._names), len(self._table))]
        if new:
            self._names = np.concatenate([self._names, np.array(new, object)])
            for name in ("_is_active", "_has_ended"):
                setattr(self, name, np.concatenate([getattr(self, name), np.zeros(len(new), bool)]))
        return new

    def start(self) -> None:
        """Start an episode with the agents that request a decision."""
        self._is_active = self._table.requests_decision.copy()
        self._has_just_ended, self._has_ended = np.zeros_like(self._is_active), np.zeros_like(self._is_active)
        self._rows = np.flatnonzero(self._is_active)

    def advance(self) -> None:
        """Update the active agents after a step.

        Agents that ended are inactive until `start`; agents that request their first decision become active.
        """
        table = self._table
        self._has_just_ended = (table.terminated | table.truncated) & self._is_active
        has_results = self._is_active | (table.requests_decision & ~self._has_ended)
        self._rows = np.flatnonzero(has_results)
        self._has_ended |= self._has_just_ended
        self._is_active = has_results & ~self._has_just_ended

    def active_agents(self) -> list[str]:
        """Return the names of the active agents."""
        names: list[str] = self._names[self._is_active].tolist()
        return names

    def requesting_agents(self) -> list[str]:
        """Return the names of the active agents that request a decision."""
        names: list[str] = self._names[self._is_active & self._table.requests_decision].tolist()
        return names

    def action_tuple(self, actions: Mapping[str, Any]) -> ActionTuple:
        """Return the actions of all rows: those of the agents that request a decision, zeros for the others."""
        self._was_alive = self._table.alive.copy()
        spec = self._table.spec.action_spec
        names, rows = self.requesting_agents(), np.flatnonzero(self._is_active & self._table.requests_decision)
        all_actions = spec.empty_action(len(self._table))
        if not names:
            return all_actions
        chosen = list(map(actions.__getitem__, names))
        try:
            batch = (
                {key: np.array(list(map(itemgetter(key), chosen))) for key in chosen[0]}
                if isinstance(chosen[0], Mapping)
                else np.array(chosen)
            )
            selected = action_tuple(spec, batch, len(rows))
        except (ValueError, TypeError, KeyError) as error:  # numpy raises all of these if shapes differ
            for agent, action in zip(names, chosen, strict=True):
                try:
                    single_action_tuple(spec, action)
                except ActionError as wrong:
                    raise ActionError(f"{agent}: {wrong}") from None
            raise ActionError(f"the actions of {self._name!r} do not fit {self.action_space}: {error}") from error
        all_actions.continuous[rows], all_actions.discrete[rows] = selected.continuous, selected.discrete
        return all_actions

    def collect_results(self) -> tuple[list[Any], ...]:
        """Return the results of the agents that are active or have just ended.

        :return: Names, observations, rewards, terminations, truncations and infos.
        """
        table, rows = self._table, self._rows
        ended = self._has_just_ended[rows]
        batch = self._layout.select(table.observations, rows)
        if ended.any():
            final = self._layout.select(table.final_observations, rows[ended])
            self._layout.overwrite(batch, np.flatnonzero(ended), final)
        observations = split_rows(batch) if self._layout.parts else ({} for _ in rows)
        info: dict[str, Iterable[Any]] = {}
        if self._returns_masks:
            info["action_mask"] = mask = (table.action_mask[rows] | ended[:, None]).astype(np.int8)
            if self._observes_masks:
                observations = records(observation=observations, action_mask=mask)
        if table.group_id.any() or table.group_reward.any():  # one that has left its group may still get its reward
            info["group_reward"] = table.group_reward[rows].tolist()
        return (
            self._names[rows].tolist(),
            list(observations),
            (table.reward + table.group_reward)[rows].tolist(),
            (table.terminated[rows] & ended).tolist(),
            (table.truncated[rows] & ended).tolist(),
            list(records(**info) if info else map(dict, repeat((), len(rows)))),
        )

    def is_running(self) -> bool:
        """Return whether an episode continues that was running before the last step."""
        has_ended = (self._table.terminated | self._table.truncated)[: len(self._was_alive)]
        return bool((self._was_alive & ~has_ended).any())


def _team(behavior: str) -> int:
    """Return the team in a behavior's full name."""
    number = behavior.partition("?team=")[2]
    return int(number) if number.isdecimal() else 0


def _sampling_with_flat_masks(space: gym.Space[Any]) -> gym.Space[Any]:
    """Return the same space, whose `sample(mask)` takes a mask that is flat over all branches."""
    if isinstance(space, gym.spaces.MultiDiscrete):
        return _MultiDiscrete(space.nvec)
    if isinstance(space, gym.spaces.Dict):
        return _Hybrid({key: _sampling_with_flat_masks(part) for key, part in space.spaces.items()})
    return space


class _MultiDiscrete(gym.spaces.MultiDiscrete):
    """A `MultiDiscrete` whose `sample` also takes a mask int8 (sum of the branch sizes,)."""

    def sample(self, mask: Any = None, **kwargs: Any) -> Any:  # type: ignore[override]  # its type of mask is wider
        if isinstance(mask, np.ndarray):
            mask = tuple(np.split(mask, list(accumulate(self.nvec.tolist()))[:-1]))
        return super().sample(mask, **kwargs)


class _Hybrid(gym.spaces.Dict):
    """A `Dict(continuous, discrete)` whose `sample` also takes a mask int8 (sum of the branch sizes,)."""

    def sample(self, mask: Any = None, **kwargs: Any) -> Any:  # type: ignore[override]  # its type of mask is wider
        if isinstance(mask, np.ndarray):
            mask = {"continuous": None, "discrete": mask}
        return super().sample(mask, **kwargs)

"""`UnityParallelEnv` and `UnityAECEnv` with the four-value interface of `mlagents_envs` 1.x.

An agent is called "<behavior>?agent_id=<id>". If its next episode starts in the message that ends the last one, the
agent stays. In the parallel environment, its observation is then the first one of the new episode, `done` is True, and
the reward belongs to the ended episode. `info["terminal_observation"]` is the last observation of that episode. In the
AEC environment, the agent has two turns: one at the end of its episode, whose action is ignored, and the first one of
the new episode.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces
from pettingzoo import AECEnv, ParallelEnv

from unity_gym.compat.environment import BaseEnv
from unity_gym.compat.registry import default_registry
from unity_gym.errors import ActionError, NotReadyError
from unity_gym.side_channels import EnvironmentParametersChannel, StatsSideChannel
from unity_gym.spaces import action_space
from unity_gym.specs import ActionSpec, ActionTuple, Array, BehaviorSpec, DecisionSteps, TerminalSteps


def _behavior(agent: str) -> str:
    return agent.rpartition("?agent_id=")[0]


def _plain(parts: list[Any]) -> Any:
    return parts[0] if len(parts) == 1 else parts


def _observation_space(spec: BehaviorSpec) -> spaces.Space[Any]:
    parts = [spaces.Box(-np.inf, np.inf, sensor.shape, np.float32) for sensor in spec.observation_specs]
    return parts[0] if len(parts) == 1 else spaces.Tuple(parts)


def _action_space(spec: ActionSpec, seed: int | None) -> spaces.Space[Any]:
    space = action_space(spec)
    if isinstance(space, spaces.Dict):  # hybrid
        space = spaces.Tuple((space["continuous"], space["discrete"]))
    space.seed(seed)
    return space


class _MultiAgentWrapper:
    """The agents of an environment by name.

    :param env: Environment to wrap; it is closed with the wrapper.
    :param seed: Seed of the action spaces' sampling.
    """

    def __init__(self, env: BaseEnv, seed: int | None = None) -> None:
        self.metadata: dict[str, Any] = {"render_modes": [], "name": "unity"}
        self.render_mode = None
        self._env = env
        self._seed = seed
        self._spaces: dict[str, tuple[spaces.Space[Any], spaces.Space[Any]]] = {}
        self._possible_agents: set[str] = set()
        self._actions: dict[str, ActionTuple] = {}
        self._rows: dict[str, int] = {}
        self._clear_agents()
        env.reset()
        self._read()

    def _clear_agents(self) -> None:
        self._live: list[str] = []
        self._observations: dict[str, Any] = {}
        self._rewards: dict[str, float] = {}
        self._dones: dict[str, bool] = {}
        self._infos: dict[str, dict[str, Any]] = {}

    @property
    def agents(self) -> list[str]:
        """Names of the agents that take an action or have just ended."""
        return sorted(self._live)

    @property
    def num_agents(self) -> int:
        """Number of `agents`."""
        return len(self._live)

    @property
    def possible_agents(self) -> list[str]:
        """Names of all agents that have appeared."""
        return sorted(self._possible_agents)

    @property
    def observation_spaces(self) -> dict[str, spaces.Space[Any]]:
        """Observation space of each possible agent."""
        return {agent: self.observation_space(agent) for agent in self._possible_agents}

    @property
    def action_spaces(self) -> dict[str, spaces.Space[Any]]:
        """Action space of each possible agent."""
        return {agent: self.action_space(agent) for agent in self._possible_agents}

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        """Return the observation space of an agent: one `Box`, or a `Tuple` of one per sensor, without the mask."""
        return self._spaces[_behavior(agent)][0]

    def action_space(self, agent: str) -> spaces.Space[Any]:
        """Return the action space of an agent."""
        return self._spaces[_behavior(agent)][1]

    @property
    def side_channel(self) -> Mapping[str, Any]:
        """The side channels of the environment by the names of their classes."""
        return getattr(self._env, "side_channels", {})

    @property
    def rewards(self) -> dict[str, float]:
        """Newest reward of each agent."""
        return dict(self._rewards)

    @property
    def dones(self) -> dict[str, bool]:
        """Whether the episode of each agent has ended."""
        return dict(self._dones)

    @property
    def infos(self) -> dict[str, dict[str, Any]]:
        """Behavior name, group id and group reward of each agent; "interrupted" where an episode ended."""
        return dict(self._infos)

    def seed(self, seed: int | None = None) -> None:
        """Seed the sampling of the action spaces."""
        self._seed = seed
        for _, space in self._spaces.values():
            space.seed(seed)

    def render(self, mode: str = "human") -> None:
        """Return None: the low-level interface has no rendering; `unity_gym.parallel_env` has."""

    def state(self) -> None:
        """Return None: there is no global state."""

    def close(self) -> None:
        """Close the wrapped environment."""
        self._env.close()

    def _start(self) -> None:
        self._possible_agents.clear()
        self._clear_agents()
        self._env.reset()
        self._read()
        self._rewards = dict.fromkeys(self._live, 0.0)
        self._dones = dict.fromkeys(self._live, False)

    def _advance(self) -> None:
        for behavior, actions in self._actions.items():
            self._env.set_actions(behavior, actions)
        self._env.step()
        self._clear_agents()
        self._read()

    def _read(self) -> None:
        """Read the results of the environment for all behaviors."""
        for behavior, spec in self._env.behavior_specs.items():
            if behavior not in self._spaces:
                self._spaces[behavior] = _observation_space(spec), _action_space(spec.action_spec, self._seed)
            decisions, terminals = self._env.get_steps(behavior)
            self._actions[behavior] = spec.action_spec.empty_action(len(decisions))
            for row, agent_id in enumerate(decisions.agent_id):
                agent = f"{behavior}?agent_id={agent_id}"
                self._rows[agent] = row
                self._observations[agent] = self._with_mask(decisions, row)
                self._add(agent, decisions, row, done=False)
            for row, agent_id in enumerate(terminals.agent_id):
                agent = f"{behavior}?agent_id={agent_id}"
                last = _plain([array[row] for array in terminals.obs])
                continues = agent in self._observations
                self._observations.setdefault(agent, last)
                self._add(agent, terminals, row, done=True)
                self._infos[agent]["interrupted"] = bool(terminals.interrupted[row])
                if continues:
                    self._infos[agent]["terminal_observation"] = last
        self._live = list(self._observations)
        self._possible_agents.update(self._live)

    @staticmethod
    def _with_mask(decisions: DecisionSteps, row: int) -> Any:
        parts = [array[row] for array in decisions.obs]
        if decisions.action_mask is None:
            return _plain(parts)
        return {"observation": parts, "action_mask": [mask[row] for mask in decisions.action_mask]}

    def _add(self, agent: str, steps: DecisionSteps | TerminalSteps, row: int, done: bool) -> None:
        self._rewards[agent] = float(steps.reward[row])
        self._dones[agent] = done
        self._infos[agent] = {
            "behavior_name": _behavior(agent),
            "group_id": int(steps.group_id[row]),
            "group_reward": float(steps.group_reward[row]),
        }

    def _requests_decision(self, agent: str) -> bool:
        return not self._dones[agent] or "terminal_observation" in self._infos[agent]

    def _act(self, agent: str, action: Any) -> None:
        """Store the action of an agent; an agent that ended takes None, also if its next episode has started.

        :raises ActionError: If the agent does not exist or the action is not in its space.
        """
        if agent not in self._dones:
            raise ActionError(f"no agent {agent!r} takes an action; these do: {self.agents}")
        if not self._requests_decision(agent) or (action is None and self._dones[agent]):
            return
        behavior, row, space = _behavior(agent), self._rows[agent], self.action_space(agent)
        parts = list(action) if isinstance(space, spaces.Tuple) else [action]
        if action is None or not space.contains(_as_member(space, parts)):
            raise ActionError(f"the action of {agent!r} must be in {space}, got {action!r}")
        actions = self._actions[behavior]
        if actions.continuous.shape[1]:
            actions.continuous[row] = np.asarray(parts[0]).reshape(-1)
        if actions.discrete.shape[1]:
            actions.discrete[row] = np.asarray(parts[-1]).reshape(-1)

    def _require_agents(self) -> None:
        if not self._live:
            raise NotReadyError("no agent takes an action: call reset() first")


def _as_member(space: spaces.Space[Any], parts: list[Any]) -> Any:
    """Convert an action, also one with a leading batch dimension of 1, to the type and shape of the space."""
    if isinstance(space, spaces.Tuple):
        return tuple(_as_member(part, [value]) for part, value in zip(space.spaces, parts, strict=False))
    if isinstance(space, spaces.Discrete):
        return np.asarray(parts[0]).item()
    array: Array = np.asarray(parts[0], space.dtype)
    return array.reshape(space.shape) if array.size == np.prod(space.shape or ()) else array


class UnityParallelEnv(_MultiAgentWrapper, ParallelEnv):  # type: ignore[misc]
    """Parallel environment with four values: `step` returns dictionaries of observations, rewards, dones and infos."""

    def reset(self) -> dict[str, Any]:
        """Start new episodes and return the observations."""
        self._start()
        return dict(self._observations)

    def step(self, actions: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, float], dict[str, bool], Any]:
        """Act with all agents, and return observations, rewards, dones and infos.

        :param actions: Action of each agent; empty to wait for the next episode where there is none.
        :raises NotReadyError: If there are actions and no agent takes one.
        :raises ActionError: If an action does not fit its agent.
        """
        if actions:
            self._require_agents()
        for agent, action in actions.items():
            self._act(agent, action)
        self._advance()
        self._live = [agent for agent in self._live if self._requests_decision(agent)]
        return dict(self._observations), self.rewards, self.dones, self.infos


class UnityAECEnv(_MultiAgentWrapper, AECEnv):  # type: ignore[misc]
    """AEC environment with four values: `last` returns observation, reward, done and info of the current agent."""

    def __init__(self, env: BaseEnv, seed: int | None = None) -> None:
        super().__init__(env, seed)
        self._turn = 0

    @property
    def agent_selection(self) -> str:
        """The agent whose turn it is."""
        return self._order[self._turn]

    def _read(self) -> None:
        super()._read()
        self._order, self._turn = list(self._live), 0
        self._first_observations: dict[str, Any] = {}  # of the next episode, of the agents that have ended

    def _advance(self) -> None:
        super()._advance()
        self._order = []
        for agent in self._live:
            self._order.append(agent)
            if "terminal_observation" in self._infos[agent]:
                self._order.append(agent)
                self._first_observations[agent] = self._observations[agent]
                self._observations[agent] = self._infos[agent].pop("terminal_observation")

    def reset(self) -> None:
        """Start new episodes."""
        self._start()

    def observe(self, agent: str) -> Any:
        """Return observation, reward, done and info of an agent."""
        return self._observations[agent], self._rewards[agent], self._dones[agent], self._infos[agent]

    def last(self, observe: bool = True) -> Any:
        """Return observation (None without `observe`), reward, done and info of the agent whose turn it is."""
        observation, reward, done, info = self.observe(self.agent_selection)
        return (observation if observe else None), reward, done, info

    def step(self, action: Any) -> None:
        """Act with the agent whose turn it is; after the last one, the environment steps.

        :raises NotReadyError: If no agent takes an action.
        :raises ActionError: If the action does not fit the agent.
        """
        self._require_agents()
        agent = self.agent_selection
        self._act(agent, action)
        if self._dones[agent] and agent in self._first_observations:
            self._observations[agent] = self._first_observations[agent]
            self._rewards[agent], self._dones[agent] = 0.0, False
            self._infos[agent] = self._infos[agent] | {"group_reward": 0.0}
            del self._infos[agent]["interrupted"]
        elif self._dones[agent]:
            self._live.remove(agent)
        self._turn += 1
        if self._turn == len(self._order) and self._live:
            self._advance()


class PettingZooEnvFactory:
    """Factory of the AEC environment of an entry of `default_registry`.

    :param env_id: Key in the registry.
    """

    def __init__(self, env_id: str) -> None:
        self.env_id = env_id

    def env(self, seed: int | None = None, **kwargs: Any) -> UnityAECEnv:
        """Launch the environment, with the engine, parameter and statistics channels unless others are passed.

        :param seed: Seed of the action spaces' sampling.
        :param kwargs: Arguments of `UnityEnvironment`.
        """
        from unity_gym.compat.engine_configuration import EngineConfigurationChannel

        kwargs.setdefault(
            "side_channels", [EngineConfigurationChannel(), EnvironmentParametersChannel(), StatsSideChannel()]
        )
        return UnityAECEnv(default_registry[self.env_id].make(**kwargs), seed)


def factory(name: str) -> PettingZooEnvFactory:
    """Return the factory of a scene by its Python name, as `from mlagents_envs.envs import ThreeDBall` does.

    :raises AttributeError: If no entry of `default_registry` has this name.
    """
    for env_id in default_registry:
        if name == (env_id.replace("3", "Three") if env_id[0].isdigit() else env_id):
            return PettingZooEnvFactory(env_id)
    raise AttributeError(f"mlagents_envs.envs has no {name!r}; default_registry has {sorted(default_registry)}")

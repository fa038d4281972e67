"""All agents of a scene as a PettingZoo `AECEnv`."""

from __future__ import annotations

import time
from copy import deepcopy
from typing import Any

import gymnasium as gym
from gymnasium.utils import EzPickle
from pettingzoo import AECEnv

from unity_gym.envs.parallel import UnityParallelEnv
from unity_gym.errors import PlayerTimeoutError
from unity_gym.specs import Array, BehaviorSpec


class UnityAECEnv(AECEnv[str, Any, Any], EzPickle):  # type: ignore[misc]  # PettingZoo has no types
    """PettingZoo `AECEnv` of one player: an agent has a turn per decision and one at the end of its episode.

    Agents that request a decision at the same time have their turns one after the other, in the order of `agents`. They
    act on the same state: the player advances after the last of them. Names, spaces, observations, infos, dead agents
    and agents that spawn mid-episode are those of `UnityParallelEnv`.

    :param options: Options as in `UnityParallelEnv`, without `wait_for`.
    """

    def __init__(self, **options: Any) -> None:
        EzPickle.__init__(self, **options)
        self._parallel_env = UnityParallelEnv(**{**options, "wait_for": "any"})
        self.metadata = deepcopy(self._parallel_env.metadata)
        self.render_mode = self._parallel_env.render_mode
        self.possible_agents: list[str] = self._parallel_env.possible_agents  # the same list, which may grow
        self.agents: list[str] = []
        self._turns: list[str] = []  # the agents that request a decision
        self._actions: dict[str, Any] = {}  # of the agents that have had their turn

    @property
    def behavior_specs(self) -> dict[str, BehaviorSpec]:
        """See `UnityParallelEnv.behavior_specs`."""
        return self._parallel_env.behavior_specs

    @property
    def observation_spaces(self) -> dict[str, gym.Space[Any]]:
        """The observation space of each possible agent."""
        return self._parallel_env.observation_spaces

    @property
    def action_spaces(self) -> dict[str, gym.Space[Any]]:
        """The action space of each possible agent."""
        return self._parallel_env.action_spaces

    def observation_space(self, agent: str) -> gym.Space[Any]:
        """See `UnityParallelEnv.observation_space`."""
        return self._parallel_env.observation_space(agent)

    def action_space(self, agent: str) -> gym.Space[Any]:
        """See `UnityParallelEnv.action_space`."""
        return self._parallel_env.action_space(agent)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """Start an episode; see `UnityParallelEnv.reset`."""
        self._observations, self.infos = self._parallel_env.reset(seed, options)
        self.agents = list(self._parallel_env.agents)
        self.rewards: dict[str, float] = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards: dict[str, float] = dict.fromkeys(self.agents, 0.0)
        self.terminations: dict[str, bool] = dict.fromkeys(self.agents, False)
        self.truncations: dict[str, bool] = dict.fromkeys(self.agents, False)
        self._skip_agent_selection: str | None = None  # PettingZoo's, while dead agents have their last turns
        self._start_turns()

    def _start_turns(self) -> None:
        requesting = set(self._parallel_env.requesting_agents())
        self._turns, self._actions = [agent for agent in self.agents if agent in requesting], {}
        if self._turns:
            self.agent_selection = self._turns[0]
        elif self._parallel_env.agents:
            self.agent_selection = self._parallel_env.agents[0]

    def step(self, action: Any) -> None:
        """Take the turn of `agent_selection`; the last turn of an agent that ended takes None.

        :raises ActionError: If an action does not fit; all agents that request a decision then have their turns again.
        """
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            self._was_dead_step(action)
            return
        self._cumulative_rewards[agent] = 0.0
        self._clear_rewards()
        self._actions[agent] = action
        if len(self._actions) < len(self._turns):
            self.agent_selection = self._turns[len(self._actions)]
            return
        try:
            self._advance()
        finally:
            self._start_turns()
        self._accumulate_rewards()
        self._deads_step_first()

    def _advance(self) -> None:
        """Send all actions, and step the player until an agent requests a decision or none is left."""
        deadline = time.monotonic() + self._parallel_env.timeout_wait
        actions = self._actions
        while True:
            observations, rewards, terminations, truncations, infos = self._parallel_env.step(actions)
            actions = {}
            new = [agent for agent in observations if agent not in self.infos]
            self.agents = self.agents + new  # a new list: PettingZoo's conversion iterates over the old one
            self.rewards |= dict.fromkeys(new, 0.0)
            self._cumulative_rewards |= dict.fromkeys(new, 0.0)
            self._observations |= observations
            self.infos |= infos
            self.terminations |= terminations
            self.truncations |= truncations
            for agent, reward in rewards.items():
                self.rewards[agent] += reward
            if self._parallel_env.requesting_agents() or not self._parallel_env.agents:
                return
            if time.monotonic() > deadline:
                raise PlayerTimeoutError(
                    f"no agent has requested a decision in {self._parallel_env.timeout_wait:g} s, although the player "
                    "answers: give the agents a Decision Requester, or raise timeout_wait"
                )

    def observe(self, agent: str) -> Any:
        """Return the agent's newest observation."""
        return self._observations[agent]

    def render(self) -> Array | None:
        """See `UnityParallelEnv.render`."""
        return self._parallel_env.render()

    def close(self) -> None:
        """Close the player. Can be called any number of times."""
        self._parallel_env.close()

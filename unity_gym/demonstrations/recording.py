"""Record the episodes of an environment in which a policy acts."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode

from unity_gym.demonstrations.data import Demonstration
from unity_gym.demonstrations.reading import load
from unity_gym.demonstrations.writing import DemonstrationWriter, new_file
from unity_gym.envs.single_agent import UnitySingleAgentEnv
from unity_gym.errors import DemonstrationError
from unity_gym.slots import AgentTable
from unity_gym.specs import ActionTuple, Array


class RecordDemonstration(gym.Wrapper[Any, Any, Any, Any]):
    """Wrapper that records the agent until `save` or `close`.

    An episode that a reset, `save` or `close` interrupts is recorded as truncated. The recorded actions are those that
    Unity receives, also if a wrapper changes them.

    :param env: Environment of `gymnasium.make("Unity-…-v0")`.
    :param path: Path of the new file, with the suffix `.demo`.
    :raises DemonstrationError: If the environment has several agents, or `DemonstrationWriter` rejects the path.
    """

    def __init__(self, env: gym.Env[Any, Any], path: str | Path) -> None:
        super().__init__(env)
        agent = env.unwrapped
        if not isinstance(agent, UnitySingleAgentEnv):
            raise DemonstrationError(
                f"env must be a Unity environment with one agent, got {type(agent).__name__}: make one with "
                'gymnasium.make("Unity-…-v0")'
            )
        self.path = new_file(path)
        self._agent = agent
        self._writer: DemonstrationWriter | None = None
        self._saved = False
        self._seen: dict[str, Any] | None = None  # the record without its action
        self._acted = False  # whether the agent has acted in this episode

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset the environment."""
        self._cut()
        observation, info = self.env.reset(seed=seed, options=options)
        self._seen = self._look(self._agent.table.observations)
        return observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the environment, and record."""
        result = self.env.step(action)
        if not self._saved and self._seen is not None:
            self._add(action=self._agent.last_actions, **self._seen)
            self._acted = True
            self._look_after_step(terminated=result[2], truncated=result[3])
        return result

    def _look_after_step(self, terminated: bool, truncated: bool) -> None:
        table = self._agent.table
        ended = bool(table.terminated[0] or table.truncated[0])  # False: an outer limit may have ended the episode
        seen = self._look(table.final_observations if ended else table.observations)
        seen |= {"reward": float(table.reward[0]), "group_reward": float(table.group_reward[0])}
        if terminated or truncated:
            self._add(terminated=terminated, truncated=truncated, **seen)
            self._seen, self._acted = None, False
        else:
            self._seen = seen

    def _look(self, arrays: Sequence[Array]) -> dict[str, Any]:
        """Return a copy of the agent's observations and action mask."""
        table = self._agent.table
        mask = table.action_mask[0].copy() if table.action_mask.shape[1] else None
        return {"observations": [array[0].copy() for array in arrays], "action_mask": mask}

    def _add(self, **record: Any) -> None:
        if self._writer is None:
            images = [array.dtype.name for array in self._agent.table.observations if array.ndim == 4]
            self._writer = DemonstrationWriter(
                self.path, self._agent.behavior_name, self._agent.table.spec, *images[:1]
            )
        self._writer.add(**record)

    def _cut(self) -> None:
        """Record a running episode as truncated."""
        if self._seen is not None and self._acted and not self._saved:
            self._add(truncated=True, **self._seen)
        self._seen, self._acted = None, False

    def save(self) -> None:
        """Stop recording and write the file; the environment continues without it. Without a step there is no file."""
        self._cut()
        self._saved = True
        if self._writer is not None:
            self._writer.close()

    def close(self) -> None:
        """Save, and close the environment."""
        try:
            self.save()
        finally:
            super().close()


def record(env: Any, policy: Any, path: str | Path, n_episodes: int = 10, seed: int | None = None) -> Demonstration:
    """Let a policy act for whole episodes, record them and read the file.

    Of an environment with several agents, the episodes that start first are recorded, one after the other in the file.
    After an exception, such as that of Ctrl-C, the file contains the running episodes as truncated. If the process is
    killed, the records of running episodes of an environment with several agents are lost.

    :param env: Environment of `gymnasium.make("Unity-…-v0")`, of `gymnasium.make_vec` with `autoreset_mode="SameStep"`,
        or a `UnityVecEnv`, each also in wrappers; it stays open. The recorded actions are those that Unity receives.
    :param policy: Callable from observation to action, or a model with SB3's `predict`, which is called for
        deterministic actions. `predict` gets `action_masks`, `state` and `episode_start` if its signature has them.
        With several agents observations and actions are those of all rows.
    :param path: Path of the new file, with the suffix `.demo`.
    :param n_episodes: Number of episodes to record.
    :param seed: Seed of the first reset.
    :raises DemonstrationError: If `n_episodes` is below 1, the file exists, or the environment cannot be recorded.
    """
    if n_episodes < 1:
        raise DemonstrationError(f"n_episodes must be at least 1, got {n_episodes}")
    if isinstance(env, gym.Env):
        _record_agent(env, policy, path, n_episodes, seed)
    else:
        _record_rows(env, policy, path, n_episodes, seed)
    return load(path)


def _record_agent(env: gym.Env[Any, Any], policy: Any, path: str | Path, n_episodes: int, seed: int | None) -> None:
    recorder = RecordDemonstration(env, path)
    choose = _Chooser(policy)
    try:
        for episode in range(n_episodes):
            observation, info = recorder.reset(seed=seed if episode == 0 else None)
            choose.start_episode()
            ended = False
            while not ended:
                observation, _, terminated, truncated, info = recorder.step(
                    choose(observation, info.get("action_mask"))
                )
                ended = terminated or truncated
    finally:
        recorder.save()


def _record_rows(env: Any, policy: Any, path: str | Path, n_episodes: int, seed: int | None) -> None:
    """Record the agents in the rows of a vector environment of Gymnasium or Stable-Baselines3."""
    agents: Any = getattr(env, "unwrapped", None)
    table = getattr(agents, "table", None)
    if not isinstance(table, AgentTable):
        raise DemonstrationError(
            f"env must be a Unity environment, got {type(env).__name__}: make one with "
            'gymnasium.make("Unity-…-v0"), gymnasium.make_vec or UnityVecEnv'
        )
    if getattr(agents, "autoreset_mode", AutoresetMode.SAME_STEP) is not AutoresetMode.SAME_STEP:
        raise DemonstrationError(
            "a vector environment that resets in the next step ignores some actions and cannot be recorded: make it "
            'with autoreset_mode="SameStep"'
        )
    is_gymnasiums = isinstance(env, gym.vector.VectorEnv)
    spec, n = table.spec, len(table)
    choose = _Chooser(policy, n)
    episodes: list[list[dict[str, Any]] | None] = [None] * n  # the records of each running episode to be recorded
    rewards = np.zeros((2, n))  # own and of the group, since the row's last decision
    started = ended = 0
    images = [array.dtype.name for array in table.observations if array.ndim == 4]
    with DemonstrationWriter(path, agents.behavior, spec, *images[:1]) as writer:
        if not is_gymnasiums and seed is not None:
            env.seed(seed)
        observation = env.reset(seed=seed)[0] if is_gymnasiums else env.reset()
        starts = np.ones(n, bool)  # no decision of this episode yet
        seen = [array.copy() for array in table.observations]
        try:
            while ended < n_episodes:
                acting = table.alive & table.requests_decision
                masks = table.action_mask.copy() if table.action_mask.shape[1] else None
                observation = env.step(choose(observation, masks))[0]
                taken = agents.last_actions  # wrappers may have changed those of the policy
                for row in np.flatnonzero(acting).tolist():
                    if starts[row]:
                        episodes[row] = [] if started < n_episodes else None
                        started += 1
                    if (records := episodes[row]) is not None:
                        records.append(
                            {
                                "observations": [array[row] for array in seen],
                                "action": ActionTuple(taken.continuous[[row]], taken.discrete[[row]]),
                                "action_mask": None if masks is None else masks[row],
                                "reward": rewards[0, row],
                                "group_reward": rewards[1, row],
                            }
                        )
                rewards[:, acting] = 0
                rewards += table.reward, table.group_reward
                seen = [array.copy() for array in table.observations]
                starts &= ~acting
                dones = table.terminated | table.truncated
                for row in np.flatnonzero(dones).tolist():
                    if records := episodes[row]:
                        terminated, truncated = bool(table.terminated[row]), bool(table.truncated[row])
                        records.append(_end(table.final_observations, rewards, row, terminated, truncated))
                        _write(writer, records)
                        ended += 1
                        episodes[row] = None
                rewards[:, dones] = 0
                starts |= dones
                choose.starts = dones
        finally:  # also after Ctrl-C
            for row, records in enumerate(episodes):
                if records:
                    _write(writer, [*records, _end(seen, rewards, row, terminated=False, truncated=True)])


def _end(arrays: Sequence[Array], rewards: Array, row: int, terminated: bool, truncated: bool) -> dict[str, Any]:
    """Return the record of the end of an episode."""
    return {
        "observations": [array[row] for array in arrays],
        "reward": rewards[0, row],
        "group_reward": rewards[1, row],
        "terminated": terminated,
        "truncated": truncated,
    }


def _write(writer: DemonstrationWriter, records: Sequence[dict[str, Any]]) -> None:
    for one in records:
        writer.add(**one)


def supported_arguments(function: Callable[..., Any], **arguments: Any) -> dict[str, Any]:
    """Return those of the arguments that the signature of `function` has."""
    parameters = inspect.signature(function).parameters
    return {name: argument for name, argument in arguments.items() if name in parameters}


class _Chooser:
    """Callable that selects actions with any policy that `record` accepts.

    :param n: Number of agents.
    """

    def __init__(self, policy: Any, n: int = 1) -> None:
        self._policy = policy
        self._predict = getattr(policy, "predict", None)
        self._n = n
        self.start_episode()

    def start_episode(self) -> None:
        self._state: Any = None
        self.starts = np.ones(self._n, bool)

    def __call__(self, observation: Any, masks: Array | None) -> Any:
        if self._predict is None:
            return self._policy(observation)
        options = supported_arguments(self._predict, state=self._state, episode_start=self.starts, action_masks=masks)
        action, self._state = self._predict(observation, deterministic=True, **options)
        self.starts = np.zeros(self._n, bool)
        return action

"""`Collector`: let the agents of one behavior act with a policy, and store their trajectories."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from sb3_ext.agents import AgentTableLike
from sb3_ext.experience import Trajectories, TrajectoryBuffer
from sb3_ext.groups import GroupTrajectoryBuffer
from sb3_ext.policies import AgentPolicy
from unity_gym.slots import with_rows
from unity_gym.specs import ActionTuple, Array


@dataclass(frozen=True)
class Collection:
    """Requirements of an algorithm for the experience of its agents.

    :param kind: "cut" (all decisions with an outcome; running trajectories are cut), or "finished" (finished
        trajectories only).
    :param time_horizon: Decisions after which a trajectory is finished; None for whole episodes.
    :param groups: Whether to store the members of groups.
    """

    kind: str
    time_horizon: int | None
    groups: bool = False


class Collector:
    """Collector of the trajectories of one behavior, whose agents it lets act with a policy.

    :param policy: Acting policy; `load` replaces its weights.
    :param collection: Experience to store.
    :param generator: Source of the sampled actions; None for torch's global one.
    """

    def __init__(self, policy: AgentPolicy, collection: Collection, generator: torch.Generator | None = None) -> None:
        self.policy, self.collection, self.generator = policy, collection, generator
        kind = GroupTrajectoryBuffer if collection.groups else TrajectoryBuffer
        self._buffer = kind(collection.time_horizon, policy.memory_size)
        self._memory = np.zeros((0, policy.memory_size), np.float32)  # per row: the recurrent state
        self._selected: tuple[Array, Array, torch.Tensor, Array, torch.Tensor] | None = None
        self.version = 0
        """Version number of the acting weights."""

    @property
    def collected(self) -> int:
        """Number of decisions that `take` would return now."""
        return self._buffer.closed if self.collection.kind == "cut" else self._buffer.finished

    @property
    def has_open_decisions(self) -> bool:
        """Whether any stored decision has no outcome yet."""
        return self._buffer.has_open_decisions

    def reset(self) -> None:
        """Discard the stored decisions and all recurrent states, as the agents start new episodes."""
        self._buffer.reset()
        self._selected = None
        self._memory = np.zeros((0, self.policy.memory_size), np.float32)

    def select_actions(self, table: AgentTableLike, deterministic: bool = False) -> ActionTuple:
        """Select the actions of the rows that request a decision; `store_decisions` has to follow.

        :param deterministic: Take the most likely actions.
        :return: The actions of all rows; those of other rows are zero.
        """
        rows = np.flatnonzero(table.requests_decision)
        policy = self.policy
        spec = policy.adapter.spec.action_spec
        actions = spec.empty_action(len(table))
        self._memory = with_rows(self._memory, len(table))
        if not len(rows):
            return actions
        memory = self._memory[rows]
        arrays = [array[rows] for array in (*table.observations, table.action_mask)]
        *observations, masks, before = policy.tensors([*arrays, memory])
        with torch.no_grad():
            raw, log_probs, after = policy.act(
                observations, masks if spec.discrete_size else None, before, deterministic, self.generator
            )
        selected = raw.cpu().numpy()
        performed = policy.environment_actions(selected)
        actions.continuous[rows], actions.discrete[rows] = performed.continuous, performed.discrete
        self._selected = rows, selected, log_probs, memory, after
        return actions

    def store_decisions(self, table: AgentTableLike, store: bool = True) -> int:
        """Store the decisions of the last `select_actions`, while the table still has their observations.

        :param store: False: do not store them, and cut the trajectories of these agents.
        :return: Number of decisions that were stored.
        """
        if self._selected is None:
            return 0
        (rows, selected, log_probs, memory, after), self._selected = self._selected, None
        if store:
            self._buffer.store_decisions(table, rows, selected, log_probs.cpu().numpy(), memory, self.version)
        else:
            self._buffer.cut_rows(table, rows, self._memory)
        self._memory[rows] = after.cpu().numpy()
        return len(rows) if store else 0

    def store_outcomes(self, table: AgentTableLike) -> None:
        """Store the outcomes of the decisions."""
        self._memory = with_rows(self._memory, len(table))
        self._buffer.store_outcomes(table, self._memory)
        self._memory[table.terminated | table.truncated] = 0

    def take(self, include_open: bool = False) -> Trajectories | None:
        """Return and remove the trajectories of `collected` decisions.

        :param include_open: Cut running trajectories, too, if `kind` is "finished".
        :return: Trajectories; None if there are none.
        """
        if include_open or self.collection.kind == "cut":
            self._buffer.cut(self._memory)
        return self._buffer.take()

    def peek(self) -> Trajectories | None:
        """Return all decisions with an outcome, without removing them; None if there are none."""
        return self._buffer.peek(self._memory)

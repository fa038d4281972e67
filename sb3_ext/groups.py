"""Trajectories of agents that belong to groups: the members at each decision, and after the last one.

The state of a group is a set: per member, its latest observation at a decision and the action of that decision. All
members that act in one environment step share one set. Groups may change: members end, spawn mid-episode and move to
other groups. An agent without a group is a group of one. Paper: https://arxiv.org/abs/2111.05992
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch

from sb3_ext.agents import AgentTableLike
from sb3_ext.experience import Trajectories, TrajectoryBuffer, concatenate, prefixed, without_prefix
from sb3_ext.group_index import GroupIndex
from sb3_ext.rollout import Rollout, as_tensor
from unity_gym.slots import with_rows
from unity_gym.specs import Array

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass
class GroupTrajectories(Trajectories):
    """Trajectories of members of groups, with n decisions; see `Trajectories`.

    `decisions` also has `state` (int64, the state of the group at the decision) and `groupmate_reward` (float64, the
    individual rewards that the other members received until the agent's next decision). `ends` also has `is_over`
    (bool, no member of the group is left, so that nothing follows).

    - `members`: int64 (pairs, 2), a state and a decision that is part of it; indices from n on refer to `context`
    - `context`: arrays by name, `observation_0` … and `action`: decisions of members that are part of another `take`
    - `end_members`: int64 (pairs, 2), a trajectory and a row of `end_states`
    - `end_states`: arrays by name, `observation_0` …: the members after the last decisions. They are the members that
      continue, including new ones; of a truncated group, the truncated ones; if none is left, all that ended together
    """

    members: Array
    context: dict[str, Array]
    end_members: Array
    end_states: dict[str, Array]

    def arrays(self) -> dict[str, Array]:
        """See `Trajectories.arrays`."""
        pairs = {"members": self.members, "end_members": self.end_members}
        return super().arrays() | pairs | prefixed("context", self.context) | prefixed("end_states", self.end_states)

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array]) -> Self:
        """See `Trajectories.from_arrays`."""
        return cls(
            without_prefix("decisions", arrays),
            without_prefix("ends", arrays),
            arrays["lengths"],
            arrays["members"],
            without_prefix("context", arrays),
            arrays["end_members"],
            without_prefix("end_states", arrays),
        )

    @classmethod
    def _concatenate(
        cls,
        parts: Sequence[Self],
        decisions: dict[str, Array],
        ends: dict[str, Array],
        lengths: Array,
        place: Array,
        end_place: Array,
    ) -> Self:
        members, end_members, states = [], [], []
        start = end_start = state_start = context_start = end_states_start = 0
        for part in parts:
            n = len(part)
            states.append(part.decisions["state"] + state_start)
            state, index = part.members.T
            is_context = index >= n
            new = place[np.where(is_context, 0, index + start)]
            new = np.where(is_context, index - n + context_start + len(place), new)
            members.append(np.stack([state + state_start, new], 1))
            trajectory, row = part.end_members.T
            end_members.append(np.stack([end_place[trajectory + end_start], row + end_states_start], 1))
            start, end_start = start + n, end_start + len(part.lengths)
            state_start += int(part.decisions["state"].max(initial=-1)) + 1
            context_start += len(part.context["action"])
            end_states_start += len(part.end_states["observation_0"])
        decisions["state"][place] = np.concatenate(states)
        return cls(
            decisions,
            ends,
            lengths,
            np.concatenate(members),
            concatenate([part.context for part in parts]),
            np.concatenate(end_members),
            concatenate([part.end_states for part in parts]),
        )


class GroupTrajectoryBuffer(TrajectoryBuffer):
    """`TrajectoryBuffer` that returns `GroupTrajectories`.

    :param time_horizon: Decisions after which a trajectory is cut; None cuts at episode ends only.
    :param memory_size: Size of the recurrent state that is stored with each decision.
    """

    def reset(self) -> None:
        """Discard everything."""
        super().reset()
        self._group = np.zeros(0, np.int64)  # per row: group at its latest decision
        self._newest = np.zeros(0, np.int64)  # per row: latest decision in the running episode, or −1
        self._groupmate_reward = np.zeros(0)  # per row: since its latest decision
        self._states = 0
        self._members: list[tuple[Array, Array]] = []  # states, decisions
        self._end_members: list[tuple[Array, Array]] = []  # trajectories, rows of `_end_states`
        self._end_states: list[dict[str, Array]] = []
        self._end_rows = 0

    def store_decisions(
        self, table: AgentTableLike, rows: Array, actions: Array, log_probs: Array, memory: Array, version: int = 0
    ) -> None:
        """See `TrajectoryBuffer.store_decisions`; store the members of the groups of `rows`, too."""
        start = self._count
        super().store_decisions(table, rows, actions, log_probs, memory, version)
        self._group[rows] = table.group[rows]
        self._newest[rows] = np.arange(start, self._count)
        self._groupmate_reward[rows] = 0
        groups, state = np.unique(self._group[rows], return_inverse=True)
        alive = np.flatnonzero(self._newest >= 0)
        states, members = _equal_pairs(groups, self._group[alive])
        self._members.append((self._states + states, self._newest[alive[members]]))
        self._room("state", state, self._count)[start : self._count] = self._states + state
        self._room("groupmate_reward", table.reward, self._count)[start : self._count] = 0
        self._states += len(groups)

    def store_outcomes(self, table: AgentTableLike, memory: Array) -> None:
        """See `TrajectoryBuffer.store_outcomes`; store the rewards of groupmates and the remaining members, too."""
        self._require_rows(len(table))
        ends = table.terminated | table.truncated
        alive = np.flatnonzero(self._newest >= 0)
        if len(alive):
            _, group = np.unique(self._group[alive], return_inverse=True)
            reward = table.reward[alive].astype(np.float64)
            self._groupmate_reward[alive] += np.bincount(group, reward)[group] - reward
            rows = np.flatnonzero((table.requests_decision | ends) & (self._open >= 0))
            self._arrays["groupmate_reward"][self._open[rows]] = self._groupmate_reward[rows]
            self._groupmate_reward[rows] = 0
        super().store_outcomes(table, memory)
        self._newest[ends] = -1

    def _finish(
        self,
        rows: Array,
        observations: list[Array],
        masks: Array | None,
        memory: Array,
        terminated: Array | None = None,
        is_episode_end: bool = False,
    ) -> None:
        """See `TrajectoryBuffer._finish`; find the members that represent each group after the last decision.

        In the terms of the paper, the state after a decision consists of the active agents of the group. An agent that
        ended while others are active is absorbed: its return continues with the value of the others (posthumous
        credit). The group has terminated when its last agents terminate; no value follows.
        """
        if not len(rows):
            return
        table = self._table
        was_active = self._newest >= 0
        has_ended = was_active & (table.terminated | table.truncated)
        is_active = was_active & ~has_ended
        group = np.where(is_active & table.requests_decision, table.group, self._group)  # of the running episode
        group_is_active = np.isin(group, group[is_active])
        is_group_truncated = has_ended & table.truncated & ~group_is_active
        is_group_terminated = has_ended & ~group_is_active & ~np.isin(group, group[is_group_truncated])
        # A spawning agent joins its group if that is active; otherwise it belongs to the next episode.
        has_spawned = ~is_active & table.requests_decision & np.isin(table.group, group[is_active])
        # An agent truncated alone keeps its final state; the other members use the state in which it restarts.
        truncated_alone = np.zeros(len(group), bool)
        truncated_alone[rows] = has_ended[rows] & table.truncated[rows] & group_is_active[rows]
        # Candidates, by row: those with a current state, then those with a final state.
        present = np.flatnonzero(is_active | has_spawned)
        final = np.flatnonzero(is_group_truncated | is_group_terminated)
        candidates = np.concatenate([present, final, np.flatnonzero(truncated_alone)])
        is_final = np.arange(len(candidates)) >= len(present)
        group_of_candidate = np.where(
            is_final, group[candidates], np.where(has_spawned, table.group, group)[candidates]
        )
        of_row, candidate = _equal_pairs(group[rows], group_of_candidate)
        is_own = candidates[candidate] == rows[of_row]
        is_restart = is_own & ~is_final[candidate]
        is_final_state = truncated_alone[candidates[candidate]] & is_final[candidate]
        fits = np.where(is_final_state, is_own, ~(truncated_alone[rows[of_row]] & is_restart))
        of_row, candidate = of_row[fits], candidate[fits]
        used, place = np.unique(candidate, return_inverse=True)
        self._end_members.append((self._trajectory[rows][of_row], self._end_rows + place))
        source, from_final = candidates[used], is_final[used]
        states = [array[source] for array in table.observations]
        for state, final_state in zip(states, table.final_observations, strict=True):
            state[from_final] = final_state[source[from_final]]
        self._end_states.append({f"observation_{index}": state for index, state in enumerate(states)})
        self._end_rows += len(used)
        super()._finish(rows, observations, masks, memory, terminated, is_episode_end)
        self._ends[-1]["is_over"] = is_group_terminated[rows]

    def _hand_over(
        self, decisions: Array, ends: dict[str, Array], lengths: Array, trajectories: Array
    ) -> GroupTrajectories:
        n = len(decisions)
        arrays = self._decisions(decisions)
        states, arrays["state"] = np.unique(arrays["state"], return_inverse=True)
        of_state, members = self._members_of(states)
        position = np.full(self._count, -1)
        position[decisions] = np.arange(n)
        context = np.unique(members[position[members] < 0])
        position[context] = n + np.arange(len(context))
        order = np.argsort(trajectories)
        of_end, end_rows = (np.concatenate(parts) for parts in zip(*self._end_members, strict=True))
        sensors = [f"observation_{index}" for index in range(self._sensors)]
        return GroupTrajectories(
            arrays,
            ends,
            lengths,
            np.stack([np.searchsorted(states, of_state), position[members]], 1),
            {name: self._arrays[name][context] for name in (*sensors, "action")},
            np.stack([order[np.searchsorted(trajectories[order], of_end)], end_rows], 1),
            concatenate(self._end_states),
        )

    def _members_of(self, states: Array) -> tuple[Array, Array]:
        """Return pairs of a state of `states` and a decision that is part of it."""
        of_state, members = (np.concatenate(parts) for parts in zip(*self._members, strict=True))
        is_selected = np.isin(of_state, states)
        return of_state[is_selected], members[is_selected]

    def _keep(self, kept: Array) -> None:
        """Also keep the decisions of groupmates while a decision in the same state is not returned by `take` yet."""
        trajectory = self._arrays["trajectory"][: self._count]
        kept = kept[trajectory[kept] >= 0]
        states, members = self._members_of(self._arrays["state"][kept])
        stays = np.zeros(self._count, bool)
        stays[members] = stays[self._newest[self._newest >= 0]] = True
        stays[kept] = False
        trajectory[stays] = -1  # returned by `take` already
        stays[kept] = True
        place = np.cumsum(stays) - 1
        super()._keep(np.flatnonzero(stays))
        alive = self._newest >= 0
        self._newest[alive] = place[self._newest[alive]]
        self._members = [(states, place[members])]
        self._end_members, self._end_states, self._end_rows = [], [], 0

    def _require_rows(self, rows: int) -> None:
        super()._require_rows(rows)
        self._group, self._newest = with_rows(self._group, rows), with_rows(self._newest, rows, -1)
        self._groupmate_reward = with_rows(self._groupmate_reward, rows)


def _equal_pairs(left: Array, right: Array) -> tuple[Array, Array]:
    """Return all pairs of an index into `left` and one into `right` where both are equal, ordered by the first."""
    order = np.argsort(right, kind="stable")
    first = np.searchsorted(right[order], left)
    count = np.searchsorted(right[order], left, "right") - first
    within = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
    return np.repeat(np.arange(len(left)), count), order[np.repeat(first, count) + within]


@dataclass
class Groups:
    """Groups of a rollout of n decisions.

    - `observations`: one (n + context members, *shape) per sensor, `actions`: (n + context members, dimensions)
    - `members`: the members of each state, as rows of these; `state`: int64 (n,) on the CPU, the state of each decision
    - `end_observations`: one (e, *shape) per sensor, `end_members`: the members after each trajectory, as rows of these
    - `groupmate_rewards`: float32 (n,), see `GroupTrajectories`
    - `row`, `ended`: int64 and bool (trajectories,), the row of the table, and whether the agent's episode ended

    The policy stores in `memory` (n, 2, size) the recurrent states of its critic before each sequence of decisions.
    """

    observations: list[torch.Tensor]
    actions: torch.Tensor
    members: GroupIndex
    state: torch.Tensor
    end_observations: list[torch.Tensor]
    end_members: GroupIndex
    groupmate_rewards: torch.Tensor
    row: torch.Tensor
    ended: torch.Tensor
    memory: torch.Tensor


class GroupRollout(Rollout):
    """`Rollout` of agents in `groups`; `is_over` is True where no member of the group is left."""

    groups: Groups

    @classmethod
    def from_trajectories(cls, trajectories: Trajectories, device: torch.device | str = "cpu") -> Self:
        """See `Rollout.from_trajectories`."""
        assert isinstance(trajectories, GroupTrajectories)
        rollout = super().from_trajectories(trajectories, device)
        tensor = partial(as_tensor, device=device)
        context, ends, decisions = trajectories.context, trajectories.ends, trajectories.decisions
        sensors = [f"observation_{index}" for index in range(trajectories.sensors)]
        arrays = [*rollout.observations, rollout.actions]
        *observations, actions = (
            torch.cat([array, tensor(context[name])]) if len(context[name]) else array
            for array, name in zip(arrays, (*sensors, "action"), strict=True)
        )
        states = int(decisions["state"].max()) + 1
        rollout.is_over = ends["is_over"]
        rollout.groups = Groups(
            observations,
            actions,
            GroupIndex.from_pairs(trajectories.members, states),
            as_tensor(decisions["state"]),
            [tensor(trajectories.end_states[name]) for name in sensors],
            GroupIndex.from_pairs(trajectories.end_members, len(trajectories.lengths)),
            tensor(decisions["groupmate_reward"].astype(np.float32)),
            tensor(ends["row"]),
            tensor(ends["is_episode_end"]),
            torch.zeros((len(rollout), 2, 0), device=device),
        )
        return rollout

    def _random_order(self, sequences: torch.Tensor) -> torch.Tensor:
        """See `Rollout`. Members of a group stay together, so that the critic processes each state once for them."""
        groups = self.groups
        place = torch.from_numpy(np.random.permutation(len(groups.members)))  # noqa: NPY002
        return torch.argsort(place[groups.state[sequences[:, 0]]], stable=True)

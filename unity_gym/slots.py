"""Agent table: fixed rows for agents that spawn, end, are removed and change their ids.

Unity reports, per environment step, any number of agents that request a decision and whose episodes ended. Algorithms
and vector environments need fixed rows. The table assigns each agent a row, and stores its observations and rewards.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

import numpy as np

from unity_gym.specs import Array, BehaviorSpec, DecisionSteps, TerminalSteps

_ID_BITS = 32
Rows: TypeAlias = "Array | slice"


def with_rows(array: Array, rows: int, fill: float = 0) -> Array:
    """Return the array with at least `rows` rows (axis 0); new ones are filled with `fill`."""
    missing = rows - len(array)
    if missing <= 0:
        return array
    return np.concatenate([array, np.full((missing, *array.shape[1:]), fill, array.dtype)])


def indices(rows: Rows) -> Array:
    """Return the indices of rows that `AgentTable.update` has returned."""
    return np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows


class AgentTable:
    """Table of the agents of one behavior, over one or several players: arrays with one row per agent.

    Every array has `len(table)` rows, is allocated once and is overwritten by the next step; copy values to keep them.
    A step is `start_step()` followed by one `update()` per environment step. With several players, each may have its
    own steps, `start_step(player)`. Afterwards the arrays are:

    - `observations`: one array (rows, *shape) per sensor, the agent's observation at its newest decision
    - `reward`, `group_reward`: float32 (rows,), summed since `start_step` and caused by the row's last decision before
      it. Reward at the first decision of an episode was caused by no decision and is dropped.
    - `requests_decision`: bool (rows,), the agent requests an action now
    - `terminated`, `truncated`: bool (rows,), the episode that was running in the row at the start of the step has
      ended. If `requests_decision` is True, too, the other arrays already hold the next episode.
    - `final_observations`: as `observations`, the last state of the ended episode; valid where one ended
    - `group_ended`: bool (rows,), an episode of a group's member has ended here, and no other member's episode
      continues: each has ended, now or before
    - `action_mask`: bool (rows, sum of the branch sizes), True = **allowed**
    - `agent_id`, `group_id`, `player`: int32 (rows,); id −1 = no agent; player −1 = no agent has had the row
    - `alive`: bool (rows,), an episode is running and has had its first decision

    `is_fixed`: the table grows only when more agents than it has rows are alive at once.

    An agent id keeps its row over its episodes. A new id takes the first match: (1) a free row of its player and group;
    (2) one of its player whose group has no active agent; (3) one never used; (4) in a fixed table, any free one that
    no other new id takes by (1). Otherwise the table grows. Rows freed before this environment step come first, then
    the lowest.

    :param spec: Specification of the behavior.
    :param visual_dtype: Dtype of image arrays: "uint8" or "float32".
    :param reserved: Number of rows to allocate from the start, for agents that appear later; if not 0, the table is
        fixed.
    """

    def __init__(self, spec: BehaviorSpec, visual_dtype: str = "float32", reserved: int = 0) -> None:
        self.spec = spec
        self._mask_width = sum(spec.action_spec.discrete_branches)
        self._visual_dtype = visual_dtype
        self.is_fixed = reserved > 0
        self._allocate(reserved)

    def _allocate(self, rows: int) -> None:
        """Allocate all arrays, without agents."""
        sensors = [(sensor.shape, sensor.array_dtype(self._visual_dtype)) for sensor in self.spec.observation_specs]
        self._step_count = 0
        self.observations = [np.zeros((rows, *shape), dtype) for shape, dtype in sensors]
        self.final_observations = [np.zeros((rows, *shape), dtype) for shape, dtype in sensors]
        self.reward, self.group_reward = np.zeros(rows, np.float32), np.zeros(rows, np.float32)
        self.requests_decision, self.alive = np.zeros(rows, bool), np.zeros(rows, bool)
        self.terminated, self.truncated, self.group_ended = (np.zeros(rows, bool) for _ in range(3))
        self.action_mask = np.ones((rows, self._mask_width), bool)
        self.group_id = np.zeros(rows, np.int32)
        self.agent_id, self.player = (np.full(rows, -1, np.int32) for _ in range(2))
        self._running = np.zeros(rows, bool)  # alive when the step started
        self._ended_at = np.zeros(rows, np.int64)  # index of the environment step in which the row's last episode ended
        self._key = np.full(rows, -1, np.int64)  # player and id in one number; −1 = no agent
        self._index_keys()

    def __len__(self) -> int:
        return len(self._key)

    @property
    def group(self) -> Array:
        """Group key, int64 (rows,), equal for agents of one player and group; unique and negative without a group."""
        group_numbers = self.group_id + (self.player.astype(np.int64) << _ID_BITS)
        return np.where(self.group_id > 0, group_numbers, -1 - np.arange(len(self)))

    def start_step(self, player: int | None = None) -> None:
        """Reset the rewards, episode ends and requests of the last step, of one player's rows or of all."""
        self.reset_outcomes(player)
        rows = self._rows_of(player)
        self.requests_decision[rows] = False
        self._running[rows] = self.alive[rows]

    def reset_outcomes(self, player: int | None = None) -> None:
        """Reset the rewards and episode ends of the last step, and store no others until the next step starts."""
        rows = self._rows_of(player)
        outcomes = (self.reward, self.group_reward, self.terminated, self.truncated, self.group_ended)
        for array in (*outcomes, self._running):
            array[rows] = 0

    def _rows_of(self, player: int | None) -> Array | slice:
        return slice(None) if player is None else np.flatnonzero(self.player == player)

    def reserve(self, rows: int) -> None:
        """Allocate at least this number of rows; added rows are free."""
        if rows > len(self):
            self._grow(rows - len(self))
        self._index_keys()

    def update(self, decisions: DecisionSteps, terminals: TerminalSteps, player: int = 0) -> Rows:
        """Apply the results of one environment step of one player.

        :return: Rows of the agents that request a decision, in the order of `decisions`: a slice where they are
            consecutive, which numpy reads in less time, else their indices.
        """
        self._step_count += 1
        if len(terminals):
            self._end(terminals, player)
        if not len(decisions):
            return slice(0, 0)
        rows = self._rows_of_deciding(decisions, player)
        self._store_decisions(rows, decisions)
        return rows

    def truncate_episodes(self, player: int = 0) -> None:
        """Truncate the running episodes of a player to which RESET was sent, as it reports no episode ends for them."""
        rows = np.flatnonzero(self.alive & (self.player == player))
        self._close_episodes(rows, [array[rows] for array in self.observations], np.ones(len(rows), bool))

    def remove_agents(self, player: int) -> None:
        """Free the rows of a relaunched player, whose ids now belong to other agents; truncate episodes first."""
        rows = self.player == player
        self.agent_id[rows] = self._key[rows] = -1
        self._index_keys()

    def restart(self) -> None:
        """Remove all agents, as after a reset with a seed, when ids restart; call `truncate_episodes` first."""
        for array in self.observations:
            array.fill(0)
        self.action_mask.fill(True)
        self.group_id.fill(0)
        for array in (self.agent_id, self.player, self._key):
            array.fill(-1)
        self._index_keys()

    def clear(self) -> None:
        """Remove all agents and outcomes, also after an interrupted update; the rows stay."""
        self._allocate(len(self))

    def _end(self, terminals: TerminalSteps, player: int) -> None:
        rows = self._find(self._keys(terminals.agent_id, player))
        # Agents without a decision in the ended episode are unknown to the algorithms, so no end is reported for them.
        is_alive = rows >= 0
        is_alive[is_alive] = self.alive[rows[is_alive]]
        if np.count_nonzero(is_alive) == len(rows):
            reward, group_reward, interrupted, final = (
                terminals.reward,
                terminals.group_reward,
                terminals.interrupted,
                terminals.obs,
            )
        else:
            rows, reward, group_reward = rows[is_alive], terminals.reward[is_alive], terminals.group_reward[is_alive]
            interrupted, final = terminals.interrupted[is_alive], [array[is_alive] for array in terminals.obs]
        self._add_rewards(rows, reward, group_reward)
        self._close_episodes(rows, final, interrupted)

    def _close_episodes(self, rows: Array, final: Sequence[Array], interrupted: Array) -> None:
        first = self._awaits_outcome(rows)
        if np.count_nonzero(first) < len(rows):
            ended, final, interrupted = rows[first], [array[first] for array in final], interrupted[first]
        else:
            ended = rows
        self.terminated[ended] = ~interrupted
        self.truncated[ended] = interrupted
        for stored, array in zip(self.final_observations, final, strict=True):
            stored[ended] = array
        self.alive[rows] = False
        self.requests_decision[rows] = False
        group = self.group
        self.group_ended[ended] = (self.group_id[ended] > 0) & ~np.isin(group[ended], group[self.alive])
        self._ended_at[rows] = self._step_count

    def _store_decisions(self, rows: Rows, decisions: DecisionSteps) -> None:
        self._add_rewards(rows, decisions.reward, decisions.group_reward)
        for stored, array in zip(self.observations, decisions.obs, strict=True):
            stored[rows] = array
        self.group_id[rows] = decisions.group_id
        self.alive[rows] = True
        self.requests_decision[rows] = True
        if decisions.action_mask is not None:
            self.action_mask[rows] = ~np.concatenate(decisions.action_mask, axis=1)

    def _add_rewards(self, rows: Rows, reward: Array, group_reward: Array) -> None:
        caused = self._awaits_outcome(rows)
        self.reward[rows] += reward * caused
        self.group_reward[rows] += group_reward * caused

    def _awaits_outcome(self, rows: Rows) -> Array:
        """Return where the episode that was running at the start of the step is still running.

        Episodes that start later in the step contain no action of an algorithm.
        """
        awaits: Array = self._running[rows] & ~(self.terminated[rows] | self.truncated[rows])
        return awaits

    def _rows_of_deciding(self, decisions: DecisionSteps, player: int) -> Rows:
        """Return the row of each agent, as a slice where the rows are consecutive."""
        ids = decisions.agent_id.tobytes()
        if player in self._last and self._last[player][0] == ids:  # mostly the same agents as in the step before
            return self._last[player][1]
        keys = self._keys(decisions.agent_id, player)
        rows = self._find(keys)
        new = np.flatnonzero(rows < 0)
        if len(new):
            rows[new] = self._free_rows(decisions.group_id[new], player, rows[rows >= 0], decisions)
            rest = new[rows[new] < 0]
            rows[rest] = self._grow(len(rest))
            self._key[rows[new]] = keys[new]
            self.agent_id[rows[new]] = decisions.agent_id[new]
            self.player[rows[new]] = player
            self._index_keys()
        first = int(rows[0])
        follows = (rows == np.arange(first, first + len(rows))).all()
        self._last[player] = ids, slice(first, first + len(rows)) if follows else rows
        return self._last[player][1]

    def _free_rows(self, groups: Array, player: int, taken: Array, present: DecisionSteps) -> Array:
        """Return the rows that new agents take, −1 for none.

        :param groups: Group ids of the new agents.
        :param player: Index of their player.
        :param taken: Rows of the other agents that request a decision now.
        :param present: Decision steps of the player.
        """
        is_free = ~self.alive
        is_free[taken] = False
        order = np.argsort(self._ended_at == self._step_count, kind="stable")
        rows = np.full(len(groups), -1, np.intp)
        for candidates, by_group in self._candidates(player, present):
            waiting, free = np.flatnonzero(rows < 0), order[(is_free & candidates)[order]]
            agents, matches = _match_in_order(groups[waiting] * by_group, self.group_id[free] * by_group)
            rows[waiting[agents]] = free[matches]
            is_free[free[matches]] = False
            if rows.min() >= 0:
                break
        return rows

    def _candidates(self, player: int, present: DecisionSteps) -> Iterator[tuple[Array, bool]]:
        """Yield the rows that new agents may take if free, bool (rows,), and whether only those of equal groups."""
        of_player = self.player == player
        yield of_player, True
        living = np.concatenate([self.group_id[self.alive & of_player], present.group_id])
        yield of_player & ~np.isin(self.group_id, living), False
        yield self.player < 0, False
        if self.is_fixed:
            yield np.ones(len(self), bool), False

    def _grow(self, count: int) -> Array:
        """Add rows, and return their indices."""
        rows = len(self) + count
        self.observations = [with_rows(array, rows) for array in self.observations]
        self.final_observations = [with_rows(array, rows) for array in self.final_observations]
        outcomes = ("reward", "group_reward", "terminated", "truncated", "group_ended")
        for name in (*outcomes, "requests_decision", "alive", "group_id", "_running", "_ended_at"):
            setattr(self, name, with_rows(getattr(self, name), rows))
        self.action_mask = with_rows(self.action_mask, rows, 1)
        for name in ("agent_id", "player", "_key"):
            setattr(self, name, with_rows(getattr(self, name), rows, -1))
        return np.arange(len(self) - count, len(self))

    @staticmethod
    def _keys(agent_ids: Array, player: int) -> Array:
        return agent_ids.astype(np.int64) + (player << _ID_BITS)

    def _index_keys(self) -> None:
        self._last: dict[int, tuple[bytes, Rows]] = {}  # per player: ids of the last requests, rows
        self._order = np.argsort(self._key)
        self._sorted_keys = self._key[self._order]

    def _find(self, keys: Array) -> Array:
        """Return the row of each key, −1 where it is unknown."""
        if not len(self):
            return np.full(len(keys), -1, np.intp)
        position = np.searchsorted(self._sorted_keys, keys)
        rows = self._order[np.minimum(position, len(self) - 1)]
        return np.where(self._key[rows] == keys, rows, -1)


def _match_in_order(left: Array, right: Array) -> tuple[Array, Array]:
    """Return pairs of an index into `left` and one into `right`: of each value, the first with the first, and so on."""
    _, *pairs = np.intersect1d(_numbered(left), _numbered(right), assume_unique=True, return_indices=True)
    return pairs[0], pairs[1]


def _numbered(values: Array) -> Array:
    """Return each int32 value together with the number of equal ones before it, in one int64."""
    order = np.argsort(values, kind="stable")
    in_order = values[order].astype(np.int64)
    numbered = np.empty_like(in_order)
    numbered[order] = (in_order << _ID_BITS) + np.arange(len(values)) - np.searchsorted(in_order, in_order)
    return numbered

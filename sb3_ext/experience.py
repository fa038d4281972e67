"""Experience of agents, stored while they act and returned in whole trajectories.

A trajectory is a sequence of decisions of one agent in one episode. It ends with the episode, or where it is cut. Every
end has the true state after the last decision, so that cuts and truncations bootstrap from it.

This is the part for acting, in arrays. `sb3_ext.rollout` and `sb3_ext.replay` contain the data for training.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from sb3_ext.agents import AgentTableLike
from unity_gym.slots import with_rows
from unity_gym.specs import Array

if TYPE_CHECKING:
    from typing_extensions import Self

ROWS_PER_SAMPLER = 1 << 32
"""Distance between the rows of the trajectories of two samplers."""
_FIRST_CAPACITY = 1024


@dataclass
class Trajectories:
    """Trajectories with n decisions, one after another, as arrays, which a sampler passes to a learner.

    Trajectories are ordered by row, then by time.

    - `decisions`: arrays (n, …) by name: `observation_0`, `observation_1` …, `action` (float32, raw), `log_prob`,
      `memory` (the recurrent state before the decision), `mask` (True = allowed), `reward` and `group_reward` (float32,
      caused by the decision) and `version` (int64, of the acting weights)
    - `ends`: arrays (trajectories, …) by name, of the state after the last decision: `observation_0` …, `mask` and
      `memory`; and `terminated` (bool), `is_episode_end` (bool, False where it was cut) and `row` (int64, of the table)
    - `lengths`: int64 (trajectories,), numbers of decisions
    """

    decisions: dict[str, Array]
    ends: dict[str, Array]
    lengths: Array

    def __len__(self) -> int:
        return int(self.lengths.sum())

    @property
    def sensors(self) -> int:
        """Number of observations per decision."""
        return sum(name.startswith("observation_") for name in self.ends)

    def shift_rows(self, offset: int) -> None:
        """Add an offset to the rows, so that those of several samplers are unique."""
        self.ends["row"] = self.ends["row"] + offset

    def arrays(self) -> dict[str, Array]:
        """Return all arrays by unique names, in the form that `from_arrays` reads."""
        return prefixed("decisions", self.decisions) | prefixed("ends", self.ends) | {"lengths": self.lengths}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array]) -> Self:
        """Read the arrays that `arrays` returns.

        :raises KeyError: If an array is missing.
        """
        return cls(without_prefix("decisions", arrays), without_prefix("ends", arrays), arrays["lengths"])

    def merged(self) -> Self:
        """Return the trajectories with the pieces of each episode merged, of which none may be missing in between."""
        row = self.ends["row"]
        is_start = np.append(True, (row[1:] != row[:-1]) | self.ends["is_episode_end"][:-1])
        is_end = np.append(is_start[1:], True)
        lengths = np.add.reduceat(self.lengths, np.flatnonzero(is_start))
        return replace(self, ends={name: array[is_end] for name, array in self.ends.items()}, lengths=lengths)

    @classmethod
    def join(cls, parts: Sequence[Self]) -> Self:
        """Join several parts; trajectories of one row are in the order of the parts.

        :param parts: Parts, at least one. Rows of different samplers must differ.
        """
        if len(parts) == 1:
            return parts[0]
        lengths = np.concatenate([part.lengths for part in parts])
        ends = concatenate([part.ends for part in parts])
        order = np.argsort(ends["row"], kind="stable")
        first = np.cumsum(lengths) - lengths
        lengths = lengths[order]
        within = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        chosen = np.repeat(first[order], lengths) + within
        decisions = concatenate([part.decisions for part in parts])
        return cls._concatenate(
            parts,
            {name: array[chosen] for name, array in decisions.items()},
            {name: array[order] for name, array in ends.items()},
            lengths,
            np.argsort(chosen),
            np.argsort(order),
        )

    @classmethod
    def _concatenate(
        cls,
        parts: Sequence[Self],  # noqa: ARG003
        decisions: dict[str, Array],
        ends: dict[str, Array],
        lengths: Array,
        place: Array,  # noqa: ARG003
        end_place: Array,  # noqa: ARG003
    ) -> Self:
        """Build the joined trajectories.

        :param place: New index of each decision of the parts, one part after another, int64 (n,).
        :param end_place: New index of each trajectory, int64 (trajectories,).
        """
        return cls(decisions, ends, lengths)


def concatenate(parts: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
    """Join the arrays of several parts, one part after another, by name."""
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def prefixed(prefix: str, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Return the same arrays with names `prefix.name`."""
    return {f"{prefix}.{name}": array for name, array in arrays.items()}


def without_prefix(prefix: str, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Return the arrays named `prefix.name`, by name."""
    start = f"{prefix}."
    return {name.removeprefix(start): array for name, array in arrays.items() if name.startswith(start)}


class TrajectoryBuffer:
    """Buffer of the decisions of any number of agents, in the order in which they are made.

    `store_decisions` adds a decision, which is open until `store_outcomes` adds its outcome. `take` returns and removes
    the finished trajectories.

    :param time_horizon: Decisions after which a trajectory is cut; None cuts at episode ends only.
    :param memory_size: Size of the recurrent state that is stored with each decision.
    """

    _table: AgentTableLike  # of the latest outcomes

    def __init__(self, time_horizon: int | None = None, memory_size: int = 0) -> None:
        self._horizon = time_horizon
        self._memory_size = memory_size
        self.reset()

    def reset(self) -> None:
        """Discard everything."""
        self._count = 0
        self._arrays: dict[str, Array] = {}  # one array (capacity, …) per name
        self._sensors = 0
        self._ends: list[dict[str, Array]] = []  # as `Trajectories.ends`, with the number of each `trajectory`
        self._trajectories = 0
        self._open = np.zeros(0, np.int64)  # per row of the table: its decision without an outcome, −1 for none
        self._trajectory = np.zeros(0, np.int64)  # the running trajectory, or −1
        self._length = np.zeros(0, np.int64)  # of the running trajectory, decisions with an outcome
        self.finished = 0
        """Number of decisions in finished trajectories."""

    @property
    def closed(self) -> int:
        """Number of decisions with an outcome, in finished and in running trajectories."""
        return self.finished + int(self._length.sum())

    @property
    def has_open_decisions(self) -> bool:
        """Whether any decision has no outcome yet."""
        return bool((self._open >= 0).any())

    def store_decisions(
        self, table: AgentTableLike, rows: Array, actions: Array, log_probs: Array, memory: Array, version: int = 0
    ) -> None:
        """Store a decision of each of `rows`, with the observations and masks in `table`.

        :param rows: Rows that act, int (m,).
        :param actions: Raw actions, float32 (m, dimensions); see `sb3_ext.distributions`.
        :param log_probs: Log-probabilities, float32 (m, dimensions).
        :param memory: Recurrent states before the decisions, float32 (m, memory size).
        :param version: Version number of the acting weights.
        """
        self._require_rows(len(table))
        fresh = rows[self._trajectory[rows] < 0]
        self._trajectory[fresh] = self._trajectories + np.arange(len(fresh))
        self._trajectories += len(fresh)
        zeros = np.zeros(len(rows), np.float32)
        self._sensors = len(table.observations)
        written = {f"observation_{index}": array[rows] for index, array in enumerate(table.observations)}
        written |= {
            "action": actions,
            "log_prob": log_probs,
            "memory": memory,
            "mask": table.action_mask[rows],
            "reward": zeros,
            "group_reward": zeros,
            "version": np.full(len(rows), version),
            "row": rows,
            "trajectory": self._trajectory[rows],
        }
        start, end = self._count, self._count + len(rows)
        for name, values in written.items():
            self._room(name, values, end)[start:end] = values
        self._open[rows] = np.arange(start, end)
        self._count = end

    def store_outcomes(self, table: AgentTableLike, memory: Array) -> None:
        """Close the decisions whose outcome is in `table`, and the trajectories that end or are long enough.

        :param memory: Recurrent states (rows, memory size) after the latest decisions of the rows.
        """
        self._require_rows(len(table))
        self._table = table
        ends = table.terminated | table.truncated
        rows = np.flatnonzero((table.requests_decision | ends) & (self._open >= 0))
        # This includes rows that were reset before the next decision.
        ended = np.flatnonzero(ends & (self._trajectory >= 0))
        if not len(rows) and not len(ended):
            return
        decisions = self._open[rows]
        self._arrays["reward"][decisions] = table.reward[rows]
        self._arrays["group_reward"][decisions] = table.group_reward[rows]
        self._open[rows] = -1
        self._length[rows] += 1
        self._finish(
            ended, [array[ended] for array in table.final_observations], None, memory, table.terminated[ended], True
        )
        if self._horizon is not None:
            long = rows[~ends[rows] & (self._length[rows] >= self._horizon)]
            self._finish(long, [array[long] for array in table.observations], table.action_mask[long], memory)

    def cut(self, memory: Array) -> None:
        """Cut all running trajectories at the latest outcomes; decisions without an outcome start new ones.

        :param memory: Recurrent states (rows, memory size) after the latest decisions of the rows.
        """
        rows = np.flatnonzero(self._length)
        is_open = self._open[rows] >= 0
        asked, acting = rows[~is_open], rows[is_open]
        table = self._table if len(asked) else None
        self._finish(
            asked,
            [] if table is None else [array[asked] for array in table.observations],
            None if table is None else table.action_mask[asked],
            memory,
        )
        if len(acting):
            decisions = self._open[acting]
            before = np.zeros((len(self._open), self._memory_size), np.float32)
            before[acting] = self._arrays["memory"][decisions]
            observations = [array[decisions] for array in self._observations()]
            self._finish(acting, observations, self._arrays["mask"][decisions], before)
            self._trajectory[acting] = self._trajectories + np.arange(len(acting))
            self._trajectories += len(acting)
            self._arrays["trajectory"][decisions] = self._trajectory[acting]

    def cut_rows(self, table: AgentTableLike, rows: Array, memory: Array) -> None:
        """Cut the running trajectories of rows that request a decision, which will not be stored.

        :param memory: Recurrent states (rows of the table, memory size) after the latest decisions of the rows.
        """
        self._require_rows(len(table))
        rows = rows[self._length[rows] > 0]
        self._finish(rows, [array[rows] for array in table.observations], table.action_mask[rows], memory)

    def _finish(
        self,
        rows: Array,
        observations: list[Array],
        masks: Array | None,
        memory: Array,
        terminated: Array | None = None,
        is_episode_end: bool = False,
    ) -> None:
        """End the running trajectories of `rows`.

        :param observations: Observations of the states after the last decisions, one (m, *shape) per sensor.
        :param masks: Action masks of these states, bool (m, sum of branches); None allows everything.
        """
        if not len(rows):
            return
        width = self._arrays["mask"].shape[1]
        ends = {f"observation_{index}": array for index, array in enumerate(observations)}
        self._ends.append(
            ends
            | {
                "mask": np.ones((len(rows), width), bool) if masks is None else masks,
                "memory": memory[rows],
                "terminated": np.zeros(len(rows), bool) if terminated is None else terminated,
                "is_episode_end": np.full(len(rows), is_episode_end),
                "row": rows,
                "trajectory": self._trajectory[rows],
            }
        )
        self.finished += int(self._length[rows].sum())
        self._trajectory[rows] = -1
        self._length[rows] = 0

    def take(self) -> Trajectories | None:
        """Remove the finished trajectories and return them, ordered by row of the table, then by time.

        :return: Trajectories; None if there are none.
        """
        if not self._ends:
            return None
        ends = concatenate(self._ends)
        trajectories = ends.pop("trajectory")
        order = np.argsort(trajectories)
        numbers = trajectories[order]
        of_decisions = self._arrays["trajectory"][: self._count]
        position = np.minimum(np.searchsorted(numbers, of_decisions), len(numbers) - 1)
        is_finished = numbers[position] == of_decisions
        chosen = np.flatnonzero(is_finished)
        chosen = chosen[np.argsort(self._arrays["row"][chosen], kind="stable")]
        first = np.flatnonzero(np.diff(of_decisions[chosen], prepend=-1))
        finished = order[position[chosen[first]]]
        taken = self._hand_over(
            chosen,
            {name: array[finished] for name, array in ends.items()},
            np.diff(first, append=len(chosen)),
            trajectories[finished],
        )
        self._keep(np.flatnonzero(~is_finished))
        return taken

    def peek(self, memory: Array) -> Trajectories | None:
        """Return what `cut` and `take` would return, without changing the buffer.

        :param memory: Recurrent states (rows, memory size) after the latest decisions of the rows.
        """
        if not self.closed:
            return None
        twin = copy.copy(self)
        twin.__dict__ |= {name: copy.deepcopy(value) for name, value in self.__dict__.items() if name != "_table"}
        twin.cut(memory)
        return twin.take()

    def _hand_over(self, decisions: Array, ends: dict[str, Array], lengths: Array, trajectories: Array) -> Trajectories:  # noqa: ARG002
        """Gather the trajectories of these decisions.

        :param trajectories: Numbers of the trajectories, int64 (trajectories,).
        """
        return Trajectories(self._decisions(decisions), ends, lengths)

    def _decisions(self, decisions: Array) -> dict[str, Array]:
        return {name: array[decisions] for name, array in self._arrays.items() if name not in ("row", "trajectory")}

    def _keep(self, kept: Array) -> None:
        place = np.full(self._count, -1)
        place[kept] = np.arange(len(kept))
        for array in self._arrays.values():
            array[: len(kept)] = array[kept]
        is_open = self._open >= 0
        self._open[is_open] = place[self._open[is_open]]
        self._count = len(kept)
        self._ends = []
        self.finished = 0

    def _observations(self) -> list[Array]:
        return [self._arrays[f"observation_{index}"] for index in range(self._sensors)]

    def _room(self, name: str, values: Array, needed: int) -> Array:
        """Return the array `name`, with capacity for `needed` decisions."""
        array = self._arrays.get(name)
        if array is None:
            array = np.empty((0, *values.shape[1:]), values.dtype)
        if needed > len(array):
            array = with_rows(array, max(needed, 2 * len(array), _FIRST_CAPACITY))
            self._arrays[name] = array
        return array

    def _require_rows(self, rows: int) -> None:
        self._open, self._trajectory = with_rows(self._open, rows, -1), with_rows(self._trajectory, rows, -1)
        self._length = with_rows(self._length, rows)

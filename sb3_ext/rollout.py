"""What learning reads: trajectories as tensors, their minibatches, and generalized advantage estimates."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch

from sb3_ext.experience import Trajectories
from sb3_ext.networks.body import Encoding, Inputs, as_floats
from sb3_ext.networks.normalization import RunningNormalization
from unity_gym.specs import Array

if TYPE_CHECKING:
    from typing_extensions import Self


_LARGE_ROW = 1024  # numbers of one decision
CHUNK = 1024  # decisions that are evaluated at once outside of the minibatches: more of them leave the cache


def as_tensor(array: Array, device: torch.device | str = "cpu") -> torch.Tensor:
    """Return the array as a tensor; a read-only one, as shared memory gives it, is copied."""
    return torch.from_numpy(array if array.flags.writeable else array.copy()).to(device)


def advantages(
    rewards: Array, values: Array, end_values: Array, lengths: Array, gamma: float, gae_lambda: float
) -> Array:
    """Generalised advantage estimates (Schulman et al. 2016), of all trajectories at once.

    δ_t = r_t + γ V_{t+1} − V_t and A_t = δ_t + γ λ A_{t+1}, with A = 0 after a trajectory's last decision. A_t + V_t is
    the λ-return G_t = r_t + γ ((1 − λ) V_{t+1} + λ G_{t+1}).

    :param rewards: (n,), the decisions of a trajectory one after another, and trajectory after trajectory
    :param values: (n,), of the states decided in
    :param end_values: (trajectories,), of the states after the last decisions; 0 where nothing follows
    :param lengths: int (trajectories,), which sum to n
    :return: float64 (n,)
    """
    last = np.cumsum(lengths) - 1
    following = np.append(values[1:], 0).astype(np.float64)
    following[last] = end_values
    inside = np.arange(lengths.max(initial=0)) < lengths[:, np.newaxis]
    grid = np.zeros(inside.shape)
    grid[inside] = rewards + gamma * following - values
    grid = np.ascontiguousarray(grid.T)
    for step in range(len(grid) - 2, -1, -1):
        grid[step] += gamma * gae_lambda * grid[step + 1]
    result: Array = grid.T[inside]
    return result


class Rollout:
    """n decisions in whole trajectories, one after another, as tensors.

    - `observations`: one (n, *shape) a sensor; `end_observations`: one (trajectories, *shape), after the last decisions
    - `actions`, `log_probs`: float32 (n, columns); `environment_actions`: the same actions as the environment got them,
      which a policy of another scale sets
    - `action_masks`: bool (n, sum of branches), True = allowed
    - `memory`: float32 (n, memory size), before each decision; `end_memory`: (trajectories, memory size)
    - `rewards`, `group_rewards`: float32 (n,), caused by each decision
    - `lengths`: int array (trajectories,); `terminated`: bool array (trajectories,), the episode came to its end;
      elsewhere it was truncated or the trajectory cut
    - `is_over`: bool array (trajectories,), nothing follows: `terminated`, or where there are groups, the end of all

    The algorithm adds `values` (n, critics, reward signals), `returns` (n, 1, reward signals) and `advantages` (n,);
    where some decisions are of an older policy, it adds `weights` (n, columns) of the advantages.
    """

    values: torch.Tensor
    returns: torch.Tensor
    advantages: torch.Tensor
    weights: torch.Tensor | None = None

    def __init__(
        self,
        columns: dict[str, torch.Tensor],
        lengths: Array,
        end_observations: list[torch.Tensor],
        end_memory: torch.Tensor,
        terminated: Array,
    ) -> None:
        self.observations = [columns[f"observation_{index}"] for index in range(len(end_observations))]
        self.actions, self.log_probs = columns["action"], columns["log_prob"]
        self.environment_actions = self.actions
        self.action_masks, self.memory = columns["mask"], columns["memory"]
        self.rewards, self.group_rewards = columns["reward"], columns["group_reward"]
        self.lengths, self.terminated, self.is_over = lengths, terminated, terminated
        self.end_observations, self.end_memory = end_observations, end_memory
        self.inputs = Inputs()  # of `prepare`
        self._normalization: RunningNormalization | None = None
        self._last = torch.from_numpy(np.cumsum(lengths) - 1).to(self.rewards.device)

    @classmethod
    def from_trajectories(cls, trajectories: Trajectories, device: torch.device | str = "cpu") -> Self:
        """Read what a sampler handed over."""
        ends = trajectories.ends
        return cls(
            {name: as_tensor(array, device) for name, array in trajectories.decisions.items()},
            lengths=trajectories.lengths,
            end_observations=[as_tensor(ends[f"observation_{index}"], device) for index in range(trajectories.sensors)],
            end_memory=as_tensor(ends["memory"], device),
            terminated=ends["terminated"],
        )

    def __len__(self) -> int:
        return len(self.rewards)

    def prepare(self, encoding: Encoding) -> None:
        """Do once what an encoding does with the observations before its weights, for all its coming batches.

        Prepare again after its statistics of observations have changed.
        """
        self.inputs, self._normalization = encoding.prepare(self.observations), encoding.normalization

    def is_prepared_for(self, encoding: Encoding) -> bool:
        """Whether the last `prepare` was for these statistics of observations."""
        return bool(self.inputs) and self._normalization is encoding.normalization

    @cached_property
    def trajectory(self) -> torch.Tensor:
        """int64 (n,), the trajectory of each decision."""
        lengths = as_tensor(self.lengths, self.rewards.device)
        return torch.repeat_interleave(torch.arange(len(lengths), device=lengths.device), lengths)

    @cached_property
    def is_last(self) -> torch.Tensor:
        """Bool (n,), the last decision of its trajectory."""
        last = torch.zeros(len(self), dtype=torch.bool, device=self.rewards.device)
        last[self._last] = True
        return last

    def sequences(self, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Trajectories cut from their starts into sequences of `length` decisions.

        :return: int64 (sequences, length), the decisions; bool (sequences, length), False where the last sequence of a
            trajectory is filled up (with its first decision)
        """
        count = -(-self.lengths // length)
        within = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
        first = np.repeat(np.cumsum(self.lengths) - self.lengths, count) + within * length
        left = np.repeat(self.lengths, count) - within * length
        steps = np.arange(length)
        valid = steps < left[:, np.newaxis]
        decisions = np.where(valid, first[:, np.newaxis] + steps, first[:, np.newaxis])
        device = self.rewards.device
        return torch.from_numpy(decisions).to(device), torch.from_numpy(valid).to(device)

    def refresh_memory(self, length: int, after: Callable[[Batch], torch.Tensor]) -> None:
        """Put into the first decision of each sequence the memory that the present weights would have there.

        A trajectory's own first memory stays, and the others follow from it, sequence by sequence.

        :param length: of the sequences
        :param after: a batch of whole sequences → the memory (sequences, memory size) after their last decisions
        """
        decisions, _ = self.sequences(length)
        first = decisions[:, 0]
        trajectory = self.trajectory[first]
        number = torch.arange(len(first), device=first.device)
        number = number - torch.searchsorted(trajectory, trajectory)  # of the sequence in its trajectory
        for place in range(1, int(number.max()) + 1):
            which = torch.nonzero(number == place).squeeze(1)
            self.memory[first[which]] = after(Batch(self, decisions[which - 1], None)).to(self.memory.dtype)

    def in_order(self, size: int) -> Iterator[Batch]:
        """All decisions in order, at most `size` at a time."""
        decisions = torch.arange(len(self), device=self.rewards.device).unsqueeze(1)
        yield from self._batches(decisions, None, size, in_order=True)

    def shuffled(self, size: int, length: int = 1, drop_last: bool = True) -> Iterator[Batch]:
        """One pass over all decisions, in random order (NumPy's global generator, which SB3 seeds).

        :param size: decisions a batch; rounded down to whole sequences, at least one
        :param length: of the sequences that stay together
        :param drop_last: leave a last batch out that is smaller than the others, unless it is the only one
        """
        decisions, valid = self.sequences(length)
        per_batch = max(size // length, 1)
        order = self._random_order(decisions)
        full = len(order) // per_batch * per_batch
        if drop_last and full:
            order = order[:full]
        yield from self._batches(decisions[order], None if bool(valid.all()) else valid[order], per_batch)

    def _batches(
        self, decisions: torch.Tensor, valid: torch.Tensor | None, per_batch: int, in_order: bool = False
    ) -> Iterator[Batch]:
        """Batches of `per_batch` sequences, which share one copy of each array in the order of the sequences.

        :param decisions: int64 (sequences, length)
        :param valid: bool (sequences, length); None where all are valid
        :param in_order: The decisions are all of the rollout, in its order: there are no copies.
        """
        copies = _Copies(None if in_order else decisions.reshape(-1))
        for start in range(0, len(decisions), per_batch):
            part = slice(start, start + per_batch)
            mask = None if valid is None else valid[part].reshape(-1)
            yield Batch(self, decisions[part], mask, copies, start * decisions.shape[1])

    def _random_order(self, sequences: torch.Tensor) -> torch.Tensor:
        """int64 (sequences,), an order in which `shuffled` goes over sequences (sequences, length)."""
        return torch.from_numpy(np.random.permutation(len(sequences))).to(sequences.device)  # noqa: NPY002


class Decisions(Protocol):
    """m decisions to learn from, as reward signals read them: a `Batch`, or a `sb3_ext.replay.ReplayBatch`."""

    valid: torch.Tensor | None
    """bool (m,), False where a sequence is filled up; None where all are valid."""

    def __len__(self) -> int: ...

    def mean(self, x: torch.Tensor) -> torch.Tensor:
        """Return the mean of (m, …) over the valid decisions and all that is behind them."""

    @property
    def observations(self) -> list[torch.Tensor]:
        """One (m, *shape) a sensor."""

    @property
    def next_observations(self) -> list[torch.Tensor]:
        """One (m, *shape) a sensor, what the same agent saw next."""

    @property
    def actions(self) -> torch.Tensor:
        """(m, columns), as the policy gave them."""

    @property
    def environment_actions(self) -> torch.Tensor:
        """(m, columns), as the environment got them."""

    @property
    def terminated(self) -> torch.Tensor:
        """Bool (m,), nothing follows."""

    @property
    def rewards(self) -> torch.Tensor:
        """(m,), the agents' own."""

    @property
    def group_rewards(self) -> torch.Tensor:
        """(m,), of the agents' groups."""


class _Copies:
    """Arrays of a rollout in another order, each copied once for all batches that are slices of it.

    :param order: int64 (n,), the decisions; None for the order of the rollout.
    """

    def __init__(self, order: torch.Tensor | None) -> None:
        self._order = order
        self._copies: dict[str, torch.Tensor] = {}

    def array(self, name: str, array: torch.Tensor) -> torch.Tensor:
        """Return the array (decisions, …) in this order."""
        if self._order is None:
            return array
        if name not in self._copies:
            self._copies[name] = array.index_select(0, self._order)  # faster than array[order]
        return self._copies[name]


class Batch:
    """m decisions of a rollout, in sequences of equal length, one after another; arrays are gathered when asked for.

    :param rollout: where they come from
    :param decisions: int64 (sequences, length)
    :param valid: bool (m,), False where a sequence is filled up; None where all are valid
    :param copies: Arrays of the rollout of which this batch is a slice; None to gather its own decisions.
    :param start: Where the slice starts.
    """

    def __init__(
        self,
        rollout: Rollout,
        decisions: torch.Tensor,
        valid: torch.Tensor | None,
        copies: _Copies | None = None,
        start: int = 0,
    ) -> None:
        self.rollout = rollout
        self.length = decisions.shape[1]
        self.index = decisions.reshape(-1)
        self.valid = valid
        self._first = decisions[:, 0]
        self._copies, self._slice = copies, slice(start, start + len(self.index))

    def part(self, sequences: slice) -> Batch:
        """Return some of the sequences of this batch."""
        decisions = self.index.view(-1, self.length)[sequences]
        rows = slice(sequences.start * self.length, sequences.stop * self.length)
        valid = None if self.valid is None else self.valid[rows]
        return Batch(self.rollout, decisions, valid, self._copies, self._slice.start + rows.start)

    @property
    def count(self) -> int | torch.Tensor:
        """Number of valid decisions."""
        return len(self) if self.valid is None else self.valid.sum()

    @property
    def sequences(self) -> int:
        """Number of sequences."""
        return len(self) // self.length

    def _array(self, name: str, array: torch.Tensor) -> torch.Tensor:
        """Return the rows (m, …) of this batch, of an array (decisions, …) of the rollout."""
        # One more copy of all images could take more memory than there is, and gathering large rows is cheap.
        if self._copies is None or (array.dim() > 2 and array.shape[1:].numel() > _LARGE_ROW):
            return array.index_select(0, self.index)
        return self._copies.array(name, array)[self._slice]

    def __len__(self) -> int:
        return len(self.index)

    def mean(self, x: torch.Tensor) -> torch.Tensor:
        """Return the mean of (m, …) over the valid decisions and all that is behind them."""
        if self.valid is None:
            return x.mean()
        return x[self.valid].mean()

    @cached_property
    def observations(self) -> list[torch.Tensor]:
        """One (m, *shape) a sensor."""
        return self._sensors("observation", self.rollout.observations)

    def inputs(self, encoding: Encoding) -> Sequence[torch.Tensor]:
        """Return the observations for an encoding: prepared, if `Rollout.prepare` has done it."""
        return self._inputs if self.rollout.is_prepared_for(encoding) else self.observations

    @cached_property
    def _inputs(self) -> Inputs:
        return Inputs(as_floats(self._sensors("input", self.rollout.inputs)))

    def _sensors(self, kind: str, arrays: list[torch.Tensor]) -> list[torch.Tensor]:
        return [self._array(f"{kind}_{index}", array) for index, array in enumerate(arrays)]

    @cached_property
    def next_observations(self) -> list[torch.Tensor]:
        """One (m, *shape) a sensor, what the same agent saw next."""
        last = self.rollout.is_last[self.index]
        trajectory = self.rollout.trajectory[self.index[last]]
        following = torch.clamp(self.index + 1, max=len(self.rollout) - 1)
        columns = [column.index_select(0, following) for column in self.rollout.observations]
        for column, ends in zip(columns, self.rollout.end_observations, strict=True):
            column[last] = ends[trajectory]
        return columns

    @cached_property
    def terminated(self) -> torch.Tensor:
        """Bool (m,), nothing follows."""
        ends = as_tensor(self.rollout.terminated, self.index.device)
        return self.rollout.is_last[self.index] & ends[self.rollout.trajectory[self.index]]

    @property
    def memory(self) -> torch.Tensor:
        """(sequences, memory size), before the first decision of each sequence."""
        return self.rollout.memory[self._first]

    @property
    def actions(self) -> torch.Tensor:
        """(m, columns), raw."""
        return self._array("actions", self.rollout.actions)

    @property
    def environment_actions(self) -> torch.Tensor:
        """(m, columns), as the environment got them."""
        return self._array("environment_actions", self.rollout.environment_actions)

    @property
    def action_masks(self) -> torch.Tensor:
        """Bool (m, sum of branches)."""
        return self._array("action_masks", self.rollout.action_masks)

    @property
    def log_probs(self) -> torch.Tensor:
        """(m, columns), when the decisions were made."""
        return self._array("log_probs", self.rollout.log_probs)

    @property
    def rewards(self) -> torch.Tensor:
        """(m,), the agents' own."""
        return self._array("rewards", self.rollout.rewards)

    @property
    def group_rewards(self) -> torch.Tensor:
        """(m,), of the agents' groups."""
        return self._array("group_rewards", self.rollout.group_rewards)

    @property
    def advantages(self) -> torch.Tensor:
        """(m,)."""
        return self._array("advantages", self.rollout.advantages)

    @property
    def weights(self) -> torch.Tensor | None:
        """(m, columns), of the advantages; None for 1."""
        weights = self.rollout.weights
        return None if weights is None else self._array("weights", weights)

    @property
    def values(self) -> torch.Tensor:
        """(m, critics, reward signals), before the update."""
        return self._array("values", self.rollout.values)

    @property
    def returns(self) -> torch.Tensor:
        """(m, 1, reward signals): each critic learns the same."""
        return self._array("returns", self.rollout.returns)

"""Training data: trajectories as tensors, their minibatches, and generalized advantage estimates."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch

from sb3_ext.experience import Trajectories
from sb3_ext.hardware import to_device
from sb3_ext.networks.body import Encoding, Inputs, as_floats
from sb3_ext.networks.normalization import RunningNormalization
from unity_gym.specs import Array

if TYPE_CHECKING:
    from typing_extensions import Self


_LARGE_ROW = 1024  # values per decision
CHUNK = 1024  # decisions per evaluation outside of the minibatches: more of them exceed the cache


def as_tensor(array: Array, device: torch.device | str = "cpu") -> torch.Tensor:
    """Return the array as a tensor; a read-only array, such as one in shared memory, is copied."""
    return to_device(torch.from_numpy(array if array.flags.writeable else array.copy()), device)


def mean_of_valid(
    x: torch.Tensor, valid: torch.Tensor, count: int | torch.Tensor, dim: int, *further: int
) -> torch.Tensor:
    """Return the means over the valid decisions. Selecting them would wait for their number on a GPU.

    :param x: Values (…, m, …).
    :param valid: Valid decisions, bool (m,).
    :param count: Number of valid decisions.
    :param dim: Dimension of the m decisions.
    :param further: Further dimensions, over which the means are, too.
    """
    mask = valid.view(-1, *(1,) * (x.dim() - dim - 1))
    return torch.where(mask, x, 0).sum((dim, *further)) / (count * math.prod(x.shape[place] for place in further))


def advantages(
    rewards: Array, values: Array, end_values: Array, lengths: Array, gamma: float, gae_lambda: float
) -> Array:
    """Return the generalized advantage estimates (Schulman et al. 2016) of all trajectories.

    δ_t = r_t + γ V_{t+1} − V_t and A_t = δ_t + γ λ A_{t+1}, with A = 0 after a trajectory's last decision. A_t + V_t is
    the λ-return G_t = r_t + γ ((1 − λ) V_{t+1} + λ G_{t+1}).

    :param rewards: Rewards (n,), ordered by trajectory, then by decision.
    :param values: Values (n,) of the states of the decisions.
    :param end_values: Values (trajectories,) of the states after the last decisions; 0 where nothing follows.
    :param lengths: Lengths int (trajectories,), which sum to n.
    :return: Advantages, float64 (n,).
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
    """Rollout of n decisions in whole trajectories, one after another, as tensors.

    - `observations`: one (n, *shape) per sensor; `end_observations`: one (trajectories, *shape) per sensor, after the
      last decisions
    - `actions`, `log_probs`: float32 (n, dimensions); `environment_actions`: the same actions with the
      continuous ones in `[-1, 1]`, set by policies of another scale
    - `action_masks`: bool (n, sum of branches), True = allowed
    - `memory`: float32 (n, memory size), before each decision; `end_memory`: (trajectories, memory size)
    - `rewards`, `group_rewards`: float32 (n,), caused by each decision
    - `lengths`: int array (trajectories,); `terminated`: bool array (trajectories,), True if the episode terminated,
      False if it was truncated or the trajectory was cut
    - `is_over`: bool array (trajectories,), True if nothing follows: `terminated`, or with groups, the end of the group

    The algorithm adds `values` (n, critics, reward signals), `returns` (n, 1, reward signals) and `advantages` (n,). If
    some decisions come from an older policy, it adds `weights` (n, dimensions) of the advantages.
    """

    values: torch.Tensor
    returns: torch.Tensor
    advantages: torch.Tensor
    weights: torch.Tensor | None = None
    has_older = False  # whether an older policy has made some of the decisions

    def __init__(
        self,
        tensors: dict[str, torch.Tensor],
        lengths: Array,
        end_observations: list[torch.Tensor],
        end_memory: torch.Tensor,
        terminated: Array,
    ) -> None:
        self.observations = [tensors[f"observation_{index}"] for index in range(len(end_observations))]
        self.actions, self.log_probs = tensors["action"], tensors["log_prob"]
        self.environment_actions = self.actions
        self.action_masks, self.memory = tensors["mask"], tensors["memory"]
        self.rewards, self.group_rewards = tensors["reward"], tensors["group_reward"]
        self.lengths, self.terminated, self.is_over = lengths, terminated, terminated
        self.end_observations, self.end_memory = end_observations, end_memory
        self.inputs = Inputs()  # set by `prepare`
        self._normalization: RunningNormalization | None = None
        self._last = as_tensor(np.cumsum(lengths) - 1, self.rewards.device)

    @classmethod
    def from_trajectories(cls, trajectories: Trajectories, device: torch.device | str = "cpu") -> Self:
        """Build a rollout from the trajectories of a sampler."""
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
        """Compute the part of an encoding that precedes its weights once, for all following batches.

        Call it again after the encoding's statistics of observations have changed.
        """
        self.inputs, self._normalization = encoding.prepare(self.observations), encoding.normalization

    def is_prepared_for(self, encoding: Encoding) -> bool:
        """Return whether the last `prepare` was for these statistics of observations."""
        return bool(self.inputs) and self._normalization is encoding.normalization

    @cached_property
    def trajectory(self) -> torch.Tensor:
        """Index of the trajectory of each decision, int64 (n,)."""
        lengths = as_tensor(self.lengths, self.rewards.device)
        return torch.repeat_interleave(torch.arange(len(lengths), device=lengths.device), lengths)

    @cached_property
    def is_last(self) -> torch.Tensor:
        """Whether each decision is the last of its trajectory, bool (n,)."""
        last = torch.zeros(len(self), dtype=torch.bool, device=self.rewards.device)
        last[self._last] = True
        return last

    def sequences(self, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the trajectories, divided from their starts into sequences of `length` decisions.

        :return: Decisions, int64 (sequences, length); and bool (sequences, length), False where the last sequence of a
            trajectory is padded (with its first decision). Both are on the CPU.
        """
        count = -(-self.lengths // length)
        within = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
        first = np.repeat(np.cumsum(self.lengths) - self.lengths, count) + within * length
        left = np.repeat(self.lengths, count) - within * length
        steps = np.arange(length)
        valid = steps < left[:, np.newaxis]
        decisions = np.where(valid, first[:, np.newaxis] + steps, first[:, np.newaxis])
        return torch.from_numpy(decisions), torch.from_numpy(valid)

    def refresh_memory(self, length: int, after: Callable[[Batch], torch.Tensor]) -> None:
        """Replace the recurrent state before each sequence by the one that the current weights produce.

        The first recurrent state of a trajectory stays; the others follow from it, sequence by sequence.

        :param length: Length of the sequences. With 1, the states after the trajectories are replaced, too.
        :param after: Function from a batch of whole sequences to the recurrent states (sequences, memory size) after
            their last decisions.
        """
        decisions, _ = self.sequences(length)
        count = -(-self.lengths // length)
        number = np.arange(len(decisions)) - np.repeat(np.cumsum(count) - count, count)  # of each in its trajectory
        for place in range(1, int(count.max())):
            sequences = np.flatnonzero(number == place)
            batch, previous = (Batch(self, decisions[chosen], None) for chosen in (sequences, sequences - 1))
            self.memory[batch.index[::length]] = after(previous).to(self.memory.dtype)
        if length == 1:
            last = torch.from_numpy(np.cumsum(self.lengths) - 1).unsqueeze(1)
            self.end_memory = after(Batch(self, last, None)).to(self.memory.dtype)

    def in_order(self, size: int) -> Iterator[Batch]:
        """Yield all decisions in order, at most `size` per batch."""
        decisions = torch.arange(len(self)).unsqueeze(1)
        yield from self._batches(decisions, None, size, in_order=True)

    def shuffled(self, size: int, length: int = 1, drop_last: bool = True) -> Iterator[Batch]:
        """Yield one epoch of batches of all decisions, in random order (NumPy's global generator, which SB3 seeds).

        :param size: Decisions per batch, rounded down to whole sequences, at least one.
        :param length: Length of the sequences, which stay together.
        :param drop_last: Leave out a last batch that is smaller than the others, unless it is the only one.
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
        """Yield batches of `per_batch` sequences, which share one copy of each array in the order of the sequences.

        :param decisions: Decisions of the sequences, int64 (sequences, length).
        :param valid: Valid decisions, bool (sequences, length); None if all are valid.
        :param in_order: Whether the decisions are the whole rollout in its order, which needs no copies.
        """
        order = to_device(decisions.reshape(-1), self.rewards.device)
        copies = _Copies(order, in_order)
        for start in range(0, len(decisions), per_batch):
            part = slice(start, start + per_batch)
            mask = None if valid is None else valid[part].reshape(-1)
            yield Batch(self, decisions[part], mask, copies, start * decisions.shape[1])

    def _random_order(self, sequences: torch.Tensor) -> torch.Tensor:
        """Return an order int64 (sequences,) in which `shuffled` yields sequences (sequences, length)."""
        return torch.from_numpy(np.random.permutation(len(sequences)))  # noqa: NPY002


class Decisions(Protocol):
    """Training data of m decisions, as reward signals read them: a `Batch` or a `sb3_ext.replay.ReplayBatch`."""

    def __len__(self) -> int: ...

    @property
    def valid(self) -> torch.Tensor | None:
        """Valid decisions, bool (m,), False where a sequence is padded; None if all are valid."""

    def mean(self, x: torch.Tensor) -> torch.Tensor:
        """Return the mean of (m, …) over the valid decisions and all further dimensions."""

    @property
    def observations(self) -> list[torch.Tensor]:
        """Observations, one (m, *shape) per sensor."""

    @property
    def next_observations(self) -> list[torch.Tensor]:
        """Next observations of the same agents, one (m, *shape) per sensor."""

    @property
    def actions(self) -> torch.Tensor:
        """Actions (m, dimensions), in the scale of the policy."""

    @property
    def environment_actions(self) -> torch.Tensor:
        """Actions (m, dimensions), in the scale of the environment."""

    @property
    def terminated(self) -> torch.Tensor:
        """Whether nothing follows each decision, bool (m,)."""

    @property
    def rewards(self) -> torch.Tensor:
        """Individual rewards (m,)."""

    @property
    def group_rewards(self) -> torch.Tensor:
        """Group rewards (m,)."""


class _Copies:
    """Arrays of a rollout in another order, each copied once for all batches that are slices of it.

    :param order: Decisions in that order, int64 (n,).
    :param in_order: Whether this is the order of the rollout, which needs no copies.
    """

    def __init__(self, order: torch.Tensor, in_order: bool) -> None:
        self.order, self._in_order = order, in_order
        self._copies: dict[str, torch.Tensor] = {}

    def array(self, name: str, array: torch.Tensor) -> torch.Tensor:
        """Return the array (decisions, …) in this order."""
        if self._in_order:
            return array
        if name not in self._copies:
            self._copies[name] = array.index_select(0, self.order)  # faster than array[order]
        return self._copies[name]


class SequenceBatch:
    """Batch of m decisions in sequences of equal length.

    :param sequences: Number of sequences.
    :param length: Decisions of each sequence.
    :param valid: Valid decisions, bool (m,), False where a sequence is padded; None if all are valid. On the CPU,
        unless `count` is not needed.
    :param device: Device of the arrays of the batch.
    """

    def __init__(self, sequences: int, length: int, valid: torch.Tensor | None, device: torch.device) -> None:
        self.sequences, self.length = sequences, length
        self._valid, self._device = valid, device

    def __len__(self) -> int:
        return self.sequences * self.length

    @cached_property
    def valid(self) -> torch.Tensor | None:
        """Valid decisions, bool (m,), False where a sequence is padded; None if all are valid."""
        return None if self._valid is None else to_device(self._valid, self._device)

    @cached_property
    def count(self) -> int:
        """Number of valid decisions."""
        return len(self) if self._valid is None else int(self._valid.sum())

    @cached_property
    def _divisor(self) -> int | torch.Tensor:
        """Number of valid decisions, as a tensor if the mask is on a GPU."""
        return self.count if self._valid is None or self._valid.device.type == "cpu" else self._valid.sum()

    def mean(self, x: torch.Tensor) -> torch.Tensor:
        """Return the mean of (m, …) over the valid decisions and all further dimensions."""
        return x.mean() if self.valid is None else mean_of_valid(x, self.valid, self._divisor, *range(x.dim()))


class Batch(SequenceBatch):
    """Batch of m decisions of a rollout, in sequences of equal length; arrays are gathered on access.

    :param rollout: Rollout of the decisions.
    :param decisions: Decisions of the sequences, int64 (sequences, length), on the CPU.
    :param valid: Valid decisions, bool (m,) on the CPU, False where a sequence is padded; None if all are valid.
    :param copies: Arrays of the rollout of which this batch is a slice; None to gather its own decisions.
    :param start: Start of the slice.
    """

    def __init__(
        self,
        rollout: Rollout,
        decisions: torch.Tensor,
        valid: torch.Tensor | None,
        copies: _Copies | None = None,
        start: int = 0,
    ) -> None:
        sequences, length = decisions.shape
        super().__init__(sequences, length, valid, rollout.rewards.device)
        self.rollout = rollout
        self.decisions = decisions.reshape(-1)
        """Decisions, int64 (m,), on the CPU."""
        self._copies, self._slice = copies, slice(start, start + len(self))

    @cached_property
    def index(self) -> torch.Tensor:
        """Decisions, int64 (m,), on the device of the rollout."""
        if self._copies is None:
            return to_device(self.decisions, self._device)
        return self._copies.order[self._slice]

    def part(self, sequences: slice) -> Batch:
        """Return some of the sequences of this batch."""
        decisions = self.decisions.view(-1, self.length)[sequences]
        rows = slice(sequences.start * self.length, sequences.stop * self.length)
        valid = None if self._valid is None else self._valid[rows]
        return Batch(self.rollout, decisions, valid, self._copies, self._slice.start + rows.start)

    def _array(self, name: str, array: torch.Tensor) -> torch.Tensor:
        """Return the rows (m, …) of this batch, from an array (decisions, …) of the rollout."""
        # Copies of all images could exceed the available memory, and gathering large rows is cheap.
        if self._copies is None or (array.dim() > 2 and array.shape[1:].numel() > _LARGE_ROW):
            return array.index_select(0, self.index)
        return self._copies.array(name, array)[self._slice]

    @cached_property
    def observations(self) -> list[torch.Tensor]:
        """Observations, one (m, *shape) per sensor."""
        return self._sensors("observation", self.rollout.observations)

    def inputs(self, encoding: Encoding) -> Sequence[torch.Tensor]:
        """Return the observations for an encoding, prepared if `Rollout.prepare` was called for it."""
        return self._inputs if self.rollout.is_prepared_for(encoding) else self.observations

    @cached_property
    def _inputs(self) -> Inputs:
        return Inputs(as_floats(self._sensors("input", self.rollout.inputs)))

    def _sensors(self, kind: str, arrays: list[torch.Tensor]) -> list[torch.Tensor]:
        return [self._array(f"{kind}_{index}", array) for index, array in enumerate(arrays)]

    @cached_property
    def next_observations(self) -> list[torch.Tensor]:
        """Next observations of the same agents, one (m, *shape) per sensor."""
        last = self.rollout.is_last[self.index]
        trajectory = self.rollout.trajectory[self.index[last]]
        following = torch.clamp(self.index + 1, max=len(self.rollout) - 1)
        tensors = [tensor.index_select(0, following) for tensor in self.rollout.observations]
        for tensor, ends in zip(tensors, self.rollout.end_observations, strict=True):
            tensor[last] = ends[trajectory]
        return tensors

    @cached_property
    def terminated(self) -> torch.Tensor:
        """Whether nothing follows each decision, bool (m,)."""
        ends = as_tensor(self.rollout.terminated, self.index.device)
        return self.rollout.is_last[self.index] & ends[self.rollout.trajectory[self.index]]

    @property
    def memory(self) -> torch.Tensor:
        """Recurrent states (sequences, memory size), before the first decision of each sequence."""
        return self.rollout.memory[self.index[:: self.length]]

    @cached_property
    def actions(self) -> torch.Tensor:
        """Raw actions (m, dimensions)."""
        return self._array("actions", self.rollout.actions)

    @property
    def environment_actions(self) -> torch.Tensor:
        """Actions (m, dimensions), in the scale of the environment."""
        return self._array("environment_actions", self.rollout.environment_actions)

    @property
    def action_masks(self) -> torch.Tensor:
        """Action masks, bool (m, sum of branches), True = allowed."""
        return self._array("action_masks", self.rollout.action_masks)

    @property
    def log_probs(self) -> torch.Tensor:
        """Log-probabilities (m, dimensions) of the acting policy."""
        return self._array("log_probs", self.rollout.log_probs)

    @property
    def rewards(self) -> torch.Tensor:
        """Individual rewards (m,)."""
        return self._array("rewards", self.rollout.rewards)

    @property
    def group_rewards(self) -> torch.Tensor:
        """Group rewards (m,)."""
        return self._array("group_rewards", self.rollout.group_rewards)

    @property
    def advantages(self) -> torch.Tensor:
        """Advantages (m,)."""
        return self._array("advantages", self.rollout.advantages)

    @property
    def weights(self) -> torch.Tensor | None:
        """Weights (m, dimensions) of the advantages; None for 1."""
        weights = self.rollout.weights
        return None if weights is None else self._array("weights", weights)

    @property
    def values(self) -> torch.Tensor:
        """Values (m, critics, reward signals), before the update."""
        return self._array("values", self.rollout.values)

    @property
    def returns(self) -> torch.Tensor:
        """Returns (m, 1, reward signals), which all critics share."""
        return self._array("returns", self.rollout.returns)

    def tensors(self, names: Sequence[str]) -> dict[str, torch.Tensor]:
        """Return the prepared inputs, the named attributes and, if there is padding, the valid decisions."""
        inputs = self._sensors("input", self.rollout.inputs)
        valid = {} if self.valid is None else {"valid": self.valid}
        return {
            **{f"input_{index}": tensor for index, tensor in enumerate(inputs)},
            **{name: getattr(self, name) for name in names},
            **valid,
        }

    def with_tensors(self, tensors: dict[str, torch.Tensor]) -> Batch:
        """Return a batch of the same shape, which has only the attributes of `tensors`."""
        return _FixedBatch(self, tensors)


class _FixedBatch(Batch):
    """Batch of given tensors; see `Batch.with_tensors`."""

    def __init__(self, batch: Batch, tensors: dict[str, torch.Tensor]) -> None:
        super().__init__(batch.rollout, batch.decisions.view(-1, batch.length), tensors.get("valid"))
        self._tensors = tensors

    def _array(self, name: str, array: torch.Tensor) -> torch.Tensor:  # noqa: ARG002 (that of the rollout)
        return self._tensors[name]

    @property
    def memory(self) -> torch.Tensor:
        """Recurrent states (sequences, memory size), before the first decision of each sequence."""
        return self._tensors["memory"]

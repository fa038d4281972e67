"""Replay buffer of observations, actions and rewards of all agents, to be sampled repeatedly.

Decisions are stored in sequences of one agent in one episode; without a recurrent state, each has one decision. Every
sequence has the true state after its last decision in addition to those of the decisions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, BinaryIO

import numpy as np
import torch

from sb3_ext.experience import Trajectories
from sb3_ext.hardware import to_device
from sb3_ext.networks.body import Encoding, Inputs, as_floats
from sb3_ext.rollout import SequenceBatch, mean_of_valid
from unity_gym.specs import Array

_SEQUENCES_AT_ONCE = 4096  # of all observations
_BYTES_AT_ONCE = 4_000_000  # of observations that are sampled at once
_STATE = ("length", "position", "seen", "sequence_length")  # content of a file in addition to the arrays


class ReplayBuffer:
    """Buffer of the latest decisions of any number of agents, in sequences; a new sequence replaces the oldest.

    :param size: Number of decisions.
    :param sequence_length: Maximum number of decisions per sequence; the end of an episode ends its sequence earlier.
    :param memory_size: Size of the recurrent state that is stored with each sequence.
    """

    def __init__(self, size: int, sequence_length: int = 1, memory_size: int = 0) -> None:
        self.sequence_length, self.memory_size = sequence_length, memory_size
        self.capacity = max(size // sequence_length, 1)
        """Maximum number of sequences."""
        self._arrays: dict[str, Array] = {}  # one array (capacity, …) per name; allocated when shapes are known
        self._sensors = 0
        self._length = np.zeros(self.capacity, np.int64)  # decisions of each sequence
        self._position = 0  # index of the next sequence
        self._filled = 0  # number of stored sequences
        self._decisions = 0
        self.seen = 0
        """Total number of decisions that were ever added."""

    def __len__(self) -> int:
        """Return the number of decisions that can be sampled."""
        return self._decisions

    def size(self) -> int:
        """Return the number of decisions that can be sampled, as SB3's buffers do."""
        return len(self)

    def add(self, trajectories: Trajectories) -> None:
        """Store trajectories of at most `sequence_length` decisions; if they exceed the capacity, the last ones."""
        self._allocate(trajectories)
        lengths = trajectories.lengths
        self.seen += len(trajectories)
        start, skipped = np.cumsum(lengths) - lengths, max(len(lengths) - self.capacity, 0)
        lengths, start = lengths[skipped:], start[skipped:]
        places = (self._position + np.arange(len(lengths))) % self.capacity
        self._decisions += int(lengths.sum() - self._length[places].sum())
        self._length[places] = lengths
        self._position = (self._position + len(lengths)) % self.capacity
        self._filled = min(self._filled + len(lengths), self.capacity)
        step = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        decisions, place = np.repeat(start, lengths) + step, np.repeat(places, lengths)
        for name, array in self._arrays.items():
            if name == "terminated":
                array[places] = False
                array[places, lengths - 1] = trajectories.ends[name][skipped:]
            elif name == "memory":
                array[places] = trajectories.decisions[name][start]
            else:
                array[place, step] = trajectories.decisions[name][decisions]
                if name in trajectories.ends:
                    array[places, lengths] = trajectories.ends[name][skipped:]

    def _allocate(self, trajectories: Trajectories) -> None:
        if self._arrays:
            return
        self._sensors = trajectories.sensors
        for name in (*(f"observation_{index}" for index in range(self._sensors)), "mask"):
            array = trajectories.ends[name]
            shape = (self.capacity, self.sequence_length + 1, *array.shape[1:])
            self._arrays[name] = self._empty(name, shape, array.dtype)
        shape = (self.capacity, self.sequence_length)
        self._arrays["action"] = np.zeros((*shape, trajectories.decisions["action"].shape[1]), np.float32)
        self._arrays["reward"], self._arrays["group_reward"] = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
        self._arrays["terminated"] = np.zeros(shape, bool)
        self._arrays["memory"] = np.zeros((self.capacity, self.memory_size), np.float32)

    @staticmethod
    def _empty(name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Return an array for all sequences.

        In the padding, all actions are allowed, as a distribution needs at least one.
        """
        return np.ones(shape, dtype) if name == "mask" else np.zeros(shape, dtype)

    def observations(self) -> Iterator[list[Array]]:
        """Yield the observations of all stored decisions in parts, each a list of one array (n, *shape) per sensor."""
        for start in range(0, self._filled, _SEQUENCES_AT_ONCE):
            part = slice(start, min(start + _SEQUENCES_AT_ONCE, self._filled))
            inside = np.arange(self.sequence_length) < self._length[part, np.newaxis]
            yield [self._arrays[f"observation_{index}"][part, :-1][inside] for index in range(self._sensors)]

    def sample(self, size: int, device: torch.device | str = "cpu") -> ReplayBatch:
        """Sample `size` decisions in whole sequences.

        At least one sequence is sampled, with replacement (NumPy's global generator, which SB3 seeds). The buffer must
        not be empty.
        """
        count = max(size // self.sequence_length, 1)
        chosen = np.random.randint(self._filled, size=count)  # noqa: NPY002
        drawn = {name: torch.from_numpy(array.take(chosen, axis=0)) for name, array in self._arrays.items()}
        tensors = {name: to_device(tensor, device) for name, tensor in drawn.items()}
        valid = None
        if self.sequence_length > 1:
            inside = np.arange(self.sequence_length) < self._length[chosen, np.newaxis]
            valid = None if inside.all() else torch.from_numpy(inside.reshape(-1))
        return ReplayBatch(tensors, self._sensors, valid)

    def minibatches(
        self, number: int, size: int, encoding: Encoding, device: torch.device | str = "cpu"
    ) -> Iterator[ReplayBatch]:
        """Yield minibatches of `size` decisions as `sample` draws them, prepared with `encoding`.

        Small minibatches are drawn and prepared together, which takes less time.
        """
        states = [self._arrays[f"observation_{index}"] for index in range(self._sensors)]
        count = max(size // self.sequence_length, 1)
        at_once = max(_BYTES_AT_ONCE // (count * sum(array[0].nbytes for array in states)), 1)
        for start in range(0, number, at_once):
            parts = min(at_once, number - start)
            batch = self.sample(parts * count * self.sequence_length, device)
            batch.prepare(encoding)
            yield from (batch.part(slice(part * count, (part + 1) * count)) for part in range(parts))

    def save(self, file: BinaryIO) -> None:
        """Write all sequences as an `.npz` file."""
        arrays = {name: array[: self._filled] for name, array in self._arrays.items()}
        state = (self._length[: self._filled], self._position, self.seen, self.sequence_length)
        np.savez(file, **arrays, **dict(zip(_STATE, state, strict=True)))  # type: ignore[arg-type]

    def load(self, file: BinaryIO) -> dict[str, tuple[int, ...]]:
        """Load what `save` wrote; if the sequences exceed the capacity, the latest ones.

        :return: Shape of each array, per decision.
        :raises ValueError: If the file does not contain such sequences.
        """
        with np.load(file, allow_pickle=False) as saved:
            arrays = {name: saved[name] for name in saved.files}
        if not set(_STATE) <= arrays.keys():
            raise ValueError("it is no replay buffer")
        length, position, seen, sequence_length = (arrays.pop(name) for name in _STATE)
        if arrays and (sequence_length != self.sequence_length or arrays["memory"].shape[1] != self.memory_size):
            raise ValueError(
                f"its sequences are {sequence_length} decisions long with {arrays['memory'].shape[1]} numbers of "
                f"memory, those of this model {self.sequence_length} with {self.memory_size}"
            )
        count = len(length)
        order = np.arange(count)
        if count > self.capacity:
            order = ((int(position) + order) % count)[-self.capacity :]
            position = 0
        elif count < self.capacity:
            # If the file's buffer was full, the next sequence follows the last; the oldest is no longer the next.
            order, position = (int(position) + order) % max(count, 1), count
        self._filled = len(order)
        self._position = int(position) % self.capacity
        self._length[: self._filled] = length[order]
        self._decisions, self.seen = int(self._length.sum()), int(seen)
        self._arrays = {}
        for name, stored in arrays.items():
            array = self._empty(name, (self.capacity, *stored.shape[1:]), stored.dtype)
            array[: self._filled] = stored[order]
            self._arrays[name] = array
        self._sensors = sum(name.startswith("observation_") for name in arrays)
        return {name: stored.shape[1 if name == "memory" else 2 :] for name, stored in arrays.items()}


class ReplayBatch(SequenceBatch):
    """Batch of m decisions of a replay buffer, in sequences of equal length, one after another, as tensors.

    It has the attributes of `sb3_ext.rollout.Decisions` for reward signals. `states` contains the states after the
    decisions, too, (sequences · (length + 1), …): per sequence, those of its decisions and the one after its last.
    """

    def __init__(
        self,
        tensors: dict[str, torch.Tensor],
        sensors: int,
        valid: torch.Tensor | None,
        prepared: list[torch.Tensor] | None = None,
    ) -> None:
        sequences, length = tensors["reward"].shape
        super().__init__(sequences, length, valid, tensors["reward"].device)
        self._tensors = tensors
        self._prepared = prepared  # inputs of all states, (sequences, length + 1, …) each
        self._observations = [tensors[f"observation_{index}"] for index in range(sensors)]

    def part(self, sequences: slice) -> ReplayBatch:
        """Return some of the sequences of this batch."""
        tensors = {name: tensor[sequences] for name, tensor in self._tensors.items()}
        rows = slice(sequences.start * self.length, sequences.stop * self.length)
        valid = None if self._valid is None else self._valid[rows]
        prepared = None if self._prepared is None else [tensor[sequences] for tensor in self._prepared]
        return ReplayBatch(tensors, len(self._observations), valid, prepared)

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return all tensors of the batch, after `prepare`."""
        assert self._prepared is not None
        inputs = {f"input_{index}": tensor for index, tensor in enumerate(self._prepared)}
        return {**self._tensors, **inputs, **({} if self.valid is None else {"valid": self.valid})}

    def with_tensors(self, tensors: Mapping[str, torch.Tensor]) -> ReplayBatch:
        """Return a batch of the same shape with other tensors, named as those of `tensors`."""
        assert self._prepared is not None
        own = {name: tensors[name] for name in self._tensors}
        prepared = [tensors[f"input_{index}"] for index in range(len(self._prepared))]
        return ReplayBatch(own, len(self._observations), tensors.get("valid"), prepared)

    def means(self, x: torch.Tensor, dim: int = 0, *further: int) -> torch.Tensor:
        """Return the means over the valid decisions.

        :param x: Values (…, m, …).
        :param dim: Dimension of the m decisions.
        :param further: Further dimensions, over which the means are, too.
        """
        if self.valid is None:
            return x.mean((dim, *further))
        return mean_of_valid(x, self.valid, self._divisor, dim, *further)

    def _decision_states(self, states: torch.Tensor) -> torch.Tensor:
        """Return the states of the decisions (m, …) from all states (sequences, length + 1, …)."""
        return states[:, 0] if self.length == 1 else states[:, :-1].flatten(0, 1)

    def _next_states(self, states: torch.Tensor) -> torch.Tensor:
        """Return the states after the decisions (m, …) from all states (sequences, length + 1, …)."""
        return states[:, 1] if self.length == 1 else states[:, 1:].flatten(0, 1)

    @cached_property
    def observations(self) -> list[torch.Tensor]:
        """Observations, one (m, *shape) per sensor."""
        return [self._decision_states(tensor) for tensor in self._observations]

    @cached_property
    def next_observations(self) -> list[torch.Tensor]:
        """Next observations of the same agents, one (m, *shape) per sensor; at an episode's end, the last state."""
        return [self._next_states(tensor) for tensor in self._observations]

    @property
    def states(self) -> list[torch.Tensor]:
        """All states, one (sequences · (length + 1), *shape) per sensor."""
        return [tensor.flatten(0, 1) for tensor in self._observations]

    def prepare(self, encoding: Encoding) -> None:
        """Prepare the inputs of networks, unless the batch is part of one that was prepared.

        :param encoding: Encoding with the statistics of observations.
        """
        if self._prepared is None:
            inputs, shape = as_floats(encoding.prepare(self.states)), (self.sequences, self.length + 1)
            self._prepared = [tensor.view(*shape, *tensor.shape[1:]) for tensor in inputs]

    @property
    def inputs(self) -> Inputs:
        """Inputs of the decisions, after `prepare`."""
        assert self._prepared is not None
        return Inputs(map(self._decision_states, self._prepared))

    @property
    def next_inputs(self) -> Inputs:
        """Inputs of the states after the decisions, after `prepare`."""
        assert self._prepared is not None
        return Inputs(map(self._next_states, self._prepared))

    @property
    def state_inputs(self) -> Inputs:
        """Inputs of all states, after `prepare`."""
        assert self._prepared is not None
        return Inputs(tensor.flatten(0, 1) for tensor in self._prepared)

    @property
    def memory(self) -> torch.Tensor:
        """Recurrent states (sequences, memory size), before the first decision of each sequence."""
        return self._tensors["memory"]

    @cached_property
    def actions(self) -> torch.Tensor:
        """Actions (m, dimensions), in the scale of the network."""
        return self._tensors["action"].flatten(0, 1)

    @property
    def environment_actions(self) -> torch.Tensor:
        """Actions (m, dimensions), with the continuous ones in `[-1, 1]`."""
        return self.actions

    @property
    def action_masks(self) -> torch.Tensor:
        """Action masks, bool (m, sum of branches)."""
        return self._decision_states(self._tensors["mask"])

    @property
    def next_action_masks(self) -> torch.Tensor:
        """Action masks of the next observations, bool (m, sum of branches)."""
        return self._next_states(self._tensors["mask"])

    @property
    def rewards(self) -> torch.Tensor:
        """Individual rewards (m,)."""
        return self._tensors["reward"].flatten()

    @property
    def group_rewards(self) -> torch.Tensor:
        """Group rewards (m,)."""
        return self._tensors["group_reward"].flatten()

    @property
    def terminated(self) -> torch.Tensor:
        """Whether the episode terminated after each decision, bool (m,)."""
        return self._tensors["terminated"].flatten()

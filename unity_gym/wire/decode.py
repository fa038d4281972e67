"""Decode replies of the player into numpy arrays per behavior, without a Python loop over agents.

protobuf's C parser splits a reply into messages, and C-level `map(attrgetter(...))` reads the fields of the agents.
Observations stay encoded (`Reply` in `unity.proto`). Those of a vector sensor are equal for all agents except for their
values, so that one comparison checks them and one copy reads them.

docs/environments/protocol-answers.md lists valid messages of a player and the reactions to invalid ones. Sizes are
checked before anything of that size is allocated.
"""

from __future__ import annotations

import math
import struct
import warnings
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate, chain, compress, pairwise
from operator import attrgetter
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from unity_gym.errors import ProtocolError
from unity_gym.specs import (
    ActionSpec,
    Array,
    BehaviorSpec,
    DecisionSteps,
    DimensionProperty,
    ObservationSpec,
    ObservationType,
    TerminalSteps,
)
from unity_gym.wire.encode import varint
from unity_gym.wire.images import ImageDecoder, as_bytes, fits_bytes
from unity_gym.wire.messages import Observation, Reply

_REWARD, _GROUP_REWARD = attrgetter("reward"), attrgetter("group_reward")
_DONE, _INTERRUPTED = attrgetter("done"), attrgetter("max_step_reached")
_ID, _GROUP_ID = attrgetter("id"), attrgetter("group_id")
_MASK, _OBSERVATIONS = attrgetter("action_mask"), attrgetter("observations")
_FLOATS = attrgetter("float_data.data")

_TYPES = frozenset(kind.value for kind in ObservationType)
_MOST_ACTIONS = 1 << 16  # continuous actions, and branch indices over all branches
_MOST_DIMENSIONS = 4  # limit of Unity's own shapes
_MOST_NUMBERS = 1 << 28  # values in one observation of one agent

UNREADABLE = (
    ArithmeticError,
    DecodeError,
    LookupError,
    MemoryError,
    RecursionError,
    TypeError,
    ValueError,
    struct.error,
)
"""Errors that Python, numpy and protobuf raise for invalid data; `UnityEnvironment` raises `ProtocolError` instead."""


def parse(raw: bytes | bytearray) -> Any:
    """Parse one message of the player.

    :return: `Reply` message.
    :raises ProtocolError: If the bytes are cut off or are no such message.
    """
    try:
        return Reply.FromString(raw)
    except DecodeError as error:
        raise ProtocolError(
            f"the player sent {len(raw)} bytes that are no complete ML-Agents message ({error}); "
            "is the process behind this port an ML-Agents player of communication version 1.x?"
        ) from error


def action_spec(parameters: Any) -> ActionSpec:
    """Return the action specification of a `BrainParameters` message.

    Packages before 1.3 fill the deprecated fields only.

    :raises ProtocolError: If a number is negative, a branch is empty, or there are more than 65,536 actions.
    """
    new = parameters.action_spec
    continuous, branches = new.num_continuous_actions, tuple(new.discrete_branch_sizes)
    count = new.num_discrete_actions
    if not continuous and not count:
        sizes = tuple(parameters.vector_action_size_deprecated)
        is_continuous = parameters.vector_action_space_type_deprecated == 1
        continuous, branches = (sum(sizes[:1]), ()) if is_continuous else (0, sizes)
        count = len(branches)
    sizes_are_possible = 0 <= continuous <= _MOST_ACTIONS and min(branches, default=1) > 0
    if count != len(branches) or not sizes_are_possible or sum(branches) > _MOST_ACTIONS:
        raise ProtocolError(
            f"behavior {parameters.brain_name!r} announces {continuous} continuous actions and {count} discrete ones "
            f"with the branches {branches[:9]}: sizes are positive, and at most {_MOST_ACTIONS} in total"
        )
    return ActionSpec(continuous, branches)


class BehaviorDecoder:
    """Decoder of the agents of one behavior into `DecisionSteps` and `TerminalSteps`.

    :param name: Name of the behavior, for error messages.
    :param actions: Action specification of the behavior.
    :param first: Message `ReplyAgent` of one of its agents; its observations define the sensors.
    :param package_version: Version of the player's ML-Agents package, which determines the layout of its images.
    :param visual_dtype: Dtype of image arrays: "uint8" (0 to 255) or "float32" (0 to 1).
    :param uncompressed_layout: Layout of uncompressed images: "CHW", "HWC" or "auto"; see `ImageDecoder`.
    :param checks_ids: Whether ids must not be negative or appear twice in a list. In a file, all records have one id.
    :raises ProtocolError: If a sensor has an impossible shape, or the observation does not fit its own shape.
    """

    def __init__(
        self,
        name: str,
        actions: ActionSpec,
        first: Any,
        package_version: str,
        visual_dtype: str = "float32",
        uncompressed_layout: str = "auto",
        checks_ids: bool = True,
    ) -> None:
        self.name = name
        self._checks_ids = checks_ids
        self._sensors: list[_VectorDecoder | ImageDecoder] = []
        self._clipped: set[int] = set()  # sensors that a warning has reported
        specs: list[ObservationSpec] = []
        for encoded in first.observations:
            observation = Observation.FromString(encoded)
            try:
                shape, properties, kind = _sensor(observation)
                if len(shape) == 3:
                    images = ImageDecoder(observation, package_version, visual_dtype, uncompressed_layout)
                    shape, properties = images.shape, images.channels_first(properties)
                    self._sensors.append(images)
                else:
                    self._sensors.append(_VectorDecoder(shape, encoded))
            except ValueError as error:
                message = f"behavior {name!r}, sensor {len(specs)} ({observation.name!r}): {error}"
                raise ProtocolError(message) from error
            specs.append(ObservationSpec(shape, properties, kind, observation.name))
        self.spec = BehaviorSpec(specs, actions)
        ends = [0, *accumulate(actions.discrete_branches)]
        self._branches = [slice(start, end) for start, end in pairwise(ends)]
        self._mask_width = ends[-1]
        self._dtypes = [sensor.array_dtype(visual_dtype) for sensor in specs]
        self._no_decisions = DecisionSteps.empty(self.spec, visual_dtype)
        self._no_terminals = TerminalSteps.empty(self.spec, visual_dtype)

    @np.errstate(over="ignore", invalid="ignore")  # of the sums in _require_finite
    def decode(self, infos: Sequence[Any]) -> tuple[DecisionSteps, TerminalSteps]:
        """Decode the agents that request a decision and those that ended, each in the player's order.

        :param infos: Messages `ReplyAgent` of the behavior.
        :raises ProtocolError: If values are NaN or infinite, observations or masks do not fit the behavior, or an agent
            has a negative id or appears twice.
        """
        infos = list(infos)  # protobuf makes the Python objects once, not once per field
        if not infos:
            return self._no_decisions, self._no_terminals
        done = list(map(_DONE, infos))
        if True not in done:
            return self._decisions(infos), self._no_terminals
        if False not in done:
            return self._no_decisions, self._terminals(infos)
        decisions = [info for info, ended in zip(infos, done, strict=True) if not ended]
        return self._decisions(decisions), self._terminals(list(compress(infos, done)))

    def _decisions(self, infos: Sequence[Any]) -> DecisionSteps:
        ids, group_ids, reward, group_reward, observations = self._shared_arrays(infos)
        return DecisionSteps(observations, reward, ids, self._masks(infos), group_ids, group_reward)

    def _terminals(self, infos: Sequence[Any]) -> TerminalSteps:
        ids, group_ids, reward, group_reward, observations = self._shared_arrays(infos)
        interrupted = np.fromiter(map(_INTERRUPTED, infos), bool, len(infos))
        return TerminalSteps(observations, reward, interrupted, ids, group_ids, group_reward)

    def _shared_arrays(self, infos: Sequence[Any]) -> tuple[Array, Array, Array, Array, list[Array]]:
        n = len(infos)
        numbers = list(map(_ID, infos))
        if self._checks_ids and (min(numbers) < 0 or len(set(numbers)) < n):
            twice = [number for number, count in Counter(numbers).items() if count > 1]
            wrong = f"the negative id {min(numbers)}" if min(numbers) < 0 else f"agent {twice[0]} twice in one list"
            raise ProtocolError(f"behavior {self.name!r} has {wrong}; ids are unique and not negative")
        ids = np.array(numbers, np.int32)
        groups = list(map(_GROUP_ID, infos))
        if min(groups) < 0:
            raise ProtocolError(f"behavior {self.name!r} has the negative group id {min(groups)}; 0 is no group")
        reward = np.fromiter(map(_REWARD, infos), np.float32, n)
        group_reward = np.fromiter(map(_GROUP_REWARD, infos), np.float32, n)
        if not math.isfinite(np.add.reduce(reward + group_reward)):  # one check of both is cheaper
            self._require_finite(reward, ids, "the reward")
            self._require_finite(group_reward, ids, "the group reward")
        sent, count = list(map(_OBSERVATIONS, infos)), len(self._sensors)
        if set(map(len, sent)) != {count}:
            raise ProtocolError(
                f"behavior {self.name!r} started with {count} sensors per agent; now its agents sent "
                f"{sorted(set(map(len, sent)))}: sensors may not come or go while the player runs"
            )
        observations = list(chain.from_iterable(sent))
        arrays = []
        for index, sensor in enumerate(self._sensors):
            try:
                array, is_finite = sensor.decode(observations[index::count])
            except (DecodeError, ValueError) as error:
                raise ProtocolError(f"behavior {self.name!r}, sensor {self._sensor_name(index)}: {error}") from error
            if not is_finite:
                self._require_finite(array, ids, f"sensor {self._sensor_name(index)}")
            arrays.append(array if array.dtype == self._dtypes[index] else self._as_bytes(array, index))
        return ids, np.array(groups, np.int32), reward, group_reward, arrays

    def _as_bytes(self, images: Array, index: int) -> Array:
        if index not in self._clipped and not fits_bytes(images):
            self._clipped.add(index)
            warnings.warn(
                f"behavior {self.name!r}, sensor {self._sensor_name(index)}: values from {images.min():g} to "
                f"{images.max():g} are clipped to 0 to 1, as images are uint8; visual_dtype='float32' keeps them",
                stacklevel=2,
            )
        return as_bytes(images)

    def _masks(self, infos: Sequence[Any]) -> list[Array] | None:
        """Return one bool array (n, branch size) per branch, True = forbidden; without a mask everything is allowed."""
        if not self._branches:
            return None
        n, sent = len(infos), list(map(_MASK, infos))
        widths = set(map(len, sent))
        if not widths <= {0, self._mask_width}:
            raise ProtocolError(
                f"behavior {self.name!r}: action masks of {sorted(widths)} choices where the branches have "
                f"{self._mask_width}"
            )
        joined = bytearray().join(sent)
        if joined.translate(None, b"\0\1"):
            raise ProtocolError(f"behavior {self.name!r}: an action mask holds other bytes than 0 and 1")
        forbidden = np.frombuffer(joined, bool).reshape(-1, self._mask_width)
        if len(forbidden) < n:
            masked = np.fromiter(map(len, sent), np.intp, n) > 0
            sparse, forbidden = forbidden, np.zeros((n, self._mask_width), bool)
            forbidden[masked] = sparse
        return [forbidden[:, branch] for branch in self._branches]

    def _sensor_name(self, index: int) -> str:
        return f"{index} ({self.spec.observation_specs[index].name!r})"

    def _require_finite(self, array: Array, ids: Array, what: str) -> None:
        # A finite sum proves finite values at a quarter of the cost; only an infinite one needs the full look.
        if math.isfinite(np.add.reduce(array, axis=None)):
            return
        bad = ~np.isfinite(array.reshape(len(array), -1)).all(axis=1)
        if bad.any():
            raise ProtocolError(
                f"behavior {self.name!r}, agent {int(ids[bad][0])}: {what} holds NaN or infinite values "
                f"({int(bad.sum())} of {len(array)} agents); correct the scene: nothing can learn from such numbers"
            )


class _VectorDecoder:
    """Decoder of a sensor of packed floats.

    :param shape: Shape of one agent's observation.
    :param first: Encoded `Observation` of one agent. Those of the others differ only in the values, at equal offsets,
        unless an agent's sensor has another name or a player uses another encoding.
    """

    def __init__(self, shape: tuple[int, ...], first: bytes) -> None:
        self._shape = shape
        self._size = 4 * math.prod(shape)
        (numbers,) = self._numbers([Observation.FromString(first)])
        prefix = b"\x22" + varint(len(varint(self._size)) + 1 + self._size) + b"\x0a" + varint(self._size)
        place = first.find(prefix + numbers)
        self._start = place + len(prefix) if place >= 0 else -1
        self._length = len(first)
        self._head, self._tail = first[: self._start], first[self._start + self._size :]

    def decode(self, observations: Sequence[bytes]) -> tuple[Array, bool]:
        """Return float32 (n, *shape), and whether the values are known to be finite.

        :raises ValueError: If an observation has another shape or another number of values.
        """
        n, joined = len(observations), b"".join(observations)
        if self._start >= 0 and len(joined) == n * self._length:
            rows = np.frombuffer(joined, np.uint8).reshape(n, self._length)
            end = self._start + self._size
            heads, tails = rows[:, : self._start].tobytes(), rows[:, end:].tobytes()
            if heads == n * self._head and tails == n * self._tail:
                numbers = rows[:, self._start : end].copy()
                return numbers.view("<f4").reshape(n, *self._shape), False
        return self._one_by_one(observations), False

    def _one_by_one(self, observations: Sequence[bytes]) -> Array:
        sent = list(map(Observation.FromString, observations))
        numbers = self._numbers(sent)
        shapes = {tuple(observation.shape) for observation in sent}
        if shapes != {self._shape}:
            raise ValueError(f"the sensor started with the shape {self._shape}; now agents sent {sorted(shapes)}")
        return np.frombuffer(bytearray().join(numbers), "<f4").reshape(len(sent), *self._shape)

    def _numbers(self, sent: Sequence[Any]) -> list[bytes]:
        """Return the packed floats of `Observation` messages."""
        numbers = list(map(_FLOATS, sent))
        if set(map(len, numbers)) != {self._size}:
            raise ValueError(
                f"the data of shape {self._shape} are {self._size} bytes, got {sorted(set(map(len, numbers)))}"
            )
        return numbers


def _sensor(observation: Any) -> tuple[tuple[int, ...], tuple[DimensionProperty, ...], ObservationType]:
    """Return shape, dimension properties and type of an `Observation` message.

    :raises ValueError: If one of them is impossible.
    """
    shape = tuple(observation.shape)
    if len(shape) > _MOST_DIMENSIONS or min(shape, default=0) < 0 or math.prod(shape) > _MOST_NUMBERS:
        raise ValueError(
            f"it has the shape {shape[:9]}: at most {_MOST_DIMENSIONS} dimensions and {_MOST_NUMBERS} numbers "
            "can be read, and none is negative"
        )
    if len(shape) == 3 and min(shape) < 1:
        raise ValueError(f"it has the shape {shape}: an image has pixels and channels")
    flags = tuple(observation.dimension_properties)
    if flags and len(flags) != len(shape):
        raise ValueError(
            f"it has {len(flags)} dimension properties for the shape {shape}; a sensor sends one per "
            "dimension, or none at all"
        )
    combinations = range(max(DimensionProperty) * 2)
    if not all(flag in combinations for flag in flags) or observation.observation_type not in _TYPES:
        raise ValueError(
            f"it has the dimension properties {flags} and the type {observation.observation_type}; properties "
            f"are sums of 1, 2 and 4, and the types are {sorted(_TYPES)}"
        )
    properties = tuple(map(DimensionProperty, flags)) or (DimensionProperty.UNSPECIFIED,) * len(shape)
    return shape, properties, ObservationType(observation.observation_type)

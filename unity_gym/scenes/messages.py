"""The player's side of the wire protocol: encode the arrays of agents as messages and decode their actions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
from google.protobuf.message import DecodeError

from unity_gym.errors import PlayerError
from unity_gym.scenes.kernels import inner_kernel, kernel
from unity_gym.scenes.sensors.sensor import Sensor
from unity_gym.specs import ActionSpec, Array
from unity_gym.wire.encode import COMMUNICATION_VERSION, STATUS_OK, brain_parameters, length_delimited, varint
from unity_gym.wire.messages import ListAgentAction, UnityMessage
from unity_gym.wire.varints import unpack_varints

PACKAGE_VERSION = "3.0.0"  # version of Unity's package with the same messages

_VARINT, _DELIMITED, _FLOAT = 0, 2, 5  # wire types
# Keys of `ListAgentInfo.value`, `AgentInfo.observations` and `Observation.compressed_data`
_RECORD, _OBSERVATION, _COMPRESSED_DATA = 1 << 3 | _DELIMITED, 13 << 3 | _DELIMITED, 3 << 3 | _DELIMITED
_MOST_PREFIX = 16  # bytes; more than two keys with the sizes of their contents
_ID_BYTES = 5  # an int32 as a padded varint, so that all records have the same length; every parser reads it

_CONTINUOUS, _DISCRETE = attrgetter("continuous_actions"), attrgetter("discrete_actions")


def _key(field: int, wire_type: int) -> bytes:
    return varint(field << 3 | wire_type)


def _delimited(field: int, content: bytes) -> bytes:
    return length_delimited(field, len(content)) + content


class AgentInfoEncoder:
    """Encodes the agents of one kind as `ListAgentInfo`.

    Every record has all fields at fixed offsets, so that the list is one structured array. Encoded images differ in
    length: their bytes are inserted into the rows of the array.

    :param sensors: Sensors in the order of the wire.
    :param mask_width: Sum of the branch sizes; 0 sends no mask.
    :param capacity: Maximum number of agents in one list.
    """

    def __init__(self, sensors: Sequence[Sensor], mask_width: int, capacity: int) -> None:
        self._images: list[int] = []  # indices of the sensors that send images
        offsets_in_row: list[int] = []
        heads: list[bytes] = []  # all fields before the images
        row = bytearray()
        columns: list[tuple[str, int, object]] = []

        def append(name: str, prefix: bytes, width: int, form: object) -> None:
            row.extend(prefix)
            columns.append((name, len(row), form))
            row.extend(bytes(width))

        for index, sensor in enumerate(sensors):
            head = _observation_head(sensor)
            if sensor.compressed:
                self._images.append(index)
                offsets_in_row.append(len(row))
                heads.append(head)
            else:
                numbers = 4 * int(np.prod(sensor.shape))
                packed = length_delimited(1, numbers)
                head += length_delimited(4, len(packed) + numbers) + packed
                row += length_delimited(13, len(head) + numbers)
                append(str(index), head, numbers, ("<f4", sensor.shape))
        append("reward", _key(7, _FLOAT), 4, "<f4")
        append("done", _key(8, _VARINT), 1, "?")
        append("interrupted", _key(9, _VARINT), 1, "?")
        append("id", _key(10, _VARINT), _ID_BYTES, ("u1", _ID_BYTES))
        if mask_width:
            append("mask", length_delimited(11, mask_width), mask_width, ("?", mask_width))
        append("group_id", _key(14, _VARINT), _ID_BYTES, ("u1", _ID_BYTES))
        append("group_reward", _key(15, _FLOAT), 4, "<f4")

        if not self._images:
            header = length_delimited(1, len(row))
            columns = [(name, offset + len(header), form) for name, offset, form in columns]
            row[:0] = header
        names, offsets, forms = zip(*columns, strict=True)
        layout = np.dtype({"names": names, "offsets": offsets, "formats": forms, "itemsize": len(row)})
        self._rows = np.repeat(np.frombuffer(bytes(row), np.uint8)[np.newaxis], capacity, axis=0)
        records = self._rows.view(layout)[:, 0]
        self._columns: dict[str, Array] = {name: records[name] for name in names}
        self._insertions = _Insertions(
            np.array(offsets_in_row, np.int64),
            np.frombuffer(b"".join(heads), np.uint8),
            np.cumsum([0, *map(len, heads)]),
        )
        self._vectors = [(i, self._columns[str(i)]) for i, sensor in enumerate(sensors) if not sensor.compressed]

    def encode(
        self,
        ids: Array,
        group_ids: Array,
        rewards: Array,
        group_rewards: Array,
        done: bool,
        interrupted: bool,
        mask: Array | None,
        observations: Sequence[Array | list[bytes]],
    ) -> bytes:
        """Return the encoded `ListAgentInfo` of k agents.

        :param ids: Agent ids, int (k).
        :param group_ids: Group ids, int (k).
        :param rewards: Rewards, float (k).
        :param group_rewards: Group rewards, float (k).
        :param done: Whether the episodes of these agents have ended.
        :param interrupted: Whether they were truncated.
        :param mask: Action masks, bool (k, mask_width), True = forbidden; None if the width is 0.
        :param observations: Observations, per sensor float (k, *shape) or k encoded images.
        :return: Encoded list.
        """
        k = len(ids)
        columns = self._columns
        columns["reward"][:k] = rewards
        columns["done"][:k] = done
        columns["interrupted"][:k] = interrupted
        _write_varints(ids, columns["id"])
        if mask is not None:
            columns["mask"][:k] = mask
        _write_varints(group_ids, columns["group_id"])
        columns["group_reward"][:k] = group_rewards
        for index, column in self._vectors:
            column[:k] = observations[index]
        if not self._images:
            return self._rows[:k].tobytes()
        images = [image for index in self._images for image in observations[index]]
        sizes = np.array(list(map(len, images))).reshape(-1, k)
        encoded: bytes = _insert_images(
            self._rows[:k], self._insertions, np.frombuffer(b"".join(images), np.uint8), sizes
        ).tobytes()
        return encoded


class _Insertions(NamedTuple):
    """Where images are inserted into a row.

    Arrays, one entry per image: `offset` in the row (int, n) in ascending order, and `head`, the fields of an
    `Observation` before the image: those of image i are `head[start[i] : start[i + 1]]` (uint8; int, n + 1).
    """

    offset: Array
    head: Array
    start: Array


@kernel
def _insert_images(rows: Array, insertions: _Insertions, images: Array, sizes: Array) -> Array:
    """Return the records of agents as `ListAgentInfo`, uint8.

    :param rows: Rows without images, uint8 (k, width).
    :param insertions: Where n images are inserted into each row.
    :param images: All images one after the other, all of the first sensor first, uint8.
    :param sizes: Sizes of the images in bytes, int (n, k).
    :return: Encoded list.
    """
    n, k = sizes.shape
    width = rows.shape[1]
    starts = np.empty((n, k), np.int64)
    position = 0
    for i in range(n):
        for agent in range(k):
            starts[i, agent] = position
            position += sizes[i, agent]
    # A key and two lengths of an image are no longer than this; so is the start of a record.
    out = np.empty(position + k * (width + _MOST_PREFIX) + k * (len(insertions.head) + n * _MOST_PREFIX), np.uint8)
    end = 0
    for agent in range(k):
        total = width
        for i in range(n):
            content = _image_content_size(insertions, i, sizes[i, agent])
            total += 1 + _varint_size(content) + content
        end = _write_length(out, end, _RECORD, total)
        done = 0
        for i in range(n):
            end = _copy(out, end, rows[agent], done, insertions.offset[i])
            done = insertions.offset[i]
            end = _write_length(out, end, _OBSERVATION, _image_content_size(insertions, i, sizes[i, agent]))
            end = _copy(out, end, insertions.head, insertions.start[i], insertions.start[i + 1])
            end = _write_length(out, end, _COMPRESSED_DATA, sizes[i, agent])
            end = _copy(out, end, images, starts[i, agent], starts[i, agent] + sizes[i, agent])
        end = _copy(out, end, rows[agent], done, width)
    return out[:end]


@inner_kernel
def _image_content_size(insertions: _Insertions, i: int, size: int) -> int:
    """Return the size of an `Observation` with an image of `size` bytes."""
    head = insertions.start[i + 1] - insertions.start[i]
    total: int = head + 1 + _varint_size(size) + size
    return total


@inner_kernel
def _varint_size(number: int) -> int:
    size = 1
    while number >= 0x80:
        number >>= 7
        size += 1
    return size


@inner_kernel
def _write_length(out: Array, end: int, key: int, number: int) -> int:
    """Append the key of a field and the size of its content; return the new end."""
    out[end] = key
    end += 1
    while number >= 0x80:
        out[end] = number & 0x7F | 0x80
        number >>= 7
        end += 1
    out[end] = number
    return end + 1


@inner_kernel
def _copy(out: Array, end: int, source: Array, first: int, last: int) -> int:
    """Append `source[first:last]`; return the new end."""
    for i in range(last - first):
        out[end + i] = source[first + i]
    return end + last - first


def _observation_head(sensor: Sensor) -> bytes:
    """Return all fields of an `Observation` except its data."""
    return (
        _delimited(1, b"".join(map(varint, sensor.shape)))
        + (_key(2, _VARINT) + varint(int(sensor.compressed)))
        + _delimited(6, b"".join(map(varint, sensor.properties)))
        + (_key(7, _VARINT) + varint(sensor.kind.value))
        + _delimited(8, sensor.name.encode())
    )


@inner_kernel
def _write_varints(numbers: Array, encoded: Array) -> None:
    """Write non-negative int32 (k) as varints to uint8 (k, 5)."""
    for k, number in enumerate(numbers):
        for i in range(_ID_BYTES):
            more = 0x80 if i < _ID_BYTES - 1 else 0
            encoded[k, i] = number >> 7 * i & 0x7F | more


def initialization() -> bytes:
    """Return the player's first message."""
    message = UnityMessage()
    message.header.status = STATUS_OK
    first = message.unity_output.rl_initialization_output
    first.name = "AcademySingleton"
    first.communication_version, first.package_version = COMMUNICATION_VERSION, PACKAGE_VERSION
    for capability in first.capabilities.DESCRIPTOR.fields:
        setattr(first.capabilities, capability.name, True)
    encoded: bytes = message.SerializeToString()
    return encoded


_HEADER = _delimited(1, _key(1, _VARINT) + varint(STATUS_OK))


def empty() -> bytes:
    """Return a message without content, which only has a status."""
    return _HEADER


def output(infos: Mapping[str, bytes], announced: Mapping[str, ActionSpec], side_channel: bytes) -> bytes:
    """Return the message of a step.

    :param infos: Encoded `ListAgentInfo` of every behavior, including empty ones.
    :param announced: Behaviors whose action specification is sent with the message.
    :param side_channel: Framed side-channel messages.
    :return: Encoded message.
    """
    rl_output = b"".join(
        _delimited(2, _delimited(1, behavior.encode()) + _delimited(2, encoded)) for behavior, encoded in infos.items()
    )
    if side_channel:
        rl_output += _delimited(3, side_channel)
    content = _delimited(1, rl_output)
    if announced:
        content += _delimited(
            2, b"".join(_delimited(5, brain_parameters(*item).SerializeToString()) for item in announced.items())
        )
    return _HEADER + _delimited(2, content)


def decoded(kind: Any, encoded: bytes) -> Any:
    """Return a message of the client.

    :param kind: Class of the message.
    :raises PlayerError: If it cannot be decoded.
    """
    try:
        return kind.FromString(encoded)
    except DecodeError as error:
        raise PlayerError(
            f"the client has sent bytes that are no {kind.__name__}: {error}; correct the client"
        ) from error


def decode_actions(encoded: bytes, count: int, spec: ActionSpec) -> tuple[Array, Array]:
    """Return the actions of a `ListAgentAction` for `count` agents; missing actions are zero.

    :param encoded: Encoded `ListAgentAction`.
    :param count: Number of agents.
    :param spec: Action specification of the agents.
    :return: Continuous actions, float32 (count, continuous size), and discrete actions, int64 (count, branches).
    :raises PlayerError: If the message cannot be decoded, or a discrete action is outside its branch: kernels index
        with it and check no bounds.
    """
    actions = decoded(ListAgentAction, encoded).value[:count]
    continuous = _table(list(map(_CONTINUOUS, actions)), _floats, count, spec.continuous_size)
    discrete = _table(list(map(_DISCRETE, actions)), unpack_varints, count, spec.discrete_size)
    if discrete.size and not (discrete.view(np.uint64) < np.array(spec.discrete_branches, np.uint64)).all():
        raise PlayerError(
            f"discrete actions must be from 0 to below the sizes of their branches {list(spec.discrete_branches)}, got "
            f"{discrete.min(axis=0).tolist()} to {discrete.max(axis=0).tolist()}: correct them in the client"
        )
    return continuous, discrete


def _table(parts: Sequence[bytes], read: Callable[[bytes], Array], count: int, width: int) -> Array:
    if not width:
        return np.zeros((count, 0), np.int64)
    numbers = read(b"".join(parts))
    if len(numbers) == count * width:
        return numbers.reshape(count, width)
    table = np.zeros((count, width), numbers.dtype)
    for row, part in zip(table, parts, strict=False):
        numbers = read(part)[:width]
        row[: len(numbers)] = numbers
    return table


def _floats(packed: bytes) -> Array:
    if len(packed) % 4:
        raise PlayerError(
            f"the client has sent {len(packed)} bytes of continuous actions, of 4 each: correct the client"
        )
    return np.frombuffer(packed, "<f4")

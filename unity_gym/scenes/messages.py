"""The player's side of the wire protocol: encode the arrays of agents as messages and decode their actions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter

import numpy as np

from unity_gym.errors import PlayerError
from unity_gym.scenes.kernels import inner_kernel
from unity_gym.scenes.sensors.sensor import Sensor
from unity_gym.specs import ActionSpec, Array
from unity_gym.wire.encode import COMMUNICATION_VERSION, STATUS_OK, brain_parameters, length_delimited, varint
from unity_gym.wire.messages import ListAgentAction, UnityMessage
from unity_gym.wire.varints import unpack_varints

PACKAGE_VERSION = "3.0.0"  # version of Unity's package with the same messages

_VARINT, _FLOAT = 0, 5  # wire types
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
        self._images: list[tuple[int, int, bytes]] = []  # offset in the row, index of the sensor, bytes before the data
        row = bytearray()
        columns: list[tuple[str, int, object]] = []

        def append(name: str, prefix: bytes, width: int, form: object) -> None:
            row.extend(prefix)
            columns.append((name, len(row), form))
            row.extend(bytes(width))

        for index, sensor in enumerate(sensors):
            head = _observation_head(sensor)
            if sensor.compressed:
                self._images.append((len(row), index, head))
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
        encoded = self._rows[:k].tobytes()
        return self._with_images(encoded, k, observations) if self._images else encoded

    def _with_images(self, encoded: bytes, k: int, observations: Sequence[Array | list[bytes]]) -> bytes:
        width = self._rows.shape[1]
        infos = []
        for agent in range(k):
            info, position = bytearray(), agent * width
            for offset, index, head in self._images:
                end = agent * width + offset
                info += encoded[position:end] + _delimited(13, head + _delimited(3, bytes(observations[index][agent])))
                position = end
            infos.append(_delimited(1, bytes(info + encoded[position : (agent + 1) * width])))
        return b"".join(infos)


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


def decode_actions(encoded: bytes, count: int, spec: ActionSpec) -> tuple[Array, Array]:
    """Return the actions of a `ListAgentAction` for `count` agents; missing actions are zero.

    :param encoded: Encoded `ListAgentAction`.
    :param count: Number of agents.
    :param spec: Action specification of the agents.
    :return: Continuous actions, float32 (count, continuous size), and discrete actions, int64 (count, branches).
    :raises PlayerError: If a discrete action is outside its branch: kernels index with it and check no bounds.
    """
    actions = ListAgentAction.FromString(encoded).value[:count]
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
    return np.frombuffer(packed, "<f4")

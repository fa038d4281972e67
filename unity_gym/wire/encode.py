"""Encode actions and commands as the bytes that the player reads."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from unity_gym.specs import ActionSpec, ActionTuple, Array
from unity_gym.wire.messages import RESET, STEP, BrainParameters, UnityMessage

COMMUNICATION_VERSION = "1.5.0"
PACKAGE_VERSION = "1.1.0"  # version of Unity's Python packages with these messages

STATUS_OK, STATUS_END = 200, 400


def varint(value: int) -> bytes:
    """Return the protobuf varint of a number that is not negative."""
    output = bytearray()
    while value > 0x7F:
        output.append(value & 0x7F | 0x80)
        value >>= 7
    output.append(value)
    return bytes(output)


@lru_cache(4096)
def length_delimited(field: int, payload_length: int) -> bytes:
    """Return the key and length that precede the payload of a length-delimited field."""
    return varint(field << 3 | 2) + varint(payload_length)


def brain_parameters(behavior: str, actions: ActionSpec) -> Any:
    """Return the `BrainParameters` message that announces a behavior."""
    parameters = BrainParameters(brain_name=behavior, is_training=True)
    parameters.action_spec.num_continuous_actions = actions.continuous_size
    parameters.action_spec.num_discrete_actions = actions.discrete_size
    parameters.action_spec.discrete_branch_sizes.extend(actions.discrete_branches)
    return parameters


class ActionEncoder:
    """Encoder of one behavior's actions as `ListAgentAction`.

    Every agent's record has the same length, so that the whole list is one array, filled per action dimension. A branch
    index takes the bytes that the behavior's largest index needs (a padded varint, which every protobuf parser reads).

    :param spec: Action specification of the behavior.
    :param deprecated: Whether to write the field that packages without hybrid actions read.
    """

    def __init__(self, spec: ActionSpec, deprecated: bool = False) -> None:
        self._choice_bytes = max(1, -(-(max(spec.discrete_branches, default=1) - 1).bit_length() // 7))
        self._deprecated = deprecated
        self._branches = spec.discrete_size
        record = bytearray()
        self._continuous = self._discrete = slice(0, 0)
        if deprecated:
            self._continuous = self._append(record, 1, 4 * (spec.continuous_size + spec.discrete_size))
        else:
            self._continuous = self._append(record, 6, 4 * spec.continuous_size)
            self._discrete = self._append(record, 7, self._choice_bytes * spec.discrete_size)
        header = length_delimited(1, len(record))
        self._template = np.frombuffer(bytes(header + record), np.uint8)
        self._continuous, self._discrete = (
            slice(part.start + len(header), part.stop + len(header)) for part in (self._continuous, self._discrete)
        )

    @staticmethod
    def _append(record: bytearray, field: int, width: int) -> slice:
        if width:
            record += length_delimited(field, width) + bytes(width)
        return slice(len(record) - width, len(record))

    def encode(self, action: ActionTuple) -> bytes:
        """Return the encoded list for n agents.

        The agents have the order of the rows of `action`, which `ActionSpec.validate` has checked.
        """
        records = np.repeat(self._template[np.newaxis], len(action), axis=0)
        if self._deprecated:
            numbers = np.concatenate([action.continuous, action.discrete], axis=1, dtype=np.float32)
            records[:, self._continuous] = _float_bytes(numbers)
        else:
            if self._continuous.stop > self._continuous.start:
                records[:, self._continuous] = _float_bytes(action.continuous)
            if self._branches:
                records[:, self._discrete] = self._varint_bytes(action.discrete)
        return records.tobytes()

    def _varint_bytes(self, choices: Array) -> Array:
        """Return the branch indices (n, branches) as varints of equal width, uint8 (n, branches · width)."""
        if self._choice_bytes == 1:
            return choices.astype(np.uint8)
        width = self._choice_bytes
        groups = choices[:, :, np.newaxis] >> (7 * np.arange(width)) & 0x7F
        groups[:, :, :-1] |= 0x80
        return groups.astype(np.uint8).reshape(len(choices), -1)


def _float_bytes(numbers: Array) -> Array:
    return np.ascontiguousarray(numbers, "<f4").view(np.uint8)


def _message() -> Any:
    message = UnityMessage()
    message.header.status = STATUS_OK
    return message


def initialization(seed: int, num_areas: int) -> bytes:
    """Return the answer to the player's first message."""
    message = _message()
    first = message.unity_input.rl_initialization_input
    first.seed, first.num_areas = seed, num_areas
    first.communication_version, first.package_version = COMMUNICATION_VERSION, PACKAGE_VERSION
    for capability in first.capabilities.DESCRIPTOR.fields:
        setattr(first.capabilities, capability.name, True)
    return message.SerializeToString()  # type: ignore[no-any-return]


def reset(side_channel: bytes) -> bytes:
    """Return the command RESET."""
    message = _message()
    message.unity_input.rl_input.command = RESET
    message.unity_input.rl_input.side_channel = side_channel
    return message.SerializeToString()  # type: ignore[no-any-return]


def step(actions: Mapping[str, bytes], side_channel: bytes) -> bytes:
    """Return the command STEP with the encoded actions of each behavior whose agents request a decision."""
    message = _message()
    rl_input = message.unity_input.rl_input
    rl_input.command = STEP
    rl_input.side_channel = side_channel
    for behavior, encoded in actions.items():
        rl_input.agent_actions[behavior] = encoded
    return message.SerializeToString()  # type: ignore[no-any-return]


def quit_message() -> bytes:
    """Return the message that makes a player quit."""
    message = UnityMessage()
    message.header.status = STATUS_END
    return message.SerializeToString()  # type: ignore[no-any-return]

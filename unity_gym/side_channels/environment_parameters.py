"""Side channel for environment parameters, which a scene reads by name: constants, or samplers."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

from unity_gym.errors import InvalidValueError
from unity_gym.side_channels.channel import OutgoingChannel
from unity_gym.side_channels.messages import OutgoingMessage

_VALUE, _SAMPLER = 0, 1
_LARGEST = 3.4028234663852886e38  # largest float32
_UNIFORM, _GAUSSIAN, _MULTI_RANGE = 0, 1, 2


class EnvironmentParametersChannel(OutgoingChannel):
    """Channel that sets the environment parameters of a scene."""

    def __init__(self) -> None:
        super().__init__(uuid.UUID("534c891e-810f-11ea-a9d0-822485860400"))
        self._parameters: dict[str, OutgoingMessage] = {}

    @staticmethod
    def check(parameters: Mapping[Any, Any]) -> None:
        """Check constants before any is set.

        :raises InvalidValueError: If they are no mapping, a name is no string, or a value no finite number.
        """
        if not isinstance(parameters, Mapping):
            raise InvalidValueError(
                f"environment parameters must be a dict, such as {{'gravity': 9.81}}, got {parameters!r}"
            )
        for key, value in parameters.items():
            if not (isinstance(key, str) and isinstance(value, Real) and abs(float(value)) <= _LARGEST):
                raise InvalidValueError(
                    f"an environment parameter must have a string as its name and a finite number as its value, got "
                    f"{key!r}: {value!r}"
                )

    def set_float_parameter(self, key: str, value: float) -> None:
        """Set `key` to a constant.

        :raises InvalidValueError: If the value is no finite number.
        """
        self.check({key: value})
        message = self._start(key, _VALUE)
        message.write_float32(value)
        self._send(key, message)

    def set_uniform_sampler_parameters(self, key: str, min_value: float, max_value: float, seed: int) -> None:
        """Let the player draw `key` uniformly from [min_value, max_value]."""
        self._send_pair(key, seed, _UNIFORM, min_value, max_value)

    def set_gaussian_sampler_parameters(self, key: str, mean: float, st_dev: float, seed: int) -> None:
        """Let the player draw `key` from a normal distribution."""
        self._send_pair(key, seed, _GAUSSIAN, mean, st_dev)

    def set_multirangeuniform_sampler_parameters(
        self, key: str, intervals: Sequence[tuple[float, float]], seed: int
    ) -> None:
        """Let the player draw `key` uniformly from a union of intervals."""
        message = self._start(key, _SAMPLER)
        message.write_int32(seed)
        message.write_int32(_MULTI_RANGE)
        message.write_float32_list([bound for interval in intervals for bound in interval])
        self._send(key, message)

    def _send_pair(self, key: str, seed: int, kind: int, first: float, second: float) -> None:
        message = self._start(key, _SAMPLER)
        message.write_int32(seed)
        message.write_int32(kind)
        message.write_float32(first)
        message.write_float32(second)
        self._send(key, message)

    def _send(self, key: str, message: OutgoingMessage) -> None:
        self._parameters[key] = message
        self.queue_message_to_send(message)

    @staticmethod
    def _start(key: str, kind: int) -> OutgoingMessage:
        message = OutgoingMessage()
        message.write_string(key)
        message.write_int32(kind)
        return message

    def on_player_restarted(self) -> None:
        """Queue the newest setting of every parameter again."""
        for message in self._parameters.values():
            self.queue_message_to_send(message)

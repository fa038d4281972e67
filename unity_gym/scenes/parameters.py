"""The environment parameters that the client sends: numbers, or samplers that draw a value per read."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from unity_gym.errors import PlayerError, ProtocolError
from unity_gym.side_channels.messages import IncomingMessage
from unity_gym.specs import Array

_VALUE, _SAMPLER = 0, 1
_UNIFORM, _GAUSSIAN, _MULTI_RANGE_UNIFORM = 0, 1, 2


class Sampler:
    """A distribution with its own random stream.

    :param seed: Seed of the stream, int32.
    :param kind: Kind of the distribution: 0 uniform (minimum, maximum), 1 Gaussian (mean, standard deviation), 2
        uniform over several ranges (minimum and maximum of each in turn). A range is drawn in proportion to its length.
    :param numbers: Arguments of the distribution, in pairs. Minimum and maximum may be in either order, and only the
        size of a standard deviation counts.
    :raises ProtocolError: If the kind is unknown, or the arguments are not pairs of finite numbers.
    """

    def __init__(self, seed: int, kind: int, numbers: Sequence[float]) -> None:
        if kind not in (_UNIFORM, _GAUSSIAN, _MULTI_RANGE_UNIFORM) or not numbers or len(numbers) % 2:
            raise ProtocolError(f"a sampler of kind {kind} with {len(numbers)} numbers; kinds 0 to 2 take pairs")
        if not np.isfinite(numbers).all():
            raise ProtocolError(f"a sampler with the numbers {list(numbers)}; they must be finite")
        self._seed, self._kind, self._pairs = seed, kind, np.reshape(np.array(numbers, np.float64), (-1, 2))
        self.restart()

    def restart(self) -> None:
        """Restart the random stream."""
        self._rng = np.random.default_rng(self._seed & 0xFFFFFFFF)

    def draw(self, count: int) -> Array:
        """Return `count` draws, float64 (count)."""
        if self._kind == _GAUSSIAN:
            mean, std = self._pairs[0]
            return self._rng.normal(mean, abs(std), count)
        low, high = np.sort(self._pairs, axis=1).T
        share = high - low if (high > low).any() else np.ones_like(low)
        chosen = self._rng.choice(len(low), count, p=share / share.sum())
        numbers: Array = self._rng.uniform(low[chosen], high[chosen])
        return numbers


class EnvironmentParameters:
    """The environment parameters that scenes read when they are built and start episodes; a sampler draws per read."""

    def __init__(self) -> None:
        self._parameters: dict[str, float | Sampler] = {}
        self._watchers: dict[str, Callable[[float], None]] = {}

    def get(self, name: str, default: float) -> float:
        """Return the value of a parameter."""
        parameter = self._parameters.get(name, default)
        return float(parameter.draw(1)[0]) if isinstance(parameter, Sampler) else parameter

    def values(self, name: str, default: float, count: int) -> Array:
        """Return the value that each of `count` agents reads, float64 (count)."""
        parameter = self._parameters.get(name, default)
        return parameter.draw(count) if isinstance(parameter, Sampler) else np.full(count, parameter)

    def positive(self, name: str, default: float, count: int) -> Array:
        """Return `values` of a parameter that is a size or a mass.

        :raises PlayerError: If one is not above 0.
        """
        values = self.values(name, default, count)
        if not (values > 0).all():
            raise PlayerError(f"the environment parameter {name!r} must be above 0, got {values.min():g}")
        return values

    def watch(self, name: str, changed: Callable[[float], None]) -> None:
        """Call `changed` with the current number, if there is one, and with each new number, but not with samplers."""
        self._watchers[name] = changed
        parameter = self._parameters.get(name)
        if isinstance(parameter, float):
            changed(parameter)

    def restart(self) -> None:
        """Restart the samplers' random streams and remove the watchers, for a scene that is built from scratch."""
        self._watchers.clear()
        for parameter in self._parameters.values():
            if isinstance(parameter, Sampler):
                parameter.restart()

    def on_message_received(self, message: IncomingMessage) -> None:
        """Store the parameter that a message of the environment parameters channel sets.

        :param message: Message of the channel.
        :raises ProtocolError: If the message is cut off, of an unknown kind, or has a number that is not finite.
        """
        name, kind = message.read_string(), message.read_int32()
        if kind == _VALUE:
            value = message.read_float32()
            if not np.isfinite(value):
                raise ProtocolError(f"parameter {name!r} has the value {value}; it must be finite")
            self._parameters[name] = value
            if name in self._watchers:
                self._watchers[name](value)
        elif kind == _SAMPLER:
            seed, sampler = message.read_int32(), message.read_int32()
            numbers = (
                message.read_float32_list()
                if sampler == _MULTI_RANGE_UNIFORM
                else [message.read_float32(), message.read_float32()]
            )
            self._parameters[name] = Sampler(seed, sampler, numbers)
        else:
            raise ProtocolError(f"parameter {name!r} is of kind {kind}; the kinds are 0 (a number) and 1 (a sampler)")

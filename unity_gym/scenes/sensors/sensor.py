"""The kinds of sensors that scenes combine."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import numpy as np

from unity_gym.scenes.kernels import inner_kernel
from unity_gym.specs import Array, DimensionProperty, ObservationType
from unity_gym.wire.png import encode_images


class Sensor(ABC):
    """One sensor of all agents of a kind.

    :param name: Name as Unity sends it; the observations of an agent are sorted by it.
    :param shape: Shape of one agent's observation.
    :param properties: Dimension properties, one per dimension.
    :param kind: Observation type: default or goal.
    :param compressed: Whether observations are encoded images instead of floats.
    """

    def __init__(
        self,
        name: str,
        shape: Sequence[int],
        properties: Sequence[DimensionProperty],
        kind: ObservationType,
        compressed: bool = False,
    ) -> None:
        self.name = name
        self.shape = tuple(shape)
        self.properties = tuple(properties)
        self.kind = kind
        self.compressed = compressed

    @abstractmethod
    def observe(self, rows: Array) -> Array | list[bytes]:
        """Return the current observations of `rows`, which are being sent.

        Agents send observations with each decision request and each done notification, and only then is this called.

        :param rows: Agent indices, int (k).
        :return: Observations, float32 (k, *shape) or k encoded images.
        """

    def reset(self, rows: Array) -> None:  # noqa: B027
        """Discard past observations of `rows`; called after each done notification has been written."""


class VectorSensor(Sensor):
    """A vector, or an array of another fixed shape.

    :param name: Name as Unity sends it.
    :param shape: Shape of one agent's observation, or its size.
    :param read: Function from agent indices (k) to float (k, *shape), the current state.
    :param properties: Dimension properties; by default none per dimension.
    :param kind: Observation type: default or goal.
    """

    def __init__(
        self,
        name: str,
        shape: int | Sequence[int],
        read: Callable[[Array], Array],
        *,
        properties: Sequence[DimensionProperty] | None = None,
        kind: ObservationType = ObservationType.DEFAULT,
    ) -> None:
        shape = (shape,) if isinstance(shape, int) else shape
        super().__init__(name, shape, properties or [DimensionProperty.NONE] * len(shape), kind)
        self._read = read

    def observe(self, rows: Array) -> Array:
        """Return the observations of `rows`, (k, *shape)."""
        return self._read(rows)


class StackingSensor(Sensor):
    """The last observations of a one-dimensional sensor side by side, the oldest first, zeros before the first.

    The stack advances with each observation that is sent and is cleared after each done notification. A reset that
    the client commands does not clear it.

    :param inner: Sensor whose observations are stacked.
    :param stacks: Number of stacked observations, including the newest.
    :param agents: Number of agents.
    """

    def __init__(self, inner: VectorSensor, stacks: int, agents: int) -> None:
        (size,) = inner.shape
        super().__init__(f"StackingSensor_size{stacks}_{inner.name}", (stacks * size,), inner.properties, inner.kind)
        self._inner = inner
        self._size = size
        self._stack = np.zeros((agents, stacks * size), np.float32)

    def observe(self, rows: Array) -> Array:
        """Advance the stacks of `rows` by the newest observations and return them, float32 (k, stacks · size)."""
        newest = np.ascontiguousarray(self._inner.observe(rows), np.float32)
        observed = np.empty((len(rows), self._stack.shape[1]), np.float32)
        _advance(rows, self._stack, newest, observed)
        return observed

    def reset(self, rows: Array) -> None:
        """Fill the stacks of `rows` with zeros."""
        self._stack[rows] = 0
        self._inner.reset(rows)


@inner_kernel
def _advance(rows: Array, stack: Array, newest: Array, observed: Array) -> None:
    """Append the newest observations (k, size) to the rows of the stack, and write these rows to `observed`."""
    size = newest.shape[1]
    kept = stack.shape[1] - size
    for k in range(len(rows)):
        for i in range(kept + size):
            stack[rows[k], i] = observed[k, i] = stack[rows[k], i + size] if i < kept else newest[k, i - kept]


class ImageSensor(Sensor):
    """Images, sent as PNG: one PNG per three channels, the last one padded with zeros.

    A single channel is sent in all three colors, which clients average.

    :param name: Name as Unity sends it.
    :param shape: Shape of one image, (channels, height, width).
    :param read: Function from agent indices (k) to images as `encode_images` takes them, row 0 at the top.
    """

    def __init__(self, name: str, shape: tuple[int, int, int], read: Callable[[Array], Array]) -> None:
        plane = DimensionProperty.TRANSLATIONAL_EQUIVARIANCE
        super().__init__(name, shape, (DimensionProperty.NONE, plane, plane), ObservationType.DEFAULT, compressed=True)
        self._read = read

    def observe(self, rows: Array) -> list[bytes]:
        """Return the images of `rows` as PNGs."""
        return encode_images(self._read(rows))


AnySensor = TypeVar("AnySensor", bound=Sensor)


def wire_order(sensors: Iterable[AnySensor]) -> list[AnySensor]:
    """Return the sensors sorted by name, in the order of .NET's invariant culture.

    Signs precede digits, digits precede letters; case decides between otherwise equal names.
    """

    def key(sensor: Sensor) -> tuple[str, str]:
        # Signs are moved before the digits; swapping the case puts lower before upper.
        return re.sub(r"[^\w\s]|_", "\x20", sensor.name).casefold(), sensor.name.swapcase()

    return sorted(sensors, key=key)

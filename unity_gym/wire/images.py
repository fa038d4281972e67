"""Decode images of the protocol into one array (n, channels, height, width) per sensor.

A compressed image is ⌈C/3⌉ PNGs one after the other, three channels each; an uncompressed one is floats in [0, 1].
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from operator import attrgetter
from typing import Any

import numpy as np

from unity_gym.machine import usable_cores
from unity_gym.specs import Array, DimensionProperty
from unity_gym.wire.messages import Observation
from unity_gym.wire.png import Png, inflate, split_pngs

MOST_BYTES = 1 << 28
"""Largest array in bytes that the PNGs of one sensor may become per message; compressed, it may be a few kilobytes."""

_PART_BYTES = 1 << 17  # of images that are inflated together: for less, another thread costs more time than it saves
_HALF_STEP = 0.5 / 255  # of a byte
_FLOATS, _COMPRESSED = attrgetter("float_data.data"), attrgetter("compressed_data")
_SHAPE, _MAPPING = attrgetter("shape"), attrgetter("compressed_channel_mapping")


def sends_channels_last(properties: Sequence[int], package_version: str) -> bool:
    """Return whether an image's declared shape is H×W×C.

    The two dimensions of translational equivariance are height and width. Packages 1.0 to 1.6 declare no properties:
    every package before 3.0.0 sends H×W×C.
    """
    flags = [bool(p & DimensionProperty.TRANSLATIONAL_EQUIVARIANCE) for p in properties]
    if any(flags):
        return flags[0]
    major = re.match(r"(\d+)\.", package_version)
    return major is not None and int(major.group(1)) < 3


def uncompressed_lies_channels_last(package_version: str) -> bool:
    """Return whether uncompressed images declared C×H×W are H, W, C in memory, as those of packages 3.0.0 and 4.0.0."""
    return re.match(r"[34]\.0\.0", package_version) is not None


def fits_bytes(images: Array) -> bool:
    """Return whether images of floats are in [0, 1], except for rounding, so that `as_bytes` clips nothing."""
    return not images.size or bool(images.min() > -_HALF_STEP and images.max() < 1 + _HALF_STEP)


def as_bytes(images: Array) -> Array:
    """Return images of floats in [0, 1] as uint8 in [0, 255]."""
    scaled: Array = np.rint(np.clip(images, 0, 1) * 255).astype(np.uint8)
    return scaled


class ImageDecoder:
    """Decoder of one visual sensor.

    :param first: Message `Observation` of the sensor, which contains its shape, compression and channel mapping.
    :param package_version: Version of the player's ML-Agents package.
    :param dtype: Dtype of the images: "uint8" (0 to 255) or "float32" (0 to 1).
    :param uncompressed_layout: Layout of uncompressed images in memory: "CHW", "HWC", or "auto", by the package
        version.
    """

    def __init__(self, first: Any, package_version: str, dtype: str, uncompressed_layout: str = "auto") -> None:
        self._declared = declared = tuple(first.shape)
        self._declared_last = sends_channels_last(first.dimension_properties, package_version)
        self.shape: tuple[int, ...] = (declared[2], *declared[:2]) if self._declared_last else declared
        if uncompressed_layout == "auto":
            self._memory_last = self._declared_last or uncompressed_lies_channels_last(package_version)
        else:
            self._memory_last = uncompressed_layout == "HWC"
        self._dtype = np.dtype(dtype)

    def channels_first(self, properties: tuple[DimensionProperty, ...]) -> tuple[DimensionProperty, ...]:
        """Return the dimension properties in the order C, H, W."""
        return (properties[2], *properties[:2]) if self._declared_last else properties

    def decode(self, observations: Sequence[bytes]) -> tuple[Array, bool]:
        """Decode the images of n agents.

        :param observations: Encoded `Observation` messages.
        :return: Array (n, C, H, W), and whether its values are known to be finite. Uncompressed images are float32 as
            sent; PNGs have the chosen dtype.
        :raises ValueError: If PNG data are broken, or images have another size than the sensor.
        """
        sent = list(map(Observation.FromString, observations))
        compressed = list(map(_COMPRESSED, sent))
        images = None if any(compressed) else self._from_floats(list(map(_FLOATS, sent)))
        if any(tuple(shape) != self._declared for shape in map(_SHAPE, sent)):
            shapes = sorted(set(map(tuple, map(_SHAPE, sent))))
            raise ValueError(f"the sensor started with the shape {self._declared}; now agents sent {shapes}")
        if images is not None:
            return images, False
        mappings = set(map(tuple, map(_MAPPING, sent)))
        if len(mappings) > 1:
            raise ValueError(f"the agents sent different channel mappings: {sorted(mappings)}")
        (mapping,) = mappings
        decoded = max(math.prod(self.shape) * self._dtype.itemsize, len(mapping) * math.prod(self.shape[1:]))
        if len(sent) * decoded > MOST_BYTES:
            raise ValueError(
                f"{len(sent)} PNGs of shape {self.shape} become an array of {len(sent) * decoded} bytes; at most "
                f"{MOST_BYTES} are read: lower the resolution of the sensor"
            )
        images = self._from_pngs(compressed, mapping)
        if self._dtype == np.uint8:
            return images if images.dtype == np.uint8 else np.rint(images).astype(np.uint8), True
        scaled = images.astype(np.float32, copy=False)
        scaled /= np.float32(255)
        return scaled, True

    def _from_floats(self, data: list[bytes]) -> Array:
        channels, height, width = self.shape
        size = 4 * channels * height * width
        if set(map(len, data)) != {size}:
            raise ValueError(f"the data of shape {self.shape} are {size} bytes, got {sorted(set(map(len, data)))}")
        array = np.frombuffer(bytearray().join(data), "<f4")
        if self._memory_last:
            array = array.reshape(-1, height, width, channels).transpose(0, 3, 1, 2)
        return np.ascontiguousarray(array.reshape(-1, channels, height, width))

    def _from_pngs(self, data: list[bytes], mapping: tuple[int, ...]) -> Array:
        """Return the images in [0, 255]: uint8 (n, C, H, W), or float32 where decoded channels are averaged."""
        channels, height, width = self.shape
        if not mapping and channels > 1:
            return _decode(data, channels, height, width)
        outputs = np.array(mapping or (0, 0, 0))
        if len(outputs) % 3 or len(outputs) < channels or set(outputs.tolist()) - {-1} != set(range(channels)):
            raise ValueError(
                f"the channel mapping {mapping} does not lead {len(mapping)} decoded channels, three per PNG, to "
                f"{channels} outputs"
            )
        used = outputs[outputs >= 0]
        if (outputs[:channels] == np.arange(channels)).all() and len(used) == channels:
            return _decode(data, channels, height, width)
        decoded = _decode(data, len(outputs), height, width)
        sources = [np.flatnonzero(outputs == channel) for channel in range(channels)]
        if len(used) == channels:
            return decoded[:, np.concatenate(sources)]
        means = [decoded[:, source].mean(axis=1, dtype=np.float32) for source in sources]
        averaged: Array = np.stack(means, axis=1)
        return averaged


def _decode(data: list[bytes], channels: int, height: int, width: int) -> Array:
    """Return the first channels of the PNGs of each image, uint8 (n, channels, height, width).

    While one part of the PNGs is inflated, another thread unfilters the previous part.
    """
    per_image = -(-channels // 3)
    pngs: list[Png] = []
    for encoded in data:
        split = split_pngs(encoded, height, width)
        if len(split) != per_image:
            raise ValueError(f"PNGs of {3 * len(split)} channels together where the sensor has {channels}")
        pngs += split
    images = np.empty((len(data), channels, height, width), np.uint8)
    parts = max(1, min(images.nbytes // _PART_BYTES, len(pngs)))
    ends = [len(pngs) * part // parts for part in range(parts + 1)]
    others = []
    for first, end in pairwise(ends):
        part = pngs[first:end]
        scanlines = bytearray().join([inflate(png, height, width) for png in part])
        work = scanlines, [png.samples for png in part], images, first
        if end < len(pngs) and usable_cores() > 1:
            others.append(_other_thread().submit(_unfilter, *work))
        else:
            _unfilter(*work)
    for other in others:
        other.result()
    return images


def _unfilter(scanlines: bytearray, samples: list[int], images: Array, first: int) -> None:
    from unity_gym.wire.unfilter import unfilter  # numba is slow to import, and only players with cameras need it

    wrong = unfilter(np.frombuffer(scanlines, np.uint8), np.array(samples), images, first)
    if wrong >= 0:
        raise ValueError(f"a damaged PNG: line {wrong} has an unknown filter")


@cache
def _other_thread() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, thread_name_prefix="unity-image")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_other_thread.cache_clear)  # threads stay in the parent

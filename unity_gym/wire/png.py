"""Encode and decode PNG (https://www.w3.org/TR/png-3/) of 8 bits per sample, not interlaced.

Unity writes RGB; RGBA and grayscale, with or without alpha, are read, too. Palettes, 16 bits and interlacing are not.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import numpy as np
from zlib_ng import zlib_ng

from unity_gym.specs import Array

SIGNATURE = b"\x89PNG\r\n\x1a\n"
_CHUNK = struct.Struct(">I4s")
_HEADER = struct.Struct(">IIBBBBB")
_SAMPLES = {0: 1, 2: 3, 4: 2, 6: 4}  # per pixel, by color type
_LEVEL = 1  # zlib level: for images of few colors the higher ones save little and cost up to six times as much


class Png(NamedTuple):
    """One PNG that has been checked but not yet inflated.

    - `samples`: number of samples per pixel
    - `data`: the zlib stream
    """

    samples: int
    data: bytes


def split_pngs(data: bytes, height: int, width: int) -> list[Png]:
    """Split concatenated PNGs into their streams; nothing is inflated.

    Chunks that do not matter for the pixels are skipped.

    :param height: Height that each PNG must have.
    :param width: Width that each PNG must have.
    :raises ValueError: If the data are damaged, or a PNG has another size or a format that is not read.
    """
    pngs: list[Png] = []
    at = 0
    while at < len(data) or not pngs:
        if not data.startswith(SIGNATURE, at):
            raise ValueError(f"{len(data)} bytes of image data that do not start as a PNG at byte {at}")
        at += len(SIGNATURE)
        samples, streams, kind = 0, [], b""
        while kind != b"IEND":
            if at + 12 > len(data):
                raise ValueError(f"a PNG that was cut off: {len(data)} bytes without an end")
            length, kind = _CHUNK.unpack_from(data, at)
            end = at + 12 + length
            if end > len(data):
                raise ValueError(f"a PNG that was cut off: a chunk of {length} bytes at byte {at} of {len(data)}")
            content = data[at + 8 : end - 4]
            if kind[0] < ord("a"):  # a capital marks chunks that are needed for the pixels
                if zlib_ng.crc32(data[at + 4 : end - 4]) != int.from_bytes(data[end - 4 : end], "big"):
                    raise ValueError(f"a damaged PNG: the checksum of its chunk at byte {at} is wrong")
                if kind == b"IHDR":
                    samples = _samples(content, height, width)
                elif kind == b"IDAT":
                    streams.append(content)
                elif kind not in (b"IEND", b"PLTE"):
                    raise ValueError(f"a PNG with the unknown chunk {kind!r}")
            at = end
        if not samples:
            raise ValueError("a damaged PNG: it has no header")
        pngs.append(Png(samples, streams[0] if len(streams) == 1 else b"".join(streams)))
    return pngs


def _samples(header: bytes, height: int, width: int) -> int:
    """Return the number of samples per pixel of an image with this header."""
    if len(header) != _HEADER.size:
        raise ValueError(f"a damaged PNG: its header has {len(header)} bytes")
    own_width, own_height, bits, color, _, _, interlaced = _HEADER.unpack(header)
    if (own_height, own_width) != (height, width):
        raise ValueError(f"a PNG of {(own_height, own_width)} pixels where the sensor has {(height, width)}")
    if bits != 8 or color not in _SAMPLES or interlaced:
        raise ValueError(
            f"a PNG of {bits} bits per sample, color type {color} and interlacing {interlaced}; 8 bits, the color "
            f"types {sorted(_SAMPLES)} and no interlacing can be read: let the sensor encode an RGB24 texture"
        )
    return _SAMPLES[color]


def inflate(png: Png, height: int, width: int) -> bytes:
    """Inflate the scanlines of a PNG.

    :raises ValueError: If the pixels are damaged, or fewer or more than the header announces.
    """
    size = height * (1 + png.samples * width)
    inflater = zlib_ng.decompressobj()
    try:
        scanlines = inflater.decompress(png.data, size + 1)  # bounds the output of an oversized stream
    except zlib_ng.error as error:  # type: ignore[misc]  # its stub lacks the base class
        raise ValueError(f"a damaged PNG: {error}") from error
    if len(scanlines) != size or not inflater.eof:
        amount = "more" if len(scanlines) > size else "fewer"
        raise ValueError(
            f"a damaged PNG: it holds {amount} pixels than the {(height, width)} that its header announces"
        )
    return scanlines


def _chunk(kind: bytes, data: bytes) -> bytes:
    content = kind + data
    return struct.pack(">I", len(data)) + content + struct.pack(">I", zlib_ng.crc32(content))


_END = _chunk(b"IEND", b"")


def encode_images(images: Array) -> list[bytes]:
    """Encode images, each as one RGB PNG per three channels, one after the other.

    Missing channels of the last PNG are black. A single channel is written as all three colors, because clients without
    a channel mapping take their mean.

    :param images: Images, uint8 (n, channels, height, width), or (n, PNGs, height, width, 3), which is encoded faster.
    """
    if images.ndim == 4:
        n, channels, height, width = images.shape
        if channels == 1:
            images = np.repeat(images, 3, axis=1)
        elif channels % 3:
            black = np.zeros((n, 3 - channels % 3, height, width), np.uint8)
            images = np.concatenate([images, black], axis=1)
        images = images.reshape(n, -1, 3, height, width).transpose(0, 1, 3, 4, 2)
    n, parts, height, width, _ = images.shape
    lines = np.zeros((n * parts, height, 1 + 3 * width), np.uint8)  # each line starts with its filter type, 0
    lines[:, :, 1:] = images.reshape(n * parts, height, 3 * width)
    head = SIGNATURE + _chunk(b"IHDR", _HEADER.pack(width, height, 8, 2, 0, 0, 0))
    encoded = [head + _chunk(b"IDAT", zlib_ng.compress(part, _LEVEL)) + _END for part in lines]
    return [b"".join(encoded[first : first + parts]) for first in range(0, n * parts, parts)]

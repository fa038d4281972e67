"""Images → PNG (https://www.w3.org/TR/png-3/), unfiltered, 8 bit RGB."""

from __future__ import annotations

import struct
import zlib

import numpy as np

from unity_gym.specs import Array

_SIGNATURE = b"\x89PNG\r\n\x1a\n"


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


_END = _chunk(b"IEND", b"")


def encode_image(image: Array) -> bytes:
    """Encode uint8 (channels, height, width) as one RGB PNG per three channels, one after the other.

    Missing channels of the last PNG are black.
    """
    channels, height, width = image.shape
    header = _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    encoded = bytearray()
    for first in range(0, channels, 3):
        part = image[first : first + 3]
        pixels = np.zeros((height, width, 3), np.uint8)
        pixels[:, :, : len(part)] = part.transpose(1, 2, 0)
        lines = np.zeros((height, 1 + 3 * width), np.uint8)  # each line begins with its filter type, 0
        lines[:, 1:] = pixels.reshape(height, -1)
        encoded += _SIGNATURE + header + _chunk(b"IDAT", zlib.compress(lines.tobytes(), 1)) + _END
    return bytes(encoded)

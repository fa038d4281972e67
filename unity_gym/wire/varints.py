"""Decode packed varints, in which protobuf sends lists of integers, as arrays."""

from __future__ import annotations

import numpy as np

from unity_gym.specs import Array


def unpack_varints(packed: bytes) -> Array:
    """Return the values of packed int32 varints, int64 (n,)."""
    encoded = np.frombuffer(packed, np.uint8)
    last = encoded < 0x80
    if last.all():
        return encoded.astype(np.int64)
    starts = np.concatenate([[0], np.flatnonzero(last)[:-1] + 1])
    lengths = np.diff(np.append(starts, len(encoded)))
    shifts = 7 * (np.arange(len(encoded)) - np.repeat(starts, lengths))
    return np.add.reduceat((encoded & 0x7F).astype(np.int64) << shifts, starts)

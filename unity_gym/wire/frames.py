"""Frames of HTTP/2 that carry the unary gRPC method `Exchange`, as both sides of a connection read and write them.

References: HTTP/2 (RFC 9113), HPACK (RFC 7541), and gRPC over HTTP/2
(https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md).
"""

from __future__ import annotations

import struct

PATH = b"/communicator_objects.UnityToExternalProto/Exchange"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = (
    0, 1, 3, 4, 5, 6, 7, 8, 9,
)  # fmt: skip
END_STREAM, ACK, END_HEADERS, PADDED, PRIORITY = 1, 1, 4, 8, 32  # flags
HEADER_TABLE_SIZE, ENABLE_PUSH, INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE, MAX_HEADER_LIST_SIZE = 1, 2, 4, 5, 6  # settings
DEFAULT_WINDOW, DEFAULT_FRAME, MAX_WINDOW, MAX_FRAME = 65535, 16384, 2**31 - 1, 2**24 - 1
MAX_STREAM = 2**31 - 1
CHUNK = 1 << 18  # bytes to receive at most
WINDOW_STEP = 1 << 30  # bytes after which the other side is allowed to send as many again

FRAME_HEADER = struct.Struct(">HBBBL")  # high and low bytes of the length, type, flags, stream
PREFIX = struct.Struct(">BL")  # whether a message is compressed, its length
SETTING = struct.Struct(">HL")
NUMBER = struct.Struct(">L")


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """Return a frame."""
    length = len(payload)
    return FRAME_HEADER.pack(length >> 8, length & 0xFF, kind, flags, stream) + payload


def literal(name: bytes, value: bytes) -> bytes:
    """Return a header field that leaves the other side's HPACK table unchanged."""
    return b"\0" + _string(name) + _string(value)


def _string(value: bytes) -> bytes:
    length = len(value)
    if length < 127:
        return bytes([length]) + value
    length -= 127
    prefix = bytearray([127])
    while length > 127:
        prefix.append(length & 127 | 128)
        length >>= 7
    return bytes([*prefix, length]) + value

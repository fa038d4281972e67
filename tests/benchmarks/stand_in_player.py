"""A player with minimal cost: it connects to a client and always sends the same bytes.

    python stand_in_player.py PORT WORKLOAD

It shares no code with the client that it measures, so an error in our own wire cannot hide here. It needs grpcio
and nothing else. The bytes are canonical protobuf as Unity's C# writes it: fields in ascending order, defaults left
out.
"""

from __future__ import annotations

import itertools
import struct
import sys
import zlib
from collections.abc import Iterator
from typing import NamedTuple

import grpc

METHOD = "/communicator_objects.UnityToExternalProto/Exchange"
UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
BEHAVIOR = "StandIn?team=0"
AGENTS_PER_GROUP = 4


class Workload(NamedTuple):
    """The content of every message of one behavior: `agents` agents, all of which request a decision."""

    agents: int
    vectors: tuple[int, ...] = ()  # floats of each vector sensor
    camera: int = 0  # height and width of one RGB camera in pixels, 0 = no camera
    continuous: int = 0
    branches: tuple[int, ...] = ()
    groups: bool = False


WORKLOADS = {
    "1x8": Workload(1, (8,), continuous=2),
    "12x8": Workload(12, (8,), continuous=2),
    "100x(105+4)": Workload(100, (105, 4), branches=(3, 3, 3, 2), groups=True),
    "16x84x84 camera": Workload(16, camera=84, continuous=2),
}


# --- protobuf, https://protobuf.dev/programming-guides/encoding


def varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*encoded, value))


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value) if value else b""


def float32(field: int, value: float) -> bytes:
    return varint(field << 3 | 5) + struct.pack("<f", value) if value else b""


def delimited(field: int, content: bytes | str) -> bytes:
    """A sub-message, bytes or a string. Presence counts for messages, so an empty one is written, too."""
    content = content.encode() if isinstance(content, str) else content
    return varint(field << 3 | 2) + varint(len(content)) + content


def packed_numbers(field: int, values: tuple[int, ...]) -> bytes:
    return delimited(field, b"".join(map(varint, values))) if values else b""


def packed_floats(field: int, values: list[float]) -> bytes:
    return delimited(field, struct.pack(f"<{len(values)}f", *values)) if values else b""


def read_varint(message: bytes, position: int) -> tuple[int, int]:
    """The number at `position` and the position behind it."""
    value = shift = 0
    while True:
        byte = message[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7


def status(message: bytes) -> int:
    """`header.status` of a UnityMessage, whose fields are all length-delimited; 0 where there is none."""
    position = 0
    while position < len(message):
        tag = message[position]
        size, start = read_varint(message, position + 1)
        if tag == 1 << 3 | 2:
            return read_varint(message, start + 1)[0] if size and message[start] == 1 << 3 else 0
        position = start + size
    return 0


# --- messages of the player

HEADER = delimited(1, number(1, 200))


def png(size: int, seed: int) -> bytes:
    """Return an RGB image with smooth parts, edges and noise; its rows alternate between the five PNG filters."""
    rows = [
        bytes(
            channel
            for x in range(size)
            for channel in (
                (220, 40, 40)
                if abs(x - 5 * seed % size) < 9 and abs(y - size // 2) < 9
                else (100 + y, 140 + x // 2, 200)
                if y < size // 2
                else (90 + (x * x * 3 + y * y * 5 + x * y) % 11, 110 + y // 2, 70)
            )
        )
        for y in range(size)
    ]
    scanlines = bytearray()
    above = bytes(3 * size)
    for y, row in enumerate(rows):
        scanlines.append(y % 5)
        left, above_left = bytes(3) + row, bytes(3) + above
        for value, a, b, c in zip(row, left, above, above_left):  # noqa: B905 (the last pixel is left of no other)
            nearest = min((a, b, c), key=lambda candidate: abs(a + b - c - candidate))
            scanlines.append((value - (0, a, b, (a + b) // 2, nearest)[y % 5]) & 0xFF)
        above = row

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", size, size, 8, 2, 0, 0, 0)
    image = zlib.compress(bytes(scanlines))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", image) + chunk(b"IEND", b"")


def agent_info(workload: Workload, agent: int) -> bytes:
    observations = b""
    for sensor, size in enumerate(workload.vectors):
        values = [((agent * 31 + sensor * 17 + i * 7) % 200 - 100) / 100 for i in range(size)]
        observation = packed_numbers(1, (size,)) + delimited(4, packed_floats(1, values)) + packed_numbers(6, (1,))
        observations += delimited(13, observation + delimited(8, f"VectorSensor_size{size}"))
    if workload.camera:
        shape = packed_numbers(1, (3, workload.camera, workload.camera))
        image = number(2, 1) + delimited(3, png(workload.camera, agent))
        observations += delimited(13, shape + image + packed_numbers(6, (1, 2, 2)) + delimited(8, "CameraSensor"))
    forbidden = tuple(int((agent + choice) % 4 == 0) for choice in range(sum(workload.branches)))
    group = number(14, 1 + agent // AGENTS_PER_GROUP) + float32(15, 0.25) if workload.groups else b""
    return float32(7, 0.1) + number(10, agent) + packed_numbers(11, forbidden) + observations + group


def messages(workload: Workload) -> Iterator[bytes]:
    """Yield the handshake, an empty message, the state with the behavior's announcement, then the state forever."""
    capabilities = b"".join(number(flag, 1) for flag in range(1, 8))
    handshake = delimited(1, "StandIn") + delimited(2, "1.5.0") + delimited(7, "3.0.0") + delimited(8, capabilities)
    yield HEADER + delimited(2, delimited(2, handshake))
    yield HEADER
    agents = b"".join(delimited(1, agent_info(workload, agent)) for agent in range(workload.agents))
    state = delimited(1, delimited(2, delimited(1, BEHAVIOR) + delimited(2, agents)))
    actions = number(1, workload.continuous) + number(2, len(workload.branches)) + packed_numbers(3, workload.branches)
    announcement = delimited(5, delimited(7, BEHAVIOR) + number(8, 1) + delimited(9, actions))
    yield HEADER + delimited(2, state + delimited(2, announcement))
    yield from itertools.repeat(HEADER + delimited(2, state))


def play(port: int, sent: Iterator[bytes]) -> None:
    """Connect to `localhost:port` within a minute, then send the messages until the client ends."""
    dialling = [("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 500)]
    with grpc.insecure_channel(f"localhost:{port}", options=[*UNLIMITED, *dialling]) as channel:
        exchange = channel.unary_unary(METHOD)
        reply = exchange(next(sent), timeout=60, wait_for_ready=True)
        for message in sent:
            if status(reply) != 200:
                return
            try:
                reply = exchange(message)
            except grpc.RpcError:
                return


if __name__ == "__main__":
    play(int(sys.argv[1]), messages(WORKLOADS[sys.argv[2]]))

"""HTTP/2 and gRPC as the server reads and writes them, with a client of raw bytes and with grpcio."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import struct
import time
from collections.abc import Callable, Iterator

import grpc
import pytest
from hpack import Decoder, Encoder

from stand_ins.faulty_player import connect_to
from stand_ins.raw_frames import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PADDED,
    PING,
    PREFACE,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    WITH_PRIORITY,
    frame,
    prefixed,
)
from unity_gym import connection as connection_module
from unity_gym.connection import PlayerConnection
from unity_gym.errors import PlayerError, PlayerTimeoutError
from unity_gym.wire import http2

PATH = "/communicator_objects.UnityToExternalProto/Exchange"
MESSAGE = bytes(range(256)) * 20


class RawClient:
    """A client that sends what a test says, and reads frames."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=10)
        self.encoder, self._decoder = Encoder(), Decoder()
        self._received = b""

    def headers(self, path: str = PATH, **others: str) -> bytes:
        fields = {":method": "POST", ":scheme": "http", ":path": path, ":authority": "localhost", "te": "trailers"}
        fields |= {"content-type": "application/grpc", "user-agent": "raw-client/1.0"}
        return self.encoder.encode([*(fields | others).items()])

    def call(self, stream: int, message: bytes) -> bytes:
        head = frame(HEADERS, END_HEADERS, stream, self.headers())
        return head + frame(DATA, END_STREAM, stream, prefixed(message))

    def start(self, settings: bytes = b"") -> None:
        self.socket.sendall(PREFACE + frame(SETTINGS, 0, 0, settings))

    def frame(self) -> tuple[int, int, int, bytes]:
        """The next frame: type, flags, stream, payload."""
        head = self._read(9)
        kind, flags, stream = struct.unpack(">BBI", head[3:])
        return kind, flags, stream, self._read(int.from_bytes(head[:3], "big"))

    def reply(self) -> tuple[bytes, dict[str, str]]:
        """The message and the headers of the next answer, whatever frames stand between."""
        data, fields = b"", {}
        while True:
            kind, flags, _, payload = self.frame()
            if kind == DATA:
                data += payload
            if kind == HEADERS:
                fields |= dict(self._decoder.decode(payload))
                if flags & END_STREAM:
                    return data[5:], fields

    def _read(self, count: int) -> bytes:
        while len(self._received) < count:
            received = self.socket.recv(1 << 16)
            if not received:
                raise EOFError
            self._received += received
        part, self._received = self._received[:count], self._received[count:]
        return part


@pytest.fixture
def client(connection: PlayerConnection) -> Iterator[RawClient]:
    client = RawClient(connection.port)
    yield client
    client.socket.close()


def padded(part: bytes, padding: int) -> bytes:
    return bytes([padding]) + part + bytes(padding)


def odd_call(client: RawClient, stream: int, generator: random.Random) -> bytes:
    """A call in as many and as strange frames as RFC 9113 permits."""
    block = client.headers(**{f"x-{stream}": "v" * generator.randrange(200)})
    cuts = sorted(generator.randrange(len(block)) for _ in range(2))
    first = padded(bytes(5) + block[: cuts[0]], 7)
    parts = [frame(HEADERS, PADDED | WITH_PRIORITY, stream, first)]
    parts.append(frame(CONTINUATION, 0, stream, block[cuts[0] : cuts[1]]))
    parts.append(frame(CONTINUATION, END_HEADERS, stream, block[cuts[1] :]))
    data = prefixed(MESSAGE)
    while data:
        size = generator.choice([0, 1, 3, 1000, 4000])
        parts.append(frame(DATA, PADDED, stream, padded(data[:size], generator.choice([0, 1, 255]))))
        data = data[size:]
        parts.append(generator.choice([frame(PRIORITY, 0, stream, bytes(5)), frame(99, 255, 0, b"unknown"), b""]))
        parts.append(generator.choice([frame(PING, 0, 0, b"01234567"), frame(SETTINGS, 1, 0), b""]))
    parts.append(frame(DATA, END_STREAM, stream))
    return b"".join(parts)


def test_a_call_may_come_byte_by_byte(connection: PlayerConnection, client: RawClient) -> None:
    for byte in PREFACE + frame(SETTINGS, 0, 0) + client.call(1, b"slowly"):
        client.socket.send(bytes([byte]))
        connection.poll(60)
    assert connection.receive(5) == b"slowly"
    connection.send(b"reply")
    message, fields = client.reply()
    assert (message, fields[":status"], fields["grpc-status"]) == (b"reply", "200", "0")


@pytest.mark.parametrize("seed", range(4))
def test_calls_may_come_in_any_frames_and_pieces(connection: PlayerConnection, client: RawClient, seed: int) -> None:
    generator = random.Random(seed)
    client.start()
    for number in range(8):
        data = odd_call(client, 2 * number + 1, generator)
        while data:
            size = generator.choice([1, 9, 100, 10_000])
            client.socket.sendall(data[:size])
            connection.poll(60)
            data = data[size:]
        assert connection.receive(5) == MESSAGE
        connection.send(b"%d" % number)
        assert client.reply()[0] == b"%d" % number


def test_headers_of_the_table_that_changes_are_read_again(connection: PlayerConnection, client: RawClient) -> None:
    """The same bytes name another method once the table has changed, see `_State._decode`."""
    client.start()
    for stream in (1, 3, 5):
        client.socket.sendall(client.call(stream, b"mine"))
        assert connection.receive(5) == b"mine"
        connection.send(b"")
        assert client.reply()[1]["grpc-status"] == "0"
    block = client.headers()
    client.socket.sendall(frame(HEADERS, END_HEADERS | END_STREAM, 7, client.headers(path="/another/Method")))
    assert client.reply()[1]["grpc-status"] == str(http2.UNIMPLEMENTED)
    client.socket.sendall(frame(HEADERS, END_HEADERS, 9, block) + frame(DATA, END_STREAM, 9, prefixed(b"other")))
    assert client.reply()[1]["grpc-status"] == str(http2.UNIMPLEMENTED), "the path's index has moved"
    assert not connection.poll(60)


@pytest.mark.parametrize("first_piece", [1000, 1 << 26])
def test_messages_of_megabytes_pass_both_ways_in_small_windows(
    connection: PlayerConnection, monkeypatch: pytest.MonkeyPatch, first_piece: int
) -> None:
    monkeypatch.setattr(http2, "_FIRST_PIECE", first_piece)
    monkeypatch.setattr(http2, "WINDOW_STEP", 100_000)
    large = os.urandom(5_000_000)
    exchange = connect_to(connection.port)
    for _ in range(3):
        call = exchange.future(large)
        assert connection.receive(20) == large
        connection.send(large)
        assert call.result(20) == large


@pytest.mark.parametrize("window", [1, 10])
def test_a_reply_waits_for_the_windows_of_the_client(
    connection: PlayerConnection, client: RawClient, monkeypatch: pytest.MonkeyPatch, window: int
) -> None:
    monkeypatch.setattr(connection_module, "_PATIENCE", 0.05)
    client.start(struct.pack(">HI", 4, window))
    client.socket.sendall(client.call(1, b"a small window"))
    assert connection.receive(5) == b"a small window"
    connection.send(b"0123456789" * 3)
    received = b""
    while len(received) < 35:
        kind, flags, _, payload = client.frame()
        assert not (kind == HEADERS and flags & END_STREAM)
        if kind == DATA:
            assert len(payload) <= (window if len(received) < 30 else 10)
            received += payload
            if len(received) < 30:
                client.socket.sendall(frame(WINDOW_UPDATE, 0, 1, struct.pack(">I", window)))
            else:  # settings change the window, too
                client.socket.sendall(frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 100)))
            with pytest.raises(PlayerTimeoutError):  # as the player has sent no message
                connection.receive(0.05)
    assert received[5:] == b"0123456789" * 3


@pytest.mark.parametrize("received", [True, False])
def test_pings_are_answered_while_no_call_receives(
    connection: PlayerConnection, client: RawClient, received: bool
) -> None:
    client.start()
    if received:
        client.socket.sendall(client.call(1, b"message"))
        assert connection.receive(5) == b"message"
    client.socket.sendall(frame(PING, 0, 0, b"12345678"))
    while (answer := client.frame())[0] != PING:
        pass
    assert answer == (PING, 1, 0, b"12345678")


def _rubbish() -> Iterator[tuple[str, bytes]]:
    yield "another protocol", b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
    yield "encryption", b"\x16\x03\x01\x02\x00\x01\x00\x01"
    start = PREFACE + frame(SETTINGS, 0, 0)
    yield "headers on an even stream", start + frame(HEADERS, END_HEADERS, 2, b"\x82")
    yield "headers that cannot be decoded", start + frame(HEADERS, END_HEADERS, 1, b"\xff\xff\xff\xff\xff\xff")
    yield "an unknown table entry", start + frame(HEADERS, END_HEADERS, 1, b"\xc0")
    yield "padding without end", start + frame(HEADERS, END_HEADERS | PADDED, 1, b"\xffabc")
    yield "too many headers", start + frame(HEADERS, 0, 1, bytes(16_000)) + frame(CONTINUATION, 0, 1, bytes(60_000))
    yield "headers interrupted", start + frame(HEADERS, 0, 1, b"\x82") + frame(PING, 0, 0, bytes(8))
    yield "a continuation of nothing", start + frame(CONTINUATION, END_HEADERS, 1, b"\x82")
    yield "data of no stream", start + frame(DATA, 0, 0, b"abc")
    yield "data of a stream that has not started", start + frame(DATA, 0, 5, b"abc")
    yield "a window widened by nothing", start + frame(WINDOW_UPDATE, 0, 0, bytes(4))
    yield "a window too wide", start + frame(WINDOW_UPDATE, 0, 0, b"\x7f\xff\xff\xff")
    yield "a short ping", start + frame(PING, 0, 0, b"123")
    yield "settings that are cut off", start + frame(SETTINGS, 0, 0, b"12345")
    yield "settings with a huge window", start + frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 2**31))
    yield "settings with tiny frames", start + frame(SETTINGS, 0, 0, struct.pack(">HI", 5, 1))
    yield "a reset of a stream that has not started", start + frame(RST_STREAM, 0, 1, bytes(4))
    yield "a push", start + frame(PUSH_PROMISE, 0, 1, bytes(4))
    yield "a frame too large", start + b"\xff\xff\xff" + struct.pack(">BBI", SETTINGS, 0, 0)


@pytest.mark.parametrize("rubbish", [pytest.param(sent, id=name) for name, sent in _rubbish()])
def test_a_client_that_violates_http2_is_dropped(connection: PlayerConnection, rubbish: bytes) -> None:
    with socket.create_connection(("127.0.0.1", connection.port), timeout=10) as stranger:
        stranger.sendall(rubbish)
        while stranger.recv(1 << 16):
            pass
    call = connect_to(connection.port).future(b"the player")
    assert connection.receive(5) == b"the player"
    connection.send(b"reply")
    assert call.result(5) == b"reply"


def test_a_timeout_reports_a_client_of_another_protocol(connection: PlayerConnection) -> None:
    with socket.create_connection(("127.0.0.1", connection.port), timeout=10) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        while stranger.recv(1 << 16):
            pass
    with pytest.raises(PlayerTimeoutError, match=r"does not speak gRPC.*GET / HTTP"):
        connection.receive(0.2)


def test_a_player_that_violates_http2_is_one_error(connection: PlayerConnection, client: RawClient) -> None:
    client.start()
    client.socket.sendall(client.call(1, b"message"))
    assert connection.receive(5) == b"message"
    connection.send(b"reply")
    client.socket.sendall(frame(DATA, 0, 99, b"no such stream"))
    for _ in range(2):
        with pytest.raises(PlayerError, match=r"no valid HTTP/2: data belong to stream 99"):
            connection.receive(60)


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda client: client.call(3, b"message")[:-3], id="in the message"),
        pytest.param(lambda client: client.call(3, bytes(1_000_000))[:500_000], id="in a long message"),
        pytest.param(lambda client: frame(HEADERS, END_HEADERS, 3, client.headers()), id="before the message"),
    ],
)
def test_a_connection_that_ends_in_a_message_raises(
    connection: PlayerConnection, client: RawClient, make: Callable[[RawClient], bytes]
) -> None:
    client.start()
    client.socket.sendall(client.call(1, b"message"))
    assert connection.receive(5) == b"message"
    connection.send(b"reply")
    client.socket.sendall(make(client))
    client.socket.close()
    with pytest.raises(PlayerError, match="has ended or disconnected"):
        connection.receive(60)


@pytest.mark.parametrize(
    ("data", "status", "text"),
    [
        (prefixed(b"message")[:-1], http2.INTERNAL, "cut off"),
        (prefixed(b"message")[:3], http2.INTERNAL, "cut off"),
        (b"", http2.INTERNAL, "cut off"),
        (prefixed(b"one") + prefixed(b"two"), http2.INTERNAL, "more than one message"),
        (prefixed(b"message", compressed=1), http2.UNIMPLEMENTED, "without compression"),
        (struct.pack(">BI", 0, 2**32 - 1) + b"claims 4 GiB", http2.INTERNAL, "cut off"),
    ],
)
def test_a_call_without_one_whole_message_gets_a_status(
    connection: PlayerConnection, client: RawClient, data: bytes, status: int, text: str
) -> None:
    client.start()
    client.socket.sendall(frame(HEADERS, END_HEADERS, 1, client.headers()) + frame(DATA, END_STREAM, 1, data))
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline and not connection.poll(60):
        client.socket.settimeout(0.01)
        try:
            _, fields = client.reply()
            break
        except TimeoutError:
            pass
    assert fields["grpc-status"] == str(status)
    assert text in fields["grpc-message"]
    client.socket.settimeout(10)
    client.socket.sendall(client.call(3, b"better"))
    assert connection.receive(5) == b"better"


def test_a_compressed_message_of_grpcio_gets_a_status(connection: PlayerConnection) -> None:
    with grpc.insecure_channel(f"localhost:{connection.port}", compression=grpc.Compression.Gzip) as channel:
        call = channel.unary_unary(PATH).future(bytes(10_000))
        while not call.done():
            assert not connection.poll(60)
        assert call.exception().code() is grpc.StatusCode.UNIMPLEMENTED
        assert "without compression" in call.exception().details()


@pytest.mark.parametrize("end", ["cancel", "deadline"])
def test_a_call_that_the_player_cancels_raises(connection: PlayerConnection, end: str) -> None:
    call = connect_to(connection.port).future(b"message", timeout=0.3 if end == "deadline" else None)
    assert connection.receive(5) == b"message"
    if end == "cancel":
        call.cancel()
    while not call.done():
        time.sleep(0.01)
    time.sleep(0.1)  # the end has to arrive
    connection.send(b"unread")
    with pytest.raises(PlayerError, match="has ended or disconnected"):
        connection.receive(60)


@pytest.mark.parametrize("is_answered", [False, True])
@pytest.mark.parametrize("is_reset", [False, True])
def test_a_call_whose_answer_the_player_does_not_receive_raises(
    connection: PlayerConnection,
    client: RawClient,
    monkeypatch: pytest.MonkeyPatch,
    is_reset: bool,
    is_answered: bool,
) -> None:
    monkeypatch.setattr(connection_module, "_PATIENCE", 0.05)
    client.start(struct.pack(">HI", 4, 10))  # the rest of an answer of more than 10 bytes waits
    client.socket.sendall(client.call(1, b"message"))
    assert connection.receive(5) == b"message"
    if is_answered:
        connection.send(b"0123456789" * 3)
    if is_reset:
        client.socket.sendall(frame(RST_STREAM, 0, 1, bytes(4)))
    else:
        client.socket.close()
    if not is_answered:
        connection.send(b"0123456789" * 3)
    with pytest.raises(PlayerError, match="has ended or disconnected"):
        connection.receive(5)


def test_a_player_may_connect_again_once_its_transport_has_closed(connection: PlayerConnection) -> None:
    for number in range(2):
        alone = [("grpc.use_local_subchannel_pool", number)]
        with grpc.insecure_channel(f"localhost:{connection.port}", options=alone) as channel:
            call = channel.unary_unary(PATH).future(b"message")
            assert connection.receive(5) == b"message"
            connection.send(b"reply")
            assert call.result(5) == b"reply"
        with pytest.raises(PlayerTimeoutError):
            connection.receive(0.2)  # the end of the transport has to arrive


def test_random_bytes_never_hang_nor_reach_the_caller(connection: PlayerConnection) -> None:
    """Mutated calls, each over a socket of its own: an answer, a status or the end of the connection."""
    generator = random.Random(0)
    for _ in range(60):
        stranger = RawClient(connection.port)
        data = bytearray(PREFACE + frame(SETTINGS, 0, 0) + stranger.call(1, MESSAGE[:50]))
        for _ in range(generator.randrange(1, 6)):
            data[generator.randrange(len(data))] = generator.randrange(256)
        stranger.socket.sendall(bytes(data[: generator.randrange(1, len(data) + 1)]))
        stranger.socket.shutdown(socket.SHUT_WR)
        with contextlib.suppress(EOFError, ConnectionError, PlayerError):
            while True:
                stranger.frame()
                if connection.poll(60):
                    connection.send(b"reply")
        stranger.socket.close()
        if connection._exchange.transport is not None:  # this call was whole: its client became the player
            connection._exchange.transport.close()
            connection._exchange.transport = None

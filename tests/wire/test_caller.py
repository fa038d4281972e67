"""The client side of the wire, which the embedded player uses, with servers of raw bytes, of grpcio and of ours."""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from hpack import Encoder

from stand_ins.raw_frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PADDED,
    PING,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    WITH_PRIORITY,
    frame,
    prefixed,
)
from unity_gym.connection import PlayerConnection
from unity_gym.wire import caller as caller_module
from unity_gym.wire.caller import Caller, CallError

LARGE = random.Random(0).randbytes(3_000_000)


def block(*fields: tuple[str, str]) -> bytes:
    return Encoder().encode([(":status", "200"), ("content-type", "application/grpc"), *fields])


TRAILERS = Encoder().encode([("grpc-status", "0")])


def answer(message: bytes) -> bytes:
    """A whole answer to the first call."""
    return (
        frame(HEADERS, END_HEADERS, 1, block())
        + frame(DATA, 0, 1, prefixed(message))
        + frame(HEADERS, END_HEADERS | END_STREAM, 1, TRAILERS)
    )


def connected(port: int) -> Caller:
    caller = Caller(port)
    caller.connect(5)
    return caller


@pytest.fixture
def grpc_server() -> Iterator[Callable[..., Caller]]:
    """Start a server of grpcio whose method is a function, and return a caller that is connected to it."""
    with contextlib.ExitStack() as stack:

        def start(method: Callable[[bytes, grpc.ServicerContext], bytes], *options: tuple[str, int]) -> Caller:
            unlimited = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
            server = grpc.server(ThreadPoolExecutor(1), options=[*unlimited, *options])
            handler = grpc.unary_unary_rpc_method_handler(method)
            service = grpc.method_handlers_generic_handler(
                "communicator_objects.UnityToExternalProto", {"Exchange": handler}
            )
            server.add_generic_rpc_handlers((service,))
            port = server.add_insecure_port("localhost:0")
            server.start()
            stack.callback(lambda: server.stop(None).wait())
            caller = connected(port)
            stack.callback(caller.close)
            return caller

        yield start


class RawServer:
    """Server that sends the bytes of a test as soon as the first call has arrived."""

    def __init__(self, reply: bytes, piece: int = 1 << 16) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.received = b""
        self._pieces = [reply[start : start + piece] for start in range(0, len(reply), piece)]
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        client, _ = self.listener.accept()
        with client, contextlib.suppress(OSError):
            client.settimeout(5)
            while b"application/grpc" not in self.received:
                self.received += client.recv(1 << 16)
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for piece in self._pieces:
                client.sendall(piece)
            client.shutdown(socket.SHUT_WR)
            while data := client.recv(1 << 16):
                self.received += data

    def join(self) -> None:
        self._thread.join(10)
        self.listener.close()


def answered(reply: bytes, piece: int = 1 << 16) -> tuple[bytes, bytes]:
    """The answer to a call of a server that sends these bytes piece by piece, and the bytes that it received."""
    server = RawServer(reply, piece)
    caller = connected(server.port)
    try:
        message = caller.call(b"request", 5)
        assert caller._socket is not None
        caller._socket.shutdown(socket.SHUT_WR)
        # a close with unread bytes resets the connection, and the server may lose what it was sent
        while caller._socket.recv(1 << 16):
            continue
    finally:
        caller.close()
        server.join()
    return message, server.received


def test_small_and_large_messages_pass_grpcio_both_ways(grpc_server) -> None:
    caller = grpc_server(lambda request, _: request[::-1])
    for message in (b"", b"a", bytes(range(256)) * 100, LARGE, b"after"):
        for _ in range(3):
            assert caller.call(message, 30) == message[::-1]


def test_large_messages_wait_for_the_windows_of_the_server(grpc_server) -> None:
    options = [("grpc.http2.lookahead_bytes", 1024), ("grpc.http2.bdp_probe", 0)]
    caller = grpc_server(lambda request, _: request[:10] + request[-10:], *options)
    for _ in range(3):
        assert caller.call(LARGE, 30) == LARGE[:10] + LARGE[-10:]


def test_the_window_of_the_client_is_renewed(grpc_server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caller_module, "WINDOW_STEP", 30_000)
    settings = struct.pack(">HIHI", 1, 0, 4, 2**31 - 1)  # no header table, large windows of streams
    monkeypatch.setattr(caller_module, "_GREETING", PREFACE + frame(SETTINGS, 0, 0, settings))
    caller = grpc_server(lambda *_: LARGE)  # of whose connection window 65,535 bytes are left
    for _ in range(2):
        assert caller.call(b"request", 30) == LARGE


def test_messages_pass_our_own_server(connection: PlayerConnection) -> None:
    caller = connected(connection.port)
    with ThreadPoolExecutor(1) as executor:
        for message in (b"", b"small", LARGE):
            running = executor.submit(caller.call, message, 30)
            assert connection.receive(10) == message
            connection.send(message[::-1])
            assert running.result(10) == message[::-1]
        running = executor.submit(caller.call, b"request", 30)
        connection.receive(10)
        connection.close()
        with pytest.raises(CallError, match=r"closed|shutting down|status"):
            running.result(10)
    caller.close()


def test_an_error_of_the_server_names_status_and_reason(grpc_server) -> None:
    def reject(_: bytes, context: grpc.ServicerContext) -> bytes:
        context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "Another player is connected.")

    with pytest.raises(CallError, match=r"status 8 of gRPC: Another player is connected\."):
        grpc_server(reject).call(b"request", 5)


def test_a_message_with_the_status_of_an_error_raises_also_after_successful_calls(grpc_server) -> None:
    def answer_or_fail(message: bytes, context: grpc.ServicerContext) -> bytes:
        if message == b"fail":
            context.set_code(grpc.StatusCode.INTERNAL)
            context.set_details("It failed.")
        return message

    caller = grpc_server(answer_or_fail)
    for message in (b"first", b"second"):
        assert caller.call(message, 5) == message
    with pytest.raises(CallError, match=r"status 13 of gRPC: It failed\."):
        caller.call(b"fail", 5)


@pytest.mark.parametrize("piece", [1, 7, 1000])
def test_frames_in_other_forms_are_read(piece: int) -> None:
    """Padding, priority, continuations, pings, settings, unknown frames, and frames of other streams."""
    first, rest = block()[:3], block()[3:]
    data = prefixed(b"reply")
    reply = (
        frame(SETTINGS, 0, 0, struct.pack(">HI", 5, 1 << 20))
        + frame(SETTINGS, ACK, 0)
        + frame(PING, 0, 0, b"12345678")
        + frame(HEADERS, PADDED | WITH_PRIORITY, 1, b"\x02" + bytes(5) + first + bytes(2))
        + frame(CONTINUATION, END_HEADERS, 1, rest)
        + frame(77, 0, 0, b"unknown")
        + frame(DATA, PADDED, 1, b"\x03" + data[:4] + bytes(3))
        + frame(DATA, 0, 3, b"another stream")
        + frame(WINDOW_UPDATE, 0, 1, struct.pack(">I", 5))
        + frame(DATA, 0, 1, data[4:])
        + frame(HEADERS, END_STREAM, 1)
        + frame(CONTINUATION, END_HEADERS, 1, TRAILERS)
        + frame(RST_STREAM, 0, 1, bytes(4))
    )
    message, received = answered(reply, piece)
    assert message == b"reply"
    assert frame(PING, ACK, 0, b"12345678") in received
    assert received.count(frame(SETTINGS, ACK, 0)) == 1
    assert received.startswith(PREFACE)


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (b"", "has closed the connection"),
        (answer(b"reply")[:-1], "has closed the connection"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "not HTTP/2 as agreed"),
        (frame(RST_STREAM, 0, 1, struct.pack(">I", 7)), "has reset the call (error 7 of HTTP/2)"),
        (frame(RST_STREAM, 0, 1, b"1"), "a frame of 1 bytes that must have 4"),
        (frame(GOAWAY, 0, 0, bytes(8)), "shutting down"),
        (
            frame(HEADERS, END_HEADERS, 1, block()) + frame(DATA, END_STREAM, 1, prefixed(b"reply", compressed=1)),
            "compressed or incomplete",
        ),
        (
            frame(HEADERS, END_HEADERS, 1, block()) + frame(DATA, END_STREAM, 1, prefixed(b"reply")[:-1]),
            "compressed or incomplete",
        ),
        (frame(HEADERS, END_HEADERS | END_STREAM, 1, block(("grpc-status", "12"))), "status 12 of gRPC"),
        (frame(HEADERS, END_HEADERS | END_STREAM, 1, b"\xff\xff\xff"), "status unknown of gRPC"),
        (frame(HEADERS, END_HEADERS | END_STREAM, 1, block(("grpc-status", "0"))), "without a message"),
    ],
)
def test_a_server_that_does_not_answer_raises_with_a_reason(reply: bytes, reason: str) -> None:
    with pytest.raises(CallError) as raised:
        answered(reply)
    assert reason in str(raised.value)


def test_a_server_that_shuts_down_answers_the_running_call_alone() -> None:
    server = RawServer(frame(GOAWAY, 0, 0, struct.pack(">II", 1, 0)) + answer(b"last"))
    caller = connected(server.port)
    assert caller.call(b"request", 5) == b"last"
    with pytest.raises(CallError, match="shutting down"):
        caller.call(b"request", 5)
    caller.close()
    server.join()


def test_a_request_waits_for_the_window_of_the_connection() -> None:
    server = RawServer(frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 1 << 20)))  # that of its stream is wide
    caller = connected(server.port)
    with pytest.raises(CallError, match="has closed the connection"):
        caller.call(bytes(200_000), 5)
    caller.close()
    server.join()
    assert 65_535 < len(server.received) < 66_000


def test_random_answers_never_hang() -> None:
    generator = random.Random(0)
    whole = frame(SETTINGS, 0, 0) + answer(b"reply" * 10)
    for _ in range(40):
        data = bytearray(whole)
        for _ in range(generator.randrange(1, 6)):
            data[generator.randrange(len(data))] = generator.randrange(256)
        with contextlib.suppress(CallError):
            answered(bytes(data[: generator.randrange(1, len(data) + 1)]))


def test_a_caller_waits_for_a_server_that_starts_late() -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with ThreadPoolExecutor(1) as executor:
        caller = Caller(port)
        running = executor.submit(caller.connect, 10)
        time.sleep(0.2)
        with socket.create_server(("127.0.0.1", port)):
            running.result(10)
    caller.close()


def test_a_server_that_does_not_listen_or_falls_silent_raises() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        caller = connected(port)
        with pytest.raises(CallError, match="does not answer"):
            caller.call(b"request", 0.2)
        caller.close()
    with pytest.raises(CallError, match=r"no connection within 0\.2 s"):
        Caller(port).connect(0.2)

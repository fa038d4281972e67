"""Client side of one HTTP/2 connection that carries the unary gRPC method `Exchange`, for a player.

The caller's own thread reads and writes the socket, so that no message changes threads. The server is asked to compress
headers without a table (HPACK), so that each header block has its meaning alone: one that is equal to the last of a
successful call needs no decoding.
"""

from __future__ import annotations

import socket
import time

from hpack import Decoder, HPACKError

from unity_gym.wire.frames import (
    ACK,
    CHUNK,
    CONTINUATION,
    DATA,
    DEFAULT_FRAME,
    DEFAULT_WINDOW,
    ENABLE_PUSH,
    END_HEADERS,
    END_STREAM,
    FRAME_HEADER,
    GOAWAY,
    HEADER_TABLE_SIZE,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    MAX_FRAME_SIZE,
    MAX_STREAM,
    MAX_WINDOW,
    NUMBER,
    PADDED,
    PATH,
    PING,
    PREFACE,
    PREFIX,
    PRIORITY,
    RST_STREAM,
    SETTING,
    SETTINGS,
    WINDOW_STEP,
    WINDOW_UPDATE,
    frame,
    literal,
)

_SETTINGS = ((HEADER_TABLE_SIZE, 0), (ENABLE_PUSH, 0), (INITIAL_WINDOW_SIZE, MAX_WINDOW))
_GREETING = (
    PREFACE
    + frame(SETTINGS, 0, 0, b"".join(SETTING.pack(*setting) for setting in _SETTINGS))
    + frame(WINDOW_UPDATE, 0, 0, NUMBER.pack(MAX_WINDOW - DEFAULT_WINDOW))
)
_HEADERS = (
    b"\x83\x86"  # ":method: POST" and ":scheme: http" of the static table
    + literal(b":path", PATH)
    + literal(b":authority", b"localhost")
    + literal(b"content-type", b"application/grpc")
    + literal(b"te", b"trailers")
)
_RETRY = 0.02  # seconds between attempts to connect


class CallError(Exception):
    """Call that the server has not answered; the connection is of no further use."""


class Caller:
    """Connection to a server that answers `Exchange`, one call at a time.

    :param port: Port of this machine on which the server listens.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._socket: socket.socket | None = None
        self._pending = b""  # start of an incomplete frame
        self._is_shutting_down = False  # the server accepts no further calls
        self._received = 0  # bytes of data since the server was last allowed to send more
        # what the server can receive
        self._window = self._initial_window = DEFAULT_WINDOW
        self._max_frame = DEFAULT_FRAME
        # the call
        self._stream = -1
        self._stream_window = 0
        self._reply: list[bytes] = []
        self._headers = b""  # the last header block
        self._headers_of_success = b""  # that of a call with status 0
        self._headers_end_stream = self._is_complete = False

    def connect(self, seconds: float) -> None:
        """Wait until the server listens, and connect.

        :raises CallError: If it does not listen within this time.
        """
        deadline = time.monotonic() + seconds
        while self._socket is None:
            try:
                self._socket = _connected(self._port, max(deadline - time.monotonic(), _RETRY))
            except OSError as error:
                if time.monotonic() + _RETRY > deadline:
                    raise CallError(f"no connection within {seconds:g} s ({error})") from error
                time.sleep(_RETRY)
        self._send(_GREETING)

    def call(self, request: bytes, seconds: float | None = None) -> bytes:
        """Return the answer to a request, after `connect`.

        :param request: Message.
        :param seconds: Longest time without any byte from the server; None: no limit.
        :raises CallError: If the server does not answer.
        """
        assert self._socket is not None
        if self._is_shutting_down:
            raise CallError("the server is shutting down")
        self._socket.settimeout(seconds)
        self._stream += 2
        self._stream_window = self._initial_window
        self._reply, self._headers, self._is_complete = [], b"", False
        self._send_request(PREFIX.pack(0, len(request)) + request)
        while not self._is_complete:
            self._receive()
        return self._message()

    def close(self) -> None:
        """Close the connection, if there is one."""
        if self._socket is not None:
            self._socket.close()

    def _send_request(self, data: bytes) -> None:
        """Send headers and data, as the server's windows admit."""
        parts = [frame(HEADERS, END_HEADERS, self._stream, _HEADERS)]
        start = 0
        while start < len(data) and not self._is_complete:
            size = min(len(data) - start, self._window, self._stream_window, self._max_frame)
            if size <= 0:
                self._send(b"".join(parts))
                parts = []
                self._receive()
                continue
            is_last = start + size == len(data)
            parts += (
                FRAME_HEADER.pack(size >> 8, size & 0xFF, DATA, END_STREAM if is_last else 0, self._stream),
                data[start : start + size],
            )
            start += size
            self._window -= size
            self._stream_window -= size
        self._send(b"".join(parts))

    def _send(self, data: bytes) -> None:
        assert self._socket is not None
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise CallError(f"the server cannot be reached ({error})") from error

    def _receive(self) -> None:
        """Wait for bytes, and process all frames that are complete.

        :raises CallError: If the server closes the connection or violates HTTP/2.
        """
        assert self._socket is not None
        try:
            received = self._socket.recv(CHUNK)
        except OSError as error:
            raise CallError(f"the server does not answer ({error})") from error
        if not received:
            raise CallError("the server has closed the connection")
        data = self._pending + received if self._pending else received
        position, end = 0, len(data)
        while end - position >= FRAME_HEADER.size:
            high, low, kind, flags, stream = FRAME_HEADER.unpack_from(data, position)
            start, length = position + FRAME_HEADER.size, high << 8 | low
            if length > DEFAULT_FRAME:
                raise CallError(f"the server sends a frame of {length} bytes, which is not HTTP/2 as agreed")
            if start + length > end:
                break
            position = start + length
            self._handle(kind, flags, stream & MAX_STREAM, data[start:position])
        self._pending = data[position:]

    def _handle(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        """Process a complete frame."""
        is_of_call = stream == self._stream
        if kind == DATA:
            self._received += len(payload)
            if self._received >= WINDOW_STEP:
                self._send(frame(WINDOW_UPDATE, 0, 0, NUMBER.pack(self._received)))
                self._received = 0
            if is_of_call:
                self._reply.append(_content(flags & PADDED, payload))
                self._is_complete |= bool(flags & END_STREAM)
        elif kind in (HEADERS, CONTINUATION):
            if is_of_call:
                if kind == HEADERS:
                    self._headers, self._headers_end_stream = _content(flags, payload), bool(flags & END_STREAM)
                else:
                    self._headers += payload
                self._is_complete |= self._headers_end_stream and bool(flags & END_HEADERS)
        elif kind == SETTINGS:
            if not flags & ACK:
                self._apply_settings(payload)
        elif kind == PING:
            if not flags & ACK:
                self._send(frame(PING, ACK, 0, payload))
        elif kind == WINDOW_UPDATE:
            credit = _number(payload) & MAX_WINDOW
            if not stream:
                self._window += credit
            elif is_of_call:
                self._stream_window += credit
        elif kind == RST_STREAM:
            if is_of_call and not self._is_complete:
                raise CallError(f"the server has reset the call (error {_number(payload)} of HTTP/2)")
        elif kind == GOAWAY:
            self._is_shutting_down = True
            if _number(payload) & MAX_STREAM < self._stream and not self._is_complete:
                raise CallError("the server is shutting down")
        # other frames need no answer

    def _apply_settings(self, payload: bytes) -> None:
        for identifier, value in SETTING.iter_unpack(payload[: len(payload) // SETTING.size * SETTING.size]):
            if identifier == INITIAL_WINDOW_SIZE:
                self._stream_window += value - self._initial_window
                self._initial_window = value
            elif identifier == MAX_FRAME_SIZE:
                self._max_frame = max(value, DEFAULT_FRAME)
        self._send(frame(SETTINGS, ACK, 0))

    def _message(self) -> bytes:
        """Return the message of a complete answer."""
        data = self._reply[0] if len(self._reply) == 1 else b"".join(self._reply)
        if len(data) >= PREFIX.size:
            compressed, length = PREFIX.unpack_from(data)
            if compressed or length != len(data) - PREFIX.size:
                raise CallError("the server's answer is compressed or incomplete")
        if self._headers != self._headers_of_success:
            self._check_status()
            self._headers_of_success = self._headers
        if len(data) < PREFIX.size:
            raise CallError("the server has answered without a message")
        return data[PREFIX.size :]

    def _check_status(self) -> None:
        """Raise a `CallError` if the last headers have another status than success."""
        try:
            headers = dict(Decoder().decode(self._headers, raw=True))
        except HPACKError:
            headers = {}
        status, text = (headers.get(name, b"").decode(errors="replace") for name in (b"grpc-status", b"grpc-message"))
        if status != "0":
            raise CallError(f"the server has answered with status {status or 'unknown'} of gRPC{text and ': '}{text}")


def _connected(port: int, seconds: float) -> socket.socket:
    """Return a socket that is connected to a port of this machine.

    :raises OSError: If nothing listens there, or the connection takes longer.
    """
    connected = socket.create_connection(("localhost", port), seconds)
    if connected.getsockname() == connected.getpeername():
        connected.close()
        raise ConnectionRefusedError("TCP has connected the port with itself")
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connected


def _content(flags: int, payload: bytes) -> bytes:
    """Return the content of a frame with data or headers, without padding and priority."""
    start, end = 0, len(payload)
    if flags & PADDED and payload:
        start, end = 1, end - payload[0]
    if flags & PRIORITY:
        start += 5
    return payload[start:end] if (start, end) != (0, len(payload)) else payload


def _number(payload: bytes) -> int:
    """Return the number with which a frame starts.

    :raises CallError: If the frame is shorter.
    """
    if len(payload) < NUMBER.size:
        raise CallError(f"the server sends a frame of {len(payload)} bytes that must have {NUMBER.size}")
    number: int = NUMBER.unpack_from(payload)[0]
    return number

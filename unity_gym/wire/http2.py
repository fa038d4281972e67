"""Server side of one HTTP/2 connection that carries the unary gRPC method `Exchange`, one call at a time.

`unity_gym.wire.frames` names the references, `unity_gym.wire.caller` is the client side.

The caller's own thread reads and writes the socket, so that no message changes threads. An exception may interrupt that
thread between any two instructions, such as the KeyboardInterrupt of Ctrl-C. Therefore:

- Bytes are received and sent by `list.extend(map(…))`, a single instruction that also stores the bytes or their number.
- Parsing changes a copy of the state, and one assignment replaces the state by the copy. After an interrupt the same
  bytes are parsed again, or the remaining bytes are sent.
"""

from __future__ import annotations

import contextlib
import copy
import select
import socket
import time
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from hpack import Decoder, HPACKError

from unity_gym.wire.frames import (
    ACK,
    CHUNK,
    CONTINUATION,
    DATA,
    DEFAULT_FRAME,
    DEFAULT_WINDOW,
    END_HEADERS,
    END_STREAM,
    FRAME_HEADER,
    GOAWAY,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    MAX_FRAME,
    MAX_FRAME_SIZE,
    MAX_HEADER_LIST_SIZE,
    MAX_STREAM,
    MAX_WINDOW,
    NUMBER,
    PADDED,
    PATH,
    PING,
    PREFACE,
    PREFIX,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    SETTING,
    SETTINGS,
    WINDOW_STEP,
    WINDOW_UPDATE,
    frame,
    literal,
)

RESOURCE_EXHAUSTED, PERMISSION_DENIED, UNIMPLEMENTED, INTERNAL, UNAVAILABLE = 8, 7, 12, 13, 14
"""Status codes of gRPC."""

_PROTOCOL_ERROR, _FLOW_CONTROL_ERROR, _FRAME_SIZE_ERROR, _COMPRESSION_ERROR, _ENHANCE_YOUR_CALM = 1, 3, 6, 9, 11

_MAX_CONTROL = 1 << 16  # bytes of a frame without data, and of the headers of a call
_DIRECT = 1 << 16  # bytes of a frame from which on they are received into the message itself
_FIRST_PIECE = 1 << 26  # bytes allocated for a message before its first bytes have arrived

_RESPONSE = b"\x88" + literal(b"content-type", b"application/grpc")  # 0x88: ":status: 200" of the static table
_SUCCESS = literal(b"grpc-status", b"0")
_GREETING = frame(
    SETTINGS,
    0,
    0,
    SETTING.pack(INITIAL_WINDOW_SIZE, MAX_WINDOW)
    + SETTING.pack(MAX_FRAME_SIZE, MAX_FRAME)
    + SETTING.pack(MAX_HEADER_LIST_SIZE, _MAX_CONTROL),
) + frame(WINDOW_UPDATE, 0, 0, NUMBER.pack(MAX_WINDOW - DEFAULT_WINDOW))


class Http2Error(Exception):
    """Violation of HTTP/2 by the client, which ends the connection.

    :param code: Error code of HTTP/2.
    """

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class Call(NamedTuple):
    """One call of the client.

    :param stream: Number of its stream.
    :param request: Message; None until it is complete.
    :param has_ended: Whether the client has cancelled it or disconnected.
    """

    stream: int
    request: bytes | bytearray | None = None
    has_ended: bool = False


class _State:
    """State of a connection. Only the first three lists change after it has become the state of a `Transport`."""

    def __init__(self) -> None:
        self.chunks: list[bytes] = []  # received and not parsed
        self.counts: list[int] = []  # number of bytes received into `body` and not parsed
        self.sent: list[int] = []  # numbers of bytes of `outgoing` that were sent
        self.outgoing = _GREETING
        self.pending = PREFACE[:0]  # start of an incomplete frame
        self.has_preface = False
        self.is_closed = False
        self.error: str | None = None  # the client's violation of HTTP/2
        # headers
        self.decoder = Decoder()
        self.last_block: tuple[bytes, dict[bytes, bytes]] | None = None  # headers that left the decoder unchanged
        self.header_stream = 0  # stream of a header block that is incomplete
        self.header_flags = 0
        self.header_block = b""
        # the frame with data whose payload is being received
        self.frame_stream = 0
        self.frame_left = 0
        self.frame_padding = 0
        self.frame_ends_stream = False
        # the call
        self.last_stream = 0
        self.call: Call | None = None
        self.call_stream = 0  # of the last call, also while its answer is sent
        self.prefix = b""
        self.body: bytes | bytearray = b""  # message, or the first part of it
        self.body_size = 0  # number of bytes of it that were received
        self.body_length = 0
        self.received = 0  # bytes of data since the client was last allowed to send more, on the connection
        self.stream_received = 0
        # what the client can receive
        self.window = DEFAULT_WINDOW
        self.initial_window = DEFAULT_WINDOW
        self.stream_credit = 0  # of the last call's stream, in addition to `initial_window`
        self.max_frame = DEFAULT_FRAME
        self.reply = b""  # part of the answer that the client's windows did not admit yet
        self.is_reply_lost = False

    def successor(self) -> _State:
        """Return a copy without the bytes that have been received or sent."""
        state = object.__new__(_State)
        state.__dict__.update(self.__dict__)
        state.chunks, state.counts, state.sent = [], [], []
        if self.outgoing:
            state.outgoing = self.outgoing[sum(self.sent) :]
        return state

    @property
    def unsent(self) -> int:
        """Number of bytes that wait to be sent now."""
        return len(self.outgoing) - sum(self.sent)

    # --- received bytes

    def advance(self, chunks: Sequence[bytes], counts: Sequence[int]) -> None:
        """Process received bytes.

        :raises Http2Error: If they violate HTTP/2.
        """
        if counts:
            (count,) = counts
            if not count:
                self.close()
                return
            self.body_size += count
            self.frame_left -= count
            self._pass_frame_end()
            return
        for chunk in chunks:
            if not chunk:
                self.close()
                return
            self._parse(self.pending + chunk if self.pending else chunk)

    def close(self) -> None:
        """Record that the client has disconnected."""
        self.is_closed = True
        self.is_reply_lost |= bool(self.reply) or bool(self.outgoing)
        self.outgoing = self.reply = b""
        if self.call is not None:
            self.call = self.call._replace(has_ended=True)

    def _parse(self, data: bytes) -> None:
        position, end = 0, len(data)
        if not self.has_preface:
            start = data[: len(PREFACE)]
            if not PREFACE.startswith(start):
                raise Http2Error(_PROTOCOL_ERROR, f"it starts with {start!r}, which is not HTTP/2 without encryption")
            self.pending = data
            if len(start) < len(PREFACE):
                return
            self.has_preface = True
            position = len(PREFACE)
        while True:
            if self.frame_left or self.frame_padding:
                stop = min(position + self.frame_left, end)
                if self.call is not None and self.frame_stream == self.call.stream:
                    self._add_data(data, position, stop)
                self.frame_left -= stop - position
                position = stop
                if self.frame_left:
                    break
                stop = min(position + self.frame_padding, end)
                self.frame_padding -= stop - position
                position = stop
                if self.frame_padding:
                    break
                self._pass_frame_end()
            if end - position < FRAME_HEADER.size:
                break
            high, low, kind, flags, stream = FRAME_HEADER.unpack_from(data, position)
            length, stream = high << 8 | low, stream & MAX_STREAM
            start_of_payload = position + FRAME_HEADER.size
            if self.header_stream and (kind != CONTINUATION or stream != self.header_stream):
                raise Http2Error(_PROTOCOL_ERROR, "a header block is interrupted by another frame")
            if kind == DATA:
                padded = flags & PADDED
                if padded and end == start_of_payload:
                    break
                self._start_data(stream, flags, length, data[start_of_payload] if padded else -1)
                position = start_of_payload + (1 if padded else 0)
                if not (self.frame_left or self.frame_padding):
                    self._pass_frame_end()
                continue
            if length > _MAX_CONTROL:
                raise Http2Error(_FRAME_SIZE_ERROR, f"a frame of type {kind} has {length} bytes")
            if end - start_of_payload < length:
                break
            position = start_of_payload + length
            self._handle(kind, flags, stream, data[start_of_payload:position])
        self.pending = data[position:]

    def _handle(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        """Process a complete frame without data."""
        if kind in (SETTINGS, PING, GOAWAY) and stream:
            raise Http2Error(_PROTOCOL_ERROR, f"a frame of type {kind} belongs to stream {stream}")
        if kind in (HEADERS, RST_STREAM, CONTINUATION) and not stream % 2:
            raise Http2Error(_PROTOCOL_ERROR, f"a frame of type {kind} belongs to stream {stream}")
        if kind == HEADERS:
            self._start_headers(flags, stream, payload)
        elif kind == CONTINUATION:
            if not self.header_stream:
                raise Http2Error(_PROTOCOL_ERROR, "a header block continues that has not started")
            self._add_headers(flags, payload)
        elif kind == WINDOW_UPDATE:
            self._widen(stream, payload)
        elif kind == PING:
            if len(payload) != 8:
                raise Http2Error(_FRAME_SIZE_ERROR, f"a PING frame has {len(payload)} bytes")
            if not flags & ACK:
                self.outgoing += frame(PING, ACK, 0, payload)
        elif kind == SETTINGS:
            self._apply_settings(flags, payload)
        elif kind == RST_STREAM:
            if len(payload) != 4:
                raise Http2Error(_FRAME_SIZE_ERROR, f"an RST_STREAM frame has {len(payload)} bytes")
            if stream > self.last_stream:
                raise Http2Error(_PROTOCOL_ERROR, f"stream {stream} is reset before its start")
            if self.call is not None and stream == self.call.stream:
                self.call = self.call._replace(has_ended=True)
            elif self.reply and stream == self.call_stream:
                self.reply, self.is_reply_lost = b"", True
        elif kind == PUSH_PROMISE:
            raise Http2Error(_PROTOCOL_ERROR, "a client cannot push")
        # GOAWAY, PRIORITY and unknown frames need no answer

    def _apply_settings(self, flags: int, payload: bytes) -> None:
        if len(payload) % SETTING.size or (flags & ACK and payload):
            raise Http2Error(_FRAME_SIZE_ERROR, f"a SETTINGS frame has {len(payload)} bytes")
        if flags & ACK:
            return
        for identifier, value in SETTING.iter_unpack(payload):
            if identifier == INITIAL_WINDOW_SIZE:
                if value > MAX_WINDOW:
                    raise Http2Error(_FLOW_CONTROL_ERROR, f"its windows have {value} bytes")
                self.initial_window = value
            elif identifier == MAX_FRAME_SIZE:
                if not DEFAULT_FRAME <= value <= MAX_FRAME:
                    raise Http2Error(_PROTOCOL_ERROR, f"its frames have up to {value} bytes")
                self.max_frame = value
        self.outgoing += frame(SETTINGS, ACK, 0)
        self.pump()

    def _widen(self, stream: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise Http2Error(_FRAME_SIZE_ERROR, f"a WINDOW_UPDATE frame has {len(payload)} bytes")
        credit = NUMBER.unpack(payload)[0] & MAX_WINDOW
        if not credit:
            raise Http2Error(_PROTOCOL_ERROR, "a window is widened by 0 bytes")
        if not stream:
            self.window += credit
        elif stream == self.call_stream:
            self.stream_credit += credit
        if max(self.window, self.initial_window + self.stream_credit) > MAX_WINDOW:
            raise Http2Error(_FLOW_CONTROL_ERROR, "a window exceeds 2**31 - 1 bytes")
        self.pump()

    # --- a call

    def _start_headers(self, flags: int, stream: int, payload: bytes) -> None:
        start, end = 0, len(payload)
        if flags & PADDED:
            if not payload:
                raise Http2Error(_FRAME_SIZE_ERROR, "a padded HEADERS frame is empty")
            start, end = 1, end - payload[0]
        if flags & PRIORITY:
            start += 5
        if start > end:
            raise Http2Error(_PROTOCOL_ERROR, "the padding of a HEADERS frame exceeds its size")
        self.header_stream, self.header_flags, self.header_block = stream, flags, b""
        self._add_headers(flags, payload[start:end])

    def _add_headers(self, flags: int, part: bytes) -> None:
        self.header_block += part
        if len(self.header_block) > _MAX_CONTROL:
            raise Http2Error(_ENHANCE_YOUR_CALM, f"the headers of a call exceed {_MAX_CONTROL} bytes")
        if not flags & END_HEADERS:
            return
        stream, ends_stream = self.header_stream, bool(self.header_flags & END_STREAM)
        self.header_stream = 0
        headers = self._decode(self.header_block)
        if stream > self.last_stream:
            self._start_call(stream, headers, ends_stream)
        elif self.call is not None and stream == self.call.stream:  # trailers
            if not ends_stream:
                raise Http2Error(_PROTOCOL_ERROR, "a second header block does not end its stream")
            self._complete()

    def _decode(self, block: bytes) -> dict[bytes, bytes]:
        """Decode a header block. The second call on has the same block, whose fields are all in the table."""
        if self.last_block is not None and self.last_block[0] == block:
            return self.last_block[1]
        decoder = copy.deepcopy(self.decoder)  # another state may still need the table as it is
        try:
            headers = dict(decoder.decode(block, raw=True))
        except HPACKError as error:
            raise Http2Error(_COMPRESSION_ERROR, f"its headers cannot be decoded: {error}") from error
        before, after = self.decoder.header_table, decoder.header_table
        is_unchanged = before.dynamic_entries == after.dynamic_entries and before.maxsize == after.maxsize
        self.decoder = decoder
        self.last_block = (block, headers) if is_unchanged else None
        return headers

    def _start_call(self, stream: int, headers: dict[bytes, bytes], ends_stream: bool) -> None:
        self.last_stream = stream
        problem = None
        if self.call is not None or self.reply:
            problem = (
                RESOURCE_EXHAUSTED,
                "Another player is connected to this port already. Start each player with a port of its own.",
            )
        elif headers.get(b":method") != b"POST" or not headers.get(b"content-type", b"").startswith(
            b"application/grpc"
        ):
            problem = UNIMPLEMENTED, "This port serves gRPC only."
        elif headers.get(b":path") != PATH:
            problem = UNIMPLEMENTED, f"This port has no other method than {PATH.decode()}."
        elif ends_stream:
            problem = INTERNAL, "The call has no message."
        if problem is not None:
            self.reject(stream, *problem)
            return
        self.call, self.call_stream = Call(stream), stream
        self.prefix = self.body = b""
        self.body_size = self.body_length = self.stream_received = self.stream_credit = 0
        self.is_reply_lost = False

    def _start_data(self, stream: int, flags: int, length: int, padding: int) -> None:
        """Start a frame with data.

        :param padding: Number of padding bytes; -1 if there is not even the number.
        """
        if not stream % 2 or stream > self.last_stream:
            raise Http2Error(_PROTOCOL_ERROR, f"data belong to stream {stream}, which has not started")
        self.frame_stream, self.frame_ends_stream = stream, bool(flags & END_STREAM)
        self.frame_padding = max(padding, 0)
        self.frame_left = length - 1 - padding
        if self.frame_left < 0:
            raise Http2Error(_PROTOCOL_ERROR, "the padding of a DATA frame exceeds its size")
        self.received += length
        if self.received >= WINDOW_STEP:
            self.outgoing += frame(WINDOW_UPDATE, 0, 0, NUMBER.pack(self.received))
            self.received = 0
        if self.call is not None and stream == self.call.stream:
            self.stream_received += length
            if self.stream_received >= WINDOW_STEP:
                self.outgoing += frame(WINDOW_UPDATE, 0, stream, NUMBER.pack(self.stream_received))
                self.stream_received = 0

    def _add_data(self, data: bytes, start: int, stop: int) -> None:
        """Add a part of the message that consists of its prefix and its bytes."""
        assert self.call is not None
        missing = PREFIX.size - len(self.prefix)
        if missing:
            self.prefix += data[start : min(start + missing, stop)]
            start += missing
            if len(self.prefix) < PREFIX.size:
                return
            compressed, self.body_length = PREFIX.unpack(self.prefix)
            if compressed:
                self._drop(UNIMPLEMENTED, "This port reads no compressed messages. Send them without compression.")
                return
            if stop - start == self.body_length:  # all of it, as small messages come
                self.body, self.body_size = data[start:stop], self.body_length
                return
            self.body = bytearray(min(self.body_length, _FIRST_PIECE))
        if stop <= start:
            return
        if self.body_size + stop - start > self.body_length:
            self._drop(INTERNAL, "The call has more than one message.")
            return
        self.reserve(stop - start)
        assert isinstance(self.body, bytearray)
        self.body[self.body_size : self.body_size + stop - start] = memoryview(data)[start:stop]
        self.body_size += stop - start

    def reserve(self, count: int) -> None:
        """Make room for bytes of the message, whose length is the client's claim until they have arrived."""
        if self.body_size + count > len(self.body):
            larger = bytearray(min(self.body_length, max(2 * len(self.body), self.body_size + count)))
            larger[: self.body_size] = memoryview(self.body)[: self.body_size]
            self.body = larger

    def _pass_frame_end(self) -> None:
        if not self.frame_left and not self.frame_padding and self.frame_ends_stream:
            self.frame_ends_stream = False
            if self.call is not None and self.frame_stream == self.call.stream:
                self._complete()

    def _complete(self) -> None:
        assert self.call is not None
        if len(self.prefix) < PREFIX.size or self.body_size < self.body_length:
            self._drop(INTERNAL, "The message of the call is cut off.")
        else:
            self.call = self.call._replace(request=self.body)
            self.body = b""

    def _drop(self, status: int, text: str) -> None:
        assert self.call is not None
        stream, self.call = self.call.stream, None
        self.body = b""
        self.reject(stream, status, text)

    # --- replies

    def reject(self, stream: int, status: int, text: str) -> None:
        """Answer a call with an error status."""
        trailers = _RESPONSE + literal(b"grpc-status", b"%d" % status) + literal(b"grpc-message", text.encode())
        self.outgoing += frame(HEADERS, END_HEADERS | END_STREAM, stream, trailers)
        self.outgoing += frame(RST_STREAM, 0, stream, bytes(4))  # no error: the rest of the call is not needed

    def answer(self, reply: bytes) -> None:
        """Answer the call."""
        assert self.call is not None
        call, self.call = self.call, None
        if call.has_ended:
            self.is_reply_lost = True
            return
        self.outgoing += frame(HEADERS, END_HEADERS, call.stream, _RESPONSE)
        self.reply = PREFIX.pack(0, len(reply)) + reply
        self.pump()

    def pump(self) -> None:
        """Move as much of the reply to the outgoing bytes as the client's windows admit."""
        reply, stream = self.reply, self.call_stream
        if not reply:
            return
        room = min(self.window, self.initial_window + self.stream_credit, len(reply))
        if room <= 0:
            return
        self.window -= room
        self.stream_credit -= room
        parts = [self.outgoing]
        for start in range(0, room, self.max_frame):
            part = reply[start : min(start + self.max_frame, room)]
            parts += (FRAME_HEADER.pack(len(part) >> 8, len(part) & 0xFF, DATA, 0, stream), part)
        self.reply = reply[room:]
        if not self.reply:
            parts.append(frame(HEADERS, END_HEADERS | END_STREAM, stream, _SUCCESS))
        self.outgoing = b"".join(parts)


class Transport:
    """A client's connection.

    The methods must not run in two threads at once. An exception that interrupts one leaves a state from which the
    next call continues.

    :param sock: Connected socket; its timeout bounds the time that `read` and `flush` wait.
    """

    def __init__(self, sock: socket.socket) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket = sock
        self._receive, self._receive_into, self._send = sock.recv, sock.recv_into, sock.send
        self._state = _State()

    @property
    def call(self) -> Call | None:
        """The call that waits for an answer."""
        return self._state.call

    @property
    def is_closed(self) -> bool:
        """Whether the client has disconnected."""
        return self._state.is_closed

    @property
    def is_reply_lost(self) -> bool:
        """Whether the client cancelled the last call or disconnected before it was sent the whole answer."""
        return self._state.is_reply_lost

    @property
    def error(self) -> str | None:
        """The client's violation of HTTP/2, which ended the connection."""
        return self._state.error

    @property
    def is_sending(self) -> bool:
        """Whether bytes wait to be sent, or an answer for a window of the client."""
        return bool(self._state.reply) or self._state.unsent > 0

    @property
    def has_work(self) -> bool:
        """Whether `read` has something to do even if no further bytes arrive."""
        return bool(self._state.chunks or self._state.counts) or self.is_sending

    def read(self) -> None:
        """Send what waits to be sent, wait for bytes and process them.

        :raises TimeoutError: If none were sent or received within the socket's timeout.
        """
        state = self._state
        if state.outgoing and state.unsent:
            self.flush()
            state = self._state
        if state.is_closed:
            return
        if not (state.chunks or state.counts):
            try:
                left = state.frame_left
                if left >= _DIRECT and not state.pending and self._can_receive_directly(state):
                    self._receive_directly(state)
                else:
                    state.chunks.extend(map(self._receive, (CHUNK,)))
            except TimeoutError:
                raise
            except OSError:
                state.chunks.append(b"")
        successor = state.successor()
        try:
            successor.advance(state.chunks, state.counts)
        except Http2Error as error:
            successor.error = str(error)
            goaway = frame(GOAWAY, 0, 0, NUMBER.pack(successor.last_stream) + NUMBER.pack(error.code))
            with contextlib.suppress(OSError):
                self._send(goaway)
            successor.close()
        self._state = successor
        if successor.is_closed:
            with contextlib.suppress(OSError):
                self.socket.shutdown(socket.SHUT_RDWR)
        elif successor.outgoing:
            self.flush()

    @staticmethod
    def _can_receive_directly(state: _State) -> bool:
        return (
            state.call is not None
            and state.frame_stream == state.call.stream
            and len(state.prefix) == PREFIX.size
            and state.body_size + state.frame_left <= state.body_length
        )

    def _receive_directly(self, state: _State) -> None:
        if state.body_size == len(state.body):
            state.reserve(1)
        target = memoryview(state.body)[state.body_size : state.body_size + state.frame_left]
        state.counts.extend(map(self._receive_into, (target,)))

    def flush(self) -> None:
        """Send the bytes that wait to be sent.

        :raises TimeoutError: If none were sent within the socket's timeout.
        """
        state = self._state
        try:
            if not state.sent:
                state.sent.extend(map(self._send, (state.outgoing,)))
            while state.unsent:
                rest = memoryview(state.outgoing)[sum(state.sent) :]
                state.sent.extend(map(self._send, (rest,)))
        except TimeoutError:
            raise
        except OSError:
            closed = state.successor()
            closed.close()
            self._state = closed

    def answer(self, reply: bytes) -> None:
        """Answer the call, as far as the client's windows and the socket admit.

        :raises TimeoutError: If no bytes were sent within the socket's timeout; `read` and `flush` send the rest.
        """
        state = self._state.successor()
        state.answer(reply)
        self._state = state
        if state.outgoing:
            self.flush()

    def reject(self, status: int, text: str) -> None:
        """Answer the call with an error status of gRPC."""
        state = self._state.successor()
        call = state.call
        assert call is not None
        state.call = None
        if not call.has_ended:
            state.reject(call.stream, status, text)
        self._state = state
        if state.outgoing:
            self.flush()

    def close(self, patience: float = 0.0) -> None:
        """Close the connection.

        :param patience: Seconds in which the client may receive what is still being sent.
        """
        if self.socket.fileno() < 0:
            return
        deadline = time.monotonic() + patience
        with contextlib.suppress(OSError):
            while patience and self.is_sending and not self.is_closed and time.monotonic() < deadline:
                with contextlib.suppress(TimeoutError):
                    if self._state.unsent:
                        self.flush()
                    else:
                        self.read()
            if not (self.is_closed or self.is_sending):
                self._send(frame(GOAWAY, 0, 0, NUMBER.pack(self._state.last_stream) + bytes(4)))
            self.socket.shutdown(socket.SHUT_WR)
            # a socket that is closed with unread bytes discards what the client has not received yet
            while patience and not self.is_closed and (left := deadline - time.monotonic()) > 0:
                if wait([self.socket], left):
                    self.read()
        self.socket.close()


def wait(sockets: Iterable[socket.socket], seconds: float | None) -> list[socket.socket]:
    """Wait until a socket has bytes to read, a connection to accept, or is closed.

    :param seconds: Longest time to wait; None: no limit.
    :return: The sockets that are ready.
    """
    if hasattr(select, "poll"):
        poller = select.poll()  # without the limit of `select.select` on descriptors
        by_descriptor = {each.fileno(): each for each in sockets}
        for descriptor in by_descriptor:
            poller.register(descriptor, select.POLLIN)
        ready = poller.poll(None if seconds is None else max(seconds, 0.0) * 1000)
        return [by_descriptor[descriptor] for descriptor, _ in ready]
    return select.select(list(sockets), [], [], None if seconds is None else max(seconds, 0.0))[0]

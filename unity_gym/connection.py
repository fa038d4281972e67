"""Server that one Unity player connects to, and that passes on raw messages.

The player is a gRPC client and Python the server. The player calls one unary method with its message and waits; the
reply to that call is Python's next message. So at any time at most one call is open, and :class:`PlayerConnection`
converts the calls into a plain `receive`, `send`, `receive`, `send`.

The thread that calls these methods reads and writes the player's socket itself, see `unity_gym.wire.http2`: a message
that changes threads costs as much as the rest of a step. A second thread accepts clients, rejects those that are not
the player, and answers the player's transport (such as its pings) while the other one does something else.

An exception may interrupt the caller between any two instructions, such as the KeyboardInterrupt of Ctrl-C. So the
state of the exchange is not spread over variables of the caller.
"""

from __future__ import annotations

import contextlib
import errno
import os
import queue
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterable

from unity_gym.errors import NotReadyError, PlayerError, PlayerTimeoutError, PortInUseError
from unity_gym.peer import Peer, find_peer
from unity_gym.wire import http2
from unity_gym.wire.http2 import Transport

CHECK_PERIOD = 0.1
"""Seconds between two checks of the player's process while waiting for it."""
_SERVICE_PERIOD = 0.25  # seconds between two looks at the player's socket while the caller does something else
_RECONNECT_SILENCE = 30.0  # seconds after which a player's transport may have dropped its idle connection
_DISCONNECT_WAIT = 1.0  # seconds in which the process of a player that disconnected may turn out to have ended
_PATIENCE = 1.0  # seconds without progress after which a reply or the quit message is no longer waited for
_FREE_PORT_ATTEMPTS = 20
_MAX_CLIENTS = 32  # clients that have not been accepted; the oldest one is dropped for a further one
_ANOTHER = "Another player is connected to this port already. Start each player with a port of its own."


class PlayerConnection:
    """Server on the loopback interface that exchanges messages with one player.

    The constructor binds `port` on 127.0.0.1 and, where the machine has it, on ::1 (players connect to `localhost`); it
    is unreachable from other interfaces. :meth:`listen` accepts the player; any other client gets a gRPC error status.

    :param port: Port to bind; 0 picks a free one.
    :raises PortInUseError: If the port is taken.
    """

    port: int

    def __init__(self, port: int = 0) -> None:
        listeners = _bind(port)
        self.port = listeners[0].getsockname()[1]
        self._exchange = _Exchange(listeners, self.port)
        self._is_disconnected = False  # before it got our last message
        self._lost_since: float | None = None
        self._silent_since = time.monotonic()
        self._next_check = self._silent_since + CHECK_PERIOD
        self._process_id = _process_id
        # The server ends with the last reference to it; a player that waits for an answer has to be released.
        self._release = weakref.finalize(self, _release, self._exchange, self._process_id)
        _open_exchanges.add(self._exchange)

    def listen(self, accepts: Callable[[Peer], bool]) -> None:
        """Start to accept calls; a client that connected before has waited.

        :param accepts: Function that returns whether a process may be the player. It is called once per transport, in a
            thread of the server, and only where the operating system reports which process connected (Linux).
        """
        self._require_open()
        self._exchange.start(accepts)

    def poll(self, timeout: float, check: Callable[[], None] = lambda: None) -> bool:
        """Return whether `receive` would return at once.

        If nothing has arrived, this checks the player's process, at most ten times per second, as a check takes longer
        than most steps.

        :param timeout: Seconds that the player may be silent, since the connection was made or the last `send`.
        :param check: Function that raises an error if the player's process has ended.
        :raises PlayerTimeoutError: If the player has been silent for longer.
        :raises PlayerError: If the player disconnected before it got its last answer, or its process has ended.
        :raises NotReadyError: If the connection is closed, or was opened by another process.
        """
        self._require_open()
        if self._exchange.read(0.0):
            return True
        self._check_silence(timeout, check)
        return False

    def _check_silence(self, timeout: float, check: Callable[[], None]) -> None:
        now = time.monotonic()
        if now < min(self._next_check, self._silent_since + timeout):
            return
        self._next_check = now + CHECK_PERIOD
        exchange = self._exchange
        try:
            check()
        except PlayerError as error:
            if exchange.transport is None:  # the player may be the client that was rejected
                error.args = (f"{error}{exchange.rejected}",)
            raise
        if exchange.violation is not None:
            raise PlayerError(
                f"The player on port {self.port} sent bytes that are no valid HTTP/2: {exchange.violation}. Check that "
                "no other program uses this port, and make a new environment."
            )
        if self._is_disconnected or exchange.is_player_lost():
            self._lost_since = self._lost_since or now
            if now - self._lost_since >= min(timeout, _DISCONNECT_WAIT):  # until then, `check` may find out more
                raise PlayerError(
                    f"The player on port {self.port} has ended or disconnected: it was stopped or it crashed. Look "
                    "into its log, and make a new environment."
                )
        silence = now - self._silent_since
        if silence >= timeout:
            raise PlayerTimeoutError(
                f"The player on port {self.port} sent nothing for {timeout:.3g} s. If it needs longer (a slow start, "
                "a long episode without decisions), raise the time-out; otherwise check that its scene has an "
                f"agent that requests decisions and that it was started with --mlagents-port {self.port}."
                f"{exchange.rejected}"
            )

    def receive(self, timeout: float, check: Callable[[], None] = lambda: None) -> bytes | bytearray:
        """Wait for the player's next message; the same one again, until `send` has answered it.

        :param timeout: Seconds that the player may be silent, see `poll`.
        :param check: Function that raises an error if the player's process has ended, see `poll`.
        :raises PlayerTimeoutError: If no message was received in time.
        :raises PlayerError: If the player disconnected before it got its last answer, or its process has ended.
        :raises NotReadyError: If the connection is closed, or was opened by another process.
        """
        self._require_open()
        remaining = self._silent_since + timeout - time.monotonic()
        while not self._exchange.read(min(CHECK_PERIOD, remaining)):
            self._require_open()
            self._check_silence(timeout, check)
            remaining = self._silent_since + timeout - time.monotonic()
        request = self._exchange.request()
        assert request is not None
        return request

    def send(self, reply: bytes) -> None:
        """Answer the message that :meth:`receive` returned last.

        If the player has disconnected by then, the next :meth:`receive` raises an error.

        :raises NotReadyError: If no message waits for an answer, or the connection is closed.
        """
        self._require_open()
        if self._exchange.request() is None:
            raise NotReadyError("send() without a message to answer. Call receive() first.")
        self._is_disconnected, self._lost_since = self._exchange.has_call_ended(), None
        self._silent_since = time.monotonic()
        self._exchange.answer(reply)

    def close(self, quit_message: bytes | None = None) -> None:
        """Stop listening. Can be called any number of times.

        :param quit_message: Answer to a message that is still open, so that the player can quit by itself. Without
            one its call ends with the gRPC status UNAVAILABLE.
        """
        if self._release.alive and _process_id == self._process_id:
            self._exchange.close(quit_message, _PATIENCE)
            self._release.detach()

    def _require_open(self) -> None:
        if self._exchange.is_closed:
            raise NotReadyError("This connection has been closed. Open a new one.")
        if _process_id != self._process_id:
            raise NotReadyError(
                f"This environment was made in process {self._process_id}, from which this one ({_process_id}) was "
                "forked: only the process that made an environment can use it. Make the environment here."
            )


def wait(connections: Iterable[PlayerConnection], seconds: float) -> None:
    """Wait until one of these players has sent something, or for this time."""
    transports = [connection._exchange.transport for connection in connections]
    sockets = [transport.socket for transport in transports if transport is not None and not transport.is_closed]
    if sockets:
        http2.wait(sockets, seconds)
    else:
        time.sleep(seconds)


class _Exchange:
    """State that the server's thread and the caller share. It does not refer to the caller, so both can be collected.

    :param listeners: Sockets that listen on one port.
    :param port: The port.
    """

    def __init__(self, listeners: list[socket.socket], port: int) -> None:
        self.port = port
        self.is_closed = False
        self.transport: Transport | None = None  # the player's
        self.rejected = ""  # a sentence about a client that was rejected
        self._listeners = listeners
        self._clients: list[_Client] = []  # connections that are not the player's
        self._peer: Peer | None = None  # the player's process, where the operating system reports it
        self._user: int | None = None  # the caller's thread while it uses the player's transport
        self._is_serving = False  # the server's thread uses the player's transport
        self._uses = 0  # how often the caller has used the transport
        self._answered_at = 0.0
        self._arrivals: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._accepts: Callable[[Peer], bool] = lambda _: False
        self._thread: threading.Thread | None = None
        self._wake_up, self._woken = socket.socketpair()

    # --- the caller's thread

    def request(self) -> bytes | bytearray | None:
        """Return the player's message that waits for an answer."""
        transport = self.transport
        call = None if transport is None else transport.call
        return None if call is None else call.request

    def read(self, seconds: float) -> bool:
        """Return whether a message waits for an answer, after waiting up to this time for a part of one."""
        transport = self.transport
        if transport is None or transport.is_closed:
            if self.request() is None and seconds > 0:
                with contextlib.suppress(queue.Empty):
                    self._arrivals.get(timeout=seconds)
            return self.request() is not None
        self._enter()
        try:
            call = transport.call
            if call is not None and call.request is not None:
                return True
            if seconds < CHECK_PERIOD and not (transport.has_work or http2.wait([transport.socket], seconds)):
                return False
            with contextlib.suppress(TimeoutError):
                transport.read()
            call = transport.call
            return call is not None and call.request is not None
        finally:
            self._user = None

    def has_call_ended(self) -> bool:
        """Return whether the player has cancelled its open call or disconnected."""
        transport = self.transport
        assert transport is not None
        self._enter()
        try:
            while not transport.is_closed and http2.wait([transport.socket], 0.0):
                with contextlib.suppress(TimeoutError):
                    transport.read()
            call = transport.call
            return call is None or call.has_ended
        finally:
            self._user = None

    def answer(self, reply: bytes) -> None:
        """Answer the player's call; the rest of a long reply is sent by `read`, once the player receives again."""
        transport = self.transport
        assert transport is not None
        self._enter()
        try:
            self._answered_at = time.monotonic()
            with contextlib.suppress(TimeoutError):
                transport.answer(reply)
            deadline = self._answered_at + _PATIENCE
            while transport.is_sending and not transport.is_closed and time.monotonic() < deadline:
                with contextlib.suppress(TimeoutError):
                    transport.read()
                    deadline = time.monotonic() + _PATIENCE
        finally:
            self._user = None

    def _enter(self) -> None:
        """Start to use the player's transport.

        No lock is taken, which an interrupted caller might never release. Each thread first announces itself and then
        looks for the other; if both are announced, the server's thread withdraws.
        """
        self._uses += 1
        self._user = threading.get_ident()
        while self._is_serving:
            time.sleep(0.0005)

    def is_player_lost(self) -> bool:
        """Return whether the player cannot send its next message."""
        transport, peer = self.transport, self._peer
        if transport is None:
            return False
        call = transport.call
        is_lost = transport.is_reply_lost or (call is not None and call.has_ended and call.request is None)
        return is_lost or (peer is not None and peer.has_ended())

    @property
    def violation(self) -> str | None:
        """The violation of HTTP/2 for which the player's transport was closed."""
        return None if self.transport is None else self.transport.error

    def close(self, quit_message: bytes | None, patience: float) -> None:
        """Answer an open call and close all sockets. An interrupted call can be repeated."""
        self.is_closed = True
        with contextlib.suppress(OSError):
            self._wake_up.send(b"\0")
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(2.0)
        patient_until = time.monotonic() + 2 * CHECK_PERIOD
        while self._user not in (None, threading.get_ident()) and time.monotonic() < patient_until:
            time.sleep(0.001)  # another thread is in `read` and will find the exchange closed
        if self.transport is not None:
            with contextlib.suppress(TimeoutError):
                self._answer_finally(self.transport, quit_message)
            self.transport.close(patience)
        for client in self._clients:
            client.transport.close()
        self.close_descriptors()

    @staticmethod
    def _answer_finally(transport: Transport, quit_message: bytes | None) -> None:
        while not transport.is_closed and http2.wait([transport.socket], 0.0):
            transport.read()
        if transport.call is None:
            return
        if quit_message is None:
            transport.reject(http2.UNAVAILABLE, "The Python side has closed the connection.")
        else:
            transport.answer(quit_message)

    def close_descriptors(self) -> None:
        """Close the sockets of this process, but no connection."""
        for sock in (*self._listeners, self._wake_up, self._woken):
            sock.close()

    # --- the server's thread

    def start(self, accepts: Callable[[Peer], bool]) -> None:
        """Start to accept clients."""
        self._accepts = accepts
        self._thread = threading.Thread(target=self._serve, name="unity-player-server", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        uses = 0
        while not self.is_closed:
            clients = {client.transport.socket: client for client in self._clients}
            period = None if self.transport is None or self.transport.is_closed else _SERVICE_PERIOD
            ready = http2.wait([self._woken, *self._listeners, *clients], period)
            for sock in ready:
                if sock in clients:
                    if clients[sock] in self._clients:  # otherwise dropped for a further one
                        self._read_client(clients[sock])
                elif sock is not self._woken and not self.is_closed:
                    self._accept(sock)
            if uses == self._uses:
                self._service()
            uses = self._uses

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):  # the client has disconnected again
            sock, address = listener.accept()
            sock.settimeout(CHECK_PERIOD)
            client = _Client(Transport(sock), address[1])
            self._clients.append(client)
            with contextlib.suppress(TimeoutError):
                client.transport.flush()
            if len(self._clients) > _MAX_CLIENTS:
                self._clients.pop(0).transport.close()

    def _read_client(self, client: _Client) -> None:
        transport = client.transport
        with contextlib.suppress(TimeoutError):
            transport.read()
        if transport.call is not None and not transport.is_closed:
            self._admit(client)
        elif transport.is_closed:
            if transport.error is not None:
                self.rejected = f" A client that does not speak gRPC connected to this port: {transport.error}."
            self._clients.remove(client)
            transport.close()

    def _admit(self, client: _Client) -> None:
        """Make a client with a call the player, or reject the call."""
        transport = client.transport
        if client.is_accepted is None:
            client.peer = find_peer(client.port, self.port)
            client.is_accepted = client.peer is None or self._accepts(client.peer)
        if not client.is_accepted:
            self.rejected = (
                f" {client.peer} connected to this port and was rejected, because it does not belong to the player. If "
                "it is the player behind a wrapper that detaches it, such as docker, pass trust_peer=True."
            )
            rejection = http2.PERMISSION_DENIED, "This port waits for another process."
        elif self._is_taken(client.peer):
            rejection = http2.RESOURCE_EXHAUSTED, _ANOTHER
        else:
            self._clients.remove(client)
            before, self.transport, self._peer = self.transport, transport, client.peer
            if before is not None:
                before.close()
            self._arrivals.put(None)
            return
        with contextlib.suppress(TimeoutError):
            transport.reject(*rejection)

    def _is_taken(self, peer: Peer | None) -> bool:
        """Return whether the player is another client, whose transport is or may be in use."""
        transport = self.transport
        if transport is None:
            return False
        if transport.call is not None:
            return True
        if transport.is_closed and peer is not None and peer == self._peer:
            return False
        return time.monotonic() - self._answered_at <= _RECONNECT_SILENCE

    def _service(self) -> None:
        """Read what the player's transport has sent while the caller does something else."""
        transport = self.transport
        if transport is None:
            return
        self._is_serving = True
        try:
            while not (self._user is not None or transport.is_closed or self.is_closed) and (
                transport.has_work or http2.wait([transport.socket], 0.0)
            ):
                with contextlib.suppress(TimeoutError):
                    transport.read()
        finally:
            self._is_serving = False


class _Client:
    """Connection of a client that is not the player, or not yet.

    :param transport: The connection.
    :param port: The client's port.
    """

    def __init__(self, transport: Transport, port: int) -> None:
        self.transport = transport
        self.port = port
        self.peer: Peer | None = None
        self.is_accepted: bool | None = None  # None: not known yet


def _release(exchange: _Exchange, process_id: int) -> None:
    if _process_id == process_id:
        exchange.close(None, CHECK_PERIOD)


_open_exchanges: weakref.WeakSet[_Exchange] = weakref.WeakSet()
_process_id = os.getpid()  # of this process, without a system call per use


def _after_fork_in_child() -> None:
    """Close the child's copies of the sockets, which would keep ports and connections open."""
    global _process_id
    _process_id = os.getpid()
    for exchange in _open_exchanges:
        exchange.close_descriptors()
        for transport in (exchange.transport, *(client.transport for client in exchange._clients)):
            if transport is not None:
                transport.socket.close()


if hasattr(os, "register_at_fork"):  # not on Windows, which cannot fork
    os.register_at_fork(after_in_child=_after_fork_in_child)


def _bind(port: int) -> list[socket.socket]:
    """Return sockets that listen on 127.0.0.1 and, where there is one, on ::1, with the same port on both."""
    hosts = ["127.0.0.1", "::1"] if _has_ipv6_loopback() else ["127.0.0.1"]
    for _ in range(1 if port else _FREE_PORT_ATTEMPTS):
        with contextlib.ExitStack() as sockets:
            try:
                listeners: list[socket.socket] = []
                for host in hosts:
                    chosen = listeners[0].getsockname()[1] if listeners else port
                    listeners.append(sockets.enter_context(_listener(host, chosen)))
            except OSError as error:
                if error.errno == errno.EMFILE:
                    raise
                continue
            sockets.pop_all()
            return listeners
    if not port:
        raise PlayerError(f"Found no free port on the loopback interface in {_FREE_PORT_ATTEMPTS} attempts.")
    raise PortInUseError(
        f"Port {port} on the loopback interface is taken, probably by another environment or trainer. End that one, "
        "or choose another worker_id or base_port; without a base_port a free port is picked."
    )


def _listener(host: str, port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        if os.name == "posix":  # a port whose last connections are only waiting for late packets
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        elif hasattr(socket, "SO_EXCLUSIVEADDRUSE"):  # on Windows a port could be bound twice
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_EXCLUSIVEADDRUSE, 1)
        listener.bind((host, port))
        listener.listen()
    except BaseException:
        listener.close()
        raise
    return listener


def _has_ipv6_loopback() -> bool:
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True

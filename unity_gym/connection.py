"""gRPC server that one Unity player connects to, and that passes on raw messages.

The player is the gRPC client and Python the server. The player calls one unary method with its message and waits; the
reply to that call is Python's next message. So at any time at most one call is open, and :class:`PlayerConnection`
converts the calls into a plain `receive`, `send`, `receive`, `send`.

An exception may interrupt the caller between any two instructions, such as the KeyboardInterrupt of Ctrl-C. So the
state of the exchange is not spread over variables of the caller. The server's thread publishes each call as one object,
and the only change that the caller makes is to store the reply in it.
"""

from __future__ import annotations

import contextlib
import os
import queue
import socket
import threading
import time
import weakref
from collections.abc import Callable
from concurrent import futures
from typing import Any, NoReturn, TypeAlias

# gRPC's own fork handlers do not support a running server: about one in six forked children (data loaders,
# multiprocessing) then crashes in them. Without them a child is safe as long as it does not use gRPC itself. gRPC reads
# the setting when it is imported.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

import grpc

from unity_gym.errors import NotReadyError, PlayerError, PlayerTimeoutError, PortInUseError, UnityGymError
from unity_gym.peer import Peer, find_peer

Arrivals: TypeAlias = "queue.SimpleQueue[None]"
"""Queue that wakes a thread that waits for messages: each message puts one token in."""

_SERVICE, _METHOD = "communicator_objects.UnityToExternalProto", "Exchange"
_OPTIONS = [
    ("grpc.so_reuseport", 0),  # with it two servers could share one port, and each would get half of the messages
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
]
CHECK_PERIOD = 0.1
"""Seconds between two checks of the player's process while waiting for it."""
_RECONNECT_SILENCE = 30.0  # seconds after which a player's transport may have dropped its idle connection
_DISCONNECT_WAIT = 1.0  # seconds in which the process of a player that disconnected may turn out to have ended
_FREE_PORT_ATTEMPTS = 20


class PlayerConnection:
    """Server on the loopback interface that exchanges messages with one player.

    The constructor binds `port` on 127.0.0.1 and, where the machine has it, on ::1 (players connect to `localhost`); it
    is unreachable from other interfaces. :meth:`listen` accepts the player; any other client gets a gRPC error status.

    :param port: Port to bind; 0 picks a free one.
    :raises PortInUseError: If the port is taken.
    :raises UnityGymError: If this process was forked from one with an open connection.
    """

    port: int

    def __init__(self, port: int = 0) -> None:
        _require_usable_grpc()
        # One thread holds the player's call; the other one rejects any other client.
        self._threads = _DaemonThreads(2)
        self._exchange = _Exchange()
        handler = grpc.unary_unary_rpc_method_handler(self._exchange.hold)
        try:
            server, self.port = _bind(port, self._threads)
        except BaseException:
            self._threads.shutdown()
            raise
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, {_METHOD: handler}),))
        self._server: grpc.Server | None = server
        self._is_listening = False
        self._exchange.port = self.port
        self._is_disconnected = False  # before it got our last message
        self._lost_since: float | None = None
        self._silent_since = time.monotonic()
        self._next_check = self._silent_since + CHECK_PERIOD
        self._process_id = os.getpid()
        # The server ends with the last reference to it; a thread that still holds a call has to be released.
        self._release = weakref.finalize(self, _release, self._exchange, self._threads)
        _open_connections.add(self)

    def listen(self, accepts: Callable[[Peer], bool]) -> None:
        """Start to accept calls; a client that connected before has waited.

        :param accepts: Function that returns whether a process may be the player. It is called once per transport, in a
            thread of the server, and only where the operating system reports which process connected (Linux).
        """
        self._require_open()
        assert self._server is not None
        self._exchange.accepts = accepts
        self._server.start()
        self._is_listening = True

    def wake(self, arrivals: Arrivals) -> None:
        """Put a token into this queue with each message from now on, so that one queue can serve many connections."""
        self._exchange.arrivals = arrivals

    @property
    def awaits_reply(self) -> bool:
        """Whether the player waits for the answer to its last message."""
        return self._exchange.open_call() is not None

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
        if self._exchange.open_call() is not None:
            return True
        now = time.monotonic()
        if now < min(self._next_check, self._silent_since + timeout):
            return False
        self._next_check = now + CHECK_PERIOD
        check()
        peer = self._exchange.peer
        if self._is_disconnected or (peer is not None and peer.has_ended()):
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
                f"{self._exchange.rejected}"
            )
        return False

    def receive(self, timeout: float, check: Callable[[], None] = lambda: None) -> bytes:
        """Wait for the player's next message; the same one again, until `send` has answered it.

        :param timeout: Seconds that the player may be silent, see `poll`.
        :param check: Function that raises an error if the player's process has ended, see `poll`.
        :raises PlayerTimeoutError: If no message was received in time.
        :raises PlayerError: If the player disconnected before it got its last answer, or its process has ended.
        :raises NotReadyError: If the connection is closed, or was opened by another process.
        """
        self._exchange.repeat_wake_up()
        while not self.poll(timeout, check):
            remaining = self._silent_since + timeout - time.monotonic()
            with contextlib.suppress(queue.Empty):
                self._exchange.arrivals.get(timeout=min(CHECK_PERIOD, max(remaining, 0.0)))
        call = self._exchange.open_call()
        assert call is not None
        return call.request

    def send(self, reply: bytes) -> None:
        """Answer the message that :meth:`receive` returned last.

        If the player has disconnected by then, the next :meth:`receive` raises an error.

        :raises NotReadyError: If no message waits for an answer, or the connection is closed.
        """
        self._require_open()
        call = self._exchange.open_call()
        if call is None:
            raise NotReadyError("send() without a message to answer. Call receive() first.")
        self._is_disconnected, self._lost_since = call.has_ended, None
        self._silent_since = time.monotonic()
        call.answer(reply)

    def close(self, quit_message: bytes | None = None) -> None:
        """Stop listening. Can be called any number of times.

        :param quit_message: Answer to a message that is still open, so that the player can quit by itself. Without
            one its call ends with the gRPC status UNAVAILABLE.
        """
        server = self._server
        if server is None or os.getpid() != self._process_id:  # a forked child has none of the threads behind it
            return
        self._exchange.quit_message = quit_message
        self._release()
        if not self._is_listening:
            server.start()  # gRPC keeps the port of a server that was never started
        # The grace period lets the quit message go out. Both waits end at once when nothing is under way.
        server.stop(grace=1.0).wait(timeout=2.0)
        self._server = None  # with the last server gRPC ends its threads, so that this process can be forked again
        _open_connections.discard(self)

    def _require_open(self) -> None:
        if not self._release.alive:
            raise NotReadyError("This connection has been closed. Open a new one.")
        if os.getpid() != self._process_id:
            raise NotReadyError(
                f"This environment was made in process {self._process_id}, from which this one ({os.getpid()}) was "
                "forked: only the process that made an environment can use it. Make the environment here."
            )


class _Call:
    """One call of the player: its message and, once it is there, the answer."""

    def __init__(self, request: bytes) -> None:
        self.request = request
        self.has_ended = False  # `context.is_active()` would take a lock, which an interrupted caller may not release
        self.reply: bytes | None = None
        self.replies: queue.SimpleQueue[None] = queue.SimpleQueue()

    def end(self) -> None:
        """Record that the player has received the answer, or has disconnected."""
        self.has_ended = True

    def answer(self, reply: bytes | None) -> None:
        self.reply = reply
        self.replies.put(None)


class _Exchange:
    """State that the server's threads and the caller share. It refers to neither, so that both can be collected.

    Two `SimpleQueue` cannot lose a wake-up. They were as fast as locks or a condition: all around 1900 round trips per
    second with a gRPC client in Python, within noise.
    """

    def __init__(self) -> None:
        self.port = 0
        self.accepts: Callable[[Peer], bool] = lambda _: False
        self.call: _Call | None = None  # the newest one
        self.arrivals: Arrivals = queue.SimpleQueue()
        self.quit_message: bytes | None = None
        self.closed = False
        self.peer: Peer | None = None  # the player's process, where the operating system reports it
        self.rejected = ""  # a sentence about a process that was rejected
        self._lock = threading.Lock()
        self._address: str | None = None  # the address that the player connects from
        self._held = False  # a call of the player is open
        self._answered_at = 0.0

    def open_call(self) -> _Call | None:
        """Return the player's call that waits for an answer."""
        call = self.call
        return None if call is None or call.reply is not None else call

    def repeat_wake_up(self) -> None:
        """Wake the thread of an answered call again, in case the caller was interrupted after storing the answer."""
        if self.call is not None and self.call.reply is not None:
            self.call.replies.put(None)

    def hold(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        """Publish one call and wait for its answer; runs in a thread of the server."""
        address = context.peer()
        peer = self.peer
        if address != self._address:
            peer = find_peer(address, self.port)
            if peer is not None and not self.accepts(peer):
                self._reject(peer, context)
        if not self._admit(address, peer):
            _abort(
                context,
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                "Another player is connected to this port already. Start each player with a port of its own.",
            )
        call = _Call(request)
        if not context.add_callback(call.end):
            call.end()
        self.call = call
        self.arrivals.put(None)
        if not self.closed:
            call.replies.get()
        self._held = False
        self._answered_at = time.monotonic()
        reply = self.quit_message if call.reply is None else call.reply
        if reply is None:
            _abort(context, grpc.StatusCode.UNAVAILABLE, "The Python side has closed the connection.")
        return reply

    def _reject(self, peer: Peer, context: grpc.ServicerContext) -> NoReturn:
        self.rejected = (
            f" {peer} connected to this port and was rejected, because it does not belong to the player. If it is the "
            "player behind a wrapper that detaches it, such as docker, pass trust_peer=True."
        )
        _abort(context, grpc.StatusCode.PERMISSION_DENIED, "This port waits for another process.")

    def _admit(self, address: str, peer: Peer | None) -> bool:
        """Return whether a call from this address is the player's, and not one of a second player."""
        with self._lock:
            silent = time.monotonic() - self._answered_at > _RECONNECT_SILENCE
            if self._held or (self._address not in (None, address) and not silent):
                return False
            self._address, self.peer = address, peer
            self._held = True
            return True


def _abort(context: grpc.ServicerContext, code: grpc.StatusCode, details: str) -> NoReturn:
    context.abort(code, details)  # raises
    raise AssertionError


def _release(exchange: _Exchange, threads: _DaemonThreads) -> None:
    exchange.closed = True
    if exchange.call is not None:
        exchange.call.replies.put(None)
    threads.shutdown()


_open_connections: weakref.WeakSet[PlayerConnection] = weakref.WeakSet()
_forked_with_connections = False


def _after_fork_in_child() -> None:
    """Mark gRPC as unusable if it was running when this process was forked: it would hang or abort."""
    global _forked_with_connections
    _forked_with_connections = _forked_with_connections or len(_open_connections) > 0


if hasattr(os, "register_at_fork"):  # not on Windows, which cannot fork
    os.register_at_fork(after_in_child=_after_fork_in_child)


def _require_usable_grpc() -> None:
    if _forked_with_connections:
        raise UnityGymError(
            "This process was forked while its parent had an open environment, and gRPC does not work in such a child. "
            'Start the process with start_method="spawn" or "forkserver" (multiprocessing: '
            'get_context("spawn"); gymnasium.vector.AsyncVectorEnv: context="spawn"), or close all environments first.'
        )


class _DaemonThreads(futures.Executor):
    """The threads that gRPC runs its calls in.

    Python waits at its exit for the threads of a `ThreadPoolExecutor`. One that holds a call of the player would make
    a script hang that ends without `close`, for instance by an exception.
    """

    def __init__(self, count: int) -> None:
        self._work: queue.SimpleQueue[tuple[futures.Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        for _ in range(count):
            threading.Thread(target=self._run, name="unity-player-call", daemon=True).start()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> futures.Future[Any]:
        future: futures.Future[Any] = futures.Future()
        self._work.put((future, lambda: fn(*args, **kwargs)))
        return future

    def shutdown(self, wait: bool = False, *, cancel_futures: bool = False) -> None:  # noqa: ARG002
        self._work.put(None)

    def _run(self) -> None:
        while (item := self._work.get()) is not None:
            future, call = item
            try:
                future.set_result(call())
            except BaseException as error:
                future.set_exception(error)
        self._work.put(None)  # for the next thread


def _bind(port: int, threads: futures.Executor) -> tuple[grpc.Server, int]:
    """Make a server on 127.0.0.1 and, where there is one, on ::1, with the same port on both."""
    hosts = ["127.0.0.1", "::1"] if _has_ipv6_loopback() else ["127.0.0.1"]
    for _ in range(1 if port else _FREE_PORT_ATTEMPTS):
        free = _free_port(hosts, port)
        if free:
            server = grpc.server(threads, options=_OPTIONS)
            if all(_add_port(server, host, free) for host in hosts):
                return server, free
    if not port:
        raise PlayerError(f"Found no free port on the loopback interface in {_FREE_PORT_ATTEMPTS} attempts.")
    raise PortInUseError(
        f"Port {port} on the loopback interface is taken, probably by another environment or trainer. End that one, "
        "or choose another worker_id or base_port; without a base_port a free port is picked."
    )


def _free_port(hosts: list[str], port: int) -> int:
    """Return a port that is free on all hosts, 0 if there is none.

    gRPC can look for one, too, but writes to the standard error if a port is taken.
    """
    with contextlib.ExitStack() as probes:
        for host in hosts:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            probe = probes.enter_context(socket.socket(family, socket.SOCK_STREAM))
            if os.name == "posix":  # as gRPC does; on Windows it would allow what is taken
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except (OSError, OverflowError):
                return 0
            port = probe.getsockname()[1]
    return port


def _add_port(server: grpc.Server, host: str, port: int) -> bool:
    """Return whether the port was free (gRPC before 1.60 returns 0 if not, and later raises)."""
    try:
        return bool(server.add_insecure_port(f"[{host}]:{port}" if ":" in host else f"{host}:{port}"))
    except RuntimeError:
        return False


def _has_ipv6_loopback() -> bool:
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True

"""The server side of the connection, with players that are gRPC clients in this and in other processes."""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from functools import partial
from pathlib import Path

import grpc
import psutil
import pytest

from stand_ins.faulty_player import connect_to
from unity_gym.connection import PlayerConnection
from unity_gym.errors import NotReadyError, PlayerError, PlayerTimeoutError
from unity_gym.peer import Peer
from unity_gym.wire.messages import UnityMessage

TESTS = Path(__file__).parent
FAULTY_PLAYER = (sys.executable, "-m", "stand_ins.faulty_player")  # in the folder TESTS


@pytest.fixture
def start_player(connection: PlayerConnection) -> Iterator[Callable[[str], subprocess.Popen[bytes]]]:
    """Return a function that starts a player process with a fault."""
    started = []

    def start(fault: str) -> subprocess.Popen[bytes]:
        command = [*FAULTY_PLAYER, "--mlagents-port", str(connection.port), "--fault", fault]
        started.append(subprocess.Popen(command, cwd=TESTS))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


def test_messages_and_replies_take_turns(connection: PlayerConnection) -> None:
    exchange = connect_to(connection.port)
    for number in range(20):
        call = exchange.future(b"message %d" % number)
        assert connection.receive(5) == b"message %d" % number
        connection.send(b"reply %d" % number)
        assert call.result(5) == b"reply %d" % number


def test_messages_of_20_megabytes_and_empty_ones_pass_both_ways(connection: PlayerConnection) -> None:
    exchange = connect_to(connection.port)
    large = os.urandom(20_000_000)
    for message, reply in ((large, b""), (b"", large)):
        call = exchange.future(message)
        assert connection.receive(20) == message
        connection.send(reply)
        assert call.result(20) == reply


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
def test_every_loopback_address_reaches_it(connection: PlayerConnection, host: str) -> None:
    if host == "[::1]":
        try:
            socket.create_server(("::1", 0), family=socket.AF_INET6).close()
        except OSError:
            pytest.skip("this machine has no IPv6 loopback")
    channel = grpc.insecure_channel(f"{host}:{connection.port}")
    call = channel.unary_unary("/communicator_objects.UnityToExternalProto/Exchange").future(b"hello")
    assert connection.receive(5) == b"hello"
    connection.send(b"reply")
    assert call.result(5) == b"reply"
    channel.close()


def test_no_other_address_reaches_it(connection: PlayerConnection) -> None:
    addresses = [
        address.address
        for interface in psutil.net_if_addrs().values()
        for address in interface
        if address.family == socket.AF_INET and not address.address.startswith("127.")
    ]
    if not addresses:
        pytest.skip("this machine has the loopback interface only")
    for address in addresses:
        with pytest.raises(OSError, match="refused"):
            socket.create_connection((address, connection.port), timeout=1).close()


def test_a_taken_port_raises_with_the_port_and_a_remedy(connection: PlayerConnection) -> None:
    with pytest.raises(PlayerError, match=rf"{connection.port} .* taken.*worker_id or base_port"):
        PlayerConnection(connection.port)


def test_a_port_is_free_again_after_close(connection: PlayerConnection) -> None:
    connection.close()
    for _ in range(2):  # also where it never listened
        PlayerConnection(connection.port).close()


def test_a_player_that_sends_nothing_causes_a_timeout(connection: PlayerConnection) -> None:
    with pytest.raises(PlayerTimeoutError, match=rf"{connection.port} sent nothing for 0.2 s.*raise the time-out"):
        connection.receive(0.2)
    exchange = connect_to(connection.port)
    call = exchange.future(b"late")
    assert connection.receive(5) == b"late"
    connection.send(b"welcome")
    assert call.result(5) == b"welcome"


def test_an_exception_of_check_ends_the_wait(connection: PlayerConnection) -> None:
    def check() -> None:
        raise PlayerError("the process is gone")

    with pytest.raises(PlayerError, match="the process is gone"):
        connection.receive(60, check)


def test_the_process_is_checked_once_per_period(connection: PlayerConnection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unity_gym.connection.CHECK_PERIOD", 30.0)
    checks: list[None] = []
    exchange = connect_to(connection.port)
    for _ in range(3):
        call = exchange.future(b"message")
        assert connection.receive(60, lambda: checks.append(None)) == b"message"
        connection.send(b"reply")
        call.result(60)
        assert not connection.poll(60, lambda: checks.append(None))
    assert len(checks) <= 1  # the period before the first check is that of the fixture


def test_a_player_that_is_killed_while_it_waits_is_noticed(
    connection: PlayerConnection, start_player: Callable[[str], subprocess.Popen[bytes]]
) -> None:
    process = start_player("none")
    connection.receive(30)
    process.kill()
    process.wait()
    time.sleep(0.3)  # the end of the connection has to arrive
    connection.send(b"unread")
    with pytest.raises(PlayerError, match="has ended or disconnected"):
        connection.receive(60)
    with pytest.raises(PlayerError, match="has ended or disconnected"):
        connection.receive(60)


def test_a_second_player_is_rejected_without_affecting_the_first(
    connection: PlayerConnection, start_player: Callable[[str], subprocess.Popen[bytes]]
) -> None:
    exchange = connect_to(connection.port)
    for held in (True, False):
        call = exchange.future(b"first")
        assert connection.receive(5) == b"first"
        if not held:
            connection.send(b"reply")
            assert call.result(5) == b"reply"
        assert start_player("none").wait(30) != 0
        if held:
            connection.send(b"reply")
            assert call.result(5) == b"reply"
    with pytest.raises(PlayerTimeoutError):
        connection.receive(0.1)


def test_a_rejected_player_receives_the_reason(connection: PlayerConnection) -> None:
    call = connect_to(connection.port).future(b"first")
    assert connection.receive(5) == b"first"
    with pytest.raises(grpc.RpcError) as raised:
        connect_to(connection.port)(b"second", timeout=5)
    assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "Another player is connected" in raised.value.details()
    assert not call.done()


def test_a_player_may_reconnect_after_a_long_silence(
    connection: PlayerConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unity_gym.connection._RECONNECT_SILENCE", 0.0)
    for _ in range(2):
        alone = [("grpc.use_local_subchannel_pool", 1)]  # a separate transport
        with grpc.insecure_channel(f"localhost:{connection.port}", options=alone) as channel:
            call = channel.unary_unary("/communicator_objects.UnityToExternalProto/Exchange").future(b"message")
            assert connection.receive(5) == b"message"
            connection.send(b"reply")
            assert call.result(5) == b"reply"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux reports which process connects")
def test_a_process_that_does_not_belong_to_the_player_is_rejected_without_effect() -> None:
    connection = PlayerConnection()
    # the player is the child of a launcher that keeps running
    command = f"{shlex.join(FAULTY_PLAYER)} --mlagents-port {connection.port}; true"
    player = subprocess.Popen(["/bin/sh", "-c", command], start_new_session=True, cwd=TESTS)
    try:
        connection.listen(partial(Peer.belongs_to, player=player.pid))
        foreign = grpc.insecure_channel(f"localhost:{connection.port}")
        for _ in range(3):
            with pytest.raises(grpc.RpcError) as raised:
                foreign.unary_unary("/communicator_objects.UnityToExternalProto/Exchange")(b"me", timeout=20)
            assert raised.value.code() is grpc.StatusCode.PERMISSION_DENIED
        assert b"Faulty" in connection.receive(20)
        connection.send(UnityMessage().SerializeToString())
        assert connection.receive(20)
        foreign.close()
    finally:
        os.killpg(player.pid, signal.SIGKILL)
        player.wait()
        connection.close()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux reports which process connects")
def test_a_process_that_was_rejected_is_named_by_the_error_of_a_player_that_does_not_connect() -> None:
    def has_ended() -> None:
        raise PlayerError("It has ended.")

    rejected = rf"Process {os.getpid()} .* was rejected.*trust_peer=True"
    connection = PlayerConnection()
    connection.listen(partial(Peer.belongs_to, player=1 << 30))
    with pytest.raises(grpc.RpcError):
        connect_to(connection.port)(b"me", timeout=20)
    with pytest.raises(PlayerTimeoutError, match=rejected):
        connection.receive(0.2)
    with pytest.raises(PlayerError, match=rf"^It has ended\. {rejected}"):
        connection.receive(20, has_ended)
    connection.close()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux reports which process connects")
def test_the_search_for_the_connecting_process_leaves_no_folder_open(tmp_path: Path) -> None:
    run_alone(
        """
import os, socket
from unity_gym.peer import Peer, find_peer
with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
    peer = find_peer(client.getsockname()[1], server.getsockname()[1])
assert peer == Peer(os.getuid(), os.getpid())
""",
        tmp_path,
    )


def test_a_taken_port_writes_nothing_to_the_terminal(tmp_path: Path) -> None:
    run_alone(
        """
import socket
from unity_gym.connection import PlayerConnection
from unity_gym.errors import PlayerError
with socket.create_server(("127.0.0.1", 0)) as taken:
    try:
        PlayerConnection(taken.getsockname()[1])
    except PlayerError as error:
        assert "taken" in str(error)
PlayerConnection().close()
""",
        tmp_path,
    )


def run_alone(code: str, folder: Path) -> None:
    """Run code in its own process, which has to succeed without a word, and without a warning of an open file."""
    command = [sys.executable, "-W", "always::ResourceWarning", "-c", code]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=folder)
    assert (finished.returncode, finished.stdout, finished.stderr) == (0, "", "")


@pytest.mark.parametrize("received", [True, False])
def test_close_sends_the_quit_message_to_a_waiting_player(connection: PlayerConnection, received: bool) -> None:
    call = connect_to(connection.port).future(b"hello")
    if received:
        connection.receive(5)
    else:
        time.sleep(0.3)  # the message has to arrive
    connection.close(quit_message=b"quit")
    assert call.result(5) == b"quit"
    connection.close(quit_message=b"again")


def test_close_without_a_quit_message_ends_the_call_of_the_player(connection: PlayerConnection) -> None:
    call = connect_to(connection.port).future(b"hello")
    connection.receive(5)
    connection.close()
    with pytest.raises(grpc.RpcError) as ending:
        call.result(5)
    assert ending.value.code() is grpc.StatusCode.UNAVAILABLE


@pytest.mark.skipif(sys.platform == "win32", reason="Windows cannot stop a process")
def test_close_does_not_wait_for_a_player_that_hangs(
    connection: PlayerConnection, start_player: Callable[[str], subprocess.Popen[bytes]]
) -> None:
    process = start_player("none")
    connection.receive(30)
    process.send_signal(signal.SIGSTOP)
    closing = futures.ThreadPoolExecutor(1).submit(connection.close, b"quit" * 10_000_000)
    closing.result(10)


def test_an_unreferenced_connection_releases_its_player() -> None:
    connection = PlayerConnection()
    connection.listen(Peer.is_same_user)
    call = connect_to(connection.port).future(b"hello")
    connection.receive(5)
    del connection
    with pytest.raises(grpc.RpcError):
        call.result(5)


def test_calls_in_the_wrong_order_raise(connection: PlayerConnection) -> None:
    with pytest.raises(NotReadyError, match="receive"):
        connection.send(b"")
    call = connect_to(connection.port).future(b"hello")
    for _ in range(2):
        assert connection.receive(5) == b"hello", "until it is answered"
    connection.send(b"reply")
    assert call.result(5) == b"reply"
    connection.close()
    with pytest.raises(NotReadyError, match="closed"):
        connection.receive(5)

"""Fixtures of tests in several folders."""

import signal
from collections.abc import Iterator

import pytest

from unity_gym.connection import PlayerConnection
from unity_gym.peer import Peer


def pytest_configure() -> None:
    """Let Ctrl-C reach the tests and their processes also in the background, where a shell has them ignore it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def connection() -> Iterator[PlayerConnection]:
    """Return a connection that listens for a player of this user."""
    connection = PlayerConnection()
    connection.listen(Peer.is_same_user)
    yield connection
    connection.close()

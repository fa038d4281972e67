"""Fixtures of tests in several folders."""

from collections.abc import Iterator

import pytest

from unity_gym.connection import PlayerConnection
from unity_gym.peer import Peer


@pytest.fixture
def connection() -> Iterator[PlayerConnection]:
    """Return a connection that listens for a player of this user."""
    connection = PlayerConnection()
    connection.listen(Peer.is_same_user)
    yield connection
    connection.close()

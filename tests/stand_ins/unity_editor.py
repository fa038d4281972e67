"""A player inside the test's process: it connects as the Unity Editor does and records the received messages."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import grpc

from stand_ins.faulty_player import connect_to
from stand_ins.ports import free_port, listens
from unity_gym.environment import UnityEnvironment
from unity_gym.wire.messages import UnityMessage


class Editor:
    """A player that connects to `port` in a thread and answers each command until the quit message.

    :param answer: Function from a command (`UnityMessage`) to a state (`UnityOutput`, to which the header is added).
    :param hybrid_actions: Whether it announces that it reads the newer action fields.
    """

    def __init__(self, answer: Callable[[Any], Any], hybrid_actions: bool = True) -> None:
        self.port = free_port()
        self.received: list[Any] = []
        self._answer, self._hybrid_actions = answer, hybrid_actions
        self._thread = threading.Thread(target=self._play, daemon=True)
        self._thread.start()

    def connect(self, **options: Any) -> UnityEnvironment:
        """Return the environment of this Editor."""
        return UnityEnvironment(base_port=self.port, **{"timeout_wait": 20, **options})

    def join(self) -> None:
        """Wait for the quit message."""
        self._thread.join(20)
        assert not self._thread.is_alive()

    def _play(self) -> None:
        while not listens(self.port):  # gRPC itself would retry only after a second
            time.sleep(0.01)
        exchange = connect_to(self.port)
        hello = _message()
        greeting = hello.unity_output.rl_initialization_output
        greeting.communication_version, greeting.package_version = "1.5.0", "4.0.0"
        greeting.capabilities.hybrid_actions = self._hybrid_actions
        try:
            self._exchange(exchange, hello)
            command = self._exchange(exchange, _message())
            while command.header.status == 200:
                message = _message()
                message.unity_output.CopyFrom(self._answer(command))
                command = self._exchange(exchange, message)
        except grpc.RpcError:  # the environment closed without a quit message: it rejected the last message
            return

    def _exchange(self, exchange: grpc.UnaryUnaryMultiCallable, message: Any) -> Any:
        reply = exchange(message.SerializeToString(), timeout=60)
        self.received.append(UnityMessage.FromString(reply))
        return self.received[-1]


def _message() -> Any:
    message = UnityMessage()
    message.header.status = 200
    return message

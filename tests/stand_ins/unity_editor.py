"""A player inside the test's own process: it dials as the Unity Editor does, and the test sees what it was sent."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import grpc

from stand_ins.faulty_player import connect_to
from unity_gym.environment import UnityEnvironment
from unity_gym.wire.messages import UnityMessage


class Editor:
    """Dials `port` in a thread and answers each command with what `answer` returns, until it is told to quit.

    :param answer: from a command (`UnityMessage`) to a state (an `UnityOutput`, whose header is added)
    :param hybrid_actions: whether it announces that it reads the newer action fields
    """

    def __init__(self, answer: Callable[[Any], Any], hybrid_actions: bool = True) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.received: list[Any] = []
        self._answer, self._hybrid_actions = answer, hybrid_actions
        self._thread = threading.Thread(target=self._play, daemon=True)
        self._thread.start()

    def connect(self, **options: Any) -> UnityEnvironment:
        """The environment that this Editor plays for."""
        return UnityEnvironment(base_port=self.port, **{"timeout_wait": 20, **options})

    def join(self) -> None:
        """Wait until it was told to quit."""
        self._thread.join(20)
        assert not self._thread.is_alive()

    def _play(self) -> None:
        while not self._somebody_listens():  # gRPC itself would look again only after a second
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

    def _somebody_listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def _exchange(self, exchange: grpc.UnaryUnaryMultiCallable, message: Any) -> Any:
        reply = exchange(message.SerializeToString(), timeout=60)
        self.received.append(UnityMessage.FromString(reply))
        return self.received[-1]


def _message() -> Any:
    message = UnityMessage()
    message.header.status = 200
    return message

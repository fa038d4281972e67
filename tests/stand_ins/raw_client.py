"""A client of the embedded player that returns its messages unprocessed, one at a time."""

from __future__ import annotations

import struct
import subprocess
import sys
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from unity_gym.connection import PlayerConnection
from unity_gym.peer import Peer
from unity_gym.specs import Array
from unity_gym.wire.messages import RESET, STEP, ListAgentAction, UnityMessage

PARAMETERS = uuid.UUID("534c891e-810f-11ea-a9d0-822485860400")
RESEEDING = uuid.UUID("6ea2cbf4-1b1a-4d0e-9c55-0d5b6e2f7a10")
_PATIENCE = 60.0  # seconds; only a broken player needs so long


class Agent:
    """One `AgentInfo`: float observations as arrays, images as compressed bytes."""

    def __init__(self, info: Any) -> None:
        self.id, self.group_id = info.id, info.group_id
        self.reward, self.group_reward = info.reward, info.group_reward
        self.done, self.interrupted = info.done, info.max_step_reached
        self.mask = np.frombuffer(info.action_mask, bool)
        self.sensors = [o.name for o in info.observations]
        self.kinds = [o.observation_type for o in info.observations]
        self.images: dict[str, bytes] = {o.name: o.compressed_data for o in info.observations if o.compressed_data}
        self.observations = [
            np.frombuffer(o.float_data.data, "<f4").reshape(o.shape) for o in info.observations if not o.compressed_data
        ]


class Message:
    """The content of one message: per behavior, the requesting agents and the terminal ones."""

    def __init__(self, raw: bytes | bytearray) -> None:
        message = UnityMessage.FromString(raw)
        self.raw, self.status, output = raw, message.header.status, message.unity_output
        self.initialization = output.rl_initialization_output
        self.announced = [parameters.brain_name for parameters in self.initialization.brain_parameters]
        self.agents = {
            name: [Agent(info) for info in infos.value] for name, infos in output.rl_output.agent_infos.items()
        }
        self.side_channel: bytes = output.rl_output.side_channel

    def deciding(self, behavior: str) -> list[Agent]:
        return [agent for agent in self.agents[behavior] if not agent.done]

    def ended(self, behavior: str) -> list[Agent]:
        return [agent for agent in self.agents[behavior] if agent.done]


class EmbeddedClient:
    """A client that starts the player as a process and answers it.

    :param arguments: Arguments of the player, the scene first.
    :param player: Module or file that Python runs as the player.
    """

    def __init__(self, *arguments: str, player: Sequence[str] = ("-m", "unity_gym.scenes")) -> None:
        self.connection = PlayerConnection()
        self.connection.listen(Peer.is_same_user)
        command = [sys.executable, *player, *arguments, "--mlagents-port", str(self.connection.port)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def receive(self) -> Message:
        return Message(self.connection.receive(_PATIENCE, self._check))

    def _check(self) -> None:
        assert self.process.poll() is None, f"the player has ended: {self.process.communicate()[0]}"

    def start(self, seed: int = 1, side_channel: bytes = b"", num_areas: int = 1) -> Message:
        """Go through the handshake and return the first message of the scene."""
        self.receive()
        self.send(num_areas=num_areas, seed=seed)
        self.receive()
        return self.reset(side_channel)

    def send(self, *, seed: int, num_areas: int = 1) -> None:
        """Answer the player's first message."""
        reply = UnityMessage()
        reply.header.status = 200
        first = reply.unity_input.rl_initialization_input
        first.seed, first.num_areas, first.communication_version = seed, num_areas, "1.5.0"
        self.connection.send(reply.SerializeToString())

    def reset(self, side_channel: bytes = b"") -> Message:
        return self.exchange(RESET, {}, side_channel)

    def step(self, behavior: str, actions: Sequence[Mapping[str, bytes]], side_channel: bytes = b"") -> Message:
        """Act for the requesting agents: one mapping of `AgentAction` fields each."""
        return self.exchange(STEP, {behavior: actions}, side_channel)

    def exchange(self, command: int, actions: Mapping[str, Sequence[Mapping[str, bytes]]], channel: bytes) -> Message:
        self.answer(command, actions, channel)
        return self.receive()

    def answer(self, command: int, actions: Mapping[str, Sequence[Mapping[str, bytes]]], channel: bytes = b"") -> None:
        reply = UnityMessage()
        reply.header.status = 200
        rl_input = reply.unity_input.rl_input
        rl_input.command, rl_input.side_channel = command, channel
        for behavior, fields in actions.items():
            rl_input.agent_actions[behavior] = ListAgentAction(value=fields).SerializeToString()
        self.connection.send(reply.SerializeToString())

    def end(self, status: int = 400, command: int = STEP) -> tuple[int, str]:
        """Send the quit message; return the player's exit status and output."""
        reply = UnityMessage()
        reply.header.status = status
        reply.unity_input.rl_input.command = command
        self.connection.send(reply.SerializeToString())
        return self.finished()

    def finished(self) -> tuple[int, str]:
        """Wait until the player has ended; return its exit status and output."""
        output = self.process.communicate(timeout=_PATIENCE)[0]
        return self.process.returncode, output

    def close(self) -> None:
        self.connection.close()
        self.process.kill()
        self.process.communicate()


def continuous(actions: Array) -> list[dict[str, bytes]]:
    """Return the continuous actions of n agents (n, size) as fields of `AgentAction`."""
    return [{"continuous_actions": row.tobytes()} for row in np.asarray(actions, "<f4")]


def mixed(actions: Array, discrete_actions: Sequence[Sequence[int]]) -> list[dict[str, bytes]]:
    """Return hybrid actions of n agents: continuous (n, size) and discrete (n, branches)."""
    return [
        part | {"discrete_actions": bytes(chosen)}
        for part, chosen in zip(continuous(actions), discrete_actions, strict=True)
    ]


def discrete(*discrete_actions: int) -> list[dict[str, bytes]]:
    """Return one agent's discrete actions, each below 128."""
    return [{"discrete_actions": bytes(discrete_actions)}]


def frame(channel: uuid.UUID, payload: bytes) -> bytes:
    return channel.bytes_le + struct.pack("<i", len(payload)) + payload


def parameter(name: str, value: float) -> bytes:
    return frame(PARAMETERS, _text(name) + struct.pack("<if", 0, value))


def uniform_sampler(name: str, seed: int, low: float, high: float) -> bytes:
    return frame(PARAMETERS, _text(name) + struct.pack("<iiiff", 1, seed, 0, low, high))


def new_seed(seed: int) -> bytes:
    return frame(RESEEDING, struct.pack("<i", seed))


def _text(text: str) -> bytes:
    return struct.pack("<i", len(text)) + text.encode()

"""The player's connection with the client: handshake, exchanges, side channels."""

from __future__ import annotations

import logging
import struct
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from unity_gym.errors import PlayerError, ProtocolError
from unity_gym.scenes.messages import decode_actions, decoded, empty, initialization, output
from unity_gym.scenes.parameters import EnvironmentParameters
from unity_gym.side_channels.messages import IncomingMessage, OutgoingMessage
from unity_gym.specs import ActionSpec, Array
from unity_gym.wire.caller import Caller, CallError
from unity_gym.wire.encode import STATUS_OK
from unity_gym.wire.messages import QUIT, RESET, UnityMessage

_CONNECT_PATIENCE = 30.0  # seconds that the player waits until the client listens

ENGINE_CONFIGURATION = uuid.UUID("e951342c-4f7e-11ea-b238-784f4387d1f7")
ENVIRONMENT_PARAMETERS = uuid.UUID("534c891e-810f-11ea-a9d0-822485860400")
FLOAT_PROPERTIES = uuid.UUID("60ccf7d0-4f7e-11ea-b238-784f4387d1f7")
STATISTICS = uuid.UUID("a1d8f7b7-cec8-50f9-b78b-d3e165a78520")
TRAINING_ANALYTICS = uuid.UUID("b664a4a9-d86f-5a5f-95cb-e8353a7e8356")
RESEEDING = uuid.UUID("6ea2cbf4-1b1a-4d0e-9c55-0d5b6e2f7a10")
"""A channel of unity-gym. The client sends an int32 seed. The player rebuilds its scene with it, as if launched with
that seed, and returns it in its next message. Parameters persist; behaviors are not announced again."""
RENDERING = uuid.UUID("2f1c6f1e-52a3-4f0b-8a39-7f3f5f6f0d21")
"""A channel of unity-gym; see `unity_gym.side_channels.RenderingChannel`."""

_FRAME = struct.Struct("<16si")  # the UUID's little-endian fields, the payload's length
_log = logging.getLogger(__name__)


class Quit(Exception):  # noqa: N818
    """Raised when the client has closed the connection or asked the player to quit."""


class Reseeded(Exception):  # noqa: N818
    """Raised when the client has sent a new seed: the scene must be built from scratch."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.seed = seed


class Drawn(Protocol):
    """The methods of a scene that the communicator calls."""

    areas: int

    def render(self, area: int) -> Array:
        """Return the image of an area, uint8 (height, width, 3)."""


class Acting(Protocol):
    """The attributes of a kind of agents that the communicator uses: the arrays to which it writes the next actions."""

    continuous: Array
    discrete: Array


class Communicator:
    """Collect what the agents send in a step and exchange it for their actions.

    :param port: Port on which the client listens on this machine.
    """

    scene: Drawn
    """Scene that is rendered if the client requests images."""

    def __init__(self, port: int) -> None:
        self.parameters = EnvironmentParameters()
        self._port = port
        self._caller = Caller(port)
        self._announced: set[str] = set()
        self._outgoing = bytearray()
        self._new_seed: int | None = None
        self._unknown: set[uuid.UUID] = set()
        self._areas_to_draw = 0
        self._draws_at_once = False
        self._draws_ends = False
        self._end_frame: Array | None = None  # final state of an episode, if only one area is rendered
        self._readers: dict[uuid.UUID, Callable[[IncomingMessage], None]] = {
            ENVIRONMENT_PARAMETERS: self.parameters.on_message_received,
            RESEEDING: self._reseed,
            RENDERING: self._request_frames,
        }
        # Speed, resolution and frame rate have no effect without a window and without waiting, and no
        # scene uses the others.
        for channel in (ENGINE_CONFIGURATION, FLOAT_PROPERTIES, TRAINING_ANALYTICS):
            self._readers[channel] = lambda _: None
        self.start()

    def start(self) -> None:
        """Discard the agents of the previous scene before a new one is built."""
        self.parameters.restart()
        self._actions: dict[str, ActionSpec] = {}
        self._infos: dict[str, list[bytes]] = {}
        self._waiting: dict[str, list[tuple[Acting, Array]]] = {}
        self._pending = False

    def connect(self) -> tuple[int, int]:
        """Perform the handshake, up to the client's first command.

        :return: Seed and number of areas that the client requests.
        :raises PlayerError: If no client listens on the port.
        :raises Quit: If the client closes the connection.
        """
        try:
            self._caller.connect(_CONNECT_PATIENCE)
            reply = self._caller.call(initialization(), _CONNECT_PATIENCE)
        except CallError as error:
            raise PlayerError(
                f"no ML-Agents client answered on port {self._port}: {error}. Start one that listens there, or name "
                "its port with --mlagents-port"
            ) from error
        first = decoded(UnityMessage, reply).unity_input.rl_initialization_input
        self._handle(self._exchange(empty()))  # nothing to reset: the scene is built next
        seed, self._new_seed = first.seed if self._new_seed is None else self._new_seed, None
        return seed, first.num_areas

    def close(self) -> None:
        """Close the connection."""
        self._caller.close()

    def subscribe(self, behavior: str, actions: ActionSpec) -> None:
        """Include a behavior in every message from now on."""
        self._actions[behavior] = actions
        self._infos.setdefault(behavior, [])

    def put(self, behavior: str, infos: bytes, agents: Acting, asking: Array | None) -> None:
        """Queue an encoded `ListAgentInfo`; `asking`: rows that request actions, None if their episodes ended."""
        self._infos[behavior].append(infos)
        self._pending = True
        if asking is not None:
            self._waiting.setdefault(behavior, []).append((agents, asking))
        elif self._draws_ends:
            self._end_frame = self.scene.render(0)

    def add_statistic(self, name: str, value: float, aggregation: int = 0) -> None:
        """Send a value for the client's statistics with the next message.

        :param name: Name of the statistic.
        :param value: Value of the statistic.
        :param aggregation: Aggregation method: 0 average, 1 most recent, 2 sum, 3 histogram.
        """
        message = OutgoingMessage()
        message.write_string(name)
        message.write_float32(value)
        message.write_int32(aggregation)
        self._send(STATISTICS, bytes(message.buffer))

    def exchange_messages(self) -> bool:
        """Exchange the queue, if it is not empty, and write the actions of the agents that requested them.

        :return: Whether the client commands a reset.
        :raises Quit: If the player has to quit.
        :raises Reseeded: If the scene has to be built from scratch.
        """
        if not self._pending:
            return False
        infos = {behavior: b"".join(parts) for behavior, parts in self._infos.items()}
        new = {name: self._actions[name] for name, sent in infos.items() if sent and name not in self._announced}
        self._announced.update(new)
        waiting, self._waiting = self._waiting, {}
        rl_input = self._exchange_infos(infos, new)
        for parts in self._infos.values():
            parts.clear()
        self._pending = False
        while self._draws_at_once:
            self._draws_at_once = False
            rl_input = self._exchange_infos({}, {})
        if self._new_seed is not None:
            seed, self._new_seed = self._new_seed, None
            raise Reseeded(seed)
        if rl_input.command == RESET:
            return True
        for behavior, asking in waiting.items():
            self._act(asking, rl_input.agent_actions.get(behavior, b""), self._actions[behavior])
        return False

    def _exchange_infos(self, infos: Mapping[str, bytes], new: Mapping[str, ActionSpec]) -> Any:
        """Exchange encoded agents, the behaviors among them that are new, and all messages of side channels."""
        self._send_frames()
        message = output(infos, new, bytes(self._outgoing))
        self._outgoing.clear()
        return self._handle(self._exchange(message))

    @staticmethod
    def _act(asking: Sequence[tuple[Acting, Array]], encoded: bytes, spec: ActionSpec) -> None:
        count = sum(len(rows) for _, rows in asking)
        continuous, discrete = decode_actions(encoded, count, spec)
        start = 0
        for agents, rows in asking:
            end = start + len(rows)
            agents.continuous[rows] = continuous[start:end]
            agents.discrete[rows] = discrete[start:end]
            start = end

    def _exchange(self, message: bytes) -> bytes:
        try:
            return self._caller.call(message)
        except CallError as error:
            raise Quit(f"the client disconnected: {error}") from error

    def _handle(self, reply: bytes) -> Any:
        """Process the side-channel messages of a reply and return its `RLInput`."""
        message = decoded(UnityMessage, reply)
        if message.header.status != STATUS_OK:
            raise Quit("the client has ended the connection")
        rl_input = message.unity_input.rl_input
        if rl_input.side_channel:
            self._read_frames(rl_input.side_channel)
        if rl_input.command == QUIT:
            raise Quit("the client has sent the command to quit")
        return rl_input

    def _read_frames(self, data: bytes) -> None:
        """Pass each message to its channel. Unreadable messages are logged and skipped, as in Unity."""
        offset = 0
        while offset < len(data):
            if len(data) - offset < _FRAME.size:
                _log.error("side-channel data end in %d bytes, less than a frame's header", len(data) - offset)
                return
            identifier, length = _FRAME.unpack_from(data, offset)
            channel = uuid.UUID(bytes_le=identifier)
            offset += _FRAME.size
            if not 0 <= length <= len(data) - offset:
                left = len(data) - offset
                _log.error("a frame of side channel %s announces %d bytes; %d are there", channel, length, left)
                return
            reader = self._readers.get(channel)
            if reader is not None:
                try:
                    reader(IncomingMessage(data[offset : offset + length]))
                except ProtocolError as error:
                    _log.error("side channel %s: %s; the message is skipped", channel, error)
            elif channel not in self._unknown:
                self._unknown.add(channel)
                _log.warning("no scene listens to side channel %s; its messages are skipped", channel)
            offset += length

    def _send(self, channel: uuid.UUID, payload: bytes) -> None:
        self._outgoing += _FRAME.pack(channel.bytes_le, len(payload)) + payload

    def _request_frames(self, message: IncomingMessage) -> None:
        areas, at_once = message.read_int32(), message.read_bool()
        self._areas_to_draw, self._draws_at_once, self._draws_ends = areas, at_once, areas == 1

    def _send_frames(self) -> None:
        if self._end_frame is not None:
            self._send_frame(1, 0, self._end_frame)
            self._end_frame = None
        for area in range(min(self._areas_to_draw, self.scene.areas)):
            self._send_frame(0, area, self.scene.render(area))
        self._areas_to_draw = 0

    def _send_frame(self, moment: int, area: int, frame: Array) -> None:
        height, width, _ = frame.shape
        self._send(RENDERING, struct.pack("<4i", moment, area, height, width) + frame.tobytes())

    def _reseed(self, message: IncomingMessage) -> None:
        self._new_seed = message.read_int32()
        self._send(RESEEDING, message.get_raw_bytes())


class Rehearsal(Communicator):
    """Communicator that answers every message with zero actions, so that a scene can run before a client connects."""

    def __init__(self) -> None:
        super().__init__(port=1)  # never connected
        self._reply: bytes = UnityMessage(header={"status": STATUS_OK}).SerializeToString()

    def _exchange(self, message: bytes) -> bytes:  # noqa: ARG002
        return self._reply

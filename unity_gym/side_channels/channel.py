"""Base class of side channels, and their registry, which frames the channels' messages into one block of bytes."""

from __future__ import annotations

import struct
import uuid
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

from unity_gym.errors import InvalidValueError, ProtocolError, UnityGymError
from unity_gym.side_channels.messages import IncomingMessage, OutgoingMessage

_MOST_UNKNOWN = 16  # unknown channels that warnings report, if a player always uses new ones
_HEADER = struct.Struct("<16si")  # the UUID's little-endian fields, the payload's length


class SideChannel(ABC):
    """Base class of channels of messages in addition to observations and actions. Subclass it for a custom scene.

    :param channel_id: UUID that the Unity side of the channel uses.
    """

    def __init__(self, channel_id: uuid.UUID) -> None:
        self.channel_id = channel_id
        self.message_queue: list[bytes] = []

    def queue_message_to_send(self, message: OutgoingMessage) -> None:
        """Send `message` with the next `reset()` or `step()`; an environment's `reset()` then sends RESET."""
        self.message_queue.append(bytes(message.buffer))

    def on_player_restarted(self) -> None:  # noqa: B027
        """Queue the settings that a relaunched player needs again. By default there are none."""

    @abstractmethod
    def on_message_received(self, message: IncomingMessage) -> None:
        """Process one message of the player."""


class OutgoingChannel(SideChannel):
    """Channel on which a player only receives."""

    def on_message_received(self, message: IncomingMessage) -> None:  # noqa: ARG002
        """Raise an error, as no message is expected.

        :raises ProtocolError: Always.
        """
        raise ProtocolError("the player sent a message on a channel that leads to the player only")


def channel_list(channels: Sequence[SideChannel]) -> list[SideChannel]:
    """Return the custom side channels of a player.

    :raises InvalidValueError: If they are no sequence of channels.
    """
    if not isinstance(channels, Sequence) or not all(isinstance(channel, SideChannel) for channel in channels):
        raise InvalidValueError(f"side_channels must be a list of SideChannel objects, got {channels!r}")
    return list(channels)


def frame(channel: SideChannel, payload: bytes) -> bytes:
    """Return a message of a channel as the block of bytes of a `RLInput` or `RLOutput` contains it."""
    return _HEADER.pack(channel.channel_id.bytes_le, len(payload)) + payload


class SideChannels:
    """Registry of the channels of one player.

    :raises UnityGymError: If two channels have one UUID.
    """

    def __init__(self, channels: Iterable[SideChannel] = ()) -> None:
        self._channels: dict[uuid.UUID, SideChannel] = {}
        self._unknown: set[uuid.UUID] = set()
        self._collected: list[tuple[SideChannel, int]] = []
        self._is_held = False
        self._exempt: SideChannel | None = None  # from `hold`
        self._sent: list[tuple[SideChannel, list[bytes]]] = []  # since `hold`
        self._received = bytearray()  # frames since `hold`
        for channel in channels:
            self.add(channel)

    def add(self, channel: SideChannel) -> None:
        """Register a channel.

        :raises UnityGymError: If its UUID is in use.
        """
        taken = self._channels.setdefault(channel.channel_id, channel)
        if taken is not channel:
            raise UnityGymError(
                f"two side channels have the UUID {channel.channel_id}: {type(taken).__name__} and "
                f"{type(channel).__name__}; give each its own, and pass one object a channel. Leave out those of the "
                "environment itself: it has options, such as time_scale and environment_parameters"
            )

    def get(self, channel_id: uuid.UUID) -> SideChannel | None:
        """Return the channel of this UUID, None if it is not registered."""
        return self._channels.get(channel_id)

    def player_restarted(self) -> None:
        """Let every channel queue its settings for a relaunched player, after the messages that are queued already."""
        for channel in self._channels.values():
            channel.on_player_restarted()

    @property
    def has_queued(self) -> bool:
        """Whether a message waits to be sent."""
        return any(channel.message_queue for channel in self._channels.values())

    def collect(self) -> bytes:
        """Frame all queued messages; they stay queued until `clear_collected`, which follows when they are sent."""
        frames = bytearray()
        self._collected = []
        for channel in self._channels.values():
            if channel.message_queue:
                payloads = list(channel.message_queue)
                self._collected.append((channel, len(payloads)))
                for payload in payloads:
                    frames += frame(channel, payload)
        return bytes(frames)

    def clear_collected(self) -> None:
        """Remove the messages that the last `collect` returned from the queues."""
        for channel, count in self._collected:
            if self._is_held and channel is not self._exempt:
                self._sent.append((channel, channel.message_queue[:count]))
            del channel.message_queue[:count]
        self._collected = []

    def hold(self, exempt: SideChannel | None = None) -> None:
        """Keep the messages from now on, of a player that may be discarded, until `release` or `take_back`.

        :param exempt: Channel whose messages are passed on at once and never taken back.
        """
        self._is_held, self._exempt = True, exempt

    def release(self) -> None:
        """Pass on the messages that were received since `hold`.

        :raises ProtocolError: If one cannot be read.
        """
        received, self._received, self._sent, self._is_held = bytes(self._received), bytearray(), [], False
        self.dispatch(received)

    def take_back(self) -> None:
        """Undo what has happened since `hold`: messages are queued again, and those that were received are dropped."""
        for channel, messages in reversed(self._sent):
            channel.message_queue[:0] = messages
        self._received, self._sent, self._is_held = bytearray(), [], False

    def dispatch(self, data: bytes) -> None:
        """Pass each framed message to its channel; an unknown channel is skipped with one warning.

        :raises ProtocolError: If a frame is cut off, or a channel cannot read its message; the message names the
            channel.
        """
        offset = 0
        while offset < len(data):
            if len(data) - offset < _HEADER.size:
                raise ProtocolError(f"side-channel data end in {len(data) - offset} bytes, less than a frame's header")
            identifier, length = _HEADER.unpack_from(data, offset)
            channel_id = uuid.UUID(bytes_le=identifier)
            channel = self._channels.get(channel_id)
            name = f"{channel_id} ({type(channel).__name__ if channel else 'unknown'})"
            offset += _HEADER.size
            if length < 0 or offset + length > len(data):
                raise ProtocolError(
                    f"the frame of side channel {name} announces {length} bytes; {len(data) - offset} are there"
                )
            if self._is_held and channel is not self._exempt:
                self._received += data[offset - _HEADER.size : offset + length]
            elif channel is None:
                self._warn_once(channel_id)
            else:
                try:
                    channel.on_message_received(IncomingMessage(data[offset : offset + length]))
                except ProtocolError as error:
                    raise ProtocolError(f"side channel {name}: {error}") from error
                except (ArithmeticError, LookupError, MemoryError, ValueError, struct.error) as error:
                    raise ProtocolError(f"side channel {name} cannot read its message: {error!r}") from error
            offset += length

    def _warn_once(self, channel_id: uuid.UUID) -> None:
        if channel_id not in self._unknown and len(self._unknown) < _MOST_UNKNOWN:
            self._unknown.add(channel_id)
            warnings.warn(
                f"the player sends on side channel {channel_id}, which is not registered; its messages are skipped "
                "(pass a SideChannel with this UUID in side_channels to receive them)",
                stacklevel=2,
            )

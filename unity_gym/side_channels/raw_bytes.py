"""Side channel for bytes in both directions, for a custom format."""

from __future__ import annotations

import uuid

from unity_gym.side_channels.channel import SideChannel
from unity_gym.side_channels.messages import IncomingMessage, OutgoingMessage


class RawBytesChannel(SideChannel):
    """Channel that sends and collects raw bytes.

    :param channel_id: UUID that the Unity side uses.
    """

    def __init__(self, channel_id: uuid.UUID) -> None:
        super().__init__(channel_id)
        self._received: list[bytes] = []

    def on_message_received(self, message: IncomingMessage) -> None:
        """Collect one message."""
        self._received.append(message.get_raw_bytes())

    def get_and_clear_received_messages(self) -> list[bytes]:
        """Return the messages that were received since the last call, in their order."""
        received, self._received = self._received, []
        return received

    def send_raw_data(self, data: bytes) -> None:
        """Queue bytes for the player."""
        message = OutgoingMessage()
        message.set_raw_bytes(data)
        self.queue_message_to_send(message)

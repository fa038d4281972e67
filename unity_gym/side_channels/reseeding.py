"""Side channel of this package that reseeds a running player, supported by the embedded player but not by Unity's."""

from __future__ import annotations

import uuid

from unity_gym.side_channels.channel import SideChannel
from unity_gym.side_channels.messages import IncomingMessage, OutgoingMessage


class ReseedingChannel(SideChannel):
    """Channel that sends a seed. A player that supports it restarts its scene from scratch and returns the seed."""

    def __init__(self) -> None:
        super().__init__(uuid.UUID("6ea2cbf4-1b1a-4d0e-9c55-0d5b6e2f7a10"))
        self.acknowledged: int | None = None

    def send(self, seed: int) -> None:
        """Queue the int32 seed and discard the last acknowledgement."""
        self.acknowledged = None
        message = OutgoingMessage()
        message.write_int32(seed)
        self.queue_message_to_send(message)

    def on_message_received(self, message: IncomingMessage) -> None:
        """Store the seed that the player now uses."""
        self.acknowledged = message.read_int32()

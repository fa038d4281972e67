"""Side channel for a trainer's reports to the Editor, for the package's analytics window."""

from __future__ import annotations

import uuid

from unity_gym.side_channels.channel import OutgoingChannel
from unity_gym.side_channels.messages import OutgoingMessage


class TrainingAnalyticsChannel(OutgoingChannel):
    """Channel for encoded analytics messages. This package sends none: it transmits no data about training."""

    def __init__(self) -> None:
        super().__init__(uuid.UUID("b664a4a9-d86f-5a5f-95cb-e8353a7e8356"))

    def send_message(self, encoded: bytes) -> None:
        """Queue one message, encoded by the sender's own protobuf classes."""
        message = OutgoingMessage()
        message.set_raw_bytes(encoded)
        self.queue_message_to_send(message)

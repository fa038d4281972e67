"""Side channel for named floats that both sides may set."""

from __future__ import annotations

import uuid

from unity_gym.side_channels.channel import SideChannel
from unity_gym.side_channels.messages import IncomingMessage, OutgoingMessage


class FloatPropertiesChannel(SideChannel):
    """Channel that stores the newest value of each property, whichever side set it.

    :param channel_id: UUID of a custom channel; the default is the one of ML-Agents.
    """

    def __init__(self, channel_id: uuid.UUID | None = None) -> None:
        super().__init__(channel_id or uuid.UUID("60ccf7d0-4f7e-11ea-b238-784f4387d1f7"))
        self._properties: dict[str, float] = {}

    def on_player_restarted(self) -> None:
        """Queue every property again."""
        for key, value in self._properties.items():
            self.set_property(key, value)

    def on_message_received(self, message: IncomingMessage) -> None:
        """Store a property that the player set."""
        key = message.read_string()
        self._properties[key] = message.read_float32()

    def set_property(self, key: str, value: float) -> None:
        """Set a property here and in the player."""
        self._properties[key] = value
        message = OutgoingMessage()
        message.write_string(key)
        message.write_float32(value)
        self.queue_message_to_send(message)

    def get_property(self, key: str) -> float | None:
        """Return the value of a property, None if neither side has set it."""
        return self._properties.get(key)

    def list_properties(self) -> list[str]:
        """Return the names of all properties."""
        return list(self._properties)

    def get_property_dict_copy(self) -> dict[str, float]:
        """Return a copy of all properties."""
        return dict(self._properties)

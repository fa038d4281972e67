"""Side channel for the window size, quality and time scale of the player."""

from __future__ import annotations

import struct
import uuid

from unity_gym.errors import InvalidValueError, UnityGymError
from unity_gym.side_channels.channel import OutgoingChannel
from unity_gym.side_channels.messages import OutgoingMessage


class EngineConfigurationChannel(OutgoingChannel):
    """Channel that sets the engine's configuration; only the given values are sent."""

    def __init__(self) -> None:
        super().__init__(uuid.UUID("e951342c-4f7e-11ea-b238-784f4387d1f7"))
        self._configuration: dict[int, bytes] = {}

    def set_configuration_parameters(
        self,
        width: int | None = None,
        height: int | None = None,
        quality_level: int | None = None,
        time_scale: float | None = None,
        target_frame_rate: int | None = None,
        capture_frame_rate: int | None = None,
    ) -> None:
        """Queue a change of configuration.

        :param width: Width of the window in pixels; needs `height`.
        :param height: Height of the window in pixels; needs `width`.
        :param quality_level: Index of one of the project's quality levels.
        :param time_scale: Simulated seconds per second, in [1, 100].
        :param target_frame_rate: Target number of frames per second; -1 for as many as possible.
        :param capture_frame_rate: Number of frames per simulated second.
        :raises UnityGymError: If only one of width and height is given.
        :raises InvalidValueError: If a value is no number, or too large for the message.
        """
        if (width is None) != (height is None):
            raise UnityGymError(f"width and height must be given together, got width={width}, height={height}")
        if width is not None and height is not None:
            self._send(0, _packed("i", "width", width) + _packed("i", "height", height))
        if quality_level is not None:
            self._send(1, _packed("i", "quality_level", quality_level))
        if time_scale is not None:
            self._send(2, _packed("f", "time_scale", time_scale))
        if target_frame_rate is not None:
            self._send(3, _packed("i", "target_frame_rate", target_frame_rate))
        if capture_frame_rate is not None:
            self._send(4, _packed("i", "capture_frame_rate", capture_frame_rate))

    def _send(self, kind: int, value: bytes) -> None:
        self._configuration[kind] = value
        message = OutgoingMessage()
        message.set_raw_bytes(struct.pack("<i", kind) + value)
        self.queue_message_to_send(message)

    def on_player_restarted(self) -> None:
        """Queue the whole configuration again."""
        for kind, value in self._configuration.items():
            self._send(kind, value)


def _packed(code: str, name: str, value: float) -> bytes:
    """Return a value as bytes, in the format with this code of `struct`; the name is for errors."""
    try:
        return struct.pack(f"<{code}", value)
    except (struct.error, OverflowError, TypeError) as error:
        limit = "a whole number of at most 2147483647" if code == "i" else "a number of at most 3.4e38"
        raise InvalidValueError(f"{name} must be {limit}, got {value!r}") from error

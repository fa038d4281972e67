"""Side channel of this package for images of the scene, supported by the embedded player but not by Unity's."""

from __future__ import annotations

import uuid

import numpy as np

from unity_gym.errors import ProtocolError
from unity_gym.side_channels.channel import SideChannel, frame
from unity_gym.side_channels.messages import IncomingMessage, OutgoingMessage
from unity_gym.specs import Array

_NOW, _END = 0, 1
_HEADER_BYTES = 16


class RenderingChannel(SideChannel):
    """Channel that requests images of the first areas.

    A request is the number of areas as int32, at most those that the player has are drawn, and a bool. False: the
    player adds an image of each to its next message, which is the state after the command. True: it answers at once
    with a message of images alone, takes no step and ignores the command. After a request for one area, the player also
    adds an image of the last state of an episode to the message in which that ends.

    An image is int32 moment, area, height and width, then height × width × 3 bytes, RGB, row 0 at the top. Moment 0 is
    the current state, moment 1 the last state of an episode. Pixels are not compressed: for 400 × 400 pixels, raw ones
    take 0.3 ms and zlib 1.3 ms.
    """

    def __init__(self) -> None:
        super().__init__(uuid.UUID("2f1c6f1e-52a3-4f0b-8a39-7f3f5f6f0d21"))
        self.frames: dict[int, Array] = {}
        """The newest image of each area, uint8 (height, width, 3)."""
        self.last_end: Array | None = None
        """The newest image of the last state of an episode, uint8 (height, width, 3)."""
        self._areas = 0

    def draw(self, areas: int) -> None:
        """Request images of this many areas with the next state."""
        self._areas = areas
        self.queue_message_to_send(self._request(at_once=False))

    def request_at_once(self) -> bytes:
        """Return a framed request for images of the areas of the last `draw`, without a step."""
        return frame(self, bytes(self._request(at_once=True).buffer))

    def _request(self, at_once: bool) -> OutgoingMessage:
        message = OutgoingMessage()
        message.write_int32(self._areas)
        message.write_bool(at_once)
        return message

    def on_player_restarted(self) -> None:
        """Request the images of the last `draw` from the new player."""
        if self._areas:
            self.draw(self._areas)

    def on_message_received(self, message: IncomingMessage) -> None:
        """Store one image.

        :raises ProtocolError: If its size differs from the declared one.
        """
        moment, area, height, width = (message.read_int32() for _ in range(4))
        pixels = np.frombuffer(message.get_raw_bytes(), np.uint8, offset=_HEADER_BYTES)
        if min(height, width) < 1 or len(pixels) != 3 * height * width or moment not in (_NOW, _END):
            raise ProtocolError(
                f"an image of moment {moment} and {height} × {width} pixels has {len(pixels)} bytes; the moments are "
                f"{_NOW} and {_END}, and a pixel has three bytes"
            )
        image = pixels.reshape(height, width, 3)
        if moment == _END:
            self.last_end = image
        else:
            self.frames[area] = image

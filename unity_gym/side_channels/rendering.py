"""Our own channel: images of the scene. Unity's players do not know it; the embedded player does."""

from __future__ import annotations

import uuid

import numpy as np

from unity_gym.errors import ProtocolError
from unity_gym.side_channels.channel import SideChannel
from unity_gym.side_channels.messages import IncomingMessage, OutgoingMessage
from unity_gym.specs import Array

_NOW, _END = 0, 1
_HEADER_BYTES = 16


class RenderingChannel(SideChannel):
    """Sends how many areas to draw: int32, from the first one on; the player draws no more than it has, and none at 0.

    From then on, the player puts an image of each of these areas into every message: int32 moment, area, height and
    width, then height × width × 3 bytes, RGB, row 0 at the top. Moment 0 is the message's own. If one area is drawn, a
    image of moment 1 comes before it where an episode has ended since the last message: of the state that it ended
    in. Pixels are not compressed: with 400 × 400 of them, raw ones cost the exchange 0.3 ms and zlib 1.3 ms.
    """

    def __init__(self) -> None:
        super().__init__(uuid.UUID("2f1c6f1e-52a3-4f0b-8a39-7f3f5f6f0d21"))
        self.frames: dict[int, Array] = {}
        """The newest image of each area, uint8 (height, width, 3)."""
        self.last_end: Array | None = None
        """The newest image of the end of an episode, uint8 (height, width, 3)."""
        self._areas = 0

    def draw(self, areas: int) -> None:
        """Request images of this many areas."""
        self._areas = areas
        message = OutgoingMessage()
        message.write_int32(areas)
        self.queue_message_to_send(message)

    def on_player_restarted(self) -> None:
        """Queue the wish again."""
        if self._areas:
            self.draw(self._areas)

    def on_message_received(self, message: IncomingMessage) -> None:
        """Keep one image.

        :raises ProtocolError: its size is not the one that it announces
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

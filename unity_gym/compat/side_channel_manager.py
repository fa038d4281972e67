"""`SideChannelManager`: the registry of side channels with the names and exceptions of Unity's package."""

from __future__ import annotations

from collections.abc import Iterable

from unity_gym.compat.exceptions import UnityEnvironmentException, raised_as
from unity_gym.errors import ProtocolError, UnityGymError
from unity_gym.side_channels import SideChannel, SideChannels


class SideChannelManager(SideChannels):
    """Registry of channels, which also tests custom channels without an environment.

    :param side_channels: Channels to register.
    :raises UnityEnvironmentException: If two channels have one UUID.
    """

    @raised_as(UnityEnvironmentException, UnityGymError)
    def __init__(self, side_channels: Iterable[SideChannel] | None = None) -> None:
        super().__init__(side_channels or ())

    @raised_as(UnityEnvironmentException, ProtocolError)
    def dispatch(self, data: bytes) -> None:
        """Pass each framed message to its channel.

        :raises UnityEnvironmentException: If a frame is cut off, or a channel cannot read its message.
        """
        super().dispatch(data)

    process_side_channel_message = dispatch

    def generate_side_channel_messages(self) -> bytearray:
        """Frame all queued messages and remove them from the queues."""
        frames = bytearray(self.collect())
        self.clear_collected()
        return frames

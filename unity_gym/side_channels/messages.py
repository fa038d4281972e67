"""The payloads of side channels: little-endian numbers, one-byte bools, strings and lists with an int32 count."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from unity_gym.errors import InvalidValueError, ProtocolError


class IncomingMessage:
    """Reader of a payload from its start to its end.

    Every `read_…` raises `ProtocolError` if the payload ends too early. At its very end, it returns `default_value`
    instead, if one is given: a sender may omit the last values.
    """

    def __init__(self, buffer: bytes, offset: int = 0) -> None:
        self.buffer = buffer
        self.offset = offset

    def _take(self, size: int) -> bytes:
        end = self.offset + size
        if size < 0 or end > len(self.buffer):
            raise ProtocolError(
                f"a side-channel message of {len(self.buffer)} bytes ends too early: "
                f"{size} bytes are read at byte {self.offset}"
            )
        taken, self.offset = self.buffer[self.offset : end], end
        return taken

    def _is_omitted(self) -> bool:
        return self.offset >= len(self.buffer)

    def read_bool(self, default_value: bool | None = None) -> bool:
        """Return one byte as a bool, True if it is not 0."""
        if default_value is not None and self._is_omitted():
            return default_value
        return self._take(1) != b"\x00"

    def read_int32(self, default_value: int | None = None) -> int:
        """Return four bytes as an int32."""
        if default_value is not None and self._is_omitted():
            return default_value
        return int.from_bytes(self._take(4), "little", signed=True)

    def read_float32(self, default_value: float | None = None) -> float:
        """Return four bytes as a float32."""
        if default_value is not None and self._is_omitted():
            return default_value
        value: float = struct.unpack("<f", self._take(4))[0]
        return value

    def read_float32_list(self, default_value: list[float] | None = None) -> list[float]:
        """Return the floats that follow an int32 count."""
        if default_value is not None and self._is_omitted():
            return default_value
        count = self.read_int32()
        return list(struct.unpack(f"<{count}f", self._take(4 * count)))

    def read_string(self, default_value: str | None = None) -> str:
        """Return the UTF-8 text that follows an int32 count of bytes."""
        if default_value is not None and self._is_omitted():
            return default_value
        return self._take(self.read_int32()).decode("utf-8", errors="replace")

    def get_raw_bytes(self) -> bytes:
        """Return the whole payload."""
        return self.buffer


class OutgoingMessage:
    """Writer of a payload."""

    def __init__(self) -> None:
        self.buffer = bytearray()

    def write_bool(self, value: bool) -> None:
        """Write one byte."""
        self.buffer += b"\x01" if value else b"\x00"

    def write_int32(self, value: int) -> None:
        """Write four bytes."""
        self.buffer += struct.pack("<i", value)

    def write_float32(self, value: float) -> None:
        """Write four bytes."""
        self.buffer += struct.pack("<f", value)

    def write_float32_list(self, values: Sequence[float]) -> None:
        """Write an int32 count and the floats."""
        self.buffer += struct.pack(f"<i{len(values)}f", len(values), *values)

    def write_string(self, value: str) -> None:
        """Write an int32 count of bytes and the ASCII text; Unity's package reads only ASCII.

        :raises InvalidValueError: If there are other characters.
        """
        if not value.isascii():
            raise InvalidValueError(
                f"a string on a side channel must be ASCII, as Unity's package reads it, got {value!r}: rename it here "
                "and in the scene"
            )
        encoded = value.encode("ascii")
        self.write_int32(len(encoded))
        self.buffer += encoded

    def set_raw_bytes(self, value: bytes) -> None:
        """Replace everything written by `value`."""
        self.buffer = bytearray(value)

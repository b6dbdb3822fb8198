"""GGUF's metadata values: a cursor that checks before it reads, and arrays that stay in the file.

Format: ggml's `docs/gguf.md`, little-endian.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType
from typing import Any, overload

import numpy as np

from poot_models.checkpoint.mapped import shown
from poot_models.errors import CheckpointFormatError

MAX_STRING_BYTES = 1 << 24
MAX_TEXT_BYTES = 1 << 25
"""Over all keys, names and string values of a file, which are decoded when it is opened; arrays of strings are not."""
MAX_ARRAY_ITEMS = 1 << 24
MAX_STRING_ITEMS = 1 << 22
"""Over all string arrays of a file: each item costs one step of the scan that finds the next."""

CUT = "it is truncated or damaged"

_STRING = 8
_ARRAY = 9
_BOOL = 7
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
# value type -> the letter that struct and numpy both use
_LETTERS: Mapping[int, str] = MappingProxyType(
    {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
)


class StringArray(Sequence[str]):
    """A GGUF array of strings, decoded on access; it views the file, which it keeps mapped.

    Bounds were checked when the file was opened. CheckpointFormatError on access to an item that is not UTF-8.
    """

    __slots__ = ("_data", "_key", "_starts")

    def __init__(self, key: str, data: memoryview, starts: array[int]) -> None:
        """starts: where each item's bytes begin, and 8 past the end of the last (where a next would begin)."""
        self._key = key
        self._data = data
        self._starts = starts

    def __len__(self) -> int:
        return len(self._starts) - 1

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[str, ...]: ...
    def __getitem__(self, index: int | slice) -> str | tuple[str, ...]:
        indices = range(len(self))[index]
        if isinstance(indices, range):
            return tuple(self._decode(at) for at in indices)
        return self._decode(indices)

    def __iter__(self) -> Iterator[str]:
        return iter(self.tolist())

    def __repr__(self) -> str:
        return f"StringArray({shown(self._key)}, {len(self)} items)"

    def bytes_at(self, index: int) -> bytes:
        """Item `index` as it is in the file."""
        at = range(len(self))[index]
        return bytes(self._data[self._starts[at] : self._starts[at + 1] - 8])

    def tolist(self) -> list[str]:
        """All items, decoded in one pass."""
        first = self._starts[0]
        text = bytes(self._data[first - 8 : self._starts[-1] - 8])
        starts = [start - first + 8 for start in self._starts]
        try:
            return [text[start : after - 8].decode() for start, after in pairwise(starts)]
        except UnicodeDecodeError:
            return [self._decode(index) for index in range(len(self))]  # again, to name the item

    def _decode(self, index: int) -> str:
        try:
            return self.bytes_at(index).decode()
        except UnicodeDecodeError as error:
            raise CheckpointFormatError(f"item {index} of {shown(self._key)} is not UTF-8: {error}") from error


class Cursor:
    """A position in a GGUF header. Every read is checked against the bytes left, before anything is allocated."""

    def __init__(self, data: memoryview, name: str) -> None:
        self._data = data
        self.name = name
        self._text_bytes_left = MAX_TEXT_BYTES
        self._string_items_left = MAX_STRING_ITEMS
        self.position = 0

    @property
    def left(self) -> int:
        return len(self._data) - self.position

    def error(self, message: str) -> CheckpointFormatError:
        return CheckpointFormatError(f"{self.name}: {message}")

    def u32(self) -> int:
        return int(_U32.unpack_from(self._data, self._take(4))[0])

    def u64(self) -> int:
        return int(_U64.unpack_from(self._data, self._take(8))[0])

    def text(self, what: str, limit: int = MAX_STRING_BYTES) -> str:
        """A length-prefixed string that must be UTF-8."""
        length = self.u64()
        if length > limit:
            raise self.error(f"{what} claims {length} bytes; at most {limit} are read")
        if length > self._text_bytes_left:
            raise self.error(f"{what} takes the file's keys, names and strings above {MAX_TEXT_BYTES} bytes")
        self._text_bytes_left -= length
        start = self._take(length)
        try:
            return str(self._data[start : start + length], "utf-8")
        except UnicodeDecodeError as error:
            raise self.error(f"{what} is not UTF-8: {error}") from error

    def value(self, key: str) -> Any:
        """A typed value: int, float, bool, str, a read-only numpy array, or a StringArray."""
        kind = self.u32()
        if kind == _STRING:
            return self.text(f"the value of {shown(key)}")
        if kind == _ARRAY:
            return self._array(key)
        letter = _LETTERS.get(kind)
        if letter is None:
            raise self.error(f"{shown(key)} has the unknown value type {kind}")
        start = self._take(struct.calcsize(letter))
        if kind == _BOOL and self._data[start] > 1:
            raise self.error(f"{shown(key)} is a boolean of value {self._data[start]}")
        return struct.unpack_from(f"<{letter}", self._data, start)[0]

    def _array(self, key: str) -> Any:
        kind = self.u32()
        count = self.u64()
        if count > MAX_ARRAY_ITEMS:
            raise self.error(f"the array {shown(key)} claims {count} items; at most {MAX_ARRAY_ITEMS} are read")
        if kind == _STRING:
            return self._strings(key, count)
        if kind == _ARRAY:
            raise self.error(f"{shown(key)} is an array of arrays, which is not supported")
        letter = _LETTERS.get(kind)
        if letter is None:
            raise self.error(f"the array {shown(key)} has the unknown item type {kind}")
        dtype = np.dtype(f"<{letter}")
        start = self._take(count * dtype.itemsize)
        items = np.frombuffer(self._data[start : self.position], np.uint8)
        if kind == _BOOL and (items > 1).any():
            raise self.error(f"the array {shown(key)} holds a boolean above 1")
        return items.view(dtype)

    def _strings(self, key: str, count: int) -> StringArray:
        if count > self.left // 8:
            raise self.error(f"the array {shown(key)} claims {count} strings, but {self.left} bytes are left: {CUT}")
        if count > self._string_items_left:
            raise self.error(f"the array {shown(key)} takes the file above {MAX_STRING_ITEMS} strings in arrays")
        self._string_items_left -= count
        data, unpack, position = self._data, _U64.unpack_from, self.position + 8
        starts = array("q", (0,)) * (count + 1)
        starts[0] = position
        try:
            for index in range(count):
                (length,) = unpack(data, position - 8)
                if length > MAX_STRING_BYTES:
                    raise self.error(
                        f"item {index} of {shown(key)} claims {length} bytes; at most {MAX_STRING_BYTES} are read"
                    )
                position += length + 8
                starts[index + 1] = position
        except struct.error:  # a length that lies beyond the end
            position = len(data) + 9
        if position - 8 > len(data):
            raise self.error(f"the file ends inside the array {shown(key)}: {CUT}")
        self.position = position - 8
        return StringArray(key, data, starts)

    def _take(self, count: int) -> int:
        """Move past `count` bytes; where they start."""
        start = self.position
        if count > self.left:
            raise self.error(f"the file ends at byte {len(self._data)}, inside its header: {CUT}")
        self.position = start + count
        return start

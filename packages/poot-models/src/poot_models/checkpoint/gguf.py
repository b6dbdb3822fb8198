"""GGUF files, versions 2 and 3, little-endian: mapped, checked whole, and handed out as views.

Format: ggml's `docs/gguf.md`. Opening reads the header only; weights are paged in when they are used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from poot_executor.encodings import Encoding, WeightSource, nbytes
from poot_executor.errors import EncodingError
from poot_models.checkpoint.gguf_values import CUT, Cursor
from poot_models.checkpoint.mapped import map_file, shown
from poot_models.checkpoint.opened import OpenedCheckpoint
from poot_models.encodings.ggml_types import encoding_of_type, readable_names, type_name
from poot_models.errors import UnsupportedEncodingError

MAGIC = b"GGUF"
MAX_KEY_VALUES = 1 << 16
MAX_KEY_BYTES = (1 << 16) - 1
MAX_TENSORS = 1 << 16
MAX_NAME_BYTES = 64
MAX_DIMENSIONS = 4
MAX_PARTS = 1 << 10
"""Files of a split model."""
DEFAULT_ALIGNMENT = 32

_HEADER_BYTES = 24
_LEAST_KEY_VALUE_BYTES = 8 + 1 + 4 + 1
_LEAST_TENSOR_BYTES = 8 + 1 + 4 + 4 + 8


@dataclass(frozen=True, slots=True)
class Split:
    """Which part of a split model a file is: `number` of `count`, from 0, and the tensors of all parts together."""

    number: int
    count: int
    tensors: int


class GgufFile(OpenedCheckpoint):
    """One GGUF file; of a split model one part, which `open_gguf` joins with the others.

    metadata: key -> int, float, bool, str, read-only numpy array, or StringArray, in file order.
    tensors: name -> WeightSource, in file order; shapes are row-major, GGUF's own order reversed.
    split: None for a file that holds a whole model.

    Raises CheckpointMissingError, CheckpointFormatError (any byte that breaks the format or a limit of this
    module) or UnsupportedEncodingError (a tensor whose type has no decoder).
    """

    format: Literal["gguf"] = "gguf"

    def __init__(self, path: Path) -> None:
        self.path = path
        mapped = map_file(path)
        data = np.frombuffer(mapped, np.uint8)
        cursor = Cursor(memoryview(mapped), path.name)
        tensor_count, pair_count = _read_counts(cursor, data)
        metadata = _read_metadata(cursor, pair_count)
        self.split = _read_split(cursor, metadata)
        infos = [_read_tensor_info(cursor) for _ in range(tensor_count)]
        self.metadata = MappingProxyType(metadata)
        self.tensors = MappingProxyType(_place_tensors(cursor, infos, metadata, data))


@dataclass(frozen=True, slots=True)
class _TensorInfo:
    """offset: from the start of the data section."""

    name: str
    shape: tuple[int, ...]
    encoding: Encoding
    offset: int
    size: int


def _read_counts(cursor: Cursor, data: npt.NDArray[np.uint8]) -> tuple[int, int]:
    """Past magic, version and counts -> (tensors, key-value pairs), both possible in the bytes left."""
    magic = data[:4].tobytes()
    if magic != MAGIC:
        raise cursor.error(f"this is no GGUF file: it begins with {magic!r}, not {MAGIC!r}")
    if data.size < _HEADER_BYTES:
        raise cursor.error(f"the file ends after {data.size} bytes, inside its header: it is truncated")
    cursor.position = 4
    version = cursor.u32()
    if version in (2 << 24, 3 << 24):
        raise cursor.error("this GGUF file is big-endian; convert it with gguf-convert-endian to little")
    if version not in (2, 3):
        raise cursor.error(f"GGUF version {version} is not supported, only 2 and 3: convert the model again")
    tensor_count, pair_count = cursor.u64(), cursor.u64()
    for count, what, most, least_bytes in (
        (pair_count, "key-value pairs", MAX_KEY_VALUES, _LEAST_KEY_VALUE_BYTES),
        (tensor_count, "tensors", MAX_TENSORS, _LEAST_TENSOR_BYTES),
    ):
        if count > most:
            raise cursor.error(f"the header claims {count} {what}; at most {most} are read")
        if count > cursor.left // least_bytes:
            raise cursor.error(f"the header claims {count} {what}, but only {cursor.left} bytes follow: {CUT}")
    return tensor_count, pair_count


def _read_metadata(cursor: Cursor, count: int) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    for index in range(count):
        key = cursor.text(f"key {index}", MAX_KEY_BYTES)
        if not key or key in metadata:
            raise cursor.error(f"the key {shown(key)} is there twice" if key else f"key {index} is empty")
        metadata[key] = cursor.value(key)
    return metadata


def _read_split(cursor: Cursor, metadata: Mapping[str, Any]) -> Split | None:
    """The keys that llama.cpp's gguf-split writes; a count of 0 or 1 is a whole model."""
    count = _split_number(cursor, metadata, "split.count", 0, MAX_PARTS)
    if count < 2:
        return None
    number = _split_number(cursor, metadata, "split.no", None, count - 1)
    return Split(number, count, _split_number(cursor, metadata, "split.tensors.count", None, MAX_TENSORS))


def _split_number(cursor: Cursor, metadata: Mapping[str, Any], key: str, default: int | None, most: int) -> int:
    value = metadata.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        stated = "missing" if value is None else shown(str(value))
        raise cursor.error(f"{key} is {stated}; a part of a split model states a whole number from 0 to {most}")
    return value


def _read_tensor_info(cursor: Cursor) -> _TensorInfo:
    name = cursor.text("a tensor's name", MAX_NAME_BYTES)
    if not name:
        raise cursor.error("a tensor has an empty name")
    dimensions = cursor.u32()
    if dimensions > MAX_DIMENSIONS:
        raise cursor.error(f"tensor {shown(name)} claims {dimensions} dimensions; at most {MAX_DIMENSIONS} exist")
    shape = tuple(cursor.u64() for _ in range(dimensions))[::-1]
    type_id, offset = cursor.u32(), cursor.u64()
    encoding = encoding_of_type(type_id)
    if encoding is None:
        raise UnsupportedEncodingError(
            f"{cursor.name}: tensor {shown(name)} is encoded as {type_name(type_id)}, which has no decoder; "
            f"readable are {', '.join(readable_names())}"
        )
    try:
        size = nbytes(encoding, shape)
    except EncodingError as error:
        raise cursor.error(f"tensor {shown(name)}: {error}") from error
    return _TensorInfo(name, shape, encoding, offset, size)


def _alignment(cursor: Cursor, metadata: Mapping[str, Any]) -> int:
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 8 or alignment & (alignment - 1) or alignment >= 1 << 32:
        raise cursor.error(f"general.alignment is {shown(str(alignment))}; it must be a power of two from 8")
    return alignment


def _place_tensors(
    cursor: Cursor, infos: list[_TensorInfo], metadata: Mapping[str, Any], data: npt.NDArray[np.uint8]
) -> dict[str, WeightSource]:
    """Views of the data section, which starts at the next aligned byte; each inside the file, none over another."""
    alignment = _alignment(cursor, metadata)
    start = -(-cursor.position // alignment) * alignment
    available = data.size - start
    end, previous = 0, ""
    for info in sorted(infos, key=lambda info: info.offset):
        if info.offset % alignment:
            raise cursor.error(f"tensor {shown(info.name)} lies at offset {info.offset}, no multiple of {alignment}")
        if info.offset < end:
            raise cursor.error(f"tensors {shown(previous)} and {shown(info.name)} overlap")
        end, previous = info.offset + info.size, info.name
        if end > available:
            raise cursor.error(
                f"tensor {shown(info.name)} ends at byte {start + end}, but the file at {data.size}: it is truncated"
            )
    tensors: dict[str, WeightSource] = {}
    for info in infos:
        if info.name in tensors:
            raise cursor.error(f"the tensor {shown(info.name)} is there twice")
        first = start + info.offset
        tensors[info.name] = WeightSource(info.name, info.shape, info.encoding, data[first : first + info.size])
    return tensors

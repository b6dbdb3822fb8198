"""A safetensors directory: config.json beside model.safetensors, or beside shards and their index.

Formats: huggingface/safetensors README (file), transformers' `model.safetensors.index.json` (shards). Files are
mapped; opening reads headers only. Nothing is ever unpickled.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Literal

import numpy as np

from poot_executor.encodings import Dense, WeightSource
from poot_executor.errors import EncodingError
from poot_models.checkpoint.json_text import parse_object
from poot_models.checkpoint.mapped import is_present, map_file, read_file, shown
from poot_models.checkpoint.opened import OpenedCheckpoint
from poot_models.errors import CheckpointFormatError, CheckpointMissingError, UnsupportedEncodingError

CONFIG_NAME = "config.json"
WEIGHTS_NAME = "model.safetensors"
INDEX_NAME = "model.safetensors.index.json"

MAX_CONFIG_BYTES = 1 << 22
MAX_INDEX_BYTES = 1 << 24
MAX_HEADER_BYTES = 1 << 24
MAX_FILE_TENSORS = 1 << 15
MAX_TENSORS = 1 << 17
MAX_SHARDS = 1 << 12
MAX_DIMENSIONS = 8

_LENGTH_BYTES = 8
_FIELDS = frozenset(("dtype", "shape", "data_offsets"))


class SafetensorsDirectory(OpenedCheckpoint):
    """One directory with a model in it; a single file goes before an index, as in transformers.

    metadata: config.json as it is.
    tensors: name -> WeightSource; of a sharded model what the index names, then what else its shards hold. Files that
    the index does not name, such as consolidated.safetensors, are not looked at.

    Raises CheckpointMissingError (a directory without weights or config, a shard that is not there),
    CheckpointFormatError or UnsupportedEncodingError (a dtype that nothing here reads).
    """

    format: Literal["safetensors"] = "safetensors"

    def __init__(self, path: Path) -> None:
        self.path = path
        if is_present(path / WEIGHTS_NAME):
            tensors = read_safetensors(path / WEIGHTS_NAME)
        elif is_present(path / INDEX_NAME):
            tensors = _read_shards(path)
        else:
            raise CheckpointMissingError(_advice(path))
        if not is_present(path / CONFIG_NAME):
            raise CheckpointMissingError(f"{path} has weights but no {CONFIG_NAME}, which names the architecture")
        raw = read_file(path / CONFIG_NAME, MAX_CONFIG_BYTES)
        config = parse_object(raw, CONFIG_NAME, non_finite=True)  # transformers writes Infinity in time_step_limit
        self.metadata = MappingProxyType(config)
        self.tensors = MappingProxyType(tensors)


def read_safetensors(path: Path) -> dict[str, WeightSource]:
    """One safetensors file -> its weights by name, in order of their bytes, which they fill without a gap.

    Errors: as SafetensorsDirectory.
    """
    data = np.frombuffer(map_file(path), np.uint8)
    if data.size < _LENGTH_BYTES:
        raise CheckpointFormatError(f"{path.name} has {data.size} bytes, less than a safetensors header")
    length = int.from_bytes(data[:_LENGTH_BYTES].tobytes(), "little")
    if length > MAX_HEADER_BYTES or length > data.size - _LENGTH_BYTES:
        raise CheckpointFormatError(
            f"{path.name} claims a header of {length} bytes; {data.size - _LENGTH_BYTES} follow, and at most "
            f"{MAX_HEADER_BYTES} are read: it is truncated, or no safetensors file"
        )
    start = _LENGTH_BYTES + length
    raw = data[_LENGTH_BYTES:start].tobytes()
    if not raw.startswith(b"{"):
        raise CheckpointFormatError(f"{path.name}: the header does not begin with '{{': it is no safetensors file")
    header = parse_object(raw, f"the header of {path.name}")
    _check_notes(header.pop("__metadata__", {}), path.name)
    if len(header) > MAX_FILE_TENSORS:
        raise CheckpointFormatError(f"{path.name} has {len(header)} tensors; at most {MAX_FILE_TENSORS} are read")
    tensors: dict[str, WeightSource] = {}
    end = 0
    entries = [(name, *_parse_entry(name, entry, path.name)) for name, entry in header.items()]
    for name, encoding, shape, first, last in sorted(entries, key=lambda entry: entry[3]):
        if first != end:
            fault = (
                "overlaps the tensor before it" if first < end else f"leaves a hole of {first - end} bytes before it"
            )
            raise CheckpointFormatError(f"{path.name}: tensor {shown(name)} {fault}")
        end = last
        if end > data.size - start:
            raise CheckpointFormatError(
                f"{path.name}: tensor {shown(name)} ends at byte {start + end}, but the file at {data.size}: "
                "it is truncated"
            )
        tensors[name] = WeightSource(name, shape, encoding, data[start + first : start + last])
    if start + end != data.size:
        raise CheckpointFormatError(f"{path.name} has {data.size - start - end} bytes after its last tensor")
    return tensors


def _check_notes(notes: object, file: str) -> None:
    if not isinstance(notes, dict) or not all(isinstance(value, str) for value in notes.values()):
        raise CheckpointFormatError(f"{file}: __metadata__ must map strings to strings")


def _parse_entry(name: str, entry: object, file: str) -> tuple[Dense, tuple[int, ...], int, int]:
    """-> encoding, shape, first and past-the-last byte in the data section, agreeing with each other."""
    if not isinstance(entry, dict) or entry.keys() != _FIELDS:
        raise CheckpointFormatError(f"{file}: tensor {shown(name)} must have exactly {', '.join(sorted(_FIELDS))}")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str):
        raise CheckpointFormatError(f"{file}: tensor {shown(name)}: dtype must be a string")
    if not _are_counts(shape) or len(shape) > MAX_DIMENSIONS or 0 in shape:
        raise CheckpointFormatError(
            f"{file}: tensor {shown(name)}: shape must be up to {MAX_DIMENSIONS} integers from 1 to 2^63"
        )
    if not _are_counts(offsets) or len(offsets) != 2:
        raise CheckpointFormatError(f"{file}: tensor {shown(name)}: data_offsets must be two integers from 0 to 2^63")
    try:
        encoding = Dense(dtype)
    except EncodingError as error:
        raise UnsupportedEncodingError(
            f"{file}: tensor {shown(name)} is of dtype {shown(dtype)}, which nothing here reads: {error}"
        ) from error
    first, last = offsets
    size = prod(shape) * encoding.block_bytes
    if last - first != size:
        raise CheckpointFormatError(
            f"{file}: tensor {shown(name)}: {dtype} of shape {shape} takes {size} bytes, "
            f"but data_offsets {offsets} span {last - first}"
        )
    return encoding, tuple(shape), first, last


def _are_counts(values: object) -> bool:
    """Whether it is a list of integers, booleans not among them, that fit 63 bits and are not negative."""
    return isinstance(values, list) and all(type(value) is int and 0 <= value < 1 << 63 for value in values)


def read_index(path: Path) -> dict[str, str]:
    """The index in a directory: tensor name -> plain name of a .safetensors file beside it.

    CheckpointFormatError for any other index. CheckpointMissingError: it cannot be read.
    """
    index = parse_object(read_file(path / INDEX_NAME, MAX_INDEX_BYTES), INDEX_NAME)
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(file, str) for file in weight_map.values()):
        raise CheckpointFormatError(f"{INDEX_NAME} must have a weight_map from tensor names to file names")
    files = dict.fromkeys(weight_map.values())
    if len(weight_map) > MAX_TENSORS or len(files) > MAX_SHARDS:
        raise CheckpointFormatError(
            f"{INDEX_NAME} names {len(weight_map)} tensors in {len(files)} files; "
            f"at most {MAX_TENSORS} in {MAX_SHARDS} are read"
        )
    _check_shard_names(files)
    return weight_map


def _read_shards(path: Path) -> dict[str, WeightSource]:
    weight_map = read_index(path)
    files = dict.fromkeys(weight_map.values())
    missing = [file for file in files if not is_present(path / file)]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise CheckpointMissingError(
            f"{path} has no {missing[0]}{more}, which {INDEX_NAME} names: fetch the missing shards"
        )
    holders: dict[str, str] = {}
    found: dict[str, WeightSource] = {}
    for file in files:
        for name, source in read_safetensors(path / file).items():
            if name in found:
                raise CheckpointFormatError(f"tensor {shown(name)} is in {holders[name]} and again in {file}")
            holders[name], found[name] = file, source
        if len(found) > MAX_TENSORS:
            raise CheckpointFormatError(f"the shards hold more than {MAX_TENSORS} tensors, the most that are read")
    for name, file in weight_map.items():
        if holders.get(name) != file:
            raise CheckpointFormatError(f"{INDEX_NAME} says that tensor {shown(name)} is in {file}, but it is not")
    return {name: found[name] for name in (*weight_map, *(name for name in found if name not in weight_map))}


def _check_shard_names(files: Iterable[str]) -> None:
    for file in files:
        if not file.endswith(".safetensors") or not file.isprintable() or any(mark in file for mark in "/\\:"):
            raise CheckpointFormatError(
                f"{INDEX_NAME} names the file {shown(file)}; only plain names of .safetensors files beside it are read"
            )


def _advice(path: Path) -> str:
    """Why a directory without the expected weight files cannot be read, and what to do."""
    suffixes: dict[str, str] = {}
    consolidated = ""
    try:
        for entry in sorted(path.iterdir()):
            if entry.name.startswith("consolidated") and entry.suffix == ".safetensors":
                consolidated = consolidated or entry.name
            suffixes.setdefault(entry.suffix.lower(), entry.name)
    except OSError as error:
        return f"{path} cannot be read: {error}"
    if consolidated:
        return (
            f"{path} has its weights only as {consolidated}, whose tensors have other names than config.json's "
            f"architecture: fetch {WEIGHTS_NAME}, or {INDEX_NAME} with its shards"
        )
    if file := suffixes.get(".safetensors"):
        advice = f"fetch {INDEX_NAME}" if "-of-" in file else "rename it or write the index"
        return f"{path} has {file}, but neither {WEIGHTS_NAME} nor {INDEX_NAME}: {advice}"
    if file := suffixes.get(".gguf"):
        return f"{path} is no safetensors directory, but has {file}: give the path of that file"
    if file := next((suffixes[suffix] for suffix in (".bin", ".pt", ".pth") if suffix in suffixes), None):
        return (
            f"{path} has its weights only in pickles such as {file}, which can run code when read, so they never are: "
            "convert the model to safetensors"
        )
    return f"{path} has neither {WEIGHTS_NAME} nor {INDEX_NAME}: it holds no model"

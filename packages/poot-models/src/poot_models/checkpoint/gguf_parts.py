"""Split GGUF models: `name-00001-of-00003.gguf` and its siblings as one checkpoint.

Names and keys: llama.cpp's gguf-split (`llama_split_path`, `split.no`, `split.count`, `split.tensors.count`). The
first part has the metadata of the model, the others little but which part they are.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from poot_executor.encodings import WeightSource
from poot_models.checkpoint.gguf import GgufFile, Split
from poot_models.checkpoint.mapped import is_present, shown
from poot_models.checkpoint.opened import OpenedCheckpoint
from poot_models.errors import CheckpointFormatError, CheckpointMissingError

PART_NAME = re.compile(r"(?P<stem>.+)-(?P<number>[0-9]{5})-of-(?P<count>[0-9]{5})\.gguf", re.DOTALL)

_PLAIN = (str, int, float)


class GgufParts(OpenedCheckpoint):
    """All parts of a split model.

    path: the part that was asked for. metadata: the first part's. tensors: those of all parts, in their order.
    """

    format: Literal["gguf"] = "gguf"

    def __init__(self, path: Path, parts: Sequence[GgufFile]) -> None:
        """`parts` in order. CheckpointFormatError: they do not belong together."""
        self.path = path
        self.metadata = parts[0].metadata
        self.tensors = MappingProxyType(_joined(parts))


def part_name(stem: str, number: int, count: int) -> str:
    """The file name of part `number` (from 0) of `count`."""
    return f"{stem}-{number + 1:05}-of-{count:05}.gguf"


def open_gguf(path: Path) -> GgufFile | GgufParts:
    """A whole GGUF file, or a split model by the path of any of its parts, which lie in one folder.

    Errors as GgufFile; CheckpointMissingError for a part that is not there, CheckpointFormatError for parts that do not
    belong together.
    """
    file = GgufFile(path)
    if file.split is None:
        return file
    named = PART_NAME.fullmatch(path.name)
    count = file.split.count
    if named is None or (int(named["number"]) - 1, int(named["count"])) != (file.split.number, count):
        raise CheckpointFormatError(
            f"{path.name} is part {file.split.number + 1} of {count} of a split model, but its name does not say so: "
            f"rename it to {part_name('NAME', file.split.number, count)}, beside the other parts"
        )
    names = [part_name(named["stem"], number, count) for number in range(count)]
    missing = [name for name in names if not is_present(path.with_name(name))]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise CheckpointMissingError(
            f"{path.parent} has no {missing[0]}{more}, one of the {count} parts of this model: fetch what is missing"
        )
    parts = []
    for number, name in enumerate(names):
        part = file if number == file.split.number else GgufFile(path.with_name(name))
        _check_part(name, part, Split(number, count, file.split.tensors), path.name)
        parts.append(part)
    return GgufParts(path, parts)


def _check_part(name: str, part: GgufFile, expected: Split, asked: str) -> None:
    if part.split == expected:
        return
    stated = part.split
    said = f"part {stated.number + 1} of {stated.count} with {stated.tensors} tensors" if stated else "a whole model"
    raise CheckpointFormatError(
        f"{name} says that it is {said}, not part {expected.number + 1} of {expected.count} with {expected.tensors} "
        f"tensors as {asked} has it: it belongs to another model"
    )


def _joined(parts: Sequence[GgufFile]) -> dict[str, WeightSource]:
    first, tensors = parts[0], {}
    for part in parts:
        for key, value in part.metadata.items():
            told = first.metadata.get(key)
            comparable = isinstance(value, _PLAIN) and isinstance(told, _PLAIN) and not key.startswith("split.")
            if comparable and told != value:
                raise CheckpointFormatError(
                    f"{part.path.name} says {shown(key)} is {shown(str(value))}, but {first.path.name} says "
                    f"{shown(str(told))}: they are parts of different models"
                )
        for name, source in part.tensors.items():
            if name in tensors:
                raise CheckpointFormatError(f"{part.path.name}: the tensor {shown(name)} is in an earlier part too")
            tensors[name] = source
    assert first.split is not None
    if len(tensors) != first.split.tensors:
        raise CheckpointFormatError(
            f"the {len(parts)} parts of {first.path.name} hold {len(tensors)} tensors; it says {first.split.tensors}"
        )
    return tensors

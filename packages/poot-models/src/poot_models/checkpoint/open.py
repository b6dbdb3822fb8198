"""The one way in: a path to a checkpoint of whichever format."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Protocol, Self

from poot_executor.encodings import WeightSource
from poot_models.checkpoint.gguf_parts import open_gguf
from poot_models.checkpoint.mapped import is_present
from poot_models.checkpoint.safetensors import SafetensorsDirectory
from poot_models.errors import CheckpointFormatError, CheckpointMissingError


class Checkpoint(Protocol):
    """An open checkpoint: what a model family and a tokenizer read.

    path: the GGUF file (of a split model the part that was asked for), or the safetensors directory.
    metadata: the GGUF key-value pairs, or config.json.
    tensors: weights by name, row-major, views of mapped files that stay valid after `close`.
    """

    @property
    def path(self) -> Path: ...
    @property
    def format(self) -> Literal["gguf", "safetensors"]: ...
    @property
    def metadata(self) -> Mapping[str, Any]: ...
    @property
    def tensors(self) -> Mapping[str, WeightSource]: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def open_checkpoint(path: str | Path) -> Checkpoint:
    """Open a GGUF file, any part of a split one, or a safetensors directory.

    Headers are checked whole, no weight is read.

    CheckpointMissingError, CheckpointFormatError or UnsupportedEncodingError: what is wrong and what to change.
    """
    if path == "":  # which a Path takes for the current directory
        raise CheckpointMissingError("the checkpoint's path is empty: give a .gguf file or a safetensors directory")
    try:
        path = Path(path).expanduser()
        is_directory, exists = path.is_dir(), is_present(path)
    except (OSError, RuntimeError) as error:  # RuntimeError: a ~user without a home
        raise CheckpointMissingError(f"{path} cannot be read: {error}") from error
    if not exists:
        raise CheckpointMissingError(f"there is no {path}: give a .gguf file or a safetensors directory")
    if is_directory:
        return SafetensorsDirectory(path)
    if path.suffix == ".safetensors":
        raise CheckpointFormatError(f"{path} is one file of a model: give its directory, {path.parent}")
    return open_gguf(path)

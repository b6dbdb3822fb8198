"""The life of an opened checkpoint, whatever its format."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType, TracebackType
from typing import Any, Self

from poot_executor.encodings import WeightSource


class OpenedCheckpoint:
    """Owner of what views mapped files; a context manager that lets go of them."""

    metadata: Mapping[str, Any]
    tensors: Mapping[str, WeightSource]

    def close(self) -> None:
        """Let go of the files. Weights and arrays already taken stay valid: the last of a file unmaps it."""
        self.metadata = MappingProxyType({})
        self.tensors = MappingProxyType({})

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

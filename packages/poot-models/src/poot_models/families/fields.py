"""A checkpoint's hyperparameters, typed and bounded, whichever format they come from."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from poot_executor.encodings import WeightSource
from poot_models.errors import CheckpointFormatError

_REQUIRED = object()


class Fields:
    """Reads fields under their config.json name (`hf`) or their GGUF key without the architecture (`gguf`).

    Raises CheckpointFormatError for a field that is absent without default, of another type, or out of range.
    """

    def __init__(self, architecture: str, metadata: Mapping[str, Any], tensors: Mapping[str, WeightSource], gguf: bool):
        self.architecture, self.gguf, self.tensors = architecture, gguf, tensors
        self._metadata = metadata

    def key(self, hf: str, gguf: str) -> str:
        return f"{self.architecture}.{gguf}" if self.gguf else hf

    def raw(self, hf: str, gguf: str) -> Any:
        """The value as it stands; None when absent or null."""
        key = self.key(hf, gguf)
        if not (gguf if self.gguf else hf):
            return None
        return self._metadata.get(key)

    def integer(self, hf: str, gguf: str, default: Any = _REQUIRED, *, high: int = 2**31 - 1) -> int:
        """A whole number from 1 to `high`."""
        value = self._value(hf, gguf, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= high:
            raise CheckpointFormatError(
                f"{self.key(hf, gguf)} must be a whole number from 1 to {high}, not {value!r:.80}"
            )
        return value

    def number(self, hf: str, gguf: str, default: Any = _REQUIRED) -> float:
        """A finite number above 0."""
        return _positive(self._value(hf, gguf, default), self.key(hf, gguf))

    def optional_number(self, hf: str, gguf: str) -> float | None:
        return None if self.raw(hf, gguf) is None else self.number(hf, gguf)

    def optional_integer(self, hf: str, gguf: str) -> int | None:
        return None if self.raw(hf, gguf) is None else self.integer(hf, gguf)

    def mapping(self, hf: str) -> Mapping[str, Any]:
        """An object of config.json; empty when absent."""
        value = None if self.gguf else self._metadata.get(hf)
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            raise CheckpointFormatError(f"{hf} must be an object, not {value!r:.80}")
        return value

    def layer_count(self) -> int:
        return self.integer("num_hidden_layers", "block_count", high=1024)

    def vocabulary(self) -> int:
        """Rows of the embedding table: the file's own word on the vocabulary."""
        source = self.tensors.get("token_embd.weight")
        if source is None or len(source.shape) != 2:
            raise CheckpointFormatError("the checkpoint has no embedding table of two dimensions")
        return source.shape[0]

    def tied(self, default: bool) -> bool:
        """Whether logits come from the embedding table: config.json says so, a GGUF file by having no other matrix."""
        if self.gguf:
            return "output.weight" not in self.tensors
        value = self._metadata.get("tie_word_embeddings", default)
        if not isinstance(value, bool):
            raise CheckpointFormatError(f"tie_word_embeddings must be true or false, not {value!r:.80}")
        return value

    def per_layer(self, hf: str, gguf: str, layers: int, default: Any = _REQUIRED) -> tuple[int, ...]:
        """A whole number for each layer: GGUF files may give one for all or an array."""
        value = self._value(hf, gguf, default)
        if isinstance(value, np.ndarray | list):
            items = [int(item) for item in value] if len(value) == layers else []
            if not items or min(items) < 1:
                raise CheckpointFormatError(f"{self.key(hf, gguf)} must hold {layers} whole numbers above 0")
            return tuple(items)
        return (self.integer(hf, gguf, default),) * layers

    def choice(self, hf: str, gguf: str, default: Any, allowed: tuple[str, ...]) -> str:
        value = self._value(hf, gguf, default)
        if value not in allowed:
            raise CheckpointFormatError(f"{self.key(hf, gguf)} must be one of {', '.join(allowed)}, not {value!r:.80}")
        return str(value)

    def _value(self, hf: str, gguf: str, default: Any) -> Any:
        value = self.raw(hf, gguf)
        if value is None:
            value = default
        if value is _REQUIRED:
            raise CheckpointFormatError(f"the checkpoint does not say {self.key(hf, gguf)}")
        return value


def _positive(value: Any, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
        raise CheckpointFormatError(f"{what} must be a number above 0, not {value!r:.80}")
    return float(value)


def positive(mapping: Mapping[str, Any], name: str, default: float | None = None) -> float:
    """A number above 0 of a nested object of config.json; null is as good as absent."""
    value = default if mapping.get(name) is None else mapping[name]
    if value is None:
        raise CheckpointFormatError(f"the checkpoint does not say {name}")
    return _positive(value, name)

"""A checkpoint's hyperparameters, typed and bounded, whichever format they come from."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from poot_executor.encodings import WeightSource
from poot_models.errors import CheckpointFormatError

_REQUIRED = object()
_MOST_ITEMS = 1 << 12
# A head has a frequency for each two of its columns, so that this is the length of lists, too.
_MOST_COLUMNS = 1 << 14
# Bytes that are compared at once: two matrices that differ do so in the first.
_CHUNK = 1 << 20


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
        return _plain(self._metadata.get(key), key)

    def integer(self, hf: str, gguf: str, default: Any = _REQUIRED, *, high: int = 2**31 - 1) -> int:
        """A whole number from 1 to `high`; of a head's columns to 16,384."""
        value = self._value(hf, gguf, default)
        if hf == "head_dim":
            high = min(high, _MOST_COLUMNS)
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
        """Whether logits come from the embedding table: config.json says so, a GGUF file by having no other matrix.

        A directory that has another matrix in spite of its config.json is not tied; to see that, both are read.
        """
        if self.gguf:
            return "output.weight" not in self.tensors
        value = self._metadata.get("tie_word_embeddings", default)
        if not isinstance(value, bool):
            raise CheckpointFormatError(f"tie_word_embeddings must be true or false, not {value!r:.80}")
        table, head = (self.tensors.get(f"{name}.weight") for name in ("token_embd", "output"))
        # As transformers: a matrix of its own in the checkpoint outweighs what config.json says.
        return value and (table is None or head is None or _same(table, head))

    def flag(self, hf: str) -> bool:
        """A field of config.json that is true or false; absent or null is false."""
        value = self.raw(hf, "")
        if value is not None and not isinstance(value, bool):
            raise CheckpointFormatError(f"{hf} must be true or false, not {value!r:.80}")
        return value is True

    def per_layer(self, hf: str, gguf: str, layers: int, default: Any = _REQUIRED, *, low: int = 1) -> tuple[int, ...]:
        """A whole number of at least `low` for each layer: a checkpoint may give one for all or a list."""
        items = self._value(hf, gguf, default)
        if not isinstance(items, list):
            return (self.integer(hf, gguf, default),) * layers
        whole = all(isinstance(item, int) and not isinstance(item, bool) and low <= item < 2**31 for item in items)
        if len(items) != layers or not whole:
            raise CheckpointFormatError(
                f"{self.key(hf, gguf)} must hold {layers} whole numbers from {low}, one a layer, not {items!r:.80}"
            )
        return tuple(items)

    def file_numbers(self, key: str, layers: int) -> tuple[float, ...]:
        """A finite number for each layer under a whole GGUF key: one for all or an array."""
        value = _plain(self._metadata.get(key), key)
        items: list[Any] = value if isinstance(value, list) else [value] * layers
        finite = all(isinstance(item, int | float) and math.isfinite(item) for item in items)
        if len(items) != layers or not finite:
            raise CheckpointFormatError(f"{key} must hold {layers} numbers, one a layer, not {value!r:.80}")
        return tuple(float(item) for item in items)

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


def _same(one: WeightSource, other: WeightSource) -> bool:
    """Whether two weights are equal byte by byte."""
    if (one.shape, one.encoding) != (other.shape, other.encoding):
        return False
    starts = range(0, one.data.size, _CHUNK)
    return all(np.array_equal(one.data[at : at + _CHUNK], other.data[at : at + _CHUNK]) for at in starts)


def _plain(value: Any, key: str) -> Any:
    """A GGUF file's array as a list: comparing an array gives an array, which is neither true nor false."""
    if not isinstance(value, np.ndarray):
        return value
    if value.size > _MOST_ITEMS:
        raise CheckpointFormatError(f"{key} holds {value.size} numbers; at most {_MOST_ITEMS} are read")
    return value.tolist()


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

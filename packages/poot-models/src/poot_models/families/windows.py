"""Which layers see a window only, as checkpoints state it, for both formats."""

from __future__ import annotations

from collections.abc import Callable

from poot_models.errors import CheckpointFormatError
from poot_models.families.fields import Fields

_KINDS = {"sliding_attention": True, "full_attention": False}


def windows(
    fields: Fields, layers: int, windowed: Callable[[int], bool], *, window: int | None = None
) -> tuple[int | None, ...]:
    """The window of each layer; None sees all.

    config.json's layer_types or a GGUF file's array says which layers have one; `windowed` does where neither is
    there. `window` is the default of its size; a GGUF file states 0 for none.
    """
    if fields.raw("sliding_window", "attention.sliding_window") == 0 and fields.gguf:
        return (None,) * layers
    size = fields.optional_integer("sliding_window", "attention.sliding_window") or window
    if size is None:
        return (None,) * layers
    return tuple(size if flag else None for flag in _flags(fields, layers, windowed))


def _flags(fields: Fields, layers: int, windowed: Callable[[int], bool]) -> list[bool]:
    kinds = fields.raw("layer_types", "")
    if kinds is not None:
        if not isinstance(kinds, list) or len(kinds) != layers:
            raise CheckpointFormatError(f"layer_types must be a list of {layers} names")
        if not all(isinstance(kind, str) and kind in _KINDS for kind in kinds):
            raise CheckpointFormatError(f"layer_types may hold {' and '.join(_KINDS)}")
        return [_KINDS[kind] for kind in kinds]
    pattern = fields.raw("sliding_window_pattern", "attention.sliding_window_pattern")
    if isinstance(pattern, list) and len(pattern) == layers:
        return [bool(item) for item in pattern]
    if pattern is None:
        return [windowed(index) for index in range(layers)]
    every = fields.integer("sliding_window_pattern", "attention.sliding_window_pattern")
    return [(index + 1) % every != 0 for index in range(layers)]

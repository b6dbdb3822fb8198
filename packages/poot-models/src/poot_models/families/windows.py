"""Which layers see a window only, as checkpoints state it, for both formats."""

from __future__ import annotations

from collections.abc import Callable

from poot_models.errors import CheckpointFormatError
from poot_models.families.fields import Fields

_KINDS = {"sliding_attention": True, "full_attention": False}


def windows(
    fields: Fields,
    layers: int,
    windowed: Callable[[int], bool],
    *,
    window: int | None = None,
    kinds: bool = True,
    pattern: bool = False,
) -> tuple[int | None, ...]:
    """The window of each layer; None sees all.

    config.json's layer_types (where the architecture has `kinds` of layers), its sliding_window_pattern (where it has a
    `pattern`) or a GGUF file's array says which layers have one; `windowed` does where none of them is there. `window`
    is the size where a GGUF file states none; 0 there is no window, as null is in config.json.
    """
    if fields.raw("sliding_window", "attention.sliding_window") == 0 and fields.gguf:
        return (None,) * layers
    size = fields.optional_integer("sliding_window", "attention.sliding_window") or (window if fields.gguf else None)
    if size is None:
        return (None,) * layers
    flags = _of_kinds(fields, layers) if kinds else None
    if flags is None:
        flags = _of_pattern(fields, layers, windowed, "sliding_window_pattern" if pattern else "")
    return tuple(size if flag else None for flag in flags)


def _of_kinds(fields: Fields, layers: int) -> list[bool] | None:
    kinds = fields.raw("layer_types", "")
    if kinds is None:
        return None
    if not isinstance(kinds, list) or len(kinds) != layers:
        raise CheckpointFormatError(f"layer_types must be a list of {layers} names")
    if not all(isinstance(kind, str) and kind in _KINDS for kind in kinds):
        raise CheckpointFormatError(f"layer_types may hold {' and '.join(_KINDS)}")
    return [_KINDS[kind] for kind in kinds]


def _of_pattern(fields: Fields, layers: int, windowed: Callable[[int], bool], name: str) -> list[bool]:
    pattern = fields.raw(name, "attention.sliding_window_pattern")
    if isinstance(pattern, list) and len(pattern) == layers:
        return [bool(item) for item in pattern]
    if pattern is None:
        return [windowed(index) for index in range(layers)]
    every = fields.integer(name, "attention.sliding_window_pattern")
    return [(index + 1) % every != 0 for index in range(layers)]

"""Qwen2 and Qwen2.5, dense (arXiv 2407.10671): Llama's layer with biases on queries, keys and values."""

from __future__ import annotations

from dataclasses import replace

from poot_models.blocks import DecoderConfig
from poot_models.errors import CheckpointFormatError
from poot_models.families import llama
from poot_models.families.family import Family
from poot_models.families.fields import Fields
from poot_models.families.windows import windows


def configure(fields: Fields) -> DecoderConfig:
    config = llama.configure(fields)
    sizes: tuple[int | None, ...] = (None,) * len(config.layers)
    # config.json states a window also where none is used; GGUF files state none.
    if fields.flag("use_sliding_window"):
        first = fields.raw("max_window_layers", "")
        if isinstance(first, bool) or not isinstance(first, int):
            raise CheckpointFormatError(f"max_window_layers must be a whole number, not {first!r:.80}")
        sizes = windows(fields, len(config.layers), lambda index: index >= first)
    return replace(llama.with_windows(config, sizes), rotary_style="half")


FAMILY = Family("qwen2", configure, llama.layer, llama.FAMILY.tensors)

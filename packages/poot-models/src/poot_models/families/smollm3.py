"""SmolLM3: Llama's layer, and one layer in four that does not know positions (NoPE, arXiv 2501.18795)."""

from __future__ import annotations

from dataclasses import replace

from poot_models.blocks import DecoderConfig, no_rotation
from poot_models.errors import CheckpointFormatError
from poot_models.families import llama
from poot_models.families.family import Family
from poot_models.families.fields import Fields
from poot_models.families.rotary import rotary

_INTERVAL = 4  # GGUF files do not say it
_THETA = 2000000.0


def configure(fields: Fields) -> DecoderConfig:
    config = llama.configure(fields)
    head_dim = config.layers[0].head_dim
    turned, still = rotary(fields, head_dim, theta=_THETA), no_rotation(head_dim)
    windowed = fields.raw("use_sliding_window", "") is True
    layers = tuple(
        replace(layer, rotary=turned if turns else still, window=layer.window if windowed and not turns else None)
        for layer, turns in zip(config.layers, _turns(fields, len(config.layers)), strict=True)
    )
    return replace(config, layers=layers, tied=fields.tied(True))


def _turns(fields: Fields, layers: int) -> list[bool]:
    """Which layers rotate."""
    stated = fields.raw("no_rope_layers", "")
    if stated is None:
        every = fields.integer("no_rope_layer_interval", "", _INTERVAL)
        return [(index + 1) % every != 0 for index in range(layers)]
    # The name says the opposite: 1 is a layer that rotates.
    if not isinstance(stated, list) or len(stated) < layers or not all(item in (0, 1) for item in stated):
        raise CheckpointFormatError(f"no_rope_layers must hold {layers} times 0 or 1")
    return [bool(item) for item in stated[:layers]]


FAMILY = Family("smollm3", configure, llama.layer, llama.FAMILY.tensors)

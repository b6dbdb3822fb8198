"""SmolLM3: Llama's layer, and one layer in four that does not know positions (NoPE, arXiv 2501.18795)."""

from __future__ import annotations

from dataclasses import replace

from poot_models.blocks import DecoderConfig, no_rotation
from poot_models.errors import CheckpointFormatError
from poot_models.families import llama
from poot_models.families.family import Family
from poot_models.families.fields import Fields
from poot_models.families.windows import windows

_INTERVAL = 4  # GGUF files do not say it
_THETA = 2000000.0


def configure(fields: Fields) -> DecoderConfig:
    config = llama.configure(fields, theta=_THETA)
    still = no_rotation(config.layers[0].head_dim)
    turning = _turns(fields, len(config.layers))
    sizes: tuple[int | None, ...] = (None,) * len(turning)
    if fields.flag("use_sliding_window"):
        sizes = windows(fields, len(turning), lambda index: not turning[index])
    layers = tuple(
        replace(layer, rotary=layer.rotary if turns else still, window=window)
        for layer, turns, window in zip(config.layers, turning, sizes, strict=True)
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

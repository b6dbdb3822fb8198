"""Command R7B and Command A (Cohere 2, arXiv 2504.00698): Command R's layer; three windowed layers in four, and full
ones that do not know positions."""

from __future__ import annotations

from dataclasses import replace

from poot_models.blocks import DecoderConfig, no_rotation
from poot_models.families import cohere
from poot_models.families.family import DECODER_TENSORS, Family
from poot_models.families.fields import Fields
from poot_models.families.windows import windows

_PATTERN = 4  # GGUF files do not say it
_THETA = 10000.0


def configure(fields: Fields) -> DecoderConfig:
    config = cohere.configured(fields, _THETA)
    sizes = windows(fields, len(config.layers), lambda index: (index + 1) % _PATTERN != 0, pattern=True)
    layers = tuple(
        replace(layer, window=window, rotary=no_rotation(layer.head_dim) if window is None else layer.rotary)
        for layer, window in zip(config.layers, sizes, strict=True)
    )
    return replace(config, layers=layers)


FAMILY = Family("cohere2", configure, cohere.layer, DECODER_TENSORS)

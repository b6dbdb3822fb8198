"""OLMo (arXiv 2402.00838): Llama's layer with norms that have no weights, and clipped queries, keys and values."""

from __future__ import annotations

from dataclasses import replace

from poot_models.blocks import DecoderConfig
from poot_models.families import llama
from poot_models.families.family import DECODER_TENSORS, Family
from poot_models.families.fields import Fields

_EPS = 1e-5  # config.json does not say it


def configure(fields: Fields) -> DecoderConfig:
    config = llama.configure(fields, eps=fields.number("", "attention.layer_norm_epsilon", _EPS))
    clip = fields.optional_number("clip_qkv", "attention.clamp_kqv")
    return replace(config, norm="layer bare", qkv_clip=clip)


FAMILY = Family("olmo", configure, llama.layer, DECODER_TENSORS)

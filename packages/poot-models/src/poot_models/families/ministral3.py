"""Mistral 3 and Ministral 3, text: Llama's layer; Ministral 3 has YaRN, and queries that grow with the position past
the original length."""

from __future__ import annotations

from dataclasses import replace

from poot_models.blocks import DecoderConfig
from poot_models.errors import CheckpointFormatError
from poot_models.families import llama
from poot_models.families.family import Family
from poot_models.families.fields import Fields
from poot_models.families.rotary import rope_rules


def configure(fields: Fields) -> DecoderConfig:
    config = llama.configure_with_windows(fields)
    rules = rope_rules(fields)
    if not (fields.gguf or rules):
        # Where config.json is silent, transformers takes a rule of its own.
        raise CheckpointFormatError("config.json must state rope_parameters or rope_scaling")
    growth = rules.get("llama_4_scaling_beta") or fields.raw("", "attention.temperature_scale")
    if not growth:
        return config
    # Up to the original length queries are multiplied by 1. Beyond it they would not be, and no op does that.
    original = rules.get("original_max_position_embeddings") or config.max_positions
    original = fields.integer("", "rope.scaling.original_context_length", original)
    return replace(config, max_positions=min(config.max_positions, original))


FAMILY = Family("ministral3", configure, llama.layer, llama.FAMILY.tensors)

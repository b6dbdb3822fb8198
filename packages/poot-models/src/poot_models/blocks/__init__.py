"""What decoder families are made of: their configuration as data, and the builder that their layers call."""

from poot_models.blocks.config import DecoderConfig, LayerSpec, LongRotary, Rotary, no_rotation
from poot_models.blocks.decoder import DecoderBuilder, head_graph, score_graph, step_graph
from poot_models.blocks.shape import KvGroup, StepShape, kv_groups

__all__ = [
    "DecoderBuilder",
    "DecoderConfig",
    "KvGroup",
    "LayerSpec",
    "LongRotary",
    "Rotary",
    "StepShape",
    "head_graph",
    "kv_groups",
    "no_rotation",
    "score_graph",
    "step_graph",
]

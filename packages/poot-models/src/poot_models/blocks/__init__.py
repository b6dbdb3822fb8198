"""What decoder families are made of: their configuration as data, and the builder that their layers call."""

from poot_models.blocks.config import DecoderConfig, LayerSpec
from poot_models.blocks.decoder import DecoderBuilder, head_graph, score_graph, step_graph
from poot_models.blocks.shape import KvGroup, StepShape, kv_groups

__all__ = [
    "DecoderBuilder",
    "DecoderConfig",
    "KvGroup",
    "LayerSpec",
    "StepShape",
    "head_graph",
    "kv_groups",
    "score_graph",
    "step_graph",
]

"""What a client of the engine sends and gets: plain data, no tensors, no torch."""

from poot_batch.request.info import EngineConfig, EngineInfo, EngineStats
from poot_batch.request.output import FINISH_REASONS, FinishReason, Output, Times, TokenLogprob
from poot_batch.request.params import GenerateRequest, SamplingParams, SpeculationParams, most_tokens, validate

__all__ = [
    "FINISH_REASONS",
    "EngineConfig",
    "EngineInfo",
    "EngineStats",
    "FinishReason",
    "GenerateRequest",
    "Output",
    "SamplingParams",
    "SpeculationParams",
    "Times",
    "TokenLogprob",
    "most_tokens",
    "validate",
]

"""The poot engine: continuous batching over a paged KV cache, in process (`LLM`) or as a process of its own.

Importing this package imports no torch; asking for `LLM` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from poot_batch.errors import EngineError, RequestError
from poot_batch.request import SamplingParams

if TYPE_CHECKING:
    from poot_batch.llm import LLM

__all__ = ["LLM", "EngineError", "RequestError", "SamplingParams"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name == "LLM":
        from poot_batch.llm import LLM

        return LLM
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

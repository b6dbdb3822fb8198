"""How a weight's bytes encode its numbers. This module imports no torch; `dequantise` does."""

from poot_executor.encodings.types import (
    Dense,
    Encoding,
    Ggml,
    WeightSource,
    block_bytes,
    block_size,
    nbytes,
)

__all__ = ["Dense", "Encoding", "Ggml", "WeightSource", "block_bytes", "block_size", "nbytes"]

"""How weights are held: `dense` matrices in the activation type, `vector`s in float32."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from poot_executor.encodings.dequantise import dequantise
from poot_executor.encodings.types import WeightSource
from poot_executor.kernels.kernel import WeightForm

# Elements decoded at a time on the host.
_PIECE = 2**24


def hold(form: WeightForm, sources: Sequence[WeightSource], activation: torch.dtype, device: str) -> torch.Tensor:
    """The form's weights on the device, decoded piece by piece: the host never holds a whole model."""
    dtype = torch.float32 if form.layout == "vector" else activation
    rows = sum(source.shape[0] for source in sources)
    held = torch.empty(rows, *sources[0].shape[1:], dtype=dtype, device=device)
    at = 0
    for source in sources:
        step = max(1, _PIECE // max(1, source.data.size // source.shape[0]))
        for first in range(0, source.shape[0], step):
            piece = dequantise(source.rows(first, min(first + step, source.shape[0])))
            held[at : at + len(piece)].copy_(piece)
            at += len(piece)
    return held

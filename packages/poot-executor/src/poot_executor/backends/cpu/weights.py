"""How the CPU holds weights.

`mapped`: the checkpoint's own bytes, which are its file's cached pages: packed products and embedding rows read them
where they lie. `f32`: one float32 matrix of all the weights' rows, for products where packed ones cannot be had.
`vector`: the same of one dimension.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch

from poot_executor.encodings.dequantise import dequantise
from poot_executor.encodings.types import WeightSource
from poot_executor.kernels.kernel import Site, WeightForm


def hold(form: WeightForm, sources: Sequence[WeightSource]) -> Any:
    """A float32 tensor, or the WeightSource itself for `mapped`."""
    if form.layout == "mapped":
        return sources[0]
    rows = sum(source.shape[0] for source in sources)
    held = torch.empty(rows, *sources[0].shape[1:], dtype=torch.float32)
    at = 0
    for source in sources:
        dequantise(source, held[at : at + source.shape[0]])
        at += source.shape[0]
    return held


def f32_form(site: Site, inputs: Sequence[int]) -> WeightForm:
    """The weights of these inputs as one float32 tensor."""
    names = tuple(str(site.names[i]) for i in inputs)
    layout = "f32" if len(site.inputs[inputs[0]].shape) > 1 else "vector"
    return WeightForm(layout, names, 4 * sum(prod(site.inputs[i].shape) for i in inputs))

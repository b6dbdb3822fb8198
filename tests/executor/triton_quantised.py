"""Run by test_triton.py in a process of its own: products of quantised rows under Triton's interpreter, one line each.

Rows here are whole numbers that no quantisation changes, so results must be as good as in float32.
"""

from __future__ import annotations

import torch

from poot_executor.backends.triton.device import TritonDevice
from poot_executor.devices import Live
from poot_executor.encodings import Ggml
from poot_executor.encodings.dequantise import dequantise
from poot_executor.ir import DType, GraphBuilder
from poot_executor.ops import Linear
from poot_executor.ops.linear import weight_noise
from poot_executor.runtime import EntryKey, compile_graphs, prepare

KEY = EntryKey("g", 1)
OUTS = (3, 66)  # no whole number of a program's rows, and more than sums of squares are of


def whole_rows(rows: int, width: int) -> torch.Tensor:
    """Numbers from -127 to 127, one of them 127 in each group of 32."""
    generator = torch.Generator().manual_seed(rows)
    x = torch.randint(-127, 128, (rows, width // 32, 32), generator=generator)
    x[:, :, 5] = 127
    x[0, 0] = 0  # a group of nothing
    return x.view(rows, width).float()


def verdict(name: str, rows: int, width: int) -> str:
    generator = torch.Generator().manual_seed(11)
    sources = [weight_noise(generator, f"w{i}", out, width, Ggml(name)) for i, out in enumerate(OUTS)]
    builder = GraphBuilder("g")
    x = builder.input("x", (rows, width), DType.ACT, "tokens")
    weights = [builder.weight(source.name, source.shape, source.encoding) for source in sources]
    builder.output("out", builder.apply(Linear(2, out=DType.F32), x, *weights))
    device = TritonDevice("cpu", "interpreter", DType.F16)
    entry = prepare(device, compile_graphs(device, {KEY: builder.finish()}), {s.name: s for s in sources})[KEY]
    given = whole_rows(rows, width)
    entry.stage("x", given.half().numpy())
    entry.run(Live(tokens=rows))
    found = torch.from_numpy(entry.read("out")).double()
    wanted = given.double() @ torch.cat([dequantise(source) for source in sources]).double().T
    off = float((found - wanted).abs().max() / wanted.abs().max())
    return "PASS" if off < 1e-6 else f"FAIL off by {off:.3g}"


for name, rows, width in (
    ("Q4_0", 3, 288), ("Q4_1", 1, 64), ("Q5_0", 2, 288), ("Q5_1", 1, 1056), ("Q8_0", 8, 96),
    ("Q2_K", 1, 512), ("Q3_K", 2, 256), ("Q4_K", 3, 1280), ("Q5_K", 1, 256), ("Q6_K", 2, 1024),
):  # fmt: skip
    print(f"{verdict(name, rows, width)} | {rows} rows of {width}, {name}", flush=True)

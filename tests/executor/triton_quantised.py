"""Run by test_triton.py in a process of its own: products of packed weights under Triton's interpreter, one line each.

Rows here are whole numbers that no quantisation changes, so results must be as good as in float32.
"""

from __future__ import annotations

from math import inf, nan

import torch

from poot_executor.backends.triton.device import TritonDevice
from poot_executor.backends.triton.kernels.arrange import Quantised
from poot_executor.backends.triton.kernels.packed_many import packed_many
from poot_executor.devices import Live
from poot_executor.encodings import Ggml
from poot_executor.encodings.dequantise import dequantise
from poot_executor.ir import DType, GraphBuilder
from poot_executor.kernels import WeightForm
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


def group(largest: float) -> str:
    """Whether a group is zeros if it is too small for its step to have an inverse, and not a number if it has none."""
    x = torch.zeros(2, 64)
    x[0, :32], x[0, 7], x[1] = largest, -largest, 1.0
    made = Quantised(*(torch.zeros(2, size) for size in (16, 2, 2, 4)))
    made.fill(x, TritonDevice("cpu", "interpreter", DType.F32))()
    first, other = made.sums[0].tolist(), made.sums[1].tolist()
    if other != [32.0, 32.0] or first[1] != 0.0:
        return f"FAIL other groups are {first[1]}, {other}"
    wanted = 0.0 if largest < inf else nan
    return "PASS" if str(first[0]) == str(wanted) else f"FAIL it is {first[0]}"


def in_pieces() -> str:
    """A product by way of scratch for 10 rows of the weight, all 66 in turn, into columns of a wider result."""
    source = weight_noise(torch.Generator().manual_seed(12), "w", 66, 64, Ggml("Q5_1"))
    device = TritonDevice("cpu", "interpreter", DType.F32)
    (segment,) = device.hold(WeightForm("packed", ("w",), 0), [source])
    x, out = torch.randn(3, 64, generator=torch.Generator().manual_seed(13)), torch.full((3, 70), 7.0)
    for call in packed_many(x, segment, out[:, 2:], torch.full((10 * 64,), nan), device):
        call()
    out[:, [0, 1, 68, 69]] -= 7.0
    wanted = torch.nn.functional.pad(x @ dequantise(source).T, (2, 2))
    return "PASS" if torch.allclose(out, wanted, atol=1e-6) else f"FAIL off by {float((out - wanted).abs().max()):.3g}"


for name, rows, width in (
    ("Q4_0", 3, 288), ("Q4_1", 1, 64), ("Q5_0", 2, 288), ("Q5_1", 1, 1056), ("Q8_0", 8, 96),
    ("Q2_K", 1, 512), ("Q3_K", 2, 256), ("Q4_K", 3, 1280), ("Q5_K", 1, 256), ("Q6_K", 2, 1024),
):  # fmt: skip
    print(f"{verdict(name, rows, width)} | {rows} rows of {width}, {name}", flush=True)
for largest in (1e-40, 3e-37, inf, nan):
    print(f"{group(largest)} | a group of {largest}", flush=True)
print(f"{in_pieces()} | a product in pieces")

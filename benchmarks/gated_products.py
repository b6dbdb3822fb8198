"""Gated products with dense weights on Hopper, alone: their results, and their speed beside the library's.

    python benchmarks/gated_products.py [--rows 64,128,208,256,320,512,1024,2048] [--check]

Results are compared with float64's. Speed is that of gate and up of an 8B decoder, in a CUDA graph over weights enough
that none is found in the cache, as a ratio to cuBLAS and the activation's kernel after it, timed in turn. `turned` is
the kernel whose tiles have any number of rows.

--check: exit 1 unless results agree and 208 and 2,048 rows take no longer than the library's way, by the faster kernel.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator

import torch
from ceilings import milliseconds, recorded
from here import require_gpu
from packed_products import in_turn

from poot_executor.backends.cuda.dense_gated import GatedProduct
from poot_executor.backends.cuda.dense_gated_turned import gated_turned
from poot_executor.backends.cuda.device import CudaDevice
from poot_executor.backends.triton.kernels.kernel import LIVE_INDEX
from poot_executor.backends.triton.kernels.pointwise import gate_rows

MOST_OFF = 6e-3  # of the norm: results are rounded to bfloat16
# rows, n, k, live rows, activation
CASES = (
    (33, 136, 72, 33, "silu"), (128, 512, 4096, 100, "silu"), (200, 264, 200, 200, "gelu_tanh"),
    (300, 14336, 4096, 300, "silu"), (512, 1536, 576, 317, "silu"), (2048, 14336, 4096, 2048, "silu"),
)  # fmt: skip
N, K, COPIES, REACH_ROWS = 14336, 4096, 4, (208, 2048)
TURNS = 3
TOKENS = LIVE_INDEX["tokens"]


def noise(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device="cuda").bfloat16()


def results(device: CudaDevice) -> Iterator[bool]:
    for rows, n, k, live, activation in CASES:
        device.live[TOKENS] = live
        x, weight = noise(rows, k), noise(2 * n, k) / k**0.5
        out = torch.full((rows, n), torch.nan, device="cuda").bfloat16()
        gate, up = (x[:live].double() @ half.double().T for half in weight.split(n))
        tanh = torch.nn.functional.gelu(gate, approximate="tanh")
        wanted = (torch.nn.functional.silu(gate) if activation == "silu" else tanh) * up
        ways = {
            "upright": GatedProduct(x, weight, out, activation).bind(TOKENS, device),
            "turned": gated_turned((x, weight, out), activation, TOKENS, device),
        }
        for name, launch in ways.items():
            out.fill_(torch.nan)
            launch()
            off = float((out[:live].double() - wanted).norm() / wanted.norm())
            passed = off < MOST_OFF
            told = f"{live} of {rows} rows, {n} x {k}, {activation}, {name}: off by {off:.2e}"
            print(f"{told} {'PASS' if passed else 'FAIL'}")
            yield passed


def library(
    x: torch.Tensor, weight: torch.Tensor, product: torch.Tensor, gate: Callable[[], object]
) -> Callable[[], None]:
    def run() -> None:
        torch.mm(x, weight.T, out=product)
        gate()

    return run


def speed(device: CudaDevice, rows_of: list[int]) -> Iterator[bool]:
    weights = [noise(2 * N, K) for _ in range(COPIES)]
    for rows in rows_of:
        device.live[TOKENS] = rows
        x, out, product = noise(rows, K), noise(rows, N), noise(rows, 2 * N)
        gate = gate_rows("silu", product, out, TOKENS, device)
        ways = {
            "upright": [GatedProduct(x, weight, out, "silu").bind(TOKENS, device) for weight in weights],
            "turned": [gated_turned((x, weight, out), "silu", TOKENS, device) for weight in weights],
            "library": [library(x, weight, product, gate) for weight in weights],
        }
        graphs = {name: recorded(in_turn(calls)) for name, calls in ways.items()}
        # In turn, since a device that gets hot gets slower.
        times = [{name: 1000 / COPIES * milliseconds(it) for name, it in graphs.items()} for _ in range(TURNS)]
        taken = {name: min(turn[name] for turn in times) for name in graphs}
        ratio = min(time for name, time in taken.items() if name != "library") / taken["library"]
        rates = (f"{name} {time:7.1f} us {4 * rows * N * K / time / 1e6:4.0f} TFLOP/s" for name, time in taken.items())
        told = f"{rows:5} rows: {', '.join(rates)}, ratio {ratio:.3f}"
        if rows in REACH_ROWS:
            told += " PASS" if ratio <= 1 else " FAIL"
            yield ratio <= 1
        print(told, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="64,128,208,256,320,512,1024,2048")
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    require_gpu()
    device = CudaDevice()
    passed = [*results(device), *speed(device, [int(n) for n in arguments.rows.split(",")])]
    return int(arguments.check and not all(passed))


if __name__ == "__main__":
    sys.exit(main())

"""What a GPU can do, measured beside what poot does: its copy rate, and cuBLAS over a step's matrices."""

from __future__ import annotations

from collections.abc import Callable

import torch
from here import require_gpu
from shapes import RandomDevice


def milliseconds(call: Callable[[], object]) -> float:
    """The median over some 200 ms of calls, after 50 ms of them; the L2 cache is flushed before each."""
    from triton.testing import do_bench

    return float(do_bench(call, warmup=50, rep=200, return_mode="median"))


def copy_rate(gib: int = 4) -> float:
    """Bytes a second of a copy on the device, those read and those written together. Takes twice `gib` for itself."""
    require_gpu()
    source = torch.empty(gib << 29, dtype=torch.bfloat16, device="cuda").normal_()
    target = torch.empty_like(source)
    rate = 2 * source.nbytes / milliseconds(lambda: target.copy_(source)) * 1e3
    return rate


def chain_matrices(device: RandomDevice) -> list[torch.Tensor]:
    """The matrices that one decode step multiplies with, as the engine holds them: the embedding only if tied."""
    names = list(device.matrices)
    tied = ("output.weight",) not in names
    return [device.matrices[name] for name in names if tied or name != ("token_embd.weight",)]


def packed_bytes(device: RandomDevice) -> int:
    """Bytes of packed matrices that one decode step reads."""
    tied = ("output.weight",) not in device.packed
    return sum(size for names, size in device.packed.items() if tied or names != ("token_embd.weight",))


def recorded(run: Callable[[], object]) -> Callable[[], None]:
    """A CUDA graph's replay of a call, which has run once before."""
    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay  # type: ignore[no-any-return]


class Chain:
    """All matrix products of one decode step by cuBLAS, in a CUDA graph, over the engine's own matrices."""

    def __init__(self, matrices: list[torch.Tensor], rows: int) -> None:
        wide = {matrix.shape[1] for matrix in matrices}
        made = {k: torch.randn(rows, k, device="cuda").bfloat16() for k in wide}
        outs = {n: torch.empty(rows, n, device="cuda", dtype=torch.bfloat16) for n in {m.shape[0] for m in matrices}}
        self._kept = made, outs

        def run() -> None:
            for matrix in matrices:
                torch.mm(made[matrix.shape[1]], matrix.t(), out=outs[matrix.shape[0]])

        self._run = recorded(run)

    def milliseconds(self) -> float:
        return milliseconds(self._run)

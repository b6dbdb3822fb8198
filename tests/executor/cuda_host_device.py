"""A device over host memory that runs kernels in CUDA C++ by emulation (`cuda_on_host`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

from cuda_on_host import Argument, HostKernel

from poot_executor.backends.cuda.programs import SOURCES, Program
from poot_executor.backends.triton.device import TritonDevice
from poot_executor.ir import DType

# By kernel, the arguments that its threads may use before they have waited for the kernel before: weights, and what
# kernels long before have written.
EARLY = {
    "attend_rows": (3, 4),
    "attend_prompt": (),
    "dense_gated": (),
    "dense_gated_turned": (2,),
    "packed_dot": (1, 2, 3, 4),
    "packed_product": (1, 2, 3, 4),
    "packed_wide": (1, 2, 3, 4),
}


@cache
def _kernel(program: Program) -> HostKernel:
    return HostKernel(SOURCES / program.source, program.kernel, dict(program.macros))


class HostDevice(TritonDevice):
    """`backwards`: blocks, warps and lanes take turns from the last to the first; `turns`: warps do at random."""

    backwards = False
    turns = 0
    wide = True
    pdl = True

    def __init__(self) -> None:
        super().__init__("cpu", "host", DType.BF16)

    def bind(
        self,
        program: Program,
        grid: tuple[int, int, int],
        threads: int,
        shared: int,
        arguments: Sequence[Argument],
        *,
        cluster: int = 1,
    ) -> Callable[[], None]:
        kernel, backwards, turns = _kernel(program), self.backwards, self.turns
        early = EARLY[program.kernel] if dict(program.macros).get("PDL") else None
        return lambda: kernel.launch(
            grid, threads, shared, arguments, backwards, cluster=cluster, turns=turns, early=early
        )

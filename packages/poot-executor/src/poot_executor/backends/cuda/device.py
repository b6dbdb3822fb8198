"""A CUDA device: what NVIDIA's cards have beyond what torch knows of any."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache, cached_property

import torch

from poot_executor.backends.cuda import attend_prompt, attend_rows, blaslt, nvml, nvrtc, packed_dot, packed_product
from poot_executor.backends.cuda.attend_check import agrees
from poot_executor.backends.cuda.blaslt_library import version
from poot_executor.backends.cuda.dense_gated import DENSE_KERNELS, DenseGatedKernel
from poot_executor.backends.cuda.dense_product import fastest_product
from poot_executor.backends.cuda.driver import UNAVAILABLE, Argument, load
from poot_executor.backends.cuda.programs import Program, cubin
from poot_executor.backends.triton.graphs import GraphDevice
from poot_executor.backends.triton.kernels import TRITON_KERNELS
from poot_executor.backends.triton.kernels.items import Attended
from poot_executor.backends.triton.kernels.products import Around
from poot_executor.backends.triton.packed import Segment
from poot_executor.kernels.select import Choice

_log = logging.getLogger(__name__)
_LEAST_CAPABILITY = (8, 0)  # of bfloat16 in matrix units and copies to shared memory that nobody waits for
_MOST_COMPILERS = 8  # at once; each takes some 25 MiB


class CudaDevice(GraphDevice):
    """See `poot_executor.devices.protocol.Device`. `wide`: whether it has Hopper's asynchronous matrix unit."""

    backend = "ptx"
    dp4a = True

    def __init__(self) -> None:
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        # Before the context exists, so that the driver's figure says what it takes.
        self._uuid = str(properties.uuid)
        card = nvml.card(self._uuid)
        self._used_before = card.used if card is not None else 0
        super().__init__(properties.name)
        self.pdl = properties.major >= 9
        self._capability = properties.major, properties.minor
        self.wide = self._capability == (9, 0)
        self._agree: dict[Program, bool] = {}
        self._images: dict[Program, Future[bytes]] = {}
        if properties.major < 9:
            self.kernels = TRITON_KERNELS
        elif self.wide and self._compilers is not None:
            self.kernels = self.kernels.preferring(DENSE_KERNELS)

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
        """A launch of a kernel in CUDA C++. `shared`: bytes of shared memory; `cluster`: blocks that are one.

        What is not on the disk is compiled meanwhile, several programs at once; the first launch waits for it.
        """
        image, pdl = self._image(program), self.pdl

        @cache
        def bound() -> Callable[[], None]:
            kernel = load(image.result(), program.kernel)
            return kernel.bind(grid, threads, shared, arguments, pdl=pdl, cluster=cluster)

        def launch() -> None:
            bound()()

        return launch

    def foresee(self, choices: Iterable[Choice]) -> None:
        """See `poot_executor.devices.protocol.Foresighted`: what will be timed, where nothing has been chosen yet."""
        if self._compilers is None or not self._stopwatch.fresh:
            return
        gated = (choice for choice in choices if isinstance(choice.kernel, DenseGatedKernel))
        for choice in {(it.site.op, it.site.inputs, it.site.outputs): it for it in gated}.values():
            for program in DenseGatedKernel().programs(choice.site, self):
                self._image(program)

    def _image(self, program: Program) -> Future[bytes]:
        """Its machine code, once it is there."""
        assert self._compilers is not None
        if program not in self._images:
            self._images[program] = self._compilers.submit(cubin, program, self._capability)
        return self._images[program]

    def product(self, x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> Callable[[], object]:
        def plain(of: torch.Tensor) -> Callable[[], object]:
            return GraphDevice.product(self, of, weight, out)

        room = self._product_workspace
        return plain(x) if room is None else fastest_product((x, weight, out), room, plain, self)

    def made_of(self) -> tuple[str, ...]:
        try:
            return *super().made_of(), f"cuBLASLt {version()}"
        except UNAVAILABLE:
            return super().made_of()

    def packed_product(
        self, x: torch.Tensor, segment: Segment, around: Around, parts: torch.Tensor
    ) -> Callable[[], object] | None:
        if not packed_product.accepts(x, segment) or self._compilers is None:
            return None
        if len(x) <= packed_dot.faster_rows(segment, self.shared):
            return packed_dot.packed_dot(x, segment, around, self)
        return packed_product.packed_product(x, segment, around, parts, self)

    def attend_prompt(self, it: Attended) -> Callable[[], object] | None:
        if not self.wide or not attend_prompt.accepts(it) or self._compilers is None:
            return None
        program = attend_prompt.program(it, pdl=self.pdl)
        return self._checked(program, it, lambda it: attend_prompt.attend_prompt(it, self))

    def splits(self, tokens: int, width: int) -> int:
        own = self.wide and width in attend_rows.WIDTHS and self._compilers is not None
        return attend_rows.most_splits(tokens) if own else super().splits(tokens, width)

    def attend_rows(self, it: Attended) -> Callable[[], object] | None:
        if not self.wide or not attend_rows.accepts(it) or self._compilers is None:
            return None
        how = attend_rows.tiling(it, self.shared)
        if how is None:
            return None
        program = attend_rows.program(it, how, pdl=self.pdl)
        return self._checked(program, it, lambda it: attend_rows.attend_rows(it, how, self))

    def _checked(
        self, program: Program, it: Attended, attend: Callable[[Attended], Callable[[], object]]
    ) -> Callable[[], object] | None:
        """The launch, once the program has been seen to be right."""
        if program not in self._agree:
            try:
                self._agree[program] = agrees(it, attend)
            except UNAVAILABLE as error:
                _log.warning("no %s in CUDA C++, Triton's kernel is slower: %s", program.kernel, error)
                self._agree[program] = False
        return attend(it) if self._agree[program] else None

    def close(self) -> None:
        compilers: ThreadPoolExecutor | None = self.__dict__.get("_compilers")
        if compilers is not None:
            compilers.shutdown(wait=False, cancel_futures=True)
        super().close()

    @cached_property
    def _product_workspace(self) -> torch.Tensor | None:
        """That of all products by cuBLASLt, which run one after the other; None where it cannot be had."""
        try:
            return blaslt.workspace()
        except UNAVAILABLE as error:
            _log.warning("no choice of the library's products, torch's may be slower: %s", error)
            return None

    @cached_property
    def _compilers(self) -> ThreadPoolExecutor | None:
        """Threads that compile, made for the first kernel that is wanted: before Hopper a start may want none."""
        return ThreadPoolExecutor(min(_MOST_COMPILERS, os.cpu_count() or 1), "compile") if self._compiles() else None

    def _compiles(self) -> bool:
        """Whether kernels in CUDA C++ can be had: else Triton's, which are slower, do the same."""
        if self._capability < _LEAST_CAPABILITY:
            return False
        try:
            known = nvrtc.architectures()
        except nvrtc.ProgramError as error:
            _log.warning("no kernels in CUDA C++, Triton's are slower: %s", error)
            return False
        major, minor = self._capability
        if 10 * major + minor not in known:
            _log.warning("no kernels in CUDA C++, Triton's are slower: NVRTC does not know sm_%d%d", major, minor)
            return False
        return True

    def driver_bytes(self) -> int:
        """See `poot_executor.devices.protocol.Metered`. Without NVML, what other programs hold is in it."""
        card = nvml.card(self._uuid)
        return super().driver_bytes() if card is None else max(0, card.used - self._used_before)

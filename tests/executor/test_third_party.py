"""The conformance suite as others use it: on a backend that is not ours, and on kernels that are wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from poot_executor.backends.cpu.device import CpuDevice
from poot_executor.backends.cpu.kernels.kernel import CpuKernel, view
from poot_executor.devices import Live
from poot_executor.kernels import KernelTable, Operands, Site
from poot_executor.ops import Scale, SoftCap
from poot_executor.testing import cases, run_case


class ScaleKernel(CpuKernel):
    """Multiplies, and is wrong by `error`."""

    name = "third party's product"
    error = 0.0

    def bind(self, site: Site, operands: Operands, device: Any) -> Callable[[Live], Callable[[], object]]:
        op, error = site.op, self.error
        assert isinstance(op, Scale)

        def launch(live: Live) -> Callable[[], object]:
            x, out = view(operands.input(0), live), view(operands.outputs[0], live)
            return lambda: out.copy_(x * op.factor + error)

        return launch


class OffKernel(ScaleKernel):
    error = 1e-2


class NotANumberKernel(ScaleKernel):
    error = float("nan")


class IdleKernel(ScaleKernel):
    def bind(self, site: Site, operands: Operands, device: Any) -> Callable[[Live], Callable[[], object]]:
        return lambda live: lambda: None


class FinickyKernel(ScaleKernel):
    def accepts(self, site: Site) -> str | None:
        return "only on Sundays"


class FaultyKernel(ScaleKernel):
    def bind(self, site: Site, operands: Operands, device: Any) -> Callable[[Live], Callable[[], object]]:
        def launch(live: Live) -> Callable[[], object]:
            raise ZeroDivisionError("the kernel's own fault")

        return launch


class ThirdDevice(CpuDevice):
    """A device with one kernel."""

    backend = "third"

    def __init__(self, kernel: type[CpuKernel]) -> None:
        super().__init__(None)
        self.kernels = KernelTable("third")
        self.kernels.register(Scale)(kernel)


def outcomes(kernel: type[CpuKernel]) -> dict[str, Any]:
    device = ThirdDevice(kernel)
    return {case.id: run_case(case, device) for case in cases() if case.op in (Scale, SoftCap)}


def test_a_right_kernel_passes_and_what_is_missing_is_refused() -> None:
    found = outcomes(ScaleKernel)
    assert len(found) == 2
    for name, outcome in found.items():
        if name.startswith("Scale"):
            assert outcome.passed and outcome.refusal is None
        else:
            assert not outcome.passed
            assert outcome.refusal.endswith("it has no kernel for this op")
            assert outcome.refusal.startswith("third cannot run SoftCap(cap=30.0) on f32[5x24]@tokens")


def test_every_other_op_is_refused() -> None:
    device = ThirdDevice(ScaleKernel)
    one_each = {case.op: case for case in cases()}
    refused = {op for op, case in one_each.items() if run_case(case, device).refusal}
    assert refused == set(one_each) - {Scale}


def test_a_kernel_that_refuses_is_reported_with_its_reason() -> None:
    outcome = next(o for name, o in outcomes(FinickyKernel).items() if name.startswith("Scale"))
    assert not outcome.passed
    assert "third party's product: only on Sundays" in outcome.refusal


@pytest.mark.parametrize("kernel", [OffKernel, NotANumberKernel, IdleKernel])
def test_a_wrong_kernel_is_found(kernel: type[CpuKernel]) -> None:
    outcome = next(o for name, o in outcomes(kernel).items() if name.startswith("Scale"))
    assert outcome.refusal is None
    assert outcome.error > 5e-3
    assert not outcome.passed


def test_a_fault_is_raised_not_reported_as_a_refusal() -> None:
    with pytest.raises(ZeroDivisionError, match="own fault"):
        outcomes(FaultyKernel)


def test_cases_are_the_same_each_time() -> None:
    ids = [case.id for case in cases()]
    assert ids == [case.id for case in cases()]
    assert len(set(ids)) == len(ids)
    first = cases()[0]
    made = [first.example.make(torch.Generator().manual_seed(1)) for _ in range(2)]
    for a, b in zip(*made, strict=True):
        assert isinstance(a, torch.Tensor) != hasattr(a, "encoding")
        if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
            assert torch.equal(a, b)

"""Every example of every op on every backend that opens here."""

from __future__ import annotations

import pytest

from poot_executor.backends.cpu.device import CpuDevice
from poot_executor.backends.cpu.kernels import CPU_KERNELS
from poot_executor.backends.null.device import NullDevice
from poot_executor.devices import open_device
from poot_executor.ir.graph import Op
from poot_executor.kernels import Kernel, KernelTable
from poot_executor.ops import all_ops
from poot_executor.ops.attention import AttentionPlan
from poot_executor.passes import PASSES
from poot_executor.testing import Case, cases, run_case

CPU_CASES = [case for case in cases() if case.op in CPU_KERNELS]


@pytest.mark.parametrize("case", CPU_CASES, ids=lambda case: case.id)
def test_cpu_agrees_with_the_reference(case: Case) -> None:
    outcome = run_case(case, open_device("cpu"))
    assert outcome.passed, outcome


class SecondChoices(KernelTable):
    """The CPU's kernels without the preferred one of each op that has another."""

    def of(self, op: type[Op]) -> tuple[Kernel, ...]:
        found = CPU_KERNELS.of(op)
        return found[1:] or found


@pytest.mark.parametrize(
    "case", [case for case in CPU_CASES if len(CPU_KERNELS.of(case.op)) > 1], ids=lambda case: case.id
)
def test_so_do_the_kernels_that_stand_in_where_there_is_no_compiler(case: Case) -> None:
    device = CpuDevice(None)
    device.kernels = SecondChoices("cpu")
    outcome = run_case(case, device)
    assert outcome.passed, outcome


def test_the_cpu_has_every_op_but_those_that_a_pass_makes_for_others() -> None:
    assert set(all_ops()) - set(CPU_KERNELS) == {op for step in PASSES for op in step.makes}


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.id)
def test_null_prepares_every_case(case: Case) -> None:
    """It computes nothing, so only shapes are seen: an outcome that is no refusal."""
    assert run_case(case, NullDevice()).refusal is None


def test_every_op_has_examples() -> None:
    covered = {case.op for case in cases()}
    # A plan is private to its backend: it is checked through the attention that reads it.
    assert set(all_ops()) - covered == {AttentionPlan}


def test_every_op_is_a_value() -> None:
    for op in all_ops():
        assert issubclass(op, Op)
        assert op.examples() == () or op.examples()[0].op == op.examples()[0].op

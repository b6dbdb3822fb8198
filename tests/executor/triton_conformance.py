"""Run by test_triton.py in a process of its own: the conformance cases under Triton's interpreter, one line each.

Ops that some devices run with other kernels have a second line, for those that run anywhere.
"""

from __future__ import annotations

import sys
import traceback

from poot_executor.backends.triton.device import TritonDevice
from poot_executor.backends.triton.kernels import FEW_ROWS_KERNELS, TRITON_KERNELS
from poot_executor.ir.types import DType
from poot_executor.kernels import KernelTable
from poot_executor.testing import Case, cases, run_case

DEVICE, ANYWHERE = "the device's kernels", "kernels that run anywhere"


def verdict(case: Case, kernels: KernelTable | None) -> str:
    device = TritonDevice("cpu", "interpreter", DType.F32)
    device.kernels = kernels or device.kernels
    try:
        outcome = run_case(case, device)
    except Exception as error:
        if wanted:
            traceback.print_exc()
        return f"FAIL {type(error).__name__}: {str(error)[:300]}"
    return "PASS" if outcome.passed else f"FAIL {outcome}"


wanted = sys.argv[1] if len(sys.argv) > 1 else ""
for case in cases():
    if wanted in case.id:
        print(f"{verdict(case, None)} | {DEVICE} | {case.id}", flush=True)
        if case.op in set(FEW_ROWS_KERNELS) & set(TRITON_KERNELS):
            print(f"{verdict(case, TRITON_KERNELS)} | {ANYWHERE} | {case.id}", flush=True)

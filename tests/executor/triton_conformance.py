"""Run by test_triton.py in a process of its own: the conformance cases under Triton's interpreter, one line each.

Ops that some devices run with other kernels have a second line, for those that run anywhere; packed products have one
for activations of 16 bits (bfloat16 the interpreter cannot multiply), of which few are quantised.
"""

from __future__ import annotations

import re
import sys
import traceback

from poot_executor.backends.triton.device import TritonDevice
from poot_executor.backends.triton.kernels import FEW_ROWS_KERNELS, TRITON_KERNELS
from poot_executor.ir.types import DType
from poot_executor.kernels import KernelTable
from poot_executor.testing import Case, cases, run_case

DEVICE, ANYWHERE, HALF = "the device's kernels", "kernels that run anywhere", "activations in half precision"
PACKED = re.compile(r"Linear.* Q\d_")


def verdict(case: Case, kernels: KernelTable | None, activation: DType = DType.F32) -> str:
    device = TritonDevice("cpu", "interpreter", activation)
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
        if case.op in set(FEW_ROWS_KERNELS) & set(TRITON_KERNELS) and not PACKED.search(case.id):
            print(f"{verdict(case, TRITON_KERNELS)} | {ANYWHERE} | {case.id}", flush=True)
        if PACKED.search(case.id):
            print(f"{verdict(case, None, DType.F16)} | {HALF} | {case.id}", flush=True)

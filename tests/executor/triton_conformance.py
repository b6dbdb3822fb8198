"""Run by test_triton.py in a process of its own: the conformance cases under Triton's interpreter, one line each."""

from __future__ import annotations

import sys
import traceback

from poot_executor.backends.triton.device import TritonDevice
from poot_executor.ir.types import DType
from poot_executor.testing import cases, run_case

wanted = sys.argv[1] if len(sys.argv) > 1 else ""
for case in cases():
    if wanted in case.id:
        try:
            outcome = run_case(case, TritonDevice("cpu", "interpreter", DType.F32))
            verdict = "PASS" if outcome.passed else f"FAIL {outcome}"
        except Exception as error:
            verdict = f"FAIL {type(error).__name__}: {str(error)[:300]}"
            if wanted:
                traceback.print_exc()
        print(f"{verdict} | {case.id}", flush=True)

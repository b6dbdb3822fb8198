"""Every op's examples with the Triton kernels launched one by one on a GPU, for a memory checker to watch.

    PYTORCH_NO_CUDA_MEMORY_CACHING=1 \\
        compute-sanitizer --tool memcheck --error-exitcode 9 python benchmarks/memcheck.py [TEXT ...]

Runs the cases whose names contain a TEXT, or all. Without torch's caching every value that an example gives or gets is
an allocation of its own, so that a kernel which reads or writes past it is seen. Nothing is recorded: a CUDA graph
needs that caching. Exit code 1 when a case fails; the checker makes it 9 for what it finds.
"""

from __future__ import annotations

import argparse
import sys

import torch
from here import require_gpu

from poot_executor.backends.triton.device import TritonDevice
from poot_executor.ir.types import DType
from poot_executor.testing import cases, run_case


def open_eager(torch_device: str) -> TritonDevice:
    """The kernels as the ptx backend launches them, but for the recording."""
    if torch_device == "cpu":
        return TritonDevice("cpu", "interpreter", DType.F32)
    require_gpu()
    properties = torch.cuda.get_device_properties(torch_device)
    device = TritonDevice(torch_device, properties.name, DType.BF16)
    device.programs = 2 * properties.multi_processor_count
    device.pdl = properties.major >= 9
    return device


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", nargs="*", help="parts of the names of cases to run")
    parser.add_argument("--device", default="cuda:0", help="a torch device (cpu: under Triton's interpreter)")
    arguments = parser.parse_args()
    device = open_eager(arguments.device)
    chosen = [case for case in cases() if not arguments.text or any(text in case.id for text in arguments.text)]
    failed = 0
    for case in chosen:
        try:
            outcome = run_case(case, device)
            if arguments.device != "cpu":
                torch.cuda.synchronize()
        except Exception as error:
            passed, why = False, f" {type(error).__name__}: {str(error)[:200]}"
        else:
            passed = outcome.passed or outcome.refusal is not None
            why = f" refused: {outcome.refusal}" if outcome.refusal else ""
        failed += not passed
        print(f"{'PASS' if passed else 'FAIL'} {case.id}{why}", flush=True)
    print(f"{len(chosen)} cases, {failed} failed")
    return int(failed > 0 or not chosen)


if __name__ == "__main__":
    sys.exit(main())

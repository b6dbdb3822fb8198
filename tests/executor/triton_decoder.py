"""Run by test_triton.py in a process of its own: whole steps under Triton's interpreter, one line each.

What conformance cannot show: queries, keys and values that are columns of one product, and what the passes make.
"""

from __future__ import annotations

import torch
from conftest import Decoder

from poot_executor.backends.triton.device import TritonDevice
from poot_executor.backends.triton.kernels import TRITON_KERNELS
from poot_executor.devices import Live
from poot_executor.ir.types import DType
from poot_executor.kernels import KernelTable
from poot_executor.ops import GatedActivation
from poot_executor.programs import open_graph
from poot_executor.runtime import EntryKey, compile_graphs, prepare
from poot_executor.testing import interpret

STEP, OPEN = EntryKey("step", 8), EntryKey("open", 1)
RUNS: list[tuple[int, int, list[int] | int]] = [(1, 0, [5, 6, 7, 8]), (0, 0, [9, 3])]


def verdict(model: Decoder, kernels: KernelTable | None) -> str:
    """PASS if every state is what the references find after one step of two prompts; None is the device's own table."""
    device = TritonDevice("cpu", "interpreter", DType.F32)
    device.kernels = kernels or device.kernels
    compiled = compile_graphs(device, {STEP: model.step(8), OPEN: open_graph(model.table)})
    ops = [type(node.op) for node in compiled.entries[STEP].graph.nodes]
    if model.packed and {form.layout for form in compiled.forms} != {"packed", "vector"}:
        return "FAIL a matrix is held as it is not packed"
    if GatedActivation in ops:
        return "FAIL a gated product is in two parts"
    entries = prepare(device, compiled, model.weights())
    for row in range(model.rows):
        entries[OPEN].stage("block", model.open_block(row))
        entries[OPEN].run(Live())
    before = {name: torch.from_numpy(entries.read_state(name)) for name in compiled.states}
    block, live = model.step_block(8, RUNS)
    entries[STEP].stage("block", block)
    entries[STEP].run(live)
    expected = interpret(
        model.step(8), live=live, inputs={"block": torch.from_numpy(block)}, weights=model.weights(), states=before
    ).states
    for name, wanted in expected.items():
        found = torch.from_numpy(entries.read_state(name))
        if not torch.allclose(found, wanted, rtol=1e-3, atol=1e-4):
            return f"FAIL state {name} is off by {float((found - wanted).abs().max()):.3g}"
    return "PASS" if expected["rows.hidden"][:2].abs().sum() > 0 else "FAIL nothing was computed"


for sizes in (
    {},
    {"window": 3},
    {"heads": 6, "kv_heads": 3},
    {"fused": True},
    {"width": 64, "ff": 96, "packed": "Q5_0"},
):
    for name, table in (("kernels that run anywhere", TRITON_KERNELS), ("the device's kernels", None)):
        print(f"{verdict(Decoder(**sizes), table)} | decoder {sizes}, {name}", flush=True)

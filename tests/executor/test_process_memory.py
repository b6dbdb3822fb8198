"""What the account says is what the process takes, to a few MiB."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

MIB = 2**20
PROGRAM = '''
import importlib.util, sys
import numpy as np, psutil
from poot_executor.devices import Live, open_device
from poot_executor.programs import open_graph
from poot_executor.runtime import EntryKey, compile_graphs, prepare

spec = importlib.util.spec_from_file_location("models", sys.argv[1])
models = sys.modules["models"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(models)


def graphs(model, steps):
    made = {EntryKey("step", tokens): model.step(tokens) for tokens in steps}
    return made | {EntryKey("head", 2): model.head_graph(2), EntryKey("open", 1): open_graph(model.table)}


def run(model, entries, steps):
    """A full step of every entry, and every byte of the KV pools."""
    for row in range(model.rows):
        entries[EntryKey("open", 1)].stage("block", model.open_block(row))
        entries[EntryKey("open", 1)].run(Live())
    for tokens in steps:
        block, live = model.step_block(tokens, [(0, 0, [t % model.vocabulary for t in range(tokens)])])
        entries[EntryKey("step", tokens)].stage("block", block)
        entries[EntryKey("step", tokens)].run(live)
    entries[EntryKey("head", 2)].stage("rows", np.arange(2, dtype=np.int32))
    entries[EntryKey("head", 2)].run(Live(rows=2))
    for name, type_ in entries.compiled.states.items():
        if name.startswith("kv."):
            entries.write_state(name, np.zeros(type_.shape, np.float32))


def prepared(model, steps, weights):
    device = open_device("cpu", threads=1)
    compiled = compile_graphs(device, graphs(model, steps))
    entries = prepare(device, compiled, weights)
    return device, entries


small = models.Decoder(rows=2, positions=64)
run(small, prepared(small, (1, 4, 64), small.weights())[1], (1, 4, 64))  # libraries, threads, the first pages
model = models.Decoder(
    layers=6, width=512, heads=8, kv_heads=4, head=64, ff=1024, vocabulary=8000, rows=4, positions=2048, block=16
)
weights = model.weights()  # the checkpoint: there before the baseline, as a mapped file would be
before = psutil.Process().memory_info().rss
device, entries = prepared(model, (1, 4, 64, 512), weights)
run(model, entries, (1, 4, 64, 512))
grown = psutil.Process().memory_info().rss - before
mapped = sum(form.nbytes for form in entries.compiled.forms if form.layout == "mapped")
print(grown, device.account.total, mapped, *device.account.snapshot().values())
'''


@pytest.mark.skipif(sys.platform != "linux", reason="resident pages are counted as Linux does")
def test_the_process_grows_by_what_the_account_says() -> None:
    models = Path(__file__).with_name("conftest.py")
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(models)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    grown, total, mapped, weights, kv, rows, arena, staging, recordings = map(int, done.stdout.split())
    assert total == weights + kv + rows + arena + staging
    assert recordings == 0  # a loop over launches takes no device memory
    assert kv == 6 * 2 * 4 * 2048 * 4 * 64 * 4
    assert min(weights, kv, arena) > 8 * MIB  # each would be missed
    assert abs(grown - (total - mapped)) < 6 * MIB, f"grew by {grown}, the account says {total}, {mapped} mapped"

"""What the host adds to a step, on a driver that does nothing: plan, commit and the frame of a batch of decoding rows,
and the admission of a prompt.

    python benchmarks/host.py           print the table
    python benchmarks/host.py --check   also print PASS or FAIL, and exit 1 on FAIL

A step on a GPU takes some milliseconds; the host's part must hide behind it: 300 microseconds of plan and commit at
256 rows. A prompt's admission is before its first step, where nothing hides it: 300 microseconds, in a new pool and in
one that has nothing but what earlier prompts left.
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np

from poot_batch.driver.interface import Ticket
from poot_batch.driver.step_block import step_block
from poot_batch.engine import Engine
from poot_batch.kv import KvSpace
from poot_batch.process.frames import encode, pack_outputs
from poot_batch.request import EngineInfo, GenerateRequest, SamplingParams
from poot_batch.schedule import Sequence, StepPlan, StepResult

ROWS = (4, 64, 256)
LIMIT_US, LIMIT_ROWS = 300.0, 256
STEPS = 300
MAX_SEQ = 2048
PROMPT, BLOCKS, ADMISSION_US = 1024, 2**17, 300.0


class IdleDriver:
    """Answers token 5 at once."""

    depth = 1
    score_capacity = 0

    def open(self, sequence: Sequence) -> None:
        """Nothing is kept."""

    def submit(self, plan: StepPlan) -> Ticket:
        return Ticket(plan, None)

    def collect(self, ticket: Ticket) -> StepResult:
        count = len(ticket.plan.sampling)
        return StepResult(np.full(count, 5, np.int32), np.zeros(count, np.int32))

    def device_bytes(self) -> int:
        return 0

    def close(self) -> None:
        """Nothing is held."""


def new_engine(rows: int, blocks: int) -> Engine:
    info = EngineInfo(
        model="idle", architecture="idle", backend="idle", device="idle", rows=rows, max_seq=MAX_SEQ, vocab_size=1000,
        eos_ids=(0,), kv_block_size=16, kv_blocks=blocks, weight_bytes=0, kv_bytes=0, workspace_bytes=0,
        device_total_bytes=0, decode_dispatches=0, decode_activation_peak_bytes=0, prefill_dispatches=0,
        prefill_activation_peak_bytes=0,
    )  # fmt: skip
    kv = KvSpace(16, (blocks,), (MAX_SEQ // 16,))
    return Engine(IdleDriver(), kv, info, None, capacity=max(rows, MAX_SEQ))


def admission_us(prompts: int) -> float:
    """Median microseconds of a prompt's way to its first step, after so many others have come and gone."""
    engine, taken = new_engine(8, BLOCKS), []
    for index in range(prompts + STEPS):
        prompt = index // 1000, *((index * 31 + 7 * place) % 1000 for place in range(PROMPT - 1))
        engine.submit(GenerateRequest(id=index, prompt=prompt, sampling=SamplingParams(), max_tokens=1))
        began = time.perf_counter()
        engine.step()
        if index >= prompts:
            taken.append(time.perf_counter() - began)
    return statistics.median(taken) * 1e6


def full_engine(rows: int) -> Engine:
    """An engine with a request decoding on every row."""
    engine = new_engine(rows, rows * MAX_SEQ // 16)
    for request_id in range(rows):
        engine.submit(GenerateRequest(id=request_id, prompt=(1,), sampling=SamplingParams(seed=1)))
    engine.step()
    return engine


def step_us(rows: int) -> tuple[float, float, float]:
    """Median microseconds of a step's plan and commit, of packing its block, of packing its frame."""
    engine = full_engine(rows)
    loop, frame, block = [], [], []
    for _ in range(STEPS):
        began = time.perf_counter()
        outputs = engine.step()
        stepped = time.perf_counter()
        encode(pack_outputs(outputs))
        loop.append(stepped - began)
        frame.append(time.perf_counter() - stepped)
    sequences = tuple(Sequence(GenerateRequest(id=n, prompt=(1,)), 9, 0, 0.0, row=n) for n in range(rows))
    plan = StepPlan(sequences, (), sequences)
    for _ in range(STEPS):
        began = time.perf_counter()
        step_block(plan, rows)
        block.append(time.perf_counter() - began)
    first, second, third = (statistics.median(times) * 1e6 for times in (loop, block, frame))
    return first, second, third


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help=f"fail above {LIMIT_US:.0f} us at {LIMIT_ROWS} rows")
    check = parser.parse_args().check
    print("rows  plan+commit us  step block us  frame us  plan+commit ns a row")
    taken = {}
    for rows in ROWS:
        loop, block, frame = step_us(rows)
        taken[rows] = loop
        print(f"{rows:4}  {loop:14.1f}  {block:13.1f}  {frame:8.1f}  {loop * 1000 / rows:20.0f}")
    admissions = {"a new pool": admission_us(16), "a used pool": admission_us(2 * BLOCKS * 16 // PROMPT)}
    for pool, spent in admissions.items():
        print(f"admission, plan and commit of a prompt of {PROMPT} tokens in {pool}: {spent:.0f} us")
    if not check:
        return 0
    passed = taken[LIMIT_ROWS] < LIMIT_US
    print(
        f"{'PASS' if passed else 'FAIL'}: plan and commit of {LIMIT_ROWS} rows take {taken[LIMIT_ROWS]:.0f} us, under "
        f"{LIMIT_US:.0f} wanted"
    )
    quick = max(admissions.values()) < ADMISSION_US
    print(
        f"{'PASS' if quick else 'FAIL'}: a prompt is admitted in {max(admissions.values()):.0f} us, under "
        f"{ADMISSION_US:.0f} wanted"
    )
    return 0 if passed and quick else 1


if __name__ == "__main__":
    raise SystemExit(main())

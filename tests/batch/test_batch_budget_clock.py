"""The prompt budget learns from steps whose work is done while they are submitted, as the CPU's is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from poot_batch.driver.interface import Ticket
from poot_batch.request import GenerateRequest, SamplingParams
from poot_batch.schedule import StepPlan

SECONDS_A_TOKEN = 0.01


def test_a_long_prompt_leaves_running_rows_their_pace(
    harness: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    made = harness(rows=2, blocks=1024, capacity=512, max_seq=2048, clock=lambda: now)
    submit = made.driver.submit

    def slow(plan: StepPlan) -> Ticket:
        nonlocal now
        now += SECONDS_A_TOKEN * (len(plan.decode) + plan.prompt_tokens)
        ticket: Ticket = submit(plan)
        return ticket

    monkeypatch.setattr(made.driver, "submit", slow)
    greedy = SamplingParams(temperature=0)
    made.submit(GenerateRequest(id=1, prompt=(5,) * 600, sampling=greedy, max_tokens=400, ignore_eos=True))
    for _ in range(4):
        made.step()
    made.submit(GenerateRequest(id=2, prompt=(6,) * 600, sampling=greedy, max_tokens=4, ignore_eos=True))
    before = len(made.driver.plans)
    for _ in range(20):
        made.step()
    chunks = [plan.prompt_tokens for plan in made.driver.plans[before:]]
    # 150 ms at 10 ms a token, of which the running row's own takes one; never less than 16.
    assert chunks == [16] * 20

"""Attention of prompts in CUDA C++, run on the host by emulation, against softmax by the definition in float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from cuda_attention import Case, assert_near, attended, run_twice
from cuda_host_device import HostDevice
from cuda_on_host import compiler

from poot_executor.backends.cuda.attend_check import agrees
from poot_executor.backends.cuda.attend_prompt import accepts, attend_prompt
from poot_executor.backends.triton.kernels.items import Attended

pytestmark = pytest.mark.skipif(compiler() is None, reason="no g++ to compile kernels with")


def run(case: Case, *, backwards: bool = False, turns: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """What the kernel made, and what is wanted."""
    it, wanted = attended(case)
    assert accepts(it)
    device = HostDevice()
    device.processors, device.backwards, device.turns = 3, backwards, turns
    return run_twice(it, attend_prompt(it, device)), wanted


CASES = [
    Case(((0, 0, 70),)),
    Case(((1, 150, 40), (0, 0, 3), (2, 300, 1)), width=128, heads=8, kv_heads=2),
    Case(((0, 200, 50),), heads=3, kv_heads=1, window=100),
    Case(((0, 130, 20), (1, 5, 40)), heads=2, kv_heads=2, softcap=3.0, sinks=True, width=128),
    Case(((0, 500, 2), (1, 40, 1), (2, 290, 33)), parts=4),
    Case(((0, 600, 5),), parts=3, sinks=True, heads=8, width=128),
    # As many rows of the matrix as one warpgroup has, and one more.
    Case(((0, 100, 16), (1, 60, 17), (2, 255, 1)), heads=8, kv_heads=2, width=128),
    # Rows that decode beside prompts, windows that begin within a page.
    Case(((0, 700, 1), (1, 0, 60), (2, 391, 1), (3, 128, 1)), heads=5, window=300, sinks=True),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_attention(case: Case) -> None:
    assert_near(*run(case))


def test_an_item_without_keys_is_passed_over() -> None:
    """No plan has one, but blocks must not wait for what nobody fetches."""
    it, wanted = attended(Case(((0, 200, 3), (1, 130, 2))))
    items = it.tensors[0].view(-1, 8)
    items[2, 4] = items[2, 5]
    attend_prompt(it, HostDevice())()
    found = it.tensors[3]
    assert_near(found[:3], wanted[:3])
    assert bool(found[3:].isnan().all())


def strided(it: Attended) -> Attended:
    return replace(it, q=torch.zeros(*it.q.shape[:2], 2 * it.q.shape[2]).bfloat16()[..., ::2])


def wider(it: Attended) -> Attended:
    return replace(it, v_pool=torch.zeros(*it.v_pool.shape[:2], 128).bfloat16())


def empty(it: Attended) -> Attended:
    return replace(it, k_pool=it.k_pool[:0], v_pool=it.v_pool[:0])


def other_pages(it: Attended) -> Attended:
    return replace(it, op=replace(it.op, block=12))


@pytest.mark.parametrize("changed", [strided, wider, empty, other_pages])
def test_what_it_does_not_take_is_left_to_others(changed: Callable[[Attended], Attended]) -> None:
    it, _ = attended(Case(((0, 0, 70),)))
    assert accepts(it)
    assert not accepts(changed(it))


@pytest.mark.parametrize("decoding", [1, 2, 3])
def test_results_do_not_depend_on_who_comes_first(decoding: int) -> None:
    """Nor whether each warp has its own keys, which are few pairs', or not."""
    case = Case(((0, 500, decoding), (1, 100, 40)), parts=4)
    first, _ = run(case)
    assert torch.equal(run(case, backwards=True)[0], first)
    for turns in (1, 2):
        assert torch.equal(run(case, turns=turns)[0], first)


@pytest.mark.parametrize(
    "case",
    [Case(((0, 0, 70),), sinks=True, parts=2), Case(((0, 0, 80),), window=90, softcap=2.0, heads=2)],
    ids=str,
)
@pytest.mark.parametrize("query", [0, -2, -1])  # of a prompt, of a few that decode, and one alone
def test_a_program_is_checked_before_it_is_used(case: Case, query: int, caplog: pytest.LogCaptureFixture) -> None:
    it, _ = attended(case)
    device = HostDevice()

    def wrong(small: Attended) -> Callable[[], object]:
        launch = attend_prompt(small, device)

        def both() -> None:
            launch()
            small.tensors[3][query, -1, :2] += 40.0  # of one head of one query

        return both

    assert agrees(it, lambda small: attend_prompt(small, device))
    assert not caplog.records
    assert not agrees(it, wrong)
    assert "off by" in caplog.text

"""What a CUDA device does where a kernel of its own cannot be had. No GPU is touched."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from poot_executor.backends.cuda import attend_prompt, attend_rows, device, nvrtc, packed_product
from poot_executor.backends.cuda.dense_gated import DENSE_KERNELS
from poot_executor.backends.cuda.device import CudaDevice
from poot_executor.backends.cuda.programs import Program
from poot_executor.backends.triton.kernels import TRITON_KERNELS
from poot_executor.backends.triton.kernels.items import Attended
from poot_executor.backends.triton.kernels.plan import most_splits
from poot_executor.backends.triton.packed import LAYOUTS, empty_segment
from poot_executor.encodings import Dense
from poot_executor.ir import DType
from poot_executor.ir.types import TensorType
from poot_executor.kernels import Choice, Site
from poot_executor.ops import GatedLinear, PagedAttention


def opened(capability: tuple[int, int]) -> Any:
    made: Any = object.__new__(CudaDevice)
    made._capability, made.wide, made.pdl, made._agree = capability, True, True, {}
    return made


@pytest.mark.parametrize(
    ("capability", "compiles", "told"),
    [((9, 0), True, ""), ((9, 9), False, "does not know sm_99"), ((7, 5), False, "")],
)
def test_only_what_nvrtc_knows_is_compiled_for(
    capability: tuple[int, int], compiles: bool, told: str, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    monkeypatch.setattr(nvrtc, "architectures", lambda: frozenset({75, 80, 90}))
    assert opened(capability)._compiles() is compiles
    assert told in caplog.text
    assert bool(caplog.records) is bool(told)


def test_without_nvrtc_triton_s_kernels_are_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def absent() -> frozenset[int]:
        raise nvrtc.NvrtcMissingError("there is none")

    monkeypatch.setattr(nvrtc, "architectures", absent)
    assert not opened((9, 0))._compiles()
    assert "there is none" in caplog.text


def test_attention_that_does_not_compile_is_triton_s(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked = []

    def fails(it: object, attend: object) -> bool:
        asked.append(it)
        raise nvrtc.ProgramError("does not compile")

    monkeypatch.setattr(device, "agrees", fails)
    monkeypatch.setattr(attend_prompt, "accepts", lambda it: True)
    program = Program("attend_prompt.cu", "attend_prompt")
    monkeypatch.setattr(attend_prompt, "program", lambda it, pdl: program)
    gpu, it = opened((9, 0)), SimpleNamespace()
    gpu._compilers = object()
    assert [gpu.attend_prompt(it), gpu.attend_prompt(it)] == [None, None]
    assert asked == [it]
    assert "no attend_prompt in CUDA C++" in caplog.text
    assert "does not compile" in caplog.text


class Compilers:
    """Compile nothing, and say what they were asked for."""

    def __init__(self) -> None:
        self.asked: list[Program] = []

    def submit(self, _compile: object, program: Program, capability: tuple[int, int]) -> object:
        assert capability == (9, 0)
        self.asked.append(program)
        return object()


def gated(rows: int, name: str) -> Choice:
    x, weight = TensorType((rows, 64), DType.BF16, "tokens"), TensorType((96, 64), DType.BF16)
    encodings, out = (None, *(Dense("BF16"),) * 2), TensorType((rows, 96), DType.BF16, "tokens")
    site = Site(GatedLinear("silu"), (x, weight, weight), (out,), (None, name, name), encodings, DType.BF16)
    [kernel] = DENSE_KERNELS.of(GatedLinear)
    return Choice(site, kernel, ())


def test_kernels_that_will_be_timed_are_compiled_together_and_once() -> None:
    """Layers are alike; what other kernels need is theirs; and where choices are known, little of it is needed."""
    other = gated(33, "other")
    plain = TRITON_KERNELS.of(GatedLinear)[0]
    choices = [gated(33, "a"), gated(33, "b"), gated(300, "a"), Choice(other.site, plain, ())]
    for fresh in (True, False):
        gpu, compilers = opened((9, 0)), Compilers()
        gpu._compilers, gpu._images, gpu._stopwatch = compilers, {}, SimpleNamespace(fresh=fresh)
        gpu.processors, gpu.shared = 132, 232448
        for _ in range(2):
            gpu.foresee(choices)
        told = [program.kernel for program in compilers.asked]
        # Both sizes have one of those in common.
        assert sorted(told) == (["dense_gated", "dense_gated_turned", "dense_gated_turned"] if fresh else [])
    gpu._compilers = None  # where nothing compiles
    gpu.foresee(choices)


def test_rows_that_begin_between_vectors_are_left_to_others() -> None:
    segment = empty_segment(LAYOUTS["Q4_0"], 0, 4, 64, "cpu")
    wide = torch.zeros(2, 80, dtype=torch.bfloat16)
    assert packed_product.accepts(wide[:, 8:72], segment)
    assert not packed_product.accepts(wide[:, 4:68], segment)


def rows_of(tokens: int, kv_heads: int, width: int = 128) -> Attended:
    """Eight heads have a KV head."""
    q, pool = torch.zeros(tokens, 8 * kv_heads, width).bfloat16(), torch.zeros(64, kv_heads, width).bfloat16()
    return Attended(PagedAttention(0.1, 16, tile=4), q, pool, pool, (), ())


def test_attention_of_rows_is_triton_s_where_there_is_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    right = [True]
    monkeypatch.setattr(device, "agrees", lambda it, attend: right[0])
    monkeypatch.setattr(attend_rows, "attend_rows", lambda it, how, gpu: "a launch")
    gpu = opened((9, 0))
    gpu._compilers = None
    assert gpu.attend_rows(rows_of(16, 8)) is None
    gpu._compilers = object()
    assert gpu.attend_rows(rows_of(16, 8)) == "a launch"
    assert gpu.attend_rows(rows_of(16, 2)) is None  # no unit has so many heads
    assert gpu.attend_rows(rows_of(65, 8)) is None
    assert gpu.attend_rows(rows_of(16, 8, 96)) is None
    right[0] = False
    assert gpu.attend_rows(rows_of(16, 8)) == "a launch"  # which was checked before
    assert gpu.attend_rows(rows_of(8, 4)) is None
    gpu.wide = False
    assert gpu.attend_rows(rows_of(16, 8)) is None


def test_keys_are_cut_for_the_kernel_that_reads_them() -> None:
    gpu = opened((9, 0))
    gpu._compilers = object()
    assert [gpu.splits(tokens, 128) for tokens in (1, 2, 8, 64)] == [attend_rows.most_splits(n) for n in (1, 2, 8, 64)]
    assert [gpu.splits(tokens, 96) for tokens in (1, 2, 8, 64)] == [most_splits(n) for n in (1, 2, 8, 64)]
    gpu._compilers = None
    assert gpu.splits(1, 128) == most_splits(1)

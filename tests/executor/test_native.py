"""The C library: where it comes from, what it computes, and life without it."""

from __future__ import annotations

import ctypes
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from poot_executor.backends.cpu.kernels import few_rows, packed
from poot_executor.backends.cpu.native import NativeLibrary, compile, load_library
from poot_executor.devices import open_device
from poot_executor.testing import cases, run_case


@pytest.fixture
def library() -> NativeLibrary:
    found = load_library()
    if isinstance(found, str):
        pytest.skip(f"this machine has no C library: {found}")
    return found


def test_without_a_library_torch_serves_every_op(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (packed, few_rows):
        monkeypatch.setattr(module, "load_library", lambda: "no C compiler")
    device = open_device("cpu")
    outcomes = {case.id: run_case(case, device) for case in cases() if case.op in device.kernels}
    assert [name for name, outcome in outcomes.items() if not outcome.passed] == []


def test_no_compiler_is_a_reason_and_no_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile, "COMPILERS", ("no-such-compiler-here",))
    with pytest.raises(compile.CompileError, match="no-such-compiler-here"):
        compile.compiled(Path(compile.__file__).parent)


def test_a_failing_compiler_is_quoted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, library: NativeLibrary) -> None:
    monkeypatch.setattr(compile, "private_folder", lambda name: tmp_path)
    (tmp_path / "broken.c").write_text("int broken( {")
    with pytest.raises(compile.CompileError, match="error"):
        compile.compiled(tmp_path)
    assert not list(tmp_path.glob("*.so"))


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, library: NativeLibrary) -> Path:
    """A folder of C, and a home of its own."""
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "one.c").write_text("int poot_one(void) { return 1; }\n")
    return folder


def test_the_library_is_compiled_once_into_a_private_place(source: Path) -> None:
    first = compile.compiled(source)
    assert stat.S_IMODE(first.parent.stat().st_mode) == 0o700
    made = first.stat().st_mtime_ns
    assert compile.compiled(source) == first
    assert first.stat().st_mtime_ns == made
    (source / "one.c").write_text("int poot_one(void) { return 2; }\n")
    assert compile.compiled(source) != first


@pytest.mark.parametrize("damage", ["cut", "zeros", "garbage", "empty"])
def test_a_damaged_library_is_compiled_anew(damage: str, source: Path) -> None:
    """To load it would end the process."""
    path = compile.compiled(source)
    whole = path.read_bytes()
    half = len(whole) // 2
    spoilt = {"cut": whole[:half], "zeros": whole[:half] + bytes(half), "garbage": b"hello\n", "empty": b""}
    path.write_bytes(spoilt[damage])
    assert compile.compiled(source) == path
    assert ctypes.CDLL(str(path)).poot_one() == 1
    assert len(list(path.parent.iterdir())) == 1


def test_what_is_in_a_library_s_place_is_named(source: Path) -> None:
    path = compile.compiled(source)
    path.unlink()
    path.mkdir()
    with pytest.raises(compile.CompileError, match=f"{path} cannot be written"):
        compile.compiled(source)


def test_without_a_library_a_warning_says_so(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(compile, "COMPILERS", ("no-such-compiler-here",))
    assert "no-such-compiler-here" in str(load_library.__wrapped__())
    assert "no kernels in C" in caplog.text


def test_results_do_not_depend_on_the_number_of_threads(library: NativeLibrary) -> None:
    """Rows below two grains run on the caller alone; the same rows within a large product may run anywhere."""
    library.start_threads(2)
    generator = torch.Generator().manual_seed(5)
    weight = torch.randn(4096, 96, generator=generator)
    x = torch.randn(3, 96, generator=generator)
    number = library.number(packed.Dense("F32"), 96, 4096)
    whole, part = torch.empty(3, 4096), torch.empty(3, 16)
    for _ in range(20):
        library.matmul(number, weight.data_ptr(), x.data_ptr(), 96, whole.data_ptr(), 4096, 3, 4096, 96)
    library.matmul(number, weight.data_ptr(), x.data_ptr(), 96, part.data_ptr(), 16, 3, 16, 96)
    assert torch.equal(whole[:, :16], part)
    torch.testing.assert_close(whole, x @ weight.T, rtol=1e-4, atol=1e-4)


# In a process of its own, since one in which the workers are given two jobs at once may crash or never end.
TWO_ENGINES = """
import threading, torch
from poot_executor.backends.cpu.kernels.packed import Dense
from poot_executor.backends.cpu.native import load_library

library = load_library()
print(library.start_threads(2))
number = library.number(Dense("F32"), 96, 4096)

def multiply(seed):
    generator = torch.Generator().manual_seed(seed)
    weight, x = torch.randn(4096, 96, generator=generator), torch.randn(1, 96, generator=generator)
    out, wrong = torch.empty(1, 4096), 0
    for _ in range(3000):
        out.fill_(torch.nan)
        library.matmul(number, weight.data_ptr(), x.data_ptr(), 96, out.data_ptr(), 4096, 1, 4096, 96)
        wrong += not torch.allclose(out, x @ weight.T, rtol=1e-4, atol=1e-4)
    found.append(wrong)

found = []
threads = [threading.Thread(target=multiply, args=(seed,)) for seed in (1, 2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(*found)
"""


def test_two_engines_of_a_process_share_the_threads(library: NativeLibrary) -> None:
    command = [sys.executable, "-c", TWO_ENGINES]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (run.returncode, run.stdout.split()) == (0, ["2", "0", "0"]), run.stderr


@pytest.mark.parametrize("length", [1, 15, 16, 100])
@pytest.mark.parametrize("share", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("dim", [16, 64, 80, 256])
def test_attention_of_one_query(library: NativeLibrary, length: int, share: int, dim: int) -> None:
    generator = torch.Generator().manual_seed(length * share + dim)
    heads = 2
    q = torch.randn(heads * share, dim, generator=generator)
    pool = torch.randn(2, 2 * length, heads, dim, generator=generator)
    slots = torch.randperm(2 * length, generator=generator)[:length].contiguous()
    out, scores = torch.empty(heads * share, dim), torch.empty(heads * share * length)
    addresses = (q.data_ptr(), pool[0].data_ptr(), pool[1].data_ptr(), out.data_ptr(), scores.data_ptr())
    library.attend(*addresses, slots.data_ptr(), length, share, heads, dim, dim**-0.5, 0.0)
    keys, values = (pool[i][slots].double().repeat_interleave(share, dim=1) for i in (0, 1))
    weights = (torch.einsum("hd,khd->hk", q.double(), keys) * dim**-0.5).softmax(-1)
    torch.testing.assert_close(out.double(), torch.einsum("hk,khd->hd", weights, values), rtol=1e-5, atol=1e-5)

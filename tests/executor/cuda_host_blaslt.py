"""cuBLASLt in a library that multiplies on the host (`cuda_fake_blaslt.c`), and operands that say they are on a GPU."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from poot_executor.backends.cuda import blaslt, blaslt_library, blaslt_names

STREAM = 0x7F0000001234
# What the library guesses of itself (see its source).
GUESSES = (
    "cublasLt 21 tile 20 cluster 0 split 1 swizzle 0 custom 0 stages 11",
    "cublasLt 66 tile 165 cluster 5 split 1 swizzle 0 custom 0 stages 35",
    "cublasLt 23 tile 18 cluster 0 split 3 swizzle 0 custom 0 stages 8 sums 2",
)
SUMS_IN_PLACE = "cublasLt 23 tile 18 cluster 0 split 2 swizzle 0 custom 0 stages 8 sums 1"


class OnGpu(torch.Tensor):
    """A tensor of the CPU that says it is on a GPU."""

    is_cuda = True


def on_gpu(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.as_subclass(OnGpu)


@cache
def _compiled(folder: Path) -> Path:
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if compiler is None:
        pytest.skip("no C compiler to stand in for the library")
    source, made = Path(__file__).with_name("cuda_fake_blaslt.c"), folder / "blaslt.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", made, source], check=True)
    return made


def stand_in(
    factory: pytest.TempPathFactory, folder: Path, monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int] = (9, 0)
) -> ctypes.CDLL:
    """The library, with nothing done yet, in place of cuBLASLt and on a GPU that is not there."""
    # A copy, since a library that is loaded twice keeps its variables.
    library = blaslt_library._open(str(shutil.copy(_compiled(factory.getbasetemp()), folder)))
    assert library is not None
    forget()
    for module in (blaslt, blaslt_library, blaslt_names):
        monkeypatch.setattr(module, "library", lambda: library)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=STREAM))
    return library


def forget() -> None:
    """Let go of all descriptors that no call has any more, and of handles."""
    blaslt._describe.cache_clear()
    blaslt_library.handle.cache_clear()


def read(library: ctypes.CDLL, name: str) -> int:
    return ctypes.c_int.in_dll(library, name).value


def put(library: ctypes.CDLL, name: str, value: int) -> None:
    ctypes.c_int.in_dll(library, name).value = value

"""CUDA C++ kernels: compiled by NVRTC and kept on disk, which needs no GPU, and launched on one."""

from __future__ import annotations

import ctypes.util
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from poot_executor.backends.cuda import driver, nvrtc, programs
from poot_executor.backends.cuda.nvrtc import NvrtcMissingError, ProgramError
from poot_executor.backends.cuda.programs import Program, compile_all, cubin

SCALE = """
#include "scale.cuh"
static_assert(__cplusplus == 201703L, "C++17");
#ifdef ARCH
static_assert(__CUDA_ARCH__ == ARCH, "architecture");
#endif
extern "C" __global__ void scale(const float* x, const float* bias, float* y, int count, float factor) {
    extern __shared__ float held[];
    const int at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= count) return;
    held[threadIdx.x] = x[at];
    y[at] = scaled(held[threadIdx.x], factor) + ADD + (bias ? bias[at] : 0.0f);
}
"""
HEADER = "__device__ inline float scaled(float x, float factor) { return x * factor; }\n"
EM_CUDA = 190  # e_machine of ELF


@pytest.fixture
def sources(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder of sources in place of the package's, and a cache of its own."""
    try:
        nvrtc.version()
    except NvrtcMissingError as error:
        pytest.skip(f"nothing compiles here: {error}")
    folder, kept = tmp_path / "source", tmp_path / "kept"
    folder.mkdir()
    kept.mkdir()
    (folder / "scale.cu").write_text(SCALE)
    (folder / "scale.cuh").write_text(HEADER)
    monkeypatch.setattr(programs, "SOURCES", folder)
    monkeypatch.setattr(programs, "_folder", lambda: kept)
    return folder


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Grows by a name each time that NVRTC compiles."""
    names: list[str] = []
    compile_cubin = nvrtc.compile_cubin

    def counted(*arguments: object, name: str) -> bytes:
        names.append(name)
        return compile_cubin(*arguments, name=name)  # type: ignore[arg-type]

    monkeypatch.setattr(nvrtc, "compile_cubin", counted)
    return names


def scale(**macros: int) -> Program:
    return Program("scale.cu", "scale", tuple({"ADD": 0, **macros}.items()))


def kept(sources: Path) -> list[Path]:
    return sorted((sources.parent / "kept").iterdir())


def test_nvrtc_is_that_of_torch(sources: Path) -> None:
    assert nvrtc.version()[0] == int(str(torch.version.cuda).partition(".")[0])


def test_importing_the_compiler_loads_no_torch() -> None:
    program = "import sys; import poot_executor.backends.cuda.programs; print('torch' in sys.modules)"
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert said == "False\n"


def test_nvrtc_says_what_it_compiles_for() -> None:
    known = nvrtc.architectures()
    assert {80, 90} <= known
    assert 10 not in known


def test_what_is_no_nvrtc_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """A library of another kind, and a file that is none, before the good one."""
    places = [*nvrtc._places(str(torch.version.cuda))]
    monkeypatch.setattr(nvrtc, "_places", lambda cuda: iter([ctypes.util.find_library("m"), __file__, *places]))
    nvrtc._library.cache_clear()
    try:
        assert nvrtc.version()[0] == int(str(torch.version.cuda).partition(".")[0])
    finally:
        nvrtc._library.cache_clear()


def test_no_nvrtc_is_an_error_that_names_the_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", "13.2")
    monkeypatch.setattr(nvrtc, "_places", lambda cuda: iter(["/nowhere/libnvrtc.so.13"]))
    with pytest.raises(NvrtcMissingError, match=r"CUDA 13.*/nowhere/libnvrtc\.so\.13"):
        nvrtc._library.__wrapped__()
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(NvrtcMissingError, match="built without CUDA"):
        nvrtc._library.__wrapped__()


@pytest.mark.parametrize("capability", [(8, 0), (9, 0), (12, 0)])
def test_a_program_is_compiled_for_its_architecture(sources: Path, capability: tuple[int, int]) -> None:
    """The source itself asserts the architecture; the wrong one does not compile."""
    number = 100 * capability[0] + 10 * capability[1]
    image = cubin(scale(ARCH=number), capability)
    assert image[:4] == b"\x7fELF"
    assert struct.unpack_from("<H", image, 18) == (EM_CUDA,)
    assert b".text.scale\0" in image
    with pytest.raises(ProgramError, match="static assertion failed"):
        cubin(scale(ARCH=number + 10), capability)


def test_a_broken_source_is_an_error_with_the_compilers_log(sources: Path) -> None:
    (sources / "scale.cu").write_text("\n\nint broken( {")
    with pytest.raises(ProgramError, match=r"scale\.cu.*NVRTC_ERROR_COMPILATION") as caught:
        cubin(scale(), (8, 0))
    assert "scale.cu(3): error" in caught.value.log
    assert caught.value.log in str(caught.value)
    assert kept(sources) == []


def test_what_is_no_program_is_an_error(sources: Path) -> None:
    with pytest.raises(ProgramError, match=r"absent\.cu"):
        cubin(Program("absent.cu", "scale"), (8, 0))
    with pytest.raises(ProgramError, match="gpu-architecture"):
        cubin(scale(), (1, 1))
    with pytest.raises(ProgramError, match="real architecture"):
        nvrtc.compile_cubin("", {}, ["--gpu-architecture=compute_80"])
    with pytest.raises(ProgramError, match="A B"):
        scale(**{"A B": 1})
    with pytest.raises(ProgramError, match="ADD"):
        Program("scale.cu", "scale", (("ADD", 1), ("ADD", 2)))


def test_no_file_of_the_machine_is_included(sources: Path) -> None:
    (sources / "plain.h").write_text("")
    (sources / "scale.cu").write_text('#include "plain.h"\n')
    with pytest.raises(ProgramError, match=r"plain\.h"):
        cubin(scale(), (8, 0))


def test_a_program_is_compiled_once(sources: Path, compiled: list[str]) -> None:
    first = cubin(scale(), (8, 0))
    assert cubin(scale(), (8, 0)) == first
    assert compiled == ["scale.cu"]
    assert len(kept(sources)) == 1


@pytest.mark.parametrize("change", ["source", "header", "macro", "capability", "version"])
def test_whatever_a_program_depends_on_compiles_it_anew(
    sources: Path, compiled: list[str], change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cubin(scale(), (8, 0))
    if change == "source":
        (sources / "scale.cu").write_text(SCALE + "// more\n")
    if change == "header":
        (sources / "scale.cuh").write_text(HEADER.replace("x * factor", "x / factor"))
    if change == "version":
        monkeypatch.setattr(nvrtc, "version", lambda: (99, 0))
    cubin(scale(ADD=int(change == "macro")), (9, 0) if change == "capability" else (8, 0))
    assert len(compiled) == len(kept(sources)) == 2


@pytest.mark.parametrize("damage", [lambda held: held[:-1], lambda held: b"", lambda held: held[:-1] + b"?"])
def test_a_damaged_file_is_not_used(sources: Path, compiled: list[str], damage: Callable[[bytes], bytes]) -> None:
    first = cubin(scale(), (8, 0))
    [path] = kept(sources)
    whole = path.read_bytes()
    path.write_bytes(damage(whole))
    assert cubin(scale(), (8, 0)) == first
    assert len(compiled) == 2
    assert path.read_bytes() == whole


@pytest.mark.parametrize("place", [None, "gone", "file/below"])
def test_without_a_folder_programs_still_compile(
    sources: Path, monkeypatch: pytest.MonkeyPatch, place: str | None
) -> None:
    (sources.parent / "file").write_text("")
    monkeypatch.setattr(programs, "_folder", lambda: place and sources.parent / place)
    assert cubin(scale(), (8, 0))[:4] == b"\x7fELF"


def test_a_file_that_cannot_take_its_place_leaves_nothing(sources: Path) -> None:
    cubin(scale(), (8, 0))
    [path] = kept(sources)
    path.unlink()
    path.mkdir()
    assert cubin(scale(), (8, 0))[:4] == b"\x7fELF"
    assert kept(sources) == [path]


def test_several_compile_at_once(sources: Path, compiled: list[str]) -> None:
    many = [scale(ADD=number % 4) for number in range(8)]
    images = compile_all(many, (9, 0))
    assert list(images) == [cubin(program, (9, 0)) for program in many]
    assert len(set(images)) == 4
    assert all(path.suffix == ".cubin" for path in kept(sources))
    with pytest.raises(ProgramError, match=r"absent\.cu"):
        compile_all([scale(), Program("absent.cu", "scale")], (9, 0))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("pdl", [False, True])
def test_a_kernel_runs_plainly_and_in_a_graph(sources: Path, pdl: bool) -> None:
    capability = torch.cuda.get_device_capability()
    if pdl and capability < (9, 0):
        pytest.skip("programmatic launches come with compute capability 9.0")
    kernel = driver.load(cubin(scale(ADD=3), capability), "scale")
    x, bias = torch.randn(1000, device="cuda"), torch.randn(1000, device="cuda")
    y, z = torch.zeros_like(x), torch.zeros_like(x)
    calls = [
        kernel.bind((8, 1, 1), 128, 128 * 4, (x, None, y, 999, 0.5), pdl=pdl),
        kernel.bind((8, 1, 1), 128, 60_000, (x, bias, z, 1000, -2.0), pdl=pdl),
    ]
    graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        graph.capture_begin(capture_error_mode="thread_local")
        for call in calls:
            call()
        graph.capture_end()
    torch.cuda.synchronize()
    assert y.abs().sum() == 0
    wanted = torch.cat([x[:999] * 0.5 + 3, torch.zeros(1, device="cuda")])
    for run in (graph.replay, lambda: [call() for call in calls]):
        y.zero_()
        z.zero_()
        run()
        torch.testing.assert_close(y, wanted)
        torch.testing.assert_close(z, x * -2.0 + 3 + bias)

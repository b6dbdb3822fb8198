"""CUDA C++ kernels: compiled by NVRTC, kept on disk, and launched through the driver. Most of it needs no GPU."""

from __future__ import annotations

import ctypes
import ctypes.util
import gc
import shutil
import struct
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from poot_executor.backends.cuda import driver, nvrtc, programs
from poot_executor.backends.cuda.nvrtc import NvrtcMissingError, ProgramError
from poot_executor.backends.cuda.programs import Program, compile_all, cubin
from poot_executor.errors import BackendUnavailableError, CapacityError, DeviceError, GraphError

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


# What the driver is told, by a library in its place that writes it down. Its struct is that of cuda.h.
FAKE = r"""
#include <stddef.h>
#include <string.h>
typedef struct { int id; char pad[4]; union { char pad[64]; void *pointer; int flag; } value; } attribute;
typedef struct {
    unsigned grid[3], block[3], shared; void *stream; attribute *attributes; unsigned count;
} config;
config got; attribute first; void *function; unsigned long long pointers[3]; int count; float factor;
int status, allowed, loads, contexts, launches;
int cuDeviceGet(int *device, int index) { *device = index; return 0; }
int cuDevicePrimaryCtxRetain(void **context, int device) { *context = (void *)(0x100L + device); return 0; }
int cuCtxSetCurrent(void *context) { contexts = (int)(long)context; return 0; }
int cuModuleLoadData(void **module, const char *image) {
    if (memcmp(image, "cubin", 5)) return 200;
    loads++; *module = (void *)0x10; return 0;
}
int cuModuleGetFunction(void **found, void *module, const char *name) {
    if (module != (void *)0x10 || strcmp(name, "scale")) return 500;
    *found = (void *)0x7fff00000020; return 0;
}
int cuFuncGetAttribute(int *value, int number, void *function) {
    static const int values[] = {512, 0, 0, 16, 40, 0, 0, 0, 48000};
    *value = values[number]; return 0;
}
int cuFuncSetAttribute(void *function, int number, int value) {
    if (number != 8 || value > 232448) return 1;
    allowed = value; return 0;
}
int cuFuncGetParamInfo(void *function, size_t at, size_t *offset, size_t *size) {
    static const size_t sizes[] = {8, 8, 8, 4, 4};
    if (at >= 5) return 1;
    *size = sizes[at]; return 0;
}
int cuLaunchKernelEx(const config *given, void *which, void **parameters, void **extra) {
    if (status) return status;
    got = *given; function = which; launches++;
    memset(&first, 0, sizeof first);
    if (given->count) first = *given->attributes;
    for (int i = 0; i < 3; i++) pointers[i] = *(unsigned long long *)parameters[i];
    count = *(int *)parameters[3]; factor = *(float *)parameters[4];
    return extra != 0;
}
static int say(int code, const char **text, const char *said) { *text = code == 700 ? said : 0; return !*text; }
int cuGetErrorName(int code, const char **text) { return say(code, text, "CUDA_ERROR_ILLEGAL_ADDRESS"); }
int cuGetErrorString(int code, const char **text) { return say(code, text, "an illegal access"); }
"""


class OnGpu(torch.Tensor):
    """A tensor of the CPU that says it is on a GPU."""

    is_cuda = True  # type: ignore[assignment]


@pytest.fixture(scope="module")
def fake_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if compiler is None:
        pytest.skip("no C compiler to stand in for the driver")
    folder = tmp_path_factory.mktemp("driver")
    (folder / "fake.c").write_text(FAKE)
    made = folder / "fake.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", made, folder / "fake.c"], check=True)
    return made


@pytest.fixture
def fake(fake_library: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[ctypes.CDLL]:
    # A copy, since a library that is loaded twice keeps its variables.
    library = ctypes.CDLL(shutil.copy(fake_library, tmp_path))
    caches = (driver._module, driver._kernel)
    for cached in caches:
        cached.cache_clear()
    monkeypatch.setattr(driver, "_library", lambda: library)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=0x7F0000001234))
    yield library
    for cached in caches:
        cached.cache_clear()


def read(library: ctypes.CDLL, name: str, kind: type[ctypes.c_int] = ctypes.c_int) -> int:
    return kind.in_dll(library, name).value


def arguments() -> tuple[torch.Tensor, None, torch.Tensor, int, float]:
    x, y = (torch.zeros(4).as_subclass(OnGpu) for _ in range(2))
    return (x, None, y, -7, 0.1)


def test_the_structs_are_those_of_cuda_h() -> None:
    config, attribute = driver._LaunchConfig, driver._LaunchAttribute
    assert (ctypes.sizeof(config), ctypes.sizeof(attribute)) == (56, 72)
    offsets = [getattr(config, name).offset for name in ("grid", "block", "shared", "stream", "attributes", "count")]
    assert offsets == [0, 12, 24, 32, 40, 48]
    assert (attribute.id.offset, attribute.value.offset) == (0, 8)


def test_a_kernel_is_loaded_once(fake: ctypes.CDLL) -> None:
    kernel = driver.load(b"cubin", "scale")
    assert kernel.attributes == driver.Attributes(registers=40, local=16, threads=512)
    assert driver.load(b"cubin", "scale") is kernel
    assert (read(fake, "loads"), read(fake, "contexts")) == (1, 0x101)
    with pytest.raises(ProgramError, match="finding the kernel other"):
        driver.load(b"cubin", "other")
    assert read(fake, "loads") == 1
    with pytest.raises(ProgramError, match="loading a program"):
        driver.load(b"torn", "scale")


@pytest.mark.parametrize("pdl", [False, True])
def test_a_launch_is_what_was_bound(fake: ctypes.CDLL, pdl: bool) -> None:
    given = arguments()
    launch = driver.load(b"cubin", "scale").bind((3, 2, 1), 128, 1024, given, pdl)
    assert read(fake, "launches") == 0
    for times in (1, 2):
        launch()
        assert read(fake, "launches") == times
        got = driver._LaunchConfig.in_dll(fake, "got")
        assert (*got.grid, *got.block, got.shared) == (3, 2, 1, 128, 1, 1, 1024)
        assert (got.stream, got.count) == (0x7F0000001234, int(pdl))
        first = driver._LaunchAttribute.in_dll(fake, "first")
        assert (first.id, first.value) == ((6, 1) if pdl else (0, 0))
        pointers = list((ctypes.c_ulonglong * 3).in_dll(fake, "pointers"))
        assert pointers == [given[0].data_ptr(), 0, given[2].data_ptr()]
        assert (read(fake, "count"), ctypes.c_float.in_dll(fake, "factor").value) == (-7, pytest.approx(0.1))
        assert ctypes.c_void_p.in_dll(fake, "function").value == 0x7FFF00000020


def test_a_launch_keeps_its_tensors(fake: ctypes.CDLL) -> None:
    given = arguments()
    seen = weakref.ref(given[0])
    launch = driver.load(b"cubin", "scale").bind((1, 1, 1), 32, 0, given, False)
    del given
    gc.collect()
    assert seen() is not None
    del launch
    gc.collect()
    assert seen() is None


def test_shared_memory_is_asked_for_when_it_is_more_than_before(fake: ctypes.CDLL) -> None:
    kernel = driver.load(b"cubin", "scale")
    for shared, allowed in ((48000, 0), (100_000, 100_000), (50_000, 100_000), (120_000, 120_000)):
        kernel.bind((1, 1, 1), 32, shared, arguments(), False)
        assert read(fake, "allowed") == allowed
    with pytest.raises(ProgramError, match="300000 bytes of shared memory"):
        kernel.bind((1, 1, 1), 32, 300_000, arguments(), False)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"grid": (0, 1, 1)}, "grid"),
        ({"grid": (1, 65536, 1)}, "grid"),
        ({"grid": (2**31, 1, 1)}, "grid"),
        ({"threads": 0}, "threads"),
        ({"threads": 513}, "513 threads"),
        ({"shared": -1}, "shared"),
        ({"arguments": arguments()[:4]}, r"\(8, 8, 8, 4\)"),
        ({"arguments": (*arguments(), 1)}, r"\(8, 8, 8, 4, 4, 4\)"),
        ({"arguments": (1, *arguments()[1:])}, r"\(4, 8, 8, 4, 4\)"),
        ({"arguments": (*arguments()[:3], 2**31, 0.1)}, "32-bit integer"),
        ({"arguments": (*arguments()[:3], -(2**31) - 1, 0.1)}, "32-bit integer"),
        ({"arguments": (*arguments()[:4], 1e39)}, "32-bit float"),
        ({"arguments": (torch.zeros(4), *arguments()[1:])}, "on cpu"),
    ],
)
def test_a_launch_that_does_not_fit_is_refused(fake: ctypes.CDLL, changed: dict[str, object], says: str) -> None:
    fits = {"grid": (1, 1, 1), "threads": 32, "shared": 0, "arguments": arguments(), "pdl": False}
    with pytest.raises(GraphError, match=says):
        driver.load(b"cubin", "scale").bind(**{**fits, **changed})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("status", "error", "says"),
    [
        (700, DeviceError, r"launching scale: CUDA_ERROR_ILLEGAL_ADDRESS \(an illegal access\)"),
        (2, CapacityError, "no memory"),
        (701, ProgramError, "launching scale: status 701"),
    ],
)
def test_a_failed_launch_is_typed(fake: ctypes.CDLL, status: int, error: type[Exception], says: str) -> None:
    launch = driver.load(b"cubin", "scale").bind((1, 1, 1), 32, 0, arguments(), False)
    ctypes.c_int.in_dll(fake, "status").value = status
    with pytest.raises(error, match=says):
        launch()


def test_no_driver_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(f"{name}: cannot open")

    monkeypatch.setattr(driver, "ctypes", SimpleNamespace(CDLL=missing))
    with pytest.raises(BackendUnavailableError, match=r"libcuda\.so\.1: cannot open"):
        driver._library.__wrapped__()


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
        kernel.bind((8, 1, 1), 128, 128 * 4, (x, None, y, 999, 0.5), pdl),
        kernel.bind((8, 1, 1), 128, 60_000, (x, bias, z, 1000, -2.0), pdl),
    ]
    graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
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

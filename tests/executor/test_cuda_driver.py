"""What the NVIDIA driver is told of kernels, launches and matrices, by a library in its place. No GPU is touched."""

from __future__ import annotations

import ctypes
import gc
import shutil
import subprocess
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from poot_executor.backends.cuda import boxes, driver
from poot_executor.backends.cuda.boxes import Boxes
from poot_executor.backends.cuda.nvrtc import ProgramError
from poot_executor.errors import BackendUnavailableError, CapacityError, DeviceError, GraphError

FAKE = Path(__file__).with_name("cuda_fake_driver.c")


class OnGpu(torch.Tensor):
    """A tensor of the CPU that says it is on a GPU."""

    is_cuda = True


@pytest.fixture(scope="module")
def fake_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if compiler is None:
        pytest.skip("no C compiler to stand in for the driver")
    folder = tmp_path_factory.mktemp("driver")
    made = folder / "fake.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", made, FAKE], check=True)
    return made


@pytest.fixture
def fake(fake_library: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[ctypes.CDLL]:
    # A copy, since a library that is loaded twice keeps its variables.
    library = ctypes.CDLL(str(shutil.copy(fake_library, tmp_path)))
    caches = (driver._module, driver._kernel)
    for cached in caches:
        cached.cache_clear()
    monkeypatch.setattr(driver, "_library", lambda: library)
    monkeypatch.setattr(boxes, "_encoder", lambda: library.cuTensorMapEncodeTiled)
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
    launch = driver.load(b"cubin", "scale").bind((3, 2, 1), 128, 1024, given, pdl=pdl)
    assert read(fake, "launches") == 0
    for times in (1, 2):
        launch()
        assert read(fake, "launches") == times
        got = driver._LaunchConfig.in_dll(fake, "got")
        assert (*got.grid, *got.block, got.shared) == (3, 2, 1, 128, 1, 1, 1024)
        assert (got.stream, got.count) == (0x7F0000001234, int(pdl))
        first = driver._LaunchAttribute.in_dll(fake, "first")
        assert (first.id, *first.value) == ((6, 1, 0, 0) if pdl else (0, 0, 0, 0))
        pointers = list((ctypes.c_ulonglong * 3).in_dll(fake, "pointers"))
        assert pointers == [given[0].data_ptr(), 0, given[2].data_ptr()]
        assert read(fake, "count") == -7
        assert ctypes.c_float.in_dll(fake, "factor").value == pytest.approx(0.1)
        assert ctypes.c_void_p.in_dll(fake, "function").value == 0x7FFF00000020


def test_a_launch_keeps_its_tensors(fake: ctypes.CDLL) -> None:
    given = arguments()
    seen = weakref.ref(given[0])
    launch = driver.load(b"cubin", "scale").bind((1, 1, 1), 32, 0, given, pdl=False)
    del given
    gc.collect()
    assert seen() is not None
    del launch
    gc.collect()
    assert seen() is None


def test_shared_memory_is_asked_for_when_it_is_more_than_before(fake: ctypes.CDLL) -> None:
    kernel = driver.load(b"cubin", "scale")
    for shared, allowed in ((48000, 0), (100_000, 100_000), (50_000, 100_000), (120_000, 120_000)):
        kernel.bind((1, 1, 1), 32, shared, arguments(), pdl=False)
        assert read(fake, "allowed") == allowed
    with pytest.raises(ProgramError, match="300000 bytes of shared memory"):
        kernel.bind((1, 1, 1), 32, 300_000, arguments(), pdl=False)


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
    launch = driver.load(b"cubin", "scale").bind((1, 1, 1), 32, 0, arguments(), pdl=False)
    ctypes.c_int.in_dll(fake, "status").value = status
    with pytest.raises(error, match=says):
        launch()


@pytest.mark.parametrize(
    ("grid", "counts"),
    [((64, 2, 1), (2, 7, 14)), ((64, 1, 1), (4, 16, 64)), ((64, 1, 3), (2, 100, 64)), ((8, 1, 1), (8, 1, 8))],
)
@pytest.mark.parametrize("pdl", [False, True])
def test_no_more_clusters_are_launched_than_run_at_once(
    fake: ctypes.CDLL, grid: tuple[int, int, int], counts: tuple[int, int, int], pdl: bool
) -> None:
    """`counts`: blocks of a cluster, clusters that run, blocks that are launched. Others would only wait."""
    cluster, running, launched = counts
    ctypes.c_int.in_dll(fake, "clusters").value = running
    launch = driver.load(b"cubin", "scale").bind(grid, 256, 100_000, arguments(), pdl=pdl, cluster=cluster)
    asked = driver._LaunchConfig.in_dll(fake, "asked")
    assert (*asked.grid, *asked.block, asked.shared, asked.count) == (*grid, 256, 1, 1, 100_000, 1)
    of_cluster = driver._LaunchAttribute.in_dll(fake, "of_cluster")
    assert (of_cluster.id, *of_cluster.value) == (4, cluster, 1, 1)
    assert ctypes.c_void_p.in_dll(fake, "asked_of").value == 0x7FFF00000020
    assert (read(fake, "allowed"), read(fake, "launches")) == (100_000, 0)
    launch()
    got = driver._LaunchConfig.in_dll(fake, "got")
    assert (*got.grid, *got.block, got.shared) == (launched, *grid[1:], 256, 1, 1, 100_000)
    # The kernel itself says what its clusters are.
    first = driver._LaunchAttribute.in_dll(fake, "first")
    assert (got.count, first.id) == ((1, 6) if pdl else (0, 0))


def test_without_clusters_nobody_asks_how_many_there_may_be(fake: ctypes.CDLL) -> None:
    driver.load(b"cubin", "scale").bind((10**6, 1, 1), 32, 0, arguments(), pdl=False)()
    assert read(fake, "questions") == 0
    assert tuple(driver._LaunchConfig.in_dll(fake, "got").grid) == (10**6, 1, 1)


def test_clusters_that_the_driver_refuses_are_an_error(fake: ctypes.CDLL) -> None:
    ctypes.c_int.in_dll(fake, "clusters").value = -1
    with pytest.raises(ProgramError, match="how many clusters of scale"):
        driver.load(b"cubin", "scale").bind((4, 1, 1), 32, 0, arguments(), pdl=False, cluster=2)


def matrix() -> torch.Tensor:
    """(21, 72), with other numbers before, behind and beside it."""
    return torch.zeros(23, 96, dtype=torch.bfloat16).as_subclass(OnGpu)[1:22, 8:80]


def encoded(fake: ctypes.CDLL) -> tuple[list[int], ...]:
    """Sizes, bytes from one to the next of each dimension but the first, the box, and steps; what is not there is 0."""
    words = {"sizes": ctypes.c_ulonglong * 4, "strides": ctypes.c_ulonglong * 3}
    words |= {"box": ctypes.c_uint * 4, "steps": ctypes.c_uint * 4}
    return tuple(list(kind.in_dll(fake, name)) for name, kind in words.items())


def test_a_kernel_gets_the_map_that_the_driver_made_of_boxes(fake: ctypes.CDLL) -> None:
    source = matrix()
    launch = driver.load(b"cubin", "boxed").bind((1, 1, 1), 32, 0, (Boxes(source, 200), 11), pdl=False)
    address, seen = source.data_ptr(), weakref.ref(source)
    # Of cuda.h: CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 of a matrix; no interleave, swizzle of 128 bytes, promotion to 256
    # bytes, zeros outside. Columns come first; the box's are 128 bytes, which the swizzle wants.
    assert (read(fake, "kind"), read(fake, "rank")) == (9, 2)
    assert list((ctypes.c_int * 4).in_dll(fake, "layout")) == [0, 3, 3, 0]
    assert ctypes.c_void_p.in_dll(fake, "address").value == address
    assert encoded(fake) == ([72, 21, 0, 0], [96 * 2, 0, 0], [64, 200, 0, 0], [1, 1, 0, 0])
    del source
    gc.collect()
    assert seen() is not None  # by the launch
    launch()
    made = bytes((ctypes.c_ubyte * 128).in_dll(fake, "map"))
    assert made == bytes(word + 1 for word in range(16) for _ in range(8))
    assert (read(fake, "count"), read(fake, "launches")) == (11, 1)


@pytest.mark.parametrize(("rows", "pieces"), [(16, 2), (8, 1), (256, 3)])
def test_boxes_next_to_each_other_are_a_third_dimension(fake: ctypes.CDLL, rows: int, pieces: int) -> None:
    """64 columns, rows, and then the next 64 columns, which are 128 bytes further."""
    source = torch.zeros(23, 320, dtype=torch.bfloat16).as_subclass(OnGpu)[1:22, 64:256]
    driver.load(b"cubin", "boxed").bind((1, 1, 1), 32, 0, (Boxes(source, rows, pieces), 11), pdl=False)
    assert (read(fake, "kind"), read(fake, "rank")) == (9, 3)
    assert list((ctypes.c_int * 4).in_dll(fake, "layout")) == [0, 3, 3, 0]
    assert ctypes.c_void_p.in_dll(fake, "address").value == source.data_ptr()
    assert encoded(fake) == ([64, 21, 3, 0], [320 * 2, 128, 0], [64, rows, pieces, 0], [1, 1, 1, 0])


def test_eights_of_both_halves_are_dimensions(fake: ctypes.CDLL) -> None:
    """Columns, a row of eight, the upper or the lower half, and the next eight rows."""
    source = torch.zeros(49, 96, dtype=torch.bfloat16).as_subclass(OnGpu)[1:, 8:80]
    driver.load(b"cubin", "boxed").bind((1, 1, 1), 32, 0, (Boxes(source, 128, halves=True), 11), pdl=False)
    assert (read(fake, "kind"), read(fake, "rank")) == (9, 4)
    assert list((ctypes.c_int * 4).in_dll(fake, "layout")) == [0, 3, 3, 0]
    assert ctypes.c_void_p.in_dll(fake, "address").value == source.data_ptr()
    row = 96 * 2
    assert encoded(fake) == ([72, 8, 2, 3], [row, 24 * row, 8 * row], [64, 8, 2, 8], [1, 1, 1, 1])


def test_boxes_are_for_a_kernel_that_takes_them(fake: ctypes.CDLL) -> None:
    with pytest.raises(GraphError, match=r"arguments of \(128, 8, 8, 4, 4\) bytes, and it takes \(8, 8, 8, 4, 4\)"):
        driver.load(b"cubin", "scale").bind((1, 1, 1), 32, 0, (Boxes(matrix(), 8), *arguments()[1:]), pdl=False)
    with pytest.raises(GraphError, match=r"\(8, 4\) bytes, and it takes \(128, 4\)"):
        driver.load(b"cubin", "boxed").bind((1, 1, 1), 32, 0, (matrix(), 1), pdl=False)


def test_boxes_that_the_driver_refuses_are_an_error(fake: ctypes.CDLL) -> None:
    ctypes.c_int.in_dll(fake, "refuses").value = 1
    with pytest.raises(GraphError, match=r"no boxes of 8 rows from \(21, 72\): status 1"):
        driver.load(b"cubin", "boxed").bind((1, 1, 1), 32, 0, (Boxes(matrix(), 8), 1), pdl=False)


def test_boxes_of_what_is_not_on_a_gpu_are_refused(fake: ctypes.CDLL) -> None:
    boxed = Boxes(torch.zeros(21, 72).bfloat16(), 8)
    with pytest.raises(GraphError, match="a tensor on cpu is none that the GPU reads"):
        driver.load(b"cubin", "boxed").bind((1, 1, 1), 32, 0, (boxed, 1), pdl=False)


def test_grids_are_whole_clusters(fake: ctypes.CDLL) -> None:
    with pytest.raises(GraphError, match=r"no grid of clusters of 2 is \(5, 1, 1\)"):
        driver.load(b"cubin", "scale").bind((5, 1, 1), 32, 0, arguments(), pdl=False, cluster=2)
    ctypes.c_int.in_dll(fake, "clusters").value = 0
    with pytest.raises(ProgramError, match="runs no clusters of 2 blocks"):
        driver.load(b"cubin", "scale").bind((4, 1, 1), 32, 0, arguments(), pdl=False, cluster=2)


def test_no_driver_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(f"{name}: cannot open")

    monkeypatch.setattr(driver, "ctypes", SimpleNamespace(CDLL=missing))
    with pytest.raises(BackendUnavailableError, match=r"libcuda\.so\.1: cannot open"):
        driver._library.__wrapped__()


@pytest.mark.parametrize("library", [None, SimpleNamespace()], ids=["no library", "one before Hopper"])
def test_no_maps_are_an_error(monkeypatch: pytest.MonkeyPatch, library: object) -> None:
    def opened(name: str) -> object:
        if library is None:
            raise OSError(f"{name}: cannot open")
        return library

    monkeypatch.setattr(boxes, "ctypes", SimpleNamespace(CDLL=opened))
    with pytest.raises(BackendUnavailableError, match=r"libcuda\.so\.1: cannot open|cuTensorMapEncodeTiled"):
        boxes._encoder.__wrapped__()

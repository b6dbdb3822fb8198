"""Products by cuBLASLt's algorithms: what the library is told, by one in its place that multiplies on the host."""

from __future__ import annotations

import ctypes
import ctypes.util
import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from cuda_host_blaslt import GUESSES, STREAM, SUMS_IN_PLACE, forget, on_gpu, put, read, stand_in

from poot_executor.backends.cuda import blaslt, blaslt_library, libraries
from poot_executor.backends.cuda.blaslt_library import Algorithm, BlasLtMissingError, Found, ProductError
from poot_executor.backends.cuda.driver import UNAVAILABLE
from poot_executor.errors import CapacityError, DeviceError

find_library = blaslt_library.library
BF16, F32 = torch.bfloat16, torch.float32
WORKSPACE_BYTES = 2**20
# Results are rounded to bfloat16, or sums to float32.
TOLERANCE = {BF16: 2**-8, F32: 2**-20}


class Layout(ctypes.Structure):
    """How the library in its place remembers a matrix."""

    _fields_ = (
        ("magic", ctypes.c_int),
        ("type", ctypes.c_int),
        ("rows", ctypes.c_uint64),
        ("columns", ctypes.c_uint64),
        ("pitch", ctypes.c_int64),
        ("offset", ctypes.c_int64),
        ("batch", ctypes.c_int32),
    )


class Preference(ctypes.Structure):
    _fields_ = (
        ("magic", ctypes.c_int),
        ("workspace", ctypes.c_uint64),
        ("sums", ctypes.c_uint32),
        ("alignments", ctypes.c_uint32 * 4),
    )


@pytest.fixture
def fake(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ctypes.CDLL]:
    yield stand_in(tmp_path_factory, tmp_path, monkeypatch)
    forget()


def noise(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(BF16)


def aligned(tensor: torch.Tensor, offset: int = 0) -> torch.Tensor:
    """A dense copy at an address that is a multiple of 256, and so many bytes."""
    room = torch.empty(tensor.numel() + 1024, dtype=tensor.dtype)
    start = ((offset - room.data_ptr()) % 256) // tensor.element_size()
    copy = room[start : start + tensor.numel()].view(tensor.shape)
    return on_gpu(copy.copy_(tensor))


def room() -> torch.Tensor:
    return on_gpu(torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8))


Operands = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def plain(rows: int = 5, k: int = 48, n: int = 24, out: torch.dtype = BF16) -> Operands:
    """x, the weight transposed, and room for the result."""
    return aligned(noise(1, rows, k)), aligned(noise(2, n, k)).t(), aligned(torch.full((rows, n), torch.nan, dtype=out))


def wide() -> Operands:
    """Each a part of the columns of something wider."""
    x, weight = aligned(noise(1, 7, 80))[:, 16:64], aligned(noise(2, 24, 72))[:, 8:56].t()
    return x, weight, aligned(torch.full((7, 40), torch.nan, dtype=BF16))[:, 8:32]


def parts(out: torch.dtype = F32, splits: int = 3) -> Operands:
    """Products of parts of the columns of x and of the weight, as `PartsKernel` has them."""
    rows, n, k = 6, 16, 32 * splits
    x, weight = aligned(noise(1, rows, k)), aligned(noise(2, n, k))
    of_x, of_w = x.view(rows, splits, 32).transpose(0, 1), weight.view(n, splits, 32).permute(1, 2, 0)
    return of_x, of_w, aligned(torch.full((splits, rows, n), torch.nan, dtype=out))


def interleaved() -> Operands:
    """A batch whose results are side by side."""
    x, weight, _ = parts()
    return x, weight, aligned(torch.full((6, 3 * 16), torch.nan, dtype=BF16)).view(6, 3, 16).transpose(0, 1)


CASES: dict[str, Callable[[], Operands]] = {
    "bfloat16": plain,
    "float32": lambda: plain(out=F32),
    "one row": lambda: plain(rows=1),
    "one row of a column": lambda: (plain()[0][2:3], plain()[1], plain()[2][2:3]),
    "one column": lambda: (
        aligned(noise(1, 1, 8)),
        aligned(noise(2, 1, 8)).t(),
        aligned(torch.zeros(1, 1, dtype=BF16)),
    ),
    "columns of wider ones": wide,
    "parts, float32": parts,
    "parts, bfloat16": lambda: parts(BF16),
    "one part": lambda: parts(splits=1),
    "side by side": interleaved,
}


def check(operands: Operands) -> None:
    x, weight, out = operands
    wanted = torch.matmul(x.double(), weight.double())
    assert bool(torch.isfinite(out).all())
    assert float((out.double() - wanted).norm()) <= TOLERANCE[out.dtype] * float(wanted.norm())


def test_the_structures_are_those_of_cublaslt_h() -> None:
    assert (ctypes.sizeof(Algorithm), ctypes.sizeof(Found)) == (64, 96)
    offsets = [getattr(Found, name).offset for name in ("algorithm", "workspace", "state", "waves", "reserved")]
    assert offsets == [0, 64, 72, 76, 80]


@pytest.mark.parametrize("case", CASES)
def test_every_algorithm_multiplies(fake: ctypes.CDLL, case: str) -> None:
    operands = CASES[case]()
    ways = blaslt.products(*operands, room())
    assert len(ways) > len(GUESSES)
    for count, way in enumerate(ways.values(), 1):
        operands[2].fill_(torch.nan)
        way()
        check(operands)
        assert read(fake, "products") == count


def test_what_lies_beside_a_result_stays(fake: ctypes.CDLL) -> None:
    beside = aligned(torch.full((7, 40), 3.0, dtype=BF16))
    for way in blaslt.products(*wide()[:2], beside[:, 8:32], room()).values():
        way()
    assert bool((beside[:, :8] == 3).all() and (beside[:, 32:] == 3).all())


def test_matrices_are_described_in_columns(fake: ctypes.CDLL) -> None:
    operands = parts()
    next(iter(blaslt.products(*operands, room()).values()))()
    a, b, out = (Layout * 3).in_dll(fake, "layouts")
    # Of library_types.h: CUDA_R_16BF and CUDA_R_32F.
    assert (a.type, b.type, out.type) == (14, 14, 0)
    assert [(it.rows, it.columns, it.pitch) for it in (a, b, out)] == [(32, 16, 96), (32, 6, 96), (16, 6, 16)]
    assert [(it.batch, it.offset) for it in (a, b, out)] == [(3, 32), (3, 32), (3, 96)]


def test_names_say_how_an_algorithm_is_configured(fake: ctypes.CDLL) -> None:
    """The library's own guesses, then what else it takes of what is known to be fast, each once."""
    bfloat16, float32 = (list(blaslt.products(*plain(out=out), room())) for out in (BF16, F32))
    assert tuple(bfloat16[:3]) == GUESSES
    assert float32[:4] == [*GUESSES, SUMS_IN_PLACE]
    assert bfloat16[3:] == float32[4:]
    known = [tuple(map(int, name.split()[3::2])) for name in bfloat16[3:]]
    # Tile, cluster, split, swizzle, custom, stages. The library here takes no more than seven for custom, and not the
    # tiles 17, 27, 166 and 193, each refused in a way of its own.
    assert known == [
        (189, 5, 1, 0, 2, 35), (189, 5, 1, 1, 2, 35), (124, 2, 1, 0, 0, 35), (20, 3, 1, 0, 1, 35),
        (28, 5, 1, 1, 6, 35), (30, 5, 1, 1, 2, 35), (18, 2, 1, 0, 0, 35), (28, 2, 1, 0, 0, 35),
    ]  # fmt: skip


@pytest.mark.parametrize("capability", [(8, 0), (8, 9), (10, 0)])
def test_elsewhere_than_on_hopper_there_are_the_guesses_alone(
    tmp_path_factory: pytest.TempPathFactory,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capability: tuple[int, int],
) -> None:
    stand_in(tmp_path_factory, tmp_path, monkeypatch, capability)
    assert tuple(blaslt.products(*plain(), room())) == GUESSES
    forget()


def test_without_the_algorithm_of_hopper_there_are_the_guesses_alone(fake: ctypes.CDLL) -> None:
    put(fake, "no_init", 15)
    assert tuple(blaslt.products(*plain(), room())) == GUESSES


def test_an_algorithm_is_made_from_its_name(fake: ctypes.CDLL) -> None:
    """And asked for only where the library does not take what the name says."""
    operands = plain()
    names = list(blaslt.products(*operands, room()))
    forget()
    for asked, name in ((0, names[1]), (0, names[-1]), (1, names[0])):  # the library checks those of algorithm 66 alone
        [(found, way)] = blaslt.products(*operands, room(), name).items()
        assert found == name
        assert read(fake, "questions") == 1 + asked
        operands[2].fill_(torch.nan)
        way()
        check(operands)


def test_layers_share_an_algorithm_that_is_made_from_its_name(fake: ctypes.CDLL) -> None:
    operands, name = plain(), list(blaslt.products(*plain(), room()))[1]
    forget()
    before = read(fake, "checks")
    for _ in range(3):
        assert list(blaslt.products(*operands, room(), name)) == [name]
    assert read(fake, "checks") == before + 1


@pytest.mark.parametrize(
    "name",
    [
        "torch", "", "cublasLt", "cublasLt ", "cublasLt 66", "cublasLt 66 tile", "cublasLt 66 tile -1",
        "cublasLt 66 tile 99999999999999999999", "cublasLt 66 size 3", "cublasLt 1 of another release",
        "cublasLt 66 tile 165 cluster 65541 split 1 swizzle 0 custom 0 stages 35",  # 5 if 16 bits of it are taken
    ],
)  # fmt: skip
def test_a_name_that_says_nothing_is_no_algorithm_s(fake: ctypes.CDLL, name: str) -> None:
    assert blaslt.products(*plain(), room(), name) == {}


def test_the_library_knows_addresses_and_room(fake: ctypes.CDLL) -> None:
    x, weight = aligned(noise(1, 5, 48), 16), aligned(noise(2, 24, 48), 64).t()
    out, nbytes = aligned(torch.zeros(5, 24), 192), room()
    blaslt.products(x, weight, out, nbytes)
    wanted = Preference.in_dll(fake, "wanted")
    assert (wanted.workspace, list(wanted.alignments)) == (WORKSPACE_BYTES, [64, 16, 64, 64])
    assert wanted.sums == 3  # in float32, in the workspace or in the result
    blaslt.products(x, weight, aligned(torch.zeros(5, 24, dtype=BF16)), nbytes)
    assert Preference.in_dll(fake, "wanted").sums == 2  # never in bfloat16
    assert list(Preference.in_dll(fake, "wanted").alignments) == [64, 16, 256, 256]


def test_all_of_a_batch_must_be_aligned(fake: ctypes.CDLL) -> None:
    """The first matrix is by 256 bytes, the next begins 64 bytes on."""
    blaslt.products(*parts(), room())
    assert list(Preference.in_dll(fake, "wanted").alignments) == [64, 64, 128, 128]
    assert [blaslt.alignment(it) for it in parts()] == [64, 64, 128]
    assert blaslt.alignment(aligned(torch.zeros(4, 4), 12)) == 4


def refused() -> dict[str, Operands]:
    x, weight, out = plain()
    batch = parts()
    return {
        "x in float16": (x.half(), weight, out),
        "a weight in float32": (x, weight.float(), out),
        "a result in float16": (x, weight, out.half()),
        "a weight in rows": (x, aligned(noise(2, 48, 24)), out),
        "x in columns": (aligned(noise(1, 48, 8)).t(), weight, aligned(torch.zeros(8, 24, dtype=BF16))),
        "a result in columns": (x[:4], weight, aligned(torch.zeros(24, 8, dtype=BF16)).t()[:4]),
        "x that does not fit": (x[:, :40], weight, out),
        "a result that does not fit": (x, weight, out[:4]),
        "a vector": (x[0], weight, out[0]),
        "a batch of one side": (batch[0], weight[:32, :16], batch[2]),
        "batches of two sizes": (batch[0], batch[1][:2], batch[2]),
        "results in one place": (*batch[:2], batch[2][:1].expand(3, 6, 16)),
        "rows on each other": (x[:1].expand(5, 48), weight, out),
        "no rows": (x[:0], weight, out[:0]),
        "no columns": (x, weight[:, :0], out[:, :0]),
        "nothing to add up": (x[:, :0], weight[:0], out),
        "an address between": (aligned(noise(1, 5, 48), 8), weight, out),
        "rows between": (aligned(noise(1, 5, 52))[:, :48], weight, out),
        "a batch between": (aligned(noise(1, 3, 5, 36))[:, :1, :32], batch[1], batch[2][:, :1]),
        "results between": (x, aligned(noise(2, 20, 48)).t(), aligned(torch.zeros(5, 20, dtype=BF16))),
        "x on the CPU": (torch.zeros(5, 48, dtype=BF16), weight, out),
    }


@pytest.mark.parametrize("case", refused())
def test_what_the_library_does_not_take_has_no_ways(fake: ctypes.CDLL, case: str) -> None:
    assert blaslt.products(*refused()[case], room()) == {}
    assert read(fake, "questions") == 0


@pytest.mark.parametrize("name", ["refused_descriptors", "no_heuristics"])
def test_what_the_library_refuses_has_no_ways(fake: ctypes.CDLL, name: str) -> None:
    put(fake, name, 7)
    assert blaslt.products(*plain(), room()) == {}
    gc.collect()
    assert read(fake, "alive") == 0
    put(fake, name, 0)
    assert blaslt.products(*plain(), room())


def test_there_is_one_handle_a_device(fake: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(2):
        blaslt.products(*plain(), room())
        blaslt.products(*parts(), room())
    assert read(fake, "handles") == 1
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    assert blaslt.products(*plain(), room())
    assert read(fake, "handles") == 2


def test_layers_share_what_describes_them(fake: ctypes.CDLL) -> None:
    """The same product over other operands asks nothing again."""
    first, second, workspace = plain(), plain(), room()
    ways = [blaslt.products(*operands, workspace) for operands in (first, second)]
    assert read(fake, "questions") == 1
    assert list(ways[0]) == list(ways[1])
    second[2].fill_(torch.nan)
    ways[0][GUESSES[0]]()
    check(first)
    assert bool(torch.isnan(second[2]).all())
    ways[1][GUESSES[0]]()
    check(second)


def test_descriptors_go_with_the_last_call(fake: ctypes.CDLL) -> None:
    operands = plain()
    ways = blaslt.products(*operands, room())
    made = read(fake, "made")
    assert read(fake, "alive") == made > 0
    kept = ways.pop(GUESSES[0])
    del ways
    blaslt._describe.cache_clear()
    gc.collect()
    assert read(fake, "alive") == made
    kept()
    check(operands)
    del kept
    gc.collect()
    assert read(fake, "alive") == 0


def test_a_call_keeps_what_it_reads_and_writes(fake: ctypes.CDLL) -> None:
    operands = [*plain(), room()]
    seen = [weakref.ref(it) for it in operands]
    ways = blaslt.products(*operands)
    kept = ways.pop(GUESSES[0])
    del operands, ways
    gc.collect()
    assert all(it() is not None for it in seen)
    kept()
    del kept
    gc.collect()
    assert all(it() is None for it in seen)


def test_a_call_goes_to_torch_s_current_stream_with_its_algorithm(fake: ctypes.CDLL) -> None:
    workspace = room()
    ways = blaslt.products(*plain(), workspace)
    ways[GUESSES[2]]()
    assert ctypes.c_void_p.in_dll(fake, "on_stream").value == STREAM
    assert ctypes.c_void_p.in_dll(fake, "with_workspace").value == workspace.data_ptr()
    assert ctypes.c_size_t.in_dll(fake, "workspace_bytes").value == WORKSPACE_BYTES
    # After what marks it: id, tile, split, sums, swizzle, custom, stages, inner, cluster, as cublasLt.h numbers them.
    assert list((ctypes.c_uint32 * 10).in_dll(fake, "used"))[1:] == [23, 18, 3, 2, 0, 0, 8, 0, 0]
    ways["cublasLt 66 tile 189 cluster 5 split 1 swizzle 1 custom 2 stages 35"]()
    assert list((ctypes.c_uint32 * 10).in_dll(fake, "used"))[1:] == [66, 189, 1, 0, 1, 2, 35, 0, 5]


def test_calls_may_come_from_any_thread(fake: ctypes.CDLL) -> None:
    many = [plain(rows) for rows in range(2, 10)]
    calls = [blaslt.products(*operands, room())[GUESSES[0]] for operands in many]
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for operands in many:
        check(operands)


@pytest.mark.parametrize(
    ("status", "error", "says"),
    [
        (13, DeviceError, r"cublasLt 21 .*CUBLAS_STATUS_EXECUTION_FAILED \(failed to launch\)"),
        (14, DeviceError, "the GPU failed"),
        (11, DeviceError, "the GPU failed"),
        (3, CapacityError, "no memory"),
        (15, ProductError, "cublasLt 21 .*status 15"),
        (7, ProductError, "cublasLt 21"),
    ],
)
def test_a_failed_call_is_typed(fake: ctypes.CDLL, status: int, error: type[Exception], says: str) -> None:
    way = blaslt.products(*plain(), room())[GUESSES[0]]
    put(fake, "status", status)
    with pytest.raises(error, match=says):
        way()
    put(fake, "status", 0)
    way()


def test_a_library_that_does_not_open_is_an_error(fake: ctypes.CDLL) -> None:
    put(fake, "opening", 1)
    for ask in (lambda: blaslt.products(*plain(), room()), blaslt.workspace):
        with pytest.raises(UNAVAILABLE, match="opening cuBLASLt on GPU 1: status 1"):
            ask()


def test_no_library_is_an_error_that_names_the_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", "99.2")
    with pytest.raises(BlasLtMissingError, match=r"CUDA 99.*libcublasLt\.so\.99, .*/lib/libcublasLt\.so\.99") as caught:
        find_library.__wrapped__()
    assert isinstance(caught.value, UNAVAILABLE)
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(BlasLtMissingError, match="built without CUDA"):
        find_library.__wrapped__()


def test_what_is_no_cublaslt_is_passed_over(fake: ctypes.CDLL, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A library of another kind, a file that is none, one of another CUDA; then the good one."""
    places = [str(ctypes.util.find_library("m")), __file__, str(tmp_path / "absent.so"), str(tmp_path / "blaslt.so")]
    monkeypatch.setattr(blaslt_library, "places", lambda *asked: iter(places))
    monkeypatch.setattr(torch.version, "cuda", "13.2")
    opened = blaslt_library._open
    monkeypatch.setattr(blaslt_library, "_open", lambda place: None if "libcublasLt" in place else opened(place))
    assert find_library.__wrapped__().cublasLtGetVersion() == 130401
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    with pytest.raises(BlasLtMissingError, match=r"CUDA 12.*blaslt\.so"):
        find_library.__wrapped__()


def test_libraries_lie_in_wheels_of_either_kind_or_beside_python(monkeypatch: pytest.MonkeyPatch) -> None:
    wheels = SimpleNamespace(submodule_search_locations=["/wheels/nvidia"])
    monkeypatch.setattr(libraries.importlib.util, "find_spec", lambda name: wheels if name == "nvidia" else None)
    monkeypatch.setattr(libraries.sys, "prefix", "/env")
    assert list(libraries.places("12.8", "libcublasLt", "cublas")) == [
        "/wheels/nvidia/cu12/lib/libcublasLt.so.12",
        "/wheels/nvidia/cublas/lib/libcublasLt.so.12",
        "/env/lib/libcublasLt.so.12",
        "libcublasLt.so.12",
        "/usr/local/cuda-12.8/lib64/libcublasLt.so.12",
        "/usr/local/cuda/lib64/libcublasLt.so.12",
        "libcublasLt.so",
    ]
    monkeypatch.setattr(libraries.importlib.util, "find_spec", lambda name: None)
    assert next(libraries.places("13.2", "libnvrtc", "cuda_nvrtc")) == "/env/lib/libnvrtc.so.13"


def installed() -> bool:
    try:
        blaslt_library.library()
    except BlasLtMissingError:
        return False
    return True


@pytest.mark.skipif(not installed(), reason="no cuBLASLt here")
def test_the_library_itself_takes_what_describes_a_product(monkeypatch: pytest.MonkeyPatch) -> None:
    """All but handles and algorithms can be had without a GPU."""
    assert blaslt_library.version() // 10_000 == int(str(torch.version.cuda).partition(".")[0])
    sizes: list[int] = []
    monkeypatch.setattr(blaslt, "handle", lambda device: ctypes.c_void_p())
    monkeypatch.setattr(blaslt._Described, "_guesses", lambda self: iter(()))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    problem = blaslt._problem_of(*parts(), room())
    assert problem is not None
    described = blaslt._Described(0, problem)
    preference = described._create("MatmulPreference")
    for attribute, kind in {1: ctypes.c_uint64, **dict.fromkeys((3, 5, 6, 7, 8), ctypes.c_uint32)}.items():
        described._set("MatmulPreference", preference, attribute, kind(2))
        sizes.append(ctypes.sizeof(kind))
    assert sizes == [8, 4, 4, 4, 4, 4]
    with pytest.raises(ProductError, match="attribute 3 of MatmulPreference: status 7, CUBLAS_STATUS_INVALID_VALUE"):
        described._set("MatmulPreference", preference, 3, ctypes.c_uint64(2))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("case", CASES)
def test_the_library_s_algorithms_agree_with_torch(case: str) -> None:
    """Plainly, and recorded in a graph."""
    x, weight, out = (it.as_subclass(torch.Tensor) for it in CASES[case]())
    base = [torch.empty_strided(it.shape, it.stride(), dtype=it.dtype, device="cuda") for it in (x, weight, out)]
    for given, it in zip(base, (x, weight, out), strict=True):
        given.copy_(it)
    x, weight, out = base
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    for way in blaslt.products(x, weight, out, blaslt.workspace()).values():
        out.fill_(torch.nan)
        torch.cuda.synchronize()
        try:
            with torch.cuda.stream(side):
                way()
        except ProductError:
            continue  # its own check does not see everything
        torch.cuda.synchronize()
        check((x, weight, out))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(side):
            graph.capture_begin(capture_error_mode="thread_local")
            way()
            graph.capture_end()
        out.fill_(torch.nan)
        torch.cuda.synchronize()
        graph.replay()
        torch.cuda.synchronize()
        check((x, weight, out))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("case", CASES)
def test_the_library_s_algorithms_are_what_their_names_say(case: str) -> None:
    """To the last byte, for most of them: some are not taken by what they say of themselves."""
    problem = blaslt._problem_of(*(it.as_subclass(torch.Tensor).cuda() for it in CASES[case]()), blaslt.workspace())
    assert problem is not None
    described = blaslt._Described(torch.cuda.current_device(), problem)
    made = {name: described._taken(blaslt.said_by(name)) for name in described.algorithms}
    assert sum(it is not None for it in made.values()) >= len(made) / 2
    for name, algorithm in made.items():
        assert algorithm is None or bytes(algorithm) == bytes(described.algorithms[name])

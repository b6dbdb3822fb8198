"""Which of the ways of a dense product a CUDA device takes, with a library in cuBLASLt's place. No GPU is touched."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from cuda_host_blaslt import GUESSES, forget, on_gpu, put, read, stand_in

pytest.importorskip("triton", reason="torch brings triton on Linux only")

from poot_executor.backends.cuda import blaslt, blaslt_library, dense_product, device
from poot_executor.backends.cuda.blaslt_library import BlasLtMissingError, ProductError
from poot_executor.backends.cuda.dense_product import TORCH, noise_like
from poot_executor.backends.cuda.device import CudaDevice
from poot_executor.backends.triton import choices
from poot_executor.backends.triton.choices import Choices
from poot_executor.backends.triton.device import TritonDevice
from poot_executor.backends.triton.kernels.few_rows import FewRowsLinearKernel
from poot_executor.backends.triton.kernels.gated import GatedLinearKernel
from poot_executor.backends.triton.kernels.kernel import place, typed, view
from poot_executor.backends.triton.kernels.linear import LinearKernel
from poot_executor.backends.triton.kernels.parts import PartsKernel
from poot_executor.backends.triton.memory import TorchAllocation
from poot_executor.backends.triton.stopwatch import LIBRARY, OWN, Lead, Stopwatch
from poot_executor.encodings import Dense
from poot_executor.errors import DeviceError
from poot_executor.ir import DType
from poot_executor.ir.types import TensorType
from poot_executor.kernels import Operand, Operands, Site
from poot_executor.ops import GatedLinear, Linear, LinearAddRmsNorm

BF16 = torch.bfloat16


@dataclass
class Script:
    """A clock by which the way at `fastest` is the fastest; it really runs them. `said`: how many it was given."""

    fastest: int = 0
    said: list[int] = field(default_factory=list)

    def run(self, way: Callable[[], object]) -> None:
        raise AssertionError("a product is bound, not run")

    def cold(self, ways: Sequence[Callable[[], object]]) -> list[float]:
        self.said.append(len(ways))
        for way in ways:
            way()
        return [0.01 if index == self.fastest else 0.02 for index in range(len(ways))]

    def burst(self, way: Callable[[], object], times: int) -> float:
        raise AssertionError("it takes 10 us")


@pytest.fixture
def fake(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ctypes.CDLL]:
    (tmp_path / "choices").mkdir()
    monkeypatch.setattr(choices, "private_folder", lambda name: tmp_path / name)
    monkeypatch.setattr(blaslt, "workspace", lambda: on_gpu(torch.zeros(2**20, dtype=torch.uint8)))
    yield stand_in(tmp_path_factory, tmp_path, monkeypatch)
    forget()


def opened(clock: Script) -> Any:
    """A device as a new process opens it."""
    made: Any = object.__new__(CudaDevice)
    made.name, made.side, made.synchronize = "H200", None, lambda: None
    made._stopwatch = Stopwatch(clock, Choices(made.made_of))
    return made


@dataclass(frozen=True)
class Product:
    x: torch.Tensor
    weight: torch.Tensor
    out: torch.Tensor

    def on(self, gpu: Any) -> Callable[[], object]:
        bound: Callable[[], object] = gpu.product(self.x, self.weight, self.out)
        return bound

    def check(self, launch: Callable[[], object]) -> None:
        self.out.fill_(torch.nan)
        launch()
        wanted = torch.matmul(self.x.double(), self.weight.double())
        assert float((self.out.double() - wanted).norm()) <= 2**-8 * float(wanted.norm())


def aligned(tensor: torch.Tensor) -> torch.Tensor:
    room = torch.empty(tensor.numel() + 256, dtype=tensor.dtype)
    start = (-room.data_ptr()) % 256 // tensor.element_size()
    return on_gpu(room[start : start + tensor.numel()].view(tensor.shape).copy_(tensor))


def product(rows: int = 5, out: torch.dtype = BF16, x: float | None = None) -> Product:
    noise = torch.Generator().manual_seed(rows)
    given = torch.randn(rows, 48, generator=noise) if x is None else torch.full((rows, 48), x)
    weight = torch.randn(24, 48, generator=noise)
    return Product(aligned(given.to(BF16)), aligned(weight.to(BF16)).t(), aligned(torch.zeros(rows, 24, dtype=out)))


def names() -> list[str]:
    """The library's ways."""
    it = product()
    return list(blaslt.products(it.x, it.weight, it.out, on_gpu(torch.zeros(2**20, dtype=torch.uint8))))


def timed() -> int:
    """How many ways there are: torch's, and the library's."""
    return 1 + len(names())


def plain(self: TritonDevice, x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> Callable[[], object]:
    """In torch's place, whose float32 results of bfloat16 products are a GPU's alone."""
    return lambda: out.copy_(torch.matmul(x.double(), weight.double()))


@pytest.mark.parametrize(("fastest", "out"), [(0, BF16), (1, BF16), (5, BF16), (1, torch.float32)])
def test_the_fastest_way_is_bound(fake: ctypes.CDLL, fastest: int, out: torch.dtype, monkeypatch: Any) -> None:
    if out != BF16:
        monkeypatch.setattr(TritonDevice, "product", plain)
    clock, it = Script(fastest), product(out=out)
    gpu = opened(clock)
    launch = it.on(gpu)
    assert len(clock.said) == 1
    before = read(fake, "products")
    it.check(launch)
    assert read(fake, "products") - before == (fastest > 0)


def test_of_many_rows_torch_s_way_is_taken(fake: ctypes.CDLL) -> None:
    clock, most, more = Script(1), product(512), product(513)
    gpu, questions = opened(clock), read(fake, "questions")
    more.check(more.on(gpu))
    assert read(fake, "questions") == questions
    most.check(most.on(gpu))
    assert len(clock.said) == 1


def test_ways_are_timed_on_noise(fake: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> None:
    """x is not a number, and stays as it is."""
    seen: list[torch.Tensor] = []

    def noise(x: torch.Tensor) -> torch.Tensor:
        seen.append(noise_like(x))
        return seen[-1]

    monkeypatch.setattr(dense_product, "noise_like", noise)
    clock = Script(1)
    gpu, it = opened(clock), product(x=float("nan"))
    it.on(gpu)
    assert bool(torch.isfinite(it.out).all())  # of the way that was timed last
    assert bool(torch.isnan(it.x).all())
    assert len(seen) == 1
    it.on(gpu)
    assert len(seen) == 1
    assert len(clock.said) == 1


@pytest.mark.parametrize("offset", [0, 16, 48])
def test_noise_lies_as_x_does(offset: int) -> None:
    room = torch.zeros(4096, dtype=BF16)
    x = room[offset:].view(-1)[: 5 * 96].view(5, 2, 48).transpose(0, 1)
    noise = noise_like(x)
    assert (noise.shape, noise.stride(), noise.dtype) == (x.shape, x.stride(), x.dtype)
    assert (noise.data_ptr() - x.data_ptr()) % 256 == 0
    assert 0.8 < float(noise.float().std()) < 1.2
    assert torch.equal(noise, noise_like(x))
    assert not room.any()


def test_a_choice_is_made_once_and_kept(fake: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other operands of one shape, and other processes, time nothing and make no noise."""
    clock = Script(2)
    gpu, first, second = opened(clock), product(), product()
    for it in (first, second):
        it.check(it.on(gpu))
    assert clock.said == [timed()]

    def none(x: torch.Tensor) -> torch.Tensor:
        raise AssertionError("nothing is to be timed")

    monkeypatch.setattr(dense_product, "noise_like", none)
    later = Script()
    second.check(second.on(opened(later)))
    assert later.said == []
    assert list((ctypes.c_uint32 * 3).in_dll(fake, "used"))[1:] == [66, 165]  # the second guess


def test_torch_s_way_is_remembered_too(fake: ctypes.CDLL) -> None:
    it = product()
    it.on(opened(Script(0)))
    forget()
    questions, later = read(fake, "questions"), Script(1)
    it.check(it.on(opened(later)))
    assert later.said == []
    assert read(fake, "questions") == questions  # the library is not even asked


def test_other_products_are_other_sites(fake: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TritonDevice, "product", plain)
    clock = Script()
    gpu, it, rows = opened(clock), product(), product(6)
    others = [
        it,
        rows,
        Product(it.x, it.weight, aligned(torch.zeros(5, 24))),
        Product(it.x, it.weight, aligned(torch.zeros(5, 32, dtype=BF16))[:, :24]),
        Product(aligned(torch.zeros(5, 64, dtype=BF16))[:, :48], it.weight, it.out),
        Product(it.x, aligned(torch.zeros(24, 56, dtype=BF16))[:, :48].t(), it.out),
        Product(aligned(torch.zeros(6, 48, dtype=BF16))[1:], it.weight, it.out),  # by 32 bytes
    ]
    for _ in range(2):
        for other in others:
            other.on(gpu)
    assert len(clock.said) == len(others)


def test_weights_that_are_on_their_way_are_waited_for(fake: ctypes.CDLL) -> None:
    """What they are before says nothing: no algorithm agrees with what is no number, and each with zeros."""
    clock, it = Script(1), product()
    gpu, weight = opened(clock), it.weight.clone()
    it.weight.fill_(torch.nan)
    gpu.synchronize = lambda: it.weight.copy_(weight)
    launch = it.on(gpu)
    assert clock.said == [timed()]
    it.check(launch)


@pytest.mark.parametrize(("wrong", "columns"), [(0.5, 8), (0.1, 1), (float("nan"), 1)])
def test_an_algorithm_that_is_wrong_is_not_timed(
    fake: ctypes.CDLL, wrong: float, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def with_one(*operands: torch.Tensor) -> dict[str, Callable[[], None]]:
        def spoilt() -> None:
            right()
            operands[2][-1, -columns:] += wrong * operands[2].abs().max()

        ways = found(*operands)
        if len(operands) > 4:  # the one that was chosen
            return ways
        name = list(ways)[2]
        right, ways[name] = ways[name], spoilt
        return ways

    count, found, clock, it = timed(), blaslt.products, Script(3), product()
    monkeypatch.setattr(blaslt, "products", with_one)
    it.check(it.on(opened(clock)))
    assert clock.said == [count - 1]


def test_an_algorithm_that_writes_nothing_is_not_timed(fake: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever lay there before it, such as torch's result."""
    found, all_of_them = blaslt.products, names()
    for rows, idle in enumerate(all_of_them, 1):

        def with_one(*operands: torch.Tensor, idle: str = idle) -> dict[str, Callable[[], None]]:
            return {**found(*operands), idle: lambda: None}

        monkeypatch.setattr(blaslt, "products", with_one)
        clock = Script()
        product(rows).on(opened(clock))
        assert clock.said == [len(all_of_them)], idle


def test_a_name_that_the_library_no_longer_has_is_chosen_anew(fake: ctypes.CDLL) -> None:
    it = product()
    it.on(opened(Script(1)))
    [path] = (Path(choices.private_folder("choices"))).iterdir()
    path.write_text(path.read_text().replace(GUESSES[0], "cublasLt 1 of another release"))
    later = Script(3)
    gpu = opened(later)
    it.check(it.on(gpu))
    assert later.said == [timed()]
    last = Script()
    it.check(it.on(opened(last)))
    assert last.said == []


@pytest.mark.parametrize("fault", [ProductError("no such algorithm"), DeviceError("cublasLt: status 13")])
def test_a_choice_that_no_longer_runs_is_made_anew(
    fake: ctypes.CDLL, fault: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the driver is another one, and the home the same."""
    it, first = product(), Script(1)
    it.on(opened(first))
    [path] = (Path(choices.private_folder("choices"))).iterdir()
    chosen = json.loads(path.read_text().splitlines()[-1])[1]
    assert chosen in names()

    def refused() -> None:
        raise fault

    found = blaslt.products
    monkeypatch.setattr(blaslt, "products", lambda *operands: {**found(*operands), chosen: refused})
    again, later = Script(1), Script()
    it.check(it.on(opened(again)))
    assert again.said == [timed() - 1]
    it.check(it.on(opened(later)))
    assert later.said == []
    assert json.loads(path.read_text().splitlines()[-1])[1] != chosen


def test_ways_that_cannot_be_launched_are_left_out(fake: ctypes.CDLL) -> None:
    """Then torch's alone is there, and that is remembered."""
    for status in (15, 13, 3):
        put(fake, "status", status)
        clock, it = Script(), product(5 + status)
        gpu, synchronized = opened(clock), []
        gpu.synchronize = lambda done=synchronized: done.append(1)
        for _ in range(2):
            it.check(it.on(gpu))
        assert clock.said == []
        # Once for the weights; and after a failure the device is asked whether it is well, after a refusal it is.
        assert len(synchronized) == (1 if status == 15 else timed())


def test_a_device_that_is_lost_meanwhile_is_an_error(fake: ctypes.CDLL) -> None:
    put(fake, "status", 13)
    gpu, waits = opened(Script()), iter([True])

    def lost() -> None:
        if not next(waits, False):  # the weights were there
            raise DeviceError("the GPU failed")

    gpu.synchronize = lost
    with pytest.raises(DeviceError, match="the GPU failed"):
        product().on(gpu)


def test_what_the_library_does_not_take_is_torch_s(fake: ctypes.CDLL) -> None:
    clock = Script()
    gpu = opened(clock)
    odd = torch.randn(5, 7).to(BF16)
    it = Product(on_gpu(odd), on_gpu(torch.randn(24, 7).to(BF16)).t(), aligned(torch.zeros(5, 24, dtype=BF16)))
    it.check(it.on(gpu))
    assert clock.said == []


def test_without_the_library_there_is_torch_s_way_and_one_warning(
    fake: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def missing() -> torch.Tensor:
        raise BlasLtMissingError("there is none")

    monkeypatch.setattr(blaslt, "workspace", missing)
    clock = Script()
    gpu = opened(clock)
    for rows in (4, 5):
        it = product(rows)
        it.check(it.on(gpu))
    assert clock.said == []
    assert caplog.text.count("there is none") == 1
    assert read(fake, "products") == 0


def test_choices_depend_on_the_device_and_on_all_releases(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> int:
        raise BlasLtMissingError("there is none")

    monkeypatch.setattr(device, "version", lambda: 130401)
    made: Any = object.__new__(CudaDevice)
    made.name = "H200"
    parts = made.made_of()
    assert (parts[0], parts[-1]) == ("H200", "cuBLASLt 130401")
    assert [part.split()[0] for part in parts[1:-1]] == ["poot-executor", "torch", "CUDA", "triton"]
    assert f"torch {torch.__version__}" in parts
    monkeypatch.setattr(device, "version", missing)
    assert made.made_of() == parts[:-1]


class Asked(TritonDevice):
    """Over host memory: notes which products are asked for, and takes the first way of the sites it is asked about."""

    def __init__(self) -> None:
        super().__init__("cpu", "host", DType.BF16)
        self.products: list[Any] = []
        self.sites: list[Any] = []

    def product(self, x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> Callable[[], object]:
        self.products.append((tuple(x.shape), tuple(weight.shape), tuple(out.shape), out.dtype))
        return super().product(x, weight, out)

    def fastest(self, site: object, ways: Any, lead: Lead = OWN) -> str:
        assert lead == OWN
        self.sites.append((site, list(ways)))
        for bind in ways.values():
            bind()
        return super().fastest(site, ways, lead)


def operand(type_: TensorType, fill: float | None = None) -> Operand:
    dtype = {DType.BF16: BF16, DType.F32: torch.float32, DType.U8: torch.uint8}[type_.dtype]
    tensor = torch.zeros(type_.shape, dtype=dtype) if fill is None else torch.full(type_.shape, fill, dtype=dtype)
    return Operand(type_, TorchAllocation(tensor.view(-1).view(torch.uint8)), 0, tensor.stride())


def linear(rows: int, k: int = 64, n: int = 16, dtype: DType = DType.BF16) -> tuple[Site, Operands]:
    x, weight, out = TensorType((rows, k), dtype, "tokens"), TensorType((n, k), dtype), TensorType((rows, n), dtype)
    site = Site(Linear(), (x, weight), (out,), (None, "w"), (None, Dense("BF16")), dtype)
    return site, Operands((operand(x, 1.0), None), (operand(out),), (torch.ones(n, k, dtype=BF16),), None)


def test_a_view_of_an_operand_is_made_once() -> None:
    """Layers have the same places in the arena; another shape, type or place is another view."""
    it = operand(TensorType((4, 8), DType.BF16), 1.0)
    whole = view(it)
    assert view(replace(it)) is whole
    later = typed(it, (3, 8), None, DType.BF16, 16)
    assert typed(it, (3, 8), None, DType.BF16, 16) is later
    assert (later.data_ptr() - whole.data_ptr(), later.shape) == (16, (3, 8))
    assert typed(it, (2, 8), None, DType.F32).dtype is torch.float32
    assert typed(it, (4, 4), (8, 1), DType.BF16).stride() == (8, 1)
    later.fill_(2.0)
    assert whole[0].tolist() == [1.0] * 8
    assert whole[1:].tolist() == [[2.0] * 8] * 3


def test_linear_products_are_the_device_s() -> None:
    site, operands = linear(40)
    gpu = Asked()
    LinearKernel().call(site, operands, gpu)()
    assert gpu.products == [((40, 64), (64, 16), (40, 16), BF16)]
    allocation = operands.outputs[0].allocation
    assert isinstance(allocation, TorchAllocation)
    assert bool((allocation.tensor.view(BF16) == 64).all())


def test_gated_products_are_the_device_s() -> None:
    x, weight, out = (TensorType(shape, DType.BF16, "tokens") for shape in ((40, 64), (16, 64), (40, 16)))
    site = Site(
        GatedLinear("silu"), (x, weight, weight), (out,), (None, "g", "u"), (None, *(Dense("BF16"),) * 2), x.dtype
    )
    room = operand(TensorType((2 * 40 * 16 * 2,), DType.U8))
    given = Operands((operand(x), None, None), (operand(out),), (torch.ones(32, 64, dtype=BF16),), room)
    gpu = Asked()
    GatedLinearKernel().call(site, given, gpu)
    assert gpu.products == [((40, 64), (64, 32), (40, 32), BF16)]


def in_parts(rows: int = 40) -> tuple[Site, Operands]:
    x, weight, vector = (
        TensorType((rows, 64), DType.BF16, "tokens"),
        TensorType((16, 64), DType.BF16),
        TensorType((16,), DType.F32),
    )
    out = TensorType((rows, 16), DType.BF16, "tokens")
    site = Site(
        LinearAddRmsNorm(1e-5), (x, weight, out, vector), (out, out), (None, "w", None, "n"),
        (None, Dense("BF16"), None, Dense("F32")), DType.BF16,
    )  # fmt: skip
    room = operand(TensorType((4 * 4 * rows * 16,), DType.U8))
    held = torch.ones(16, 64, dtype=BF16), torch.ones(16)
    return site, Operands((operand(x), None, operand(out), None), (operand(out), operand(out)), held, room)


def test_products_in_parts_are_the_device_s() -> None:
    site, operands = in_parts()
    gpu = Asked()
    PartsKernel().call(site, operands, gpu)
    shapes = [((n, 40, 64 // n), (n, 64 // n, 16), (n, 40, 16), torch.float32) for n in (2, 4, 1)]
    assert gpu.products == [*shapes, shapes[0]]  # once more to be run, the first being the fastest
    assert [names for _, names in gpu.sites] == [["2 parts", "4 parts", "1 parts"]]


def test_a_few_rows_have_their_own_kernel_or_the_library_s() -> None:
    site, operands = linear(8)
    room = operand(TensorType((FewRowsLinearKernel().workspace(site),), DType.U8))
    gpu = Asked()
    FewRowsLinearKernel().call(site, Operands(operands.inputs, operands.outputs, operands.held, room), gpu)
    assert [names for _, names in gpu.sites] == [["few rows", "torch mm"]]
    assert gpu.products == [((8, 64), (64, 16), (8, 16), BF16)]


def sites() -> list[str]:
    """What the kernels call their sites, and what a product is called."""
    gpu, (site, operands) = Asked(), linear(8)
    room = operand(TensorType((FewRowsLinearKernel().workspace(site),), DType.U8))
    FewRowsLinearKernel().call(site, Operands(operands.inputs, operands.outputs, operands.held, room), gpu)
    PartsKernel().call(*in_parts(), gpu)
    return [repr(site) for site, _ in gpu.sites] + [dense_product._said(aligned(torch.zeros(4, 8, dtype=BF16)))]


def test_sites_have_the_same_text_in_every_process() -> None:
    program = "import test_cuda_dense_product as it\nfor site in it.sites(): print(site)"
    folder = str(Path(__file__).parent)
    environment = {**os.environ, "PYTHONHASHSEED": "1", "PYTHONPATH": os.pathsep.join([folder, *sys.path])}
    command = [sys.executable, "-c", program]
    said = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True, env=environment).stdout
    assert said.splitlines() == sites()
    assert "0x" not in said
    assert said.endswith("\nbfloat16 (4, 8) by (8, 1) at 256\n")


def test_a_place_tells_layouts_apart() -> None:
    site, operands = linear(8)
    x = operands.input(0)
    wider = Operand(x.type, x.allocation, x.offset, (128, 1))
    others = Operands((wider, None), operands.outputs, operands.held, None)
    assert place(site, operands) == place(*linear(8))
    assert len({repr(place(*it)) for it in ((site, operands), (site, others), linear(9), linear(8, n=24))}) == 4


def test_torch_s_choice_is_taken_unless_another_is_faster_by_some_hundredths() -> None:
    assert Lead(share=0.02) == LIBRARY
    assert TORCH == "torch"
    assert blaslt_library.ProductError.code == "product"

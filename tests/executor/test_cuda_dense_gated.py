"""Gated products of many rows in CUDA C++, run on the host by emulation, against the definition in float64."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import pytest
import torch
from cuda_host_device import HostDevice
from cuda_on_host import compiler

from poot_executor.backends.cuda.dense_gated import DenseGatedKernel, GatedProduct, Tiling, tiling
from poot_executor.backends.cuda.dense_gated_turned import TurnedTiling, gated_turned, turned_tiling
from poot_executor.backends.cuda.nvrtc import ProgramError
from poot_executor.backends.cuda.programs import Program
from poot_executor.backends.triton.kernels.gated import GatedLinearKernel
from poot_executor.backends.triton.memory import TorchAllocation
from poot_executor.backends.triton.stopwatch import OWN, Bind, Lead
from poot_executor.encodings import Dense, Encoding, Ggml
from poot_executor.errors import BackendUnavailableError, GraphError
from poot_executor.ir import DType
from poot_executor.ir.types import TensorType
from poot_executor.kernels import Operand, Operands, Site
from poot_executor.ops import GatedLinear

emulated = pytest.mark.skipif(compiler() is None, reason="no g++ to compile kernels with")
TILE = 128
# Results are rounded to bfloat16, sums are float32.
TOLERANCE = 2**-8


@dataclass(frozen=True)
class Case:
    """`live` rows of `rows`, of a count that stands at `index` in the device's."""

    rows: int
    n: int = 136
    k: int = 72
    activation: Literal["silu", "gelu_tanh"] = "silu"
    how: Tiling | TurnedTiling | None = None
    live: int = 2**30
    index: int = 0
    processors: int = 3


def product(case: Case) -> tuple[GatedProduct, torch.Tensor]:
    """A product over noise, its results infinite as yet, and what is wanted."""
    noise = torch.Generator().manual_seed(case.rows)
    # What is beside x, and after its live rows, is not a number.
    x = torch.full((case.rows, case.k + 8), torch.nan).bfloat16()[:, : case.k]
    used = min(case.rows, case.live)
    x[:used] = torch.randn(used, case.k, generator=noise).bfloat16()
    weight = (torch.randn(2 * case.n, case.k, generator=noise) * 2 * case.k**-0.5).bfloat16()
    out = torch.full((case.rows, case.n), torch.inf).bfloat16()
    it = GatedProduct(x, weight, out, case.activation)
    return it, wanted_of(it)


def wanted_of(it: GatedProduct) -> torch.Tensor:
    """What a product is by definition, in float64."""
    gate, up = (it.x.double() @ half.double().T for half in it.weight.chunk(2))
    if it.activation == "silu":
        acted = gate / (1 + torch.exp(-gate))
    else:
        acted = gate / 2 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)))
    return acted * up


def host(case: Case) -> HostDevice:
    device = HostDevice()
    device.processors = case.processors
    # The others must not matter.
    device.live.fill_(1)
    device.live[case.index] = case.live
    return device


def check(case: Case, *, backwards: bool = False, turns: int = 0) -> torch.Tensor:
    """The results, after those of live rows have been compared and the others found as they were."""
    it, wanted = product(case)
    device = host(case)
    device.backwards, device.turns = backwards, turns
    if isinstance(case.how, TurnedTiling):
        launch = gated_turned((it.x, it.weight, it.out), it.activation, case.index, device, how=case.how)
    else:
        launch = it.bind(case.index, device, how=case.how)
    launch()
    live = min(case.rows, case.live)
    touched = live
    found, wanted = it.out[:live].double(), wanted[:live]
    assert bool(torch.isfinite(found).all())
    assert float((found - wanted).norm()) <= TOLERANCE * float(wanted.norm())
    torch.testing.assert_close(found, wanted, rtol=TOLERANCE, atol=1e-4)
    assert bool(torch.isinf(it.out[touched:]).all())
    first = it.out.clone()
    launch()  # nothing is left of the first time
    assert torch.equal(first[:live], it.out[:live])
    return first


# Bands of two tiles, or of two pairs of them, so that a tall product has several.
LOW_BANDS = {1: Tiling(1, band_rows=256), 2: Tiling(2, band_rows=512)}


@emulated
@pytest.mark.parametrize("cluster", [1, 2])
@pytest.mark.parametrize("rows", [33, 128, 129, 200, 300])
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_gated_products(activation: Literal["silu", "gelu_tanh"], rows: int, cluster: int) -> None:
    """n and k are no multiples of a tile's."""
    silu = activation == "silu"
    how = Tiling(cluster) if silu else LOW_BANDS[cluster]
    check(Case(rows, activation=activation, how=how, index=0 if silu else 3))


@emulated
@pytest.mark.parametrize("lines", [96, 112])
@pytest.mark.parametrize(("rows", "n", "cluster"), [(129, 264, 1), (300, 136, 2), (40, 112, 1)])
def test_tiles_of_fewer_lines(rows: int, n: int, cluster: int, lines: int) -> None:
    check(Case(rows, n=n, k=328, how=Tiling(cluster, lines)))


CASES = [
    Case(40, n=8, k=64),
    Case(128, n=128, k=64),
    Case(140, n=24, k=328),  # more steps than stages
    Case(260, n=264, k=200, processors=1),
    Case(130, n=264, k=200, processors=2),  # one cluster
    Case(600, k=136, activation="gelu_tanh", how=LOW_BANDS[1], index=3, processors=4),
    Case(1100, activation="gelu_tanh", how=LOW_BANDS[2], index=3, processors=5),
    Case(200, n=264, k=72, processors=132),  # more blocks than tiles
    Case(300, processors=132),
]


@emulated
@pytest.mark.parametrize("case", CASES, ids=str)
def test_blocks_share_the_tiles_of_a_product(case: Case) -> None:
    """Fewer blocks than tiles, and more; products of one tile and of several bands."""
    check(case)


@emulated
@pytest.mark.parametrize("live", [0, 1, 64, 127, 128, 129, 256, 257, 299])
@pytest.mark.parametrize("cluster", [1, 2])
def test_rows_that_are_not_live_cost_nothing(cluster: int, live: int) -> None:
    """Results after the last live row's tile are left as they were; the other rows of x are not numbers."""
    check(Case(300, how=Tiling(cluster), live=live, processors=2))


@emulated
@pytest.mark.parametrize("case", [Case(300), Case(200), Case(129, n=264, processors=2, live=128)], ids=str)
def test_results_do_not_depend_on_who_comes_first(case: Case) -> None:
    """Whoever is ahead, stages are neither read too early nor written over too early."""
    forward, backward = check(case), check(case, backwards=True)
    live = min(case.rows, case.live)
    assert torch.equal(forward[:live], backward[:live])


def turned(rows: int, n: int = 136, processors: int = 3) -> TurnedTiling:
    return turned_tiling(rows, n, processors)


@emulated
@pytest.mark.parametrize("rows", [33, 100, 208, 256, 300, 704])
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_products_the_matrix_unit_turned(activation: Literal["silu", "gelu_tanh"], rows: int) -> None:
    """n and k are no multiples of a tile's, and there are more steps than stages."""
    silu = activation == "silu"
    check(Case(rows, k=72 if silu else 600, activation=activation, how=turned(rows), index=0 if silu else 3))


@emulated
@pytest.mark.parametrize("processors", [1, 2, 3, 6, 132])
@pytest.mark.parametrize("rows", [48, 300])
def test_blocks_share_the_turned_tiles(rows: int, processors: int) -> None:
    check(Case(rows, n=328, k=136, how=turned(rows, 328, processors), processors=processors))


# Three clusters: full turns of none, one and two, and 1 to 3 units that are left over for each, or four.
RESTS = [(rows, lines, rest) for rows in (40, 152, 208, 264, 352) for lines in (0, 384, 768) for rest in (0, 1, 2, 3)]


@emulated
@pytest.mark.parametrize(("rows", "lines", "rest"), RESTS)
@pytest.mark.parametrize("backwards", [False, True])
def test_the_last_turn_has_smaller_tiles(rows: int, lines: int, rest: int, backwards: bool) -> None:
    """The last of them is not full."""
    n = lines + 3 * 32 * (rest or 4) - 24
    how = TurnedTiling(rows, 1, lines if rest else lines + 384, rest)
    check(Case(rows, n=n, k=72, how=how, processors=6), backwards=backwards)


@emulated
@pytest.mark.parametrize("rest", [1, 2, 3])
@pytest.mark.parametrize("rows", [40, 352])
def test_turned_tiles_do_not_depend_on_which_warp_is_ahead(rows: int, rest: int) -> None:
    """In two blocks, each of which writes to the other's shared memory."""
    case = Case(rows, n=384 + 96 * rest, k=600, how=TurnedTiling(rows, 1, 384, rest), processors=6)
    first = check(case)
    for turns in (1, 2, 3):
        assert torch.equal(check(case, turns=turns), first)


@emulated
@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("live", [0, 1, 63, 151, 152, 153, 299])
@pytest.mark.parametrize("rest", [0, 1, 2, 3])
def test_rows_of_turned_tiles_that_are_not_live_are_left_alone(rest: int, live: int, backwards: bool) -> None:
    n = 128 + 32 * rest
    check(Case(300, n, how=TurnedTiling(152, 2, 128, rest), live=live, processors=4), backwards=backwards)
    check(Case(150, n, how=TurnedTiling(152, 1, 128, rest), live=min(live, 150)), backwards=backwards)
    check(Case(560, n, how=TurnedTiling(280, 2, 128, rest), live=2 * live, processors=4), backwards=backwards)


@pytest.mark.parametrize(
    ("rows", "wanted"),
    [
        # On 66 clusters, gate and up of 14336 lines each are 1.70 turns of 128 lines.
        (33, (40, 1, 66 * 128, 3)),
        (200, (200, 1, 66 * 128, 3)),
        (256, (256, 1, 66 * 128, 3)),
        (300, (304, 1, 66 * 128, 3)),
        # 3.39 turns of two tiles of rows, 6.79 of four, 11.88 of seven.
        (352, (176, 2, 99 * 128, 2)),
        (512, (256, 2, 99 * 128, 2)),
        (1104, (280, 4, 112 * 128, 0)),
        (2048, (296, 7, 112 * 128, 0)),
    ],
)
def test_rows_are_cut_into_tiles_of_one_size(rows: int, wanted: tuple[int, int, int, int]) -> None:
    how = turned_tiling(rows, 14336, 132)
    assert (how.rows, how.tiles, how.lines, how.rest) == wanted
    # What a block may have on Hopper (CUDA C++ Programming Guide, technical specifications); the kernel needs two.
    stages = how.stages(227 * 1024)
    assert stages >= 3
    assert stages * how.stage + how.staged <= 227 * 1024


@pytest.mark.parametrize("processors", [1, 2, 3, 20, 66, 131, 132, 148])
@pytest.mark.parametrize("n", [8, 96, 136, 1536, 8960, 14336, 18944])
@pytest.mark.parametrize("rows", [33, 256, 300, 512, 2048])
def test_the_last_turn_is_one(rows: int, n: int, processors: int) -> None:
    """Every line is in a tile, and each cluster has one at most of those that are smaller."""
    how, clusters = turned_tiling(rows, n, processors), max(1, processors // 2)
    left = n - how.lines
    assert how.lines % 128 == 0
    assert how.rest or left <= 0
    if how.rest:
        assert 0 < -(-left // (32 * how.rest)) * how.tiles <= clusters


def test_clusters_are_made_where_no_tile_is_left_over() -> None:
    rows = (33, 128, 129, 256, 257, 384, 385, 2048)
    assert [tiling(count, 14336, 132).cluster for count in rows] == [1, 1, 2, 2, 1, 1, 2, 2]
    # What a block may have on Hopper (CUDA C++ Programming Guide, technical specifications).
    assert all(Tiling(1, lines).shared <= 227 * 1024 for lines in (96, 112, 128))


@pytest.mark.parametrize(
    ("rows", "n", "lines"),
    [
        (128, 14336, 112),  # 128 tiles of 132 that run at once, not 112
        (256, 14336, 112),
        (320, 14336, 112),  # 384 tiles, 2.91 turns; 336 would be 2.55
        (512, 14336, 112),
        (2048, 14336, 128),  # 15.5 turns of 112 lines are as long as 13.6 of 128, and read more
        (2048, 1536, 96),  # 128 tiles; 96 of 128 lines
        (64, 96, 96),
    ],
)
def test_lines_are_as_many_as_fill_all_turns(rows: int, n: int, lines: int) -> None:
    """On an H200's 132 multiprocessors."""
    assert tiling(rows, n, 132).lines == lines


def site(
    rows: tuple[int, ...] = (64, 72), n: int = 136, dtype: DType = DType.BF16, encoding: Encoding | None = None
) -> Site:
    x, weight = TensorType(rows, dtype, "tokens"), TensorType((n, rows[-1]), dtype)
    encodings = (None, *(encoding or Dense("BF16"),) * 2)
    out = TensorType((*rows[:-1], n), dtype, "tokens")
    return Site(GatedLinear("silu"), (x, weight, weight), (out,), (None, "gate", "up"), encodings, dtype)


@pytest.mark.parametrize(
    ("refused", "reason"),
    [
        (site((32, 72)), "32 rows or fewer"),
        (site((1, 72)), "32 rows or fewer"),
        (site((2, 64, 72)), "rows"),
        (site(dtype=DType.F32), "not bfloat16"),
        (site(dtype=DType.F16), "not bfloat16"),
        (site((64, 68)), "multiples of 8"),
        (site(n=132), "multiples of 8"),
        (site((64, 56)), "64"),
        (site((64, 256), encoding=Ggml("Q4_K")), "packed"),
    ],
)
def test_what_it_does_not_take_has_a_reason(refused: Site, reason: str) -> None:
    said = DenseGatedKernel().accepts(refused)
    assert said is not None
    assert reason in said


@pytest.mark.parametrize("taken", [site(), site((33, 64), 8), site((2048, 4096), 14336)], ids=lambda it: str(it.inputs))
def test_what_it_takes(taken: Site) -> None:
    assert DenseGatedKernel().accepts(taken) is None


class Timing(HostDevice):
    """Says which way is the fastest, and what the live counts were then."""

    def __init__(self, choice: str = "gated product", error: Exception | None = None) -> None:
        super().__init__()
        self.choice, self.error = choice, error
        self.while_timed: list[torch.Tensor] = []
        self.sites: list[Any] = []
        self.programs_bound: list[Program] = []

    def fastest(self, site: object, ways: Mapping[str, Bind], lead: Lead = OWN) -> str:
        assert [*ways] == ["gated product", "torch mm, then gate", "gated product, turned"]
        assert lead == OWN
        self.while_timed.append(self.live.clone())
        self.sites.append(site)
        for bind in ways.values():
            bind()()
        if self.error is not None:
            raise self.error
        return self.choice

    def synchronize(self) -> None:
        raise AssertionError("weights are on their way, and need not have come")

    def bind(self, program: Program, *given: Any, **more: Any) -> Callable[[], None]:
        self.programs_bound.append(program)
        return super().bind(program, *given, **more)


def operand(tensor: torch.Tensor) -> Operand:
    shape = TensorType(tuple(tensor.shape), DType.BF16, "tokens")
    return Operand(shape, TorchAllocation(tensor.view(-1).view(torch.uint8)), 0, tensor.stride())


@dataclass(frozen=True)
class Called:
    """A product of 300 rows, and what the library's way, which does nothing, was bound to or run with."""

    product: GatedProduct
    operands: Operands
    said: list[tuple[str, int]]


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> Called:
    said: list[tuple[str, int]] = []
    it, _ = product(Case(300))
    it = replace(it, x=it.x.contiguous())

    def library(_self: object, _site: Site, _operands: Operands, device: HostDevice) -> Callable[[], object]:
        live = device.live
        said.append(("bound", int(live[0])))
        return lambda: said.append(("run", int(live[0])))

    monkeypatch.setattr(GatedLinearKernel, "call", library)
    operands = Operands((operand(it.x), None, None), (operand(it.out),), (it.weight,), None)
    return Called(it, operands, said)


@emulated
@pytest.mark.parametrize("choice", ["gated product", "torch mm, then gate", "gated product, turned"])
def test_all_ways_are_timed_with_all_rows_and_the_faster_is_bound_to_the_live_ones(called: Called, choice: str) -> None:
    device, out, library = Timing(choice), called.product.out, choice == "torch mm, then gate"
    device.live[0] = 100
    kept, before = device.live, called.product.x.clone()
    launch = DenseGatedKernel().call(site((300, 72)), called.operands, device)
    assert device.live is kept
    assert int(kept[0]) == 100
    # What is made beforehand is what is timed.
    assert tuple(device.programs_bound[:2]) == DenseGatedKernel().programs(site((300, 72)), device)
    [timed] = device.while_timed
    assert bool((timed >= 300).all())
    # The ways of its own have made all rows, and the library's has run.
    wanted = wanted_of(called.product)
    torch.testing.assert_close(out.double(), wanted, rtol=TOLERANCE, atol=1e-4)
    # Of noise, of which a device takes as much power as of what a step has.
    assert 0.9 < float(called.product.x.double().std()) < 1.1
    assert not torch.equal(called.product.x, before)
    assert called.said == [("bound", 2**30), ("run", 2**30), *([("bound", 100)] if library else [])]
    [place] = device.sites
    assert place[:1] == (GatedLinear("silu"),)
    assert place[1:] == (
        ("bf16", (300, 72), (72, 1)),
        ("bf16", (300, 136), (136, 1)),
        tiling(300, 136, 3),
        turned(300, processors=device.processors),
    )
    called.said.clear()
    out.fill_(torch.inf)
    launch()
    if library:
        assert called.said == [("run", 100)]
        return
    assert called.said == []
    torch.testing.assert_close(out[:100].double(), wanted[:100], rtol=TOLERANCE, atol=1e-4)
    assert bool(torch.isinf(out[TILE:]).all())


@emulated
@pytest.mark.parametrize(
    "error", [ProgramError("no program"), GraphError("no map"), BackendUnavailableError("no driver")]
)
def test_the_library_s_way_is_there_where_the_own_one_is_not(
    called: Called, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    device = Timing(error=error)
    device.live[0] = 100
    for _ in range(2):
        launch = DenseGatedKernel().call(site((300, 72)), called.operands, device)
    assert caplog.text.count(str(error)) == 1  # and not once a layer
    called.said.clear()
    launch()
    assert called.said == [("run", 100)]


@emulated
def test_the_live_counts_come_back_where_timing_fails(called: Called) -> None:
    device = Timing(error=RuntimeError("the GPU fails"))
    kept = device.live
    with pytest.raises(RuntimeError, match="the GPU fails"):
        DenseGatedKernel().call(site((300, 72)), called.operands, device)
    assert device.live is kept
    assert kept.tolist() == [0, 0, 0, 2**30]

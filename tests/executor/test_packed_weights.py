"""Packed weights on a device: what the planes say is what the gguf package decodes; sizes; one form for all entries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from poot_executor.backends.triton import weights
from poot_executor.backends.triton.device import TritonDevice
from poot_executor.backends.triton.kernels import packed_many
from poot_executor.backends.triton.packed import LAYOUTS, Segment
from poot_executor.encodings import Ggml, WeightSource, nbytes
from poot_executor.ir import DType, GraphBuilder
from poot_executor.kernels import WeightForm
from poot_executor.ops import AddRmsNorm, Linear, ResidualLinear
from poot_executor.runtime import EntryKey, compile_graphs, prepare

each = pytest.mark.parametrize("name", list(LAYOUTS))


def source(name: str, rows: int, columns: int, seed: int = 0) -> WeightSource:
    """Uniform bytes: every code, and scales of any size."""
    data = np.random.default_rng(seed).integers(0, 256, nbytes(Ggml(name), (rows, columns)), np.uint8)
    return WeightSource(f"{name} {seed}", (rows, columns), Ggml(name), data)


def expected(given: WeightSource) -> np.ndarray:
    rows = given.data.reshape(given.shape[0], -1)
    with np.errstate(all="ignore"):
        return gguf.quants.dequantize(rows, gguf.GGMLQuantizationType[str(given.encoding)])


def held(*sources: WeightSource) -> tuple[Segment, ...]:
    form = WeightForm("packed", tuple(s.name for s in sources), 0)
    found: tuple[Segment, ...] = TritonDevice("cpu", "host", DType.BF16).hold(form, sources)
    return found


def code(segment: Segment, row: int, column: int) -> int:
    """The planes' bits of one element, by what the module says of them."""
    oct_, element = divmod(column, 8)
    bits, planes = segment.layout.bits, [int(plane[row, oct_].item()) for plane in segment.planes]
    if bits[0] == 8:
        second = element in (2, 6, 3, 7)
        byte = ((2, 6, 3, 7) if second else (0, 4, 1, 5)).index(element)
        return (planes[second] >> (8 * byte)) & 255
    field, found, shift = (0, 2, 4, 6, 1, 3, 5, 7).index(element), 0, 0
    for width, word in zip(bits, planes, strict=True):
        found |= ((word >> (width * field)) & ((1 << width) - 1)) << shift
        shift += width
    return found


def halves(number: torch.Tensor) -> list[float]:
    return number.reshape(1).view(torch.float16).float().tolist()


def value(segment: Segment, row: int, column: int) -> np.float32:
    layout = segment.layout
    group = segment.scale[row, column // layout.group]
    shared = group if segment.unit is None else segment.unit[row, column // 256]
    found = [float(shared)] if shared.dtype == torch.float32 else halves(shared)
    if layout.multiples:
        whole, bits = int(group), 4 * layout.multiples
        parts = [whole & ((1 << bits) - 1), whole >> bits] if layout.minimum else [whole]
        found = [float(np.float32(half) * np.float32(part)) for half, part in zip(found, parts, strict=True)]
    product = np.float32(code(segment, row, column) - layout.offset) * np.float32(found[0])
    return np.float32(product - np.float32(found[1])) if layout.minimum else product


@each
def test_planes_say_what_the_blocks_do(name: str) -> None:
    given = source(name, 3, 512)
    (segment,) = held(given)
    with np.errstate(all="ignore"):
        found = np.array([[value(segment, row, column) for column in range(512)] for row in range(3)])
    np.testing.assert_array_equal(found, expected(given))


@each
def test_sizes_are_what_the_layout_says_and_hardly_more_than_the_file_s(name: str) -> None:
    given = source(name, 4, 1024)
    (segment,) = held(given)
    tensors = (*segment.planes, segment.scale, *(() if segment.unit is None else (segment.unit,)))
    assert sum(t.numel() * t.element_size() for t in tensors) == LAYOUTS[name].nbytes(4 * 1024)
    assert given.data.size <= LAYOUTS[name].nbytes(4 * 1024) <= 1.06 * given.data.size


def test_neighbours_of_one_layout_are_one_segment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "_PACKED_ELEMENTS", 256)
    sources = [
        source("Q4_K", 3, 256, 1),
        source("Q4_K", 2, 256, 2),
        source("Q6_K", 4, 256, 3),
        source("Q4_K", 1, 256, 4),
    ]
    segments = held(*sources)
    assert [(s.layout, s.first, s.rows) for s in segments] == [
        (LAYOUTS["Q4_K"], 0, 5),
        (LAYOUTS["Q6_K"], 5, 4),
        (LAYOUTS["Q4_K"], 9, 1),
    ]
    wanted = np.concatenate([expected(given) for given in sources])
    for segment in segments:
        for row, column in ((0, 0), (segment.rows - 1, 255), (segment.rows // 2, 77)):
            with np.errstate(all="ignore"):
                np.testing.assert_equal(value(segment, row, column), wanted[segment.first + row, column])


@pytest.mark.parametrize("tokens", [1, 8, 64, 256, 512])
def test_every_matrix_has_one_packed_form_in_all_entries(decoder: Callable[..., Any], tokens: int) -> None:
    model = decoder(width=256, head=64, ff=256, packed="Q4_K")
    device = TritonDevice("cpu", "host", DType.BF16)
    keys = {EntryKey("step", tokens): model.step(tokens), EntryKey("head", 3): model.head_graph(3)}
    compiled = compile_graphs(device, keys)
    assert {form.layout for form in compiled.forms} == {"packed", "vector"}
    matrices = [shape for shape in model.shapes.values() if len(shape) == 2]
    packed = sum(form.nbytes for form in compiled.forms if form.layout == "packed")
    assert packed == sum(LAYOUTS["Q4_K"].nbytes(rows * columns) for rows, columns in matrices)
    ops = {type(node.op) for node in compiled.entries[EntryKey("step", tokens)].graph.nodes}
    assert (ResidualLinear in ops, AddRmsNorm in ops) == ((True, False) if tokens <= 64 else (False, True))


def test_forms_are_the_same_whatever_the_capacity(decoder: Callable[..., Any]) -> None:
    model = decoder(width=256, head=64, ff=256, packed="Q6_K")
    device = TritonDevice("cpu", "host", DType.BF16)
    ladder = {EntryKey("step", tokens): model.step(tokens) for tokens in (1, 8, 16, 128, 1024)}
    one = compile_graphs(device, {key: graph for key, graph in ladder.items() if key.capacity == 1})
    assert set(compile_graphs(device, ladder).forms) == set(one.forms)


def test_a_segment_that_alone_would_be_one_piece_is_decoded_within_the_scratch(monkeypatch: pytest.MonkeyPatch) -> None:
    """All rows are two pieces of 768; those of the first encoding are as many as one piece may have."""
    monkeypatch.setattr(packed_many, "_PIECE", 1024 * 32)
    sources = [source("Q4_0", 1024, 32), source("Q8_0", 256, 32)]
    builder = GraphBuilder("g")
    x = builder.input("x", (300, 32), DType.ACT, "tokens")
    weights = [builder.weight(given.name, given.shape, given.encoding) for given in sources]
    builder.output("out", builder.apply(Linear(2), x, *weights))
    device, key = TritonDevice("cpu", "host", DType.BF16), EntryKey("g", 1)
    compiled = compile_graphs(device, {key: builder.finish()})
    assert compiled.arena >= 768 * 32 * 2
    prepare(device, compiled, {given.name: given for given in sources})

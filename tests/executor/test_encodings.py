"""Encodings as values: sizes, and what a WeightSource refuses."""

import subprocess
import sys

import gguf
import numpy as np
import pytest

from poot_executor.encodings import Dense, Ggml, WeightSource, block_bytes, block_size, nbytes
from poot_executor.errors import EncodingError

GGML_NAMES = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")


def source(encoding: Dense | Ggml, shape: tuple[int, ...]) -> WeightSource:
    data = np.arange(nbytes(encoding, shape), dtype=np.uint64).astype(np.uint8)
    data.flags.writeable = False
    return WeightSource("w", shape, encoding, data)


@pytest.mark.parametrize("name", GGML_NAMES)
def test_ggml_block_sizes_are_those_of_ggml(name: str) -> None:
    encoding = Ggml(name)
    expected = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]
    assert (block_size(encoding), block_bytes(encoding)) == expected


@pytest.mark.parametrize("name", ["F32", "F16", "BF16", "F64", "I8", "I16", "I32", "I64"])
def test_dense_sizes_are_those_of_ggml(name: str) -> None:
    assert (1, block_bytes(Dense(name))) == gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]


def test_nbytes() -> None:
    assert nbytes(Ggml("Q4_K"), (3, 512)) == 3 * 2 * 144
    assert nbytes(Dense("BF16"), (2, 3, 5)) == 60
    assert nbytes(Dense("F32"), ()) == 4
    assert nbytes(Dense("F32"), (1 << 40, 1 << 40)) == 1 << 82


@pytest.mark.parametrize("shape", [(4, 48), (33,), (), (0, 32), (4, 0), (-1, 32), (4, -32)])
def test_nbytes_refuses_shapes_that_are_no_blocks(shape: tuple[int, ...]) -> None:
    with pytest.raises(EncodingError):
        nbytes(Ggml("Q8_0"), shape)


def test_unknown_names_are_refused_by_name() -> None:
    with pytest.raises(EncodingError, match="IQ4_XS"):
        Ggml("IQ4_XS")
    with pytest.raises(EncodingError, match="f32"):
        Dense("f32")


def test_rows_are_views() -> None:
    whole = source(Ggml("Q5_0"), (6, 2, 64))
    part = whole.rows(2, 5)
    assert part.shape == (3, 2, 64)
    assert np.shares_memory(part.data, whole.data)
    assert np.array_equal(part.data, whole.data[2 * 88 : 5 * 88])
    assert not part.data.flags.writeable


def test_rows_of_a_vector_are_elements_or_whole_blocks() -> None:
    assert np.array_equal(source(Dense("F16"), (10,)).rows(3, 7).data, np.arange(6, 14, dtype=np.uint8))
    quantised = source(Ggml("Q8_0"), (128,))
    assert np.array_equal(quantised.rows(32, 96).data, quantised.data[34:102])
    with pytest.raises(EncodingError, match="block"):
        quantised.rows(0, 16)


@pytest.mark.parametrize(("start", "stop"), [(-1, 2), (2, 2), (3, 2), (0, 7), (6, 7)])
def test_rows_out_of_range(start: int, stop: int) -> None:
    with pytest.raises(EncodingError, match="no rows"):
        source(Dense("F32"), (6, 2)).rows(start, stop)
    with pytest.raises(EncodingError, match="no rows"):
        source(Dense("F32"), ()).rows(start, stop)


@pytest.mark.parametrize(
    "data",
    [
        np.zeros(31, np.uint8),
        np.zeros(33, np.uint8),
        np.zeros(32, np.int8),
        np.zeros((4, 8), np.uint8),
        np.zeros(64, np.uint8)[::2],
    ],
    ids=["short", "long", "int8", "2-D", "strided"],
)
def test_data_that_does_not_fit_is_refused(data: np.ndarray) -> None:
    with pytest.raises(EncodingError, match="'w'"):
        WeightSource("w", (2, 4), Dense("F32"), data)


def test_values_import_no_torch() -> None:
    code = "import sys, poot_executor.encodings; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

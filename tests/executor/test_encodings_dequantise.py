"""Dequantising against the gguf package, bit for bit."""

import gguf
import numpy as np
import pytest
import torch

from poot_executor.encodings import Dense, Encoding, Ggml, WeightSource, nbytes
from poot_executor.encodings.dequantise import CHUNK_ELEMENTS, byte_tensor, dequantise, dequantise_rows
from poot_executor.errors import EncodingError

ENCODINGS: dict[str, Encoding] = {
    **{name: Dense(name) for name in ("F32", "F16", "BF16")},
    **{name: Ggml(name) for name in ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")},
}
each_encoding = pytest.mark.parametrize("name", list(ENCODINGS))


def random_source(name: str, shape: tuple[int, ...], seed: int = 0) -> WeightSource:
    """Uniform bytes: every code, and scales that are subnormal, infinite and NaN too."""
    encoding = ENCODINGS[name]
    data = np.random.default_rng(seed).integers(0, 256, nbytes(encoding, shape), dtype=np.uint8)
    data.flags.writeable = False
    return WeightSource("w", shape, encoding, data)


def reference(name: str, source: WeightSource) -> np.ndarray:
    packed = source.data.reshape(*source.shape[:-1], -1)
    with np.errstate(all="ignore"):
        return gguf.quants.dequantize(packed, gguf.GGMLQuantizationType[name]).reshape(source.shape)


def assert_same_bits(actual: torch.Tensor, expected: np.ndarray) -> None:
    """Equal bits, -0.0 and subnormals included; a NaN may carry any payload."""
    values = actual.numpy()
    nan = np.isnan(expected)
    assert values.shape == expected.shape
    assert values.dtype == expected.dtype == np.float32
    assert np.array_equal(np.isnan(values), nan)
    assert np.array_equal(values.view(np.uint32)[~nan], expected.view(np.uint32)[~nan])


@each_encoding
def test_random_bytes_bit_for_bit(name: str) -> None:
    source = random_source(name, (7, 3, 2048))
    expected = reference(name, source)
    assert np.isfinite(expected).mean() > 0.8
    assert_same_bits(dequantise(source), expected)


@pytest.mark.parametrize("name", ["F16", "Q8_0", "Q6_K"])
def test_more_than_a_chunk_into_out(name: str) -> None:
    shape = (CHUNK_ELEMENTS // 512 + 3, 512)
    source = random_source(name, shape, seed=1)
    out = torch.full(shape, 7.0)
    assert dequantise(source, out) is out
    assert_same_bits(out, reference(name, source))


@each_encoding
def test_rows_are_rows_of_the_whole(name: str) -> None:
    source = random_source(name, (50, 512), seed=2)
    expected = reference(name, source)
    for row_ids in (torch.tensor([49]), torch.tensor([3, 0, 3, 49, 17], dtype=torch.int32)):
        out = torch.full((len(row_ids), 512), 7.0)
        dequantise_rows(source, row_ids, out)
        assert_same_bits(out, expected[row_ids.numpy()])


def test_more_rows_than_a_chunk() -> None:
    source = random_source("Q4_0", (8, 4096), seed=3)
    row_ids = torch.arange(CHUNK_ELEMENTS // 4096 + 5) % 8
    out = torch.empty(len(row_ids), 4096)
    dequantise_rows(source, row_ids, out)
    assert_same_bits(out, reference("Q4_0", source)[row_ids.numpy()])


def test_no_rows() -> None:
    dequantise_rows(random_source("Q4_0", (8, 64)), torch.empty(0, dtype=torch.int64), torch.empty(0, 64))


def test_a_row_slice_dequantises_alone() -> None:
    source = random_source("Q4_K", (20, 256), seed=4)
    assert_same_bits(dequantise(source.rows(5, 9)), reference("Q4_K", source)[5:9])


def test_one_dimension_and_none() -> None:
    assert_same_bits(
        dequantise(random_source("F32", (5,), seed=5)), reference("F32", random_source("F32", (5,), seed=5))
    )
    scalar = WeightSource("w", (), Dense("F16"), np.array([1.5], np.float16).view(np.uint8))
    assert dequantise(scalar).shape == ()
    assert dequantise(scalar).item() == 1.5


@pytest.mark.parametrize("name", ["F32", "F16", "BF16", "Q4_0"])
def test_data_at_an_odd_address(name: str) -> None:
    aligned = random_source(name, (2, 64), seed=6)
    memory = np.zeros(aligned.data.size + 1, np.uint8)
    memory[1:] = aligned.data
    odd = WeightSource("w", aligned.shape, aligned.encoding, memory[1:])
    assert_same_bits(dequantise(odd), reference(name, aligned))
    out = torch.empty(1, 64)
    dequantise_rows(odd, torch.tensor([1]), out)
    assert_same_bits(out, reference(name, aligned)[1:])


def test_bytes_are_not_copied_and_outlive_the_array() -> None:
    source = random_source("Q8_0", (4, 32))
    tensor = byte_tensor(source)
    assert tensor.data_ptr() == source.data.ctypes.data
    expected = bytes(source.data)
    del source
    assert bytes(tensor.numpy()) == expected


@pytest.mark.parametrize(
    "out",
    [
        torch.empty(4, 31),
        torch.empty(128),
        torch.empty(4, 32, dtype=torch.float16),
        torch.empty(32, 4).t(),
        torch.empty(4, 32, device="meta"),
    ],
    ids=["shape", "flat", "dtype", "strides", "device"],
)
def test_an_unfit_out_is_refused(out: torch.Tensor) -> None:
    source = random_source("Q8_0", (4, 32))
    with pytest.raises(EncodingError, match="contiguous float32"):
        dequantise(source, out)
    with pytest.raises(EncodingError, match="contiguous float32"):
        dequantise_rows(source, torch.arange(4), out)


@pytest.mark.parametrize("dtype", ["I64", "I32", "U8", "BOOL", "F64"])
def test_integers_have_no_numbers_to_decode(dtype: str) -> None:
    encoding = Dense(dtype)
    source = WeightSource("w", (2, 2), encoding, np.zeros(nbytes(encoding, (2, 2)), np.uint8))
    with pytest.raises(EncodingError, match=dtype):
        dequantise(source)


@pytest.mark.parametrize("row_ids", [[-1], [8], [0, 1, 2, 9], [-(1 << 40)]])
def test_row_ids_out_of_range(row_ids: list[int]) -> None:
    with pytest.raises(EncodingError, match="rows 0 to 7"):
        dequantise_rows(random_source("Q4_0", (8, 32)), torch.tensor(row_ids), torch.empty(len(row_ids), 32))


@pytest.mark.parametrize("row_ids", [torch.tensor([1.0]), torch.tensor([[1]]), torch.tensor([True])])
def test_row_ids_of_the_wrong_kind(row_ids: torch.Tensor) -> None:
    with pytest.raises(EncodingError, match="row ids"):
        dequantise_rows(random_source("Q4_0", (8, 32)), row_ids, torch.empty(1, 32))


def test_rows_of_a_vector_are_refused() -> None:
    with pytest.raises(EncodingError, match="no rows"):
        dequantise_rows(random_source("F32", (8,)), torch.tensor([0]), torch.empty(1, 1))

"""GGUF files read as the gguf package writes and reads them."""

import gc
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest

from poot_executor.encodings import Dense, Encoding, Ggml
from poot_executor.encodings.dequantise import dequantise
from poot_models.checkpoint import GgufFile, StringArray
from poot_models.encodings.ggml_types import encoding_of_type, type_name
from poot_models.errors import CheckpointFormatError

WORDS = ["", "a", "▁the", "\x00", "日本", "x" * 300]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of every value kind and three tensors, by gguf.GGUFWriter."""
    path = tmp_path_factory.mktemp("gguf") / "written.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_custom_alignment(64)
    for bits in (8, 16, 32, 64):
        getattr(writer, f"add_uint{bits}")(f"u{bits}", 2**bits - 1)
        getattr(writer, f"add_int{bits}")(f"i{bits}", -(2 ** (bits - 1)))
    writer.add_float32("f32", 0.1)
    writer.add_float64("f64", 0.1)
    writer.add_bool("yes", True)
    writer.add_bool("no", False)
    writer.add_string("text", "naïve 🎈")
    writer.add_array("words", WORDS)
    writer.add_array("ints", [1, -2, 3])
    writer.add_array("floats", [0.5, -1.5])
    writer.add_array("bools", [True, False, True])
    writer.add_tensor("f32", np.arange(6, dtype=np.float32).reshape(2, 3))
    writer.add_tensor("f16", np.arange(24, dtype=np.float16).reshape(2, 3, 4))
    weights = np.linspace(-1, 1, 4 * 64, dtype=np.float32).reshape(4, 64)
    packed = gguf.quants.quantize(weights, gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("q8", packed, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_scalars(written: Path) -> None:
    metadata = GgufFile(written).metadata
    for bits in (8, 16, 32, 64):
        assert metadata[f"u{bits}"] == 2**bits - 1
        assert metadata[f"i{bits}"] == -(2 ** (bits - 1))
    assert metadata["f32"] == np.float32(0.1)
    assert metadata["f64"] == 0.1
    assert metadata["yes"] is True
    assert metadata["no"] is False
    assert metadata["text"] == "naïve 🎈"
    assert metadata["general.architecture"] == "llama"
    assert list(metadata)[:2] == ["general.architecture", "general.alignment"]


def test_numeric_arrays_are_read_only(written: Path) -> None:
    metadata = GgufFile(written).metadata
    for key, expected, kind in (("ints", [1, -2, 3], "i"), ("floats", [0.5, -1.5], "f"), ("bools", [1, 0, 1], "b")):
        assert metadata[key].tolist() == expected
        assert metadata[key].dtype.kind == kind
        with pytest.raises(ValueError, match="read-only"):
            metadata[key][0] = 0


def test_string_array_is_a_sequence(written: Path) -> None:
    words = GgufFile(written).metadata["words"]
    assert isinstance(words, StringArray)
    assert words.tolist() == list(words) == WORDS
    assert len(words) == len(WORDS)
    assert (words[2], words[-1], words[1:3]) == (WORDS[2], WORDS[-1], tuple(WORDS[1:3]))
    assert "日本" in words
    assert words.index("日本") == 4
    assert words.bytes_at(4) == "日本".encode()
    with pytest.raises(IndexError):
        words[len(WORDS)]


def test_tensors(written: Path) -> None:
    tensors = GgufFile(written).tensors
    assert {name: (source.shape, source.encoding) for name, source in tensors.items()} == {
        "f32": ((2, 3), Dense("F32")),
        "f16": ((2, 3, 4), Dense("F16")),
        "q8": ((4, 64), Ggml("Q8_0")),
    }
    assert dequantise(tensors["f32"]).tolist() == [[0, 1, 2], [3, 4, 5]]
    assert dequantise(tensors["f16"])[1, 2].tolist() == [20, 21, 22, 23]
    assert abs(dequantise(tensors["q8"]).numpy() - np.linspace(-1, 1, 256).reshape(4, 64)).max() < 0.005


def test_views_outlive_the_file(written: Path) -> None:
    with GgufFile(written) as file:
        source, words, ints = file.tensors["f32"], file.metadata["words"], file.metadata["ints"]
    assert not file.tensors
    assert not file.metadata
    del file
    gc.collect()
    assert dequantise(source).tolist() == [[0, 1, 2], [3, 4, 5]]
    assert words.tolist() == WORDS
    assert ints.tolist() == [1, -2, 3]
    assert not source.data.flags.writeable


def test_version_2_without_tensors(tmp_path: Path, gguf_bytes: Callable[..., bytes]) -> None:
    path = tmp_path / "empty.gguf"
    path.write_bytes(gguf_bytes(version=2))
    assert (dict(GgufFile(path).metadata), dict(GgufFile(path).tensors)) == ({}, {})


def test_empty_arrays(tmp_path: Path, gguf_bytes: Callable[..., bytes], gguf_pair: Callable[..., bytes]) -> None:
    path = tmp_path / "empty.gguf"
    path.write_bytes(gguf_bytes([gguf_pair("s", 9, b"\x08" + bytes(11)), gguf_pair("n", 9, b"\x06" + bytes(11))]))
    metadata = GgufFile(path).metadata
    assert metadata["s"].tolist() == []
    assert list(metadata["s"]) == []
    assert metadata["n"].tolist() == []


def test_a_string_that_is_not_utf8_fails_when_it_is_used(
    tmp_path: Path, gguf_bytes: Callable[..., bytes], gguf_pair: Callable[..., bytes]
) -> None:
    two = b"\x08\0\0\0" + b"\x02" + bytes(7) + b"\x01" + bytes(7) + b"a" + b"\x01" + bytes(7) + b"\xff"
    path = tmp_path / "bad.gguf"
    path.write_bytes(gguf_bytes([gguf_pair("tokens", 9, two)]))
    tokens = GgufFile(path).metadata["tokens"]
    assert tokens[0] == "a"
    assert tokens.bytes_at(1) == b"\xff"
    for use in (lambda: tokens[1], tokens.tolist):
        with pytest.raises(CheckpointFormatError, match="item 1 of 'tokens' is not UTF-8"):
            use()


def test_type_ids_are_those_of_ggml() -> None:
    for kind in gguf.GGMLQuantizationType:
        assert type_name(kind) == kind.name
        match encoding_of_type(kind):
            case Dense(name) | Ggml(name):
                assert name == kind.name
    assert type_name(99) == "type 99"
    assert encoding_of_type(99) is None


def test_smollm2_as_the_gguf_package_reads_it(smollm2_path: Path) -> None:
    ours, reference = GgufFile(smollm2_path), gguf.GGUFReader(smollm2_path)
    for key in ("general.name", "llama.block_count", "llama.rope.freq_base", "tokenizer.chat_template"):
        assert ours.metadata[key] == reference.fields[key].contents()
    assert ours.metadata["tokenizer.ggml.merges"].tolist() == reference.fields["tokenizer.ggml.merges"].contents()
    assert len(ours.metadata) == len(reference.fields) - 3  # its version and counts
    assert list(ours.tensors) == [tensor.name for tensor in reference.tensors]
    for tensor in reference.tensors:
        source = ours.tensors[tensor.name]
        assert source.shape == tuple(tensor.shape.tolist())[::-1]
        assert source.data.ctypes.data - ours.tensors["output_norm.weight"].data.ctypes.data == (
            tensor.data_offset - next(t.data_offset for t in reference.tensors if t.name == "output_norm.weight")
        )
        assert np.array_equal(source.data[:4096], tensor.data.reshape(-1).view(np.uint8)[:4096])


@pytest.mark.parametrize("model", ["smollm2_path", "gemma_path"])
def test_a_real_tensor_of_each_encoding(model: str, request: pytest.FixtureRequest) -> None:
    tensors = GgufFile(request.getfixturevalue(model)).tensors
    smallest: dict[Encoding, str] = {}
    for name, source in sorted(tensors.items(), key=lambda item: item[1].data.size):
        smallest.setdefault(source.encoding, name)
    assert len(smallest) == {"smollm2_path": 3, "gemma_path": 5}[model]
    for encoding, name in smallest.items():
        source = tensors[name].rows(0, min(tensors[name].shape[0], 2048))
        kind = gguf.GGMLQuantizationType[encoding.dtype if isinstance(encoding, Dense) else encoding.name]
        expected = gguf.quants.dequantize(source.data.reshape(*source.shape[:-1], -1), kind).reshape(source.shape)
        values = dequantise(source).numpy()
        assert np.array_equal(values.view(np.uint32), expected.view(np.uint32))
        assert np.isfinite(values).all()
        assert 0 < abs(values).mean() < 100


def test_gemma_has_the_vocabulary_of_its_kind(gemma_path: Path) -> None:
    file = GgufFile(gemma_path)
    tokens = file.metadata["tokenizer.ggml.tokens"]
    assert len(tokens) == len(file.metadata["tokenizer.ggml.scores"]) == 262144
    assert tokens[:4] == ("<pad>", "<eos>", "<bos>", "<unk>")
    assert file.tensors["token_embd.weight"].shape == (262144, 640)


def test_reading_imports_no_torch(written: Path) -> None:
    code = (
        "import sys; from poot_models.checkpoint import open_checkpoint\n"
        "assert len(open_checkpoint(sys.argv[1]).tensors) == 3\n"
        "assert not {'torch', 'gguf', 'safetensors', 'transformers'} & sys.modules.keys()"
    )
    run = subprocess.run([sys.executable, "-c", code, written], check=False, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr

"""Split GGUF models as the gguf package writes them, and parts that do not belong together."""

import shutil
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest

from poot_executor.encodings.dequantise import dequantise
from poot_models import load
from poot_models.checkpoint import GgufFile, GgufParts, open_checkpoint
from poot_models.errors import CheckpointFormatError, CheckpointMissingError
from poot_models.text import open_text

NAMES = [f"m-{number}-of-00003.gguf" for number in ("00001", "00002", "00003")]
WORDS = ["<s>", "</s>", "a", "b", "ab", "▁"]
HIDDEN, FF = 32, 64
SHAPES = {
    "token_embd.weight": (len(WORDS), HIDDEN),
    "output_norm.weight": (HIDDEN,),
    "blk.0.attn_norm.weight": (HIDDEN,),
    "blk.0.ffn_norm.weight": (HIDDEN,),
    **{f"blk.0.attn_{part}.weight": (HIDDEN, HIDDEN) for part in ("q", "k", "v", "output")},
    **{f"blk.0.ffn_{part}.weight": (FF, HIDDEN) for part in ("gate", "up")},
    "blk.0.ffn_down.weight": (HIDDEN, FF),
}


def write(folder: Path, *, parts: bool = True, first_empty: bool = False, name: str = "tiny", seed: int = 0) -> None:
    """A llama of one layer with a vocabulary, in parts of four tensors or whole."""
    writer = gguf.GGUFWriter(
        folder / "m.gguf", "llama", split_max_tensors=4 if parts else 0, small_first_shard=first_empty
    )
    writer.add_name(name)
    writer.add_context_length(64)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(1)
    writer.add_feed_forward_length(FF)
    writer.add_head_count(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(WORDS)
    writer.add_token_scores([0.0, 0.0, -1.0, -2.0, -3.0, -4.0])
    writer.add_token_types([3, 3, 1, 1, 1, 1])
    generator = np.random.default_rng(seed)
    for tensor, shape in SHAPES.items():
        writer.add_tensor(tensor, generator.standard_normal(shape, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture
def parts(tmp_path: Path) -> Path:
    write(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == NAMES
    return tmp_path


@pytest.mark.parametrize("name", NAMES)
def test_any_part_opens_the_whole_model(parts: Path, tmp_path_factory: pytest.TempPathFactory, name: str) -> None:
    whole = tmp_path_factory.mktemp("whole")
    write(whole, parts=False)
    with GgufFile(whole / "m.gguf") as expected, open_checkpoint(parts / name) as checkpoint:
        assert (checkpoint.format, checkpoint.path) == ("gguf", parts / name)
        assert list(checkpoint.tensors) == list(SHAPES)
        for tensor, source in expected.tensors.items():
            assert np.array_equal(checkpoint.tensors[tensor].data, source.data)
        assert checkpoint.metadata["llama.block_count"] == 1


def test_model_and_text_from_a_later_part(parts: Path) -> None:
    model = load(parts / NAMES[1])
    assert (model.architecture, model.ignored, model.vocab_size) == ("llama", (), len(WORDS))
    assert dequantise(model.weights["blk.0.ffn_down.weight"]).shape == (HIDDEN, FF)
    for text in (open_text(parts / NAMES[2]), model.text):
        assert text.tokenizer.decode(text.tokenizer.encode("ab")) == "ab"


def test_a_first_part_without_tensors(tmp_path: Path) -> None:
    write(tmp_path, first_empty=True)
    (first,) = tmp_path.glob("m-00001-of-*.gguf")
    assert dict(GgufFile(first).tensors) == {}
    assert set(load(first).weights) == set(SHAPES)


def test_views_outlive_the_parts(parts: Path) -> None:
    with open_checkpoint(parts / NAMES[0]) as checkpoint:
        assert isinstance(checkpoint, GgufParts)
        source = checkpoint.tensors["blk.0.ffn_down.weight"]
    assert (dict(checkpoint.tensors), dict(checkpoint.metadata)) == ({}, {})
    assert dequantise(source).isfinite().all()


def test_parts_that_are_links_as_in_a_hub_cache(parts: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    snapshot = tmp_path_factory.mktemp("snapshot")
    for index, name in enumerate(NAMES):
        blob = parts / f"blob{index}"
        (parts / name).rename(blob)
        (snapshot / name).symlink_to(blob)
    assert set(load(snapshot / NAMES[0]).weights) == set(SHAPES)


@pytest.mark.parametrize("gone", [[0], [2], [1, 2]])
def test_missing_parts_are_named(parts: Path, gone: list[int]) -> None:
    for index in gone:
        (parts / NAMES[index]).unlink()
    asked = next(parts.iterdir())
    with pytest.raises(CheckpointMissingError, match=f"has no {NAMES[gone[0]]}") as caught:
        open_checkpoint(asked)
    assert ("and 1 more" in str(caught.value)) == (len(gone) == 2)


def test_a_part_under_another_name(parts: Path) -> None:
    (parts / NAMES[1]).rename(parts / "model.gguf")
    with pytest.raises(CheckpointFormatError, match=r"model\.gguf is part 2 of 3.*NAME-00002-of-00003\.gguf"):
        open_checkpoint(parts / "model.gguf")


def swapped(parts: Path) -> None:
    (parts / NAMES[1]).rename(parts / "x")
    (parts / NAMES[2]).rename(parts / NAMES[1])
    (parts / "x").rename(parts / NAMES[2])


def whole_between(parts: Path) -> None:
    write(parts, parts=False)
    (parts / "m.gguf").rename(parts / NAMES[1])


def of_another_model(parts: Path) -> None:
    other = parts / "other"
    other.mkdir()
    write(other, name="another")
    # The writer puts the model's keys into the first part only, so that it is the one to tell by.
    shutil.copy(other / NAMES[0], parts / NAMES[1])


def repeated(parts: Path) -> None:
    """The second part again as the third, but for its number."""
    data = (parts / NAMES[1]).read_bytes()
    at = data.index(b"split.no") + len("split.no") + 4
    assert data[at : at + 2] == b"\1\0"
    (parts / NAMES[2]).write_bytes(data[:at] + b"\2\0" + data[at + 2 :])


def shortened(parts: Path) -> None:
    """All parts claim a tensor more than there is."""
    for name in NAMES:
        data = (parts / name).read_bytes()
        at = data.index(b"split.tensors.count") + len("split.tensors.count") + 4
        (parts / name).write_bytes(data[:at] + bytes([len(SHAPES) + 1]) + data[at + 1 :])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (swapped, rf"{NAMES[1]} says that it is part 3 of 3"),
        (whole_between, rf"{NAMES[1]} says that it is a whole model.*another model"),
        (of_another_model, rf"{NAMES[1]} says that it is part 1 of 3"),
        (repeated, rf"{NAMES[2]}: the tensor 'blk.0.attn_q.weight' is in an earlier part too"),
        (shortened, "the 3 parts .* hold 11 tensors; it says 12"),
    ],
)
def test_foreign_parts_are_named(parts: Path, change: Callable[[Path], None], words: str) -> None:
    change(parts)
    with pytest.raises(CheckpointFormatError, match=words):
        open_checkpoint(parts / NAMES[0])


def test_a_part_that_says_it_is_of_another_architecture(
    tmp_path: Path, gguf_bytes: Callable[..., bytes], gguf_pair: Callable[..., bytes]
) -> None:
    def part(number: int, architecture: bytes) -> bytes:
        split = [("split.no", bytes([number, 0])), ("split.count", b"\2\0")]
        pairs = [gguf_pair(key, 2, value) for key, value in split]
        pairs.append(gguf_pair("split.tensors.count", 5, bytes(4)))
        return gguf_bytes([*pairs, gguf_pair("general.architecture", 8, b"\1" + bytes(7) + architecture)])

    for number, architecture in enumerate((b"a", b"b")):
        (tmp_path / f"m-0000{number + 1}-of-00002.gguf").write_bytes(part(number, architecture))
    with pytest.raises(CheckpointFormatError, match=r"m-00002-of-00002.gguf says 'general.architecture' is 'b'.*'a'"):
        open_checkpoint(tmp_path / "m-00001-of-00002.gguf")

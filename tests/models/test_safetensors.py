"""Safetensors directories as the safetensors package writes them, whole and in shards."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from poot_executor.encodings import Dense
from poot_executor.encodings.dequantise import dequantise
from poot_models.checkpoint import SafetensorsDirectory, open_checkpoint
from poot_models.checkpoint.safetensors import read_safetensors
from poot_models.errors import CheckpointFormatError, CheckpointMissingError

CONFIG = {"architectures": ["LlamaForCausalLM"], "time_step_limit": [0.0, float("inf")]}


@pytest.fixture
def weights() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    normal = torch.randn(4, 6, generator=generator)
    return {
        "f32": normal,
        "bf16": normal.bfloat16(),
        "f16": normal.half(),
        "ids": torch.arange(5),
        "one": torch.ones(()),
    }


@pytest.fixture
def directory(tmp_path: Path, weights: dict[str, torch.Tensor]) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    return tmp_path


@pytest.fixture
def sharded(tmp_path: Path, weights: dict[str, torch.Tensor]) -> Path:
    """Two shards, of which the second holds a tensor that the index does not name."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    first, second = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
    save_file({"f32": weights["f32"], "f16": weights["f16"]}, tmp_path / first)
    save_file({"bf16": weights["bf16"], "unlisted": torch.ones(2)}, tmp_path / second)
    write_index(tmp_path, {"f32": first, "bf16": second, "f16": first})
    return tmp_path


def write_index(directory: Path, weight_map: object) -> None:
    (directory / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def test_a_single_file(directory: Path, weights: dict[str, torch.Tensor]) -> None:
    with SafetensorsDirectory(directory) as checkpoint:
        assert (checkpoint.format, checkpoint.path) == ("safetensors", directory)
        assert dict(checkpoint.metadata) == CONFIG
        tensors = checkpoint.tensors
    assert {name: (source.shape, source.encoding) for name, source in tensors.items()} == {
        "f32": ((4, 6), Dense("F32")),
        "bf16": ((4, 6), Dense("BF16")),
        "f16": ((4, 6), Dense("F16")),
        "ids": ((5,), Dense("I64")),
        "one": ((), Dense("F32")),
    }
    for name in ("f32", "bf16", "f16", "one"):
        assert torch.equal(dequantise(tensors[name]), weights[name].float())
        assert not tensors[name].data.flags.writeable
    assert tensors["ids"].data.view(np.int64).tolist() == [0, 1, 2, 3, 4]


def test_shards_in_the_order_of_the_index(sharded: Path, weights: dict[str, torch.Tensor]) -> None:
    tensors = SafetensorsDirectory(sharded).tensors
    assert list(tensors) == ["f32", "bf16", "f16", "unlisted"]
    for name, dtype in (("f32", "F32"), ("bf16", "BF16"), ("f16", "F16")):
        assert tensors[name].encoding == Dense(dtype)
        assert torch.equal(dequantise(tensors[name]), weights[name].float())


def test_a_tensor_in_two_shards(sharded: Path, weights: dict[str, torch.Tensor]) -> None:
    save_file({"bf16": weights["bf16"], "f32": weights["f32"]}, sharded / "model-00002-of-00002.safetensors")
    with pytest.raises(CheckpointFormatError, match=r"'f32' is in model-00001-of-.* and again in model-00002-of-"):
        SafetensorsDirectory(sharded)


def test_consolidated_files_are_not_looked_at(sharded: Path, weights: dict[str, torch.Tensor]) -> None:
    (sharded / "consolidated.safetensors").write_bytes(b"x")
    assert "f32" in SafetensorsDirectory(sharded).tensors


def test_consolidated_files_alone(tmp_path: Path, weights: dict[str, torch.Tensor]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    save_file(weights, tmp_path / "consolidated-00001-of-00001.safetensors")
    with pytest.raises(
        CheckpointMissingError, match=r"only as consolidated-00001.*other names.*fetch model\.safetensors"
    ):
        SafetensorsDirectory(tmp_path)


def test_shards_without_their_index(sharded: Path) -> None:
    (sharded / "model.safetensors.index.json").unlink()
    with pytest.raises(CheckpointMissingError, match=r"has model-0000.*fetch model\.safetensors\.index\.json"):
        SafetensorsDirectory(sharded)


def test_a_single_file_goes_before_an_index(directory: Path) -> None:
    write_index(directory, {"f32": "missing.safetensors"})
    assert len(SafetensorsDirectory(directory).tensors) == 5


def test_shards_may_be_links_as_in_a_hub_cache(sharded: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    snapshot = tmp_path_factory.mktemp("snapshot")
    for file in sharded.iterdir():
        (snapshot / file.name).symlink_to(file)
    assert list(SafetensorsDirectory(snapshot).tensors) == ["f32", "bf16", "f16", "unlisted"]


@pytest.mark.parametrize(
    "name", ["config.json", "model.safetensors", "model.safetensors.index.json", "model-00001-of-00002.safetensors"]
)
def test_a_link_that_leads_nowhere_is_told(sharded: Path, name: str) -> None:
    """As in a cache of which the files themselves were deleted."""
    path = sharded / name
    path.unlink(missing_ok=True)
    path.symlink_to(sharded / "gone")
    with pytest.raises(CheckpointMissingError, match=f"{name} is a link to a file that is not there"):
        SafetensorsDirectory(path.parent)
    with pytest.raises(CheckpointMissingError, match="is a link to a file that is not there"):
        open_checkpoint(path)


def test_an_empty_path_is_not_the_current_directory(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(directory)
    assert open_checkpoint(".").tensors
    with pytest.raises(CheckpointMissingError, match="path is empty"):
        open_checkpoint("")


def test_a_missing_shard_is_named(sharded: Path) -> None:
    (sharded / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(CheckpointMissingError, match=r"model-00002-of-00002\.safetensors.*missing shard"):
        SafetensorsDirectory(sharded)


def test_a_shard_without_its_tensor_is_named(sharded: Path) -> None:
    write_index(sharded, {"f32": "model-00002-of-00002.safetensors"})
    with pytest.raises(CheckpointFormatError, match="'f32' is in model-00002-of-00002"):
        SafetensorsDirectory(sharded)


@pytest.mark.parametrize(
    "name",
    [
        "../x.safetensors",
        "/x.safetensors",
        "a/x.safetensors",
        "..\\x.safetensors",
        "C:x.safetensors",
        "x\0.safetensors",
        "x\n.safetensors",
        "x.bin",
        "..",
        "",
    ],
)
def test_an_index_names_plain_files_only(sharded: Path, name: str) -> None:
    write_index(sharded, {"f32": name})
    with pytest.raises(CheckpointFormatError, match="only plain names"):
        SafetensorsDirectory(sharded)


def test_a_shard_name_too_long_for_the_file_system(sharded: Path) -> None:
    write_index(sharded, {"f32": "x" * 5000 + ".safetensors"})
    with pytest.raises(CheckpointMissingError, match="cannot be read"):
        SafetensorsDirectory(sharded)


def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(CheckpointMissingError, match="cannot be read"):
        SafetensorsDirectory(tmp_path / "missing")


@pytest.mark.parametrize("weight_map", [None, [], {"f32": 1}, {"f32": None}, {"f32": ["a.safetensors"]}])
def test_an_index_of_the_wrong_type(sharded: Path, weight_map: object) -> None:
    write_index(sharded, weight_map)
    with pytest.raises(CheckpointFormatError, match="weight_map"):
        SafetensorsDirectory(sharded)


def test_an_index_of_too_many_files(sharded: Path) -> None:
    write_index(sharded, {f"w{index}": f"{index}.safetensors" for index in range(5000)})
    with pytest.raises(CheckpointFormatError, match="5000 tensors in 5000 files"):
        SafetensorsDirectory(sharded)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("", "empty"),
        ("[]", "not a JSON object"),
        ("{", "not JSON"),
        ('{"a": 1, "a": 2}', "'a' twice"),
        ('{"a": {"b": 1, "b": 1}}', "'b' twice"),
        ('{"a": ' + "[" * 64 + "]" * 64 + "}", "nests deeper than 64"),
        ('{"a": ' + "9" * 5000 + "}", "whole number of 5000 digits"),
        ("\ufeff{}", "not JSON"),
    ],
)
def test_configs_that_are_refused(directory: Path, config: str, message: str) -> None:
    (directory / "config.json").write_text(config)
    with pytest.raises(CheckpointFormatError, match=message):
        SafetensorsDirectory(directory)


def test_a_config_that_is_large_or_missing(directory: Path) -> None:
    (directory / "config.json").write_text(" " * (4 << 20) + "{}")
    with pytest.raises(CheckpointFormatError, match="at most 4194304"):
        SafetensorsDirectory(directory)
    (directory / "config.json").unlink()
    with pytest.raises(CheckpointMissingError, match=r"no config\.json"):
        SafetensorsDirectory(directory)


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("pytorch_model.bin", "convert the model to safetensors"),
        ("consolidated.00.pth", "convert the model to safetensors"),
        ("model.pt", "convert the model to safetensors"),
        ("model.gguf", "give the path of that file"),
        ("adapter_model.safetensors", "rename it or write the index"),
        ("README.md", "holds no model"),
    ],
)
def test_directories_without_weights_get_advice(tmp_path: Path, name: str, advice: str) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / name).write_bytes(b"x")
    with pytest.raises(CheckpointMissingError, match=advice) as caught:
        SafetensorsDirectory(tmp_path)
    assert name == "README.md" or name in str(caught.value)


def test_a_pickle_under_a_safetensors_name(directory: Path) -> None:
    torch.save({"a": torch.ones(1)}, directory / "model.safetensors")
    with pytest.raises(CheckpointFormatError, match="pickle"):
        read_safetensors(directory / "model.safetensors")


def test_a_header_length_that_looks_like_a_pickle(tmp_path: Path) -> None:
    """640 is 80 02 00 ... in little-endian bytes, as is the beginning of a pickle of protocol 2."""
    entry = b'{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
    for length in (640, 896, 1152, 1408):
        path = tmp_path / f"{length}.safetensors"
        path.write_bytes(length.to_bytes(8, "little") + entry.ljust(length) + b"\0\0\x80\x3f")
        (source,) = read_safetensors(path).values()
        assert source.shape == (1,)

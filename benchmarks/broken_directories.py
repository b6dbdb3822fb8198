"""Safetensors directories that are broken in one place each, and what their refusal must say."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from broken_model import CONFIG, Case, header_of, safetensors, shapes, tokenizer_json, u64, write_directory

WEIGHTS, INDEX, FIRST, SECOND = (
    "model.safetensors",
    "model.safetensors.index.json",
    "model-00001-of-00002.safetensors",
    "model-00002-of-00002.safetensors",
)
UP = "model.layers.0.mlp.up_proj.weight"
DEEP = b'{"a":' + b"[" * 100_000

# What is wrong, what the message must say, and what is done to the sound directory.
Changes = list[tuple[str, str, Callable[[Path], object]]]

_MISTRAL = {"architectures": ["MistralForCausalLM"]}  # the Llama that has windows


def directory_cases() -> list[Case]:
    """All of them; names are unique."""
    changes = [*_files(), *_headers(), *_entries(), *_indices(), *_configurations(), *_tokenizers()]
    return [Case(f"directory: {name}", _made(change), words) for name, words, change in changes]


def _made(change: Callable[[Path], object]) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        path = write_directory(folder)
        change(path)
        return path

    return make


def _file(name: str, data: bytes) -> Callable[[Path], object]:
    return lambda path: (path / name).write_bytes(data)


def _gone(*names: str, instead: dict[str, bytes] | None = None) -> Callable[[Path], object]:
    def change(path: Path) -> None:
        for name in names:
            (path / name).unlink()
        for name, data in (instead or {}).items():
            (path / name).write_bytes(data)

    return change


def _files() -> Changes:
    def folder(name: str) -> Callable[[Path], object]:
        return lambda path: ((path / name).unlink(), (path / name).mkdir())

    return [
        ("nothing in it", "holds no model",
         _gone(WEIGHTS, "config.json", "tokenizer.json", "tokenizer_config.json")),
        ("only a pickle", "pickles such as pytorch_model.bin",
         _gone(WEIGHTS, instead={"pytorch_model.bin": b"PK\3\4"})),
        ("only consolidated weights", "only as consolidated.safetensors",
         _gone(WEIGHTS, instead={"consolidated.safetensors": b"x"})),
        ("only an adapter", "rename it or write the index",
         _gone(WEIGHTS, instead={"adapter_model.safetensors": b"x"})),
        ("only shards", "fetch model.safetensors.index.json", _gone(WEIGHTS, instead={FIRST: b"x"})),
        ("only a GGUF file", "give the path of that file", _gone(WEIGHTS, instead={"m.gguf": b"x"})),
        ("weights that are a folder", "not a regular file", folder(WEIGHTS)),
        ("a configuration that is a folder", "not a regular file", folder("config.json")),
        ("weights that are empty", "is empty", _file(WEIGHTS, b"")),
        ("weights of seven bytes", "has 7 bytes", _file(WEIGHTS, bytes(7))),
        ("weights that are a zip archive", "pickle", _file(WEIGHTS, b"PK\x03\x04" + bytes(100))),
        ("weights that are a pickle", "pickle", _file(WEIGHTS, b"\x80\x02}q\x00." * 20)),
        ("weights that are a GGUF file", "header of", _file(WEIGHTS, b"GGUF\x03\0\0\0" + bytes(100))),
        ("weights that are a pointer of Git LFS", "git lfs pull",
         _file(WEIGHTS, b"version https://git-lfs.github.com/spec/v1\nsize 1\n")),
    ]  # fmt: skip


def _headers() -> Changes:
    """Of model.safetensors: the header as bytes, or the length that it claims."""

    def header(raw: bytes, length: int | None = None) -> Callable[[Path], object]:
        return _file(WEIGHTS, safetensors(raw, 64, length=length))

    def many(path: Path) -> None:
        entry = {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}
        (path / WEIGHTS).write_bytes(safetensors({f"w{index}": entry for index in range(40_000)}, 1))

    most, cut = 1 << 24, safetensors(*header_of(shapes()))
    return [
        ("a header of 2^63 bytes", "claims a header of 9223372036854775808", header(b"{}", 1 << 63)),
        ("a header beyond the end", "claims a header of 200 bytes", header(b"{}", 200)),
        ("a header that is cut", "claims a header", _file(WEIGHTS, cut[:300])),
        ("data that is cut", "truncated", _file(WEIGHTS, cut[:-1])),
        ("data that goes on", "3 bytes after its last tensor", _file(WEIGHTS, cut + b"xyz")),
        ("a header that is no JSON", "not JSON", header(b'{"w": }')),
        ("a header that is a list", "does not begin with", header(b"[]")),
        ("a header that is not UTF-8", "not JSON in UTF-8", header(b'{"\xff\xfe": 1}')),
        ("a header 100,000 deep", "nests deeper", header(DEEP)),
        ("a header with a key twice", "'w' twice", header(b'{"w": 1, "w": 2}')),
        ("a header with NaN", "NaN", header(b'{"w": NaN}')),
        ("a header of 16 MiB of brackets", "JSON quotes, commas and opening brackets",
         header(b'{"a":' + b"[]," * (most // 3 - 4))),
        ("a header of 16 MiB of digits", "16777206 digits", header(b'{"a":' + b"1" * (most - 10) + b"}")),
        ("a header of 16 MiB of backslashes", "no end", header(b'{"' + b"\\" * (most - 10))),
        ("40,000 tensors", "has 40000 tensors", many),
        ("metadata of numbers", "__metadata__", header(b'{"__metadata__": {"format": 1}}')),
    ]  # fmt: skip


def _entries() -> Changes:
    """Of model.safetensors: one tensor's entry, or the model without it."""

    def entry(**fields: Any) -> Callable[[Path], object]:
        header, size = header_of(shapes())
        header[UP] = {**header[UP], **fields}
        return _file(WEIGHTS, safetensors(header, size))

    def without(*names: str, **other: list[int]) -> Callable[[Path], object]:
        kept = {name: shape for name, shape in shapes().items() if name not in names}
        return _file(WEIGHTS, safetensors(*header_of({**kept, **other})))

    header, _ = header_of(shapes())
    first, last = header[UP]["data_offsets"]
    return [
        ("an unknown dtype", "of dtype 'F12'", entry(dtype="F12")),
        ("weights in FP8", "of dtype 'F8_E4M3'", entry(dtype="F8_E4M3")),
        ("weights in 32-bit integers", "of dtype I32", entry(dtype="I32")),
        ("a dtype of a number", "dtype must be a string", entry(dtype=32)),
        ("a shape of another size", "takes 24320 bytes", entry(shape=[95, 64])),
        ("a negative shape", "shape must be", entry(shape=[-96, -64])),
        ("a shape of booleans", "shape must be", entry(shape=[True, 6144])),
        ("a shape of halves", "shape must be", entry(shape=[96.0, 64])),
        ("a shape of 2^63", "shape must be", entry(shape=[1 << 63, 64])),
        ("a shape whose product is 2^124", "takes", entry(shape=[1 << 62, 1 << 62])),
        ("nine dimensions", "shape must be", entry(shape=[96, 64, 1, 1, 1, 1, 1, 1, 1])),
        ("overlapping tensors", "overlaps", entry(data_offsets=[first - 4, last - 4])),
        ("a hole between tensors", "hole of 4 bytes", entry(data_offsets=[first + 4, last + 4])),
        ("a tensor beyond the end", "hole of|truncated", entry(data_offsets=[1 << 40, (1 << 40) + last - first])),
        ("offsets in the wrong order", "data_offsets", entry(data_offsets=[last, first])),
        ("one offset", "data_offsets must be two", entry(data_offsets=[0])),
        ("a field too many", "must have exactly", entry(extra=1)),
        ("a missing tensor", r"no tensor blk\.0\.ffn_up\.weight", without(UP)),
        ("no embedding table", "embedding table", without("model.embed_tokens.weight")),
        ("a tensor of another shape", "says", without(UP, **{UP: [48, 64]})),
        ("a tensor under two names", f"{UP} and blk.0.ffn_up.weight are both",
         without(**{"blk.0.ffn_up.weight": [96, 64]})),
    ]  # fmt: skip


def _indices() -> Changes:
    header, size = header_of({UP: [96, 64]})
    rest = {name: shape for name, shape in shapes().items() if name != UP}
    sound = {**dict.fromkeys(rest, FIRST), UP: SECOND}

    def index(weight_map: object, **files: bytes) -> Callable[[Path], object]:
        raw = weight_map if isinstance(weight_map, bytes) else json.dumps({"weight_map": weight_map}).encode()
        shards = {FIRST: safetensors(*header_of(rest)), SECOND: safetensors(header, size)}
        return _gone(WEIGHTS, instead={**shards, INDEX: raw, **files})

    def elsewhere(file: str) -> Callable[[Path], object]:
        return index({**sound, UP: file})

    def lost(path: Path) -> None:
        index(sound)(path)
        (path / SECOND).unlink()

    return [
        ("an index that is no JSON", "index.json is not JSON", index(b"{")),
        ("an index that is a list", "is not a JSON object", index(b"[]")),
        ("an index 100,000 deep", "nests deeper", index(DEEP)),
        ("an index without a map", "must have a weight_map", index(b"{}")),
        ("an index whose map is a list", "must have a weight_map", index(["a"])),
        ("an index of numbers", "must have a weight_map", index({UP: 1})),
        ("an index that leads out of the folder", "only plain names", elsewhere("../model.safetensors")),
        ("an index that leads to the root", "only plain names", elsewhere("/etc/passwd")),
        ("an index that names a pickle", "only plain names", elsewhere("pytorch_model.bin")),
        ("an index that names a shard that is not there", f"has no {SECOND}", lost),
        ("an index with a tensor in the wrong shard", "but it is not", elsewhere(FIRST)),
        ("an index of 5,000 files", "in 5000 files", index({f"w{i}": f"{i}.safetensors" for i in range(5000)})),
        ("a tensor in two shards", "and again in", index(sound, **{FIRST: safetensors(*header_of(shapes()))})),
        ("a shard that is cut", f"{SECOND}.*truncated", index(sound, **{SECOND: safetensors(header, size - 1)})),
    ]


def _configurations() -> Changes:
    def raw(data: bytes) -> Callable[[Path], object]:
        return _file("config.json", data)

    def field(**fields: Any) -> Callable[[Path], object]:
        return raw(json.dumps({**CONFIG, **fields}).encode())

    def literal(name: str, value: str) -> Callable[[Path], object]:
        return raw(json.dumps({**CONFIG, name: "@"}).replace('"@"', value).encode())

    def rope(**rules: Any) -> Callable[[Path], object]:
        return field(rope_parameters={"rope_theta": 1e4, **rules})

    return [
        ("no configuration", "no config.json", _gone("config.json")),
        ("an empty configuration", "is empty", raw(b"")),
        ("a configuration that is a list", "not a JSON object", raw(b"[1]")),
        ("a configuration that is no JSON", "not JSON", raw(b"{'a': 1}")),
        ("a configuration that is not UTF-8", "not JSON in UTF-8", raw(b'{"a": "\xff"}')),
        ("a configuration 100,000 deep", "nests deeper", raw(DEEP)),
        ("a configuration with a key twice", "'a' twice", raw(b'{"a": 1, "a": 2}')),
        ("a configuration of 5 MB", "at most", raw(b'{"a": "' + b"x" * 5_000_000 + b'"}')),
        ("a number of 5,000 digits", "of 5000 digits", literal("hidden_size", "1" * 5000)),
        ("no architecture", "must name one architecture", field(architectures=None)),
        ("two architectures", "must name one architecture", field(architectures=["A", "B"])),
        ("an architecture of a number", "must name one architecture", field(architectures=[1])),
        ("an unknown architecture", "'AbacusForCausalLM' is not supported", field(architectures=["AbacusForCausalLM"])),
        ("weights packed by GPTQ", "quantised by gptq", field(quantization_config={"quant_method": "gptq"})),
        ("a hidden size of text", "hidden_size must be", field(hidden_size="64")),
        ("a hidden size of null", "does not say hidden_size", field(hidden_size=None)),
        ("a hidden size of 10^30", "hidden_size must be", field(hidden_size=10**30)),
        ("a hidden size of -64", "hidden_size must be", field(hidden_size=-64)),
        ("a hidden size of NaN", "hidden_size must be", literal("hidden_size", "NaN")),
        ("a hidden size of true", "hidden_size must be", field(hidden_size=True)),
        ("10^9 layers", "num_hidden_layers must be", field(num_hidden_layers=10**9)),
        ("1,000 layers that are not there", r"blk\.1\.", field(num_hidden_layers=1000)),
        ("a head of 2^31-2 columns", "head_dim must be", field(head_dim=2**31 - 2)),
        ("no heads", "num_attention_heads", field(num_attention_heads=0)),
        ("KV heads that do not divide", "head|says", field(num_key_value_heads=3)),
        ("heads of a list of lists", "num_attention_heads", field(num_attention_heads=[[4]])),
        ("positions of 0", "max_position_embeddings must be", field(max_position_embeddings=0)),
        ("an eps of 1e999", "rms_norm_eps must be", literal("rms_norm_eps", "1e999")),
        ("an eps of an object", "rms_norm_eps must be", field(rms_norm_eps={})),
        ("an activation of a list", "hidden_act must be", field(hidden_act=["silu"])),
        ("a tie of text", "tie_word_embeddings must be", field(tie_word_embeddings="yes")),
        ("a rotary base of Infinity", "rope_theta", rope(rope_theta=float("inf"))),
        ("a rotary base of text", "rope_theta", rope(rope_theta="10000")),
        ("a rotary base of 10^400", "of 401 digits", rope(rope_theta=10**400)),
        ("rotary rules of a list", "rope_parameters must be an object", field(rope_parameters=[1])),
        ("an unknown rotary rule", "'spiral' is not supported", rope(rope_type="spiral")),
        ("a rotary rule of a list", "is not supported", rope(rope_type=["yarn"])),
        ("a rotary factor of 0", "factor", rope(rope_type="linear", factor=0)),
        ("llama3 without its numbers", "does not say", rope(rope_type="llama3", factor=8.0)),
        ("yarn with NaN", "beta_fast", rope(rope_type="yarn", factor=2.0, beta_fast=float("nan"))),
        ("longrope with 100,000 factors", "list of 8 numbers",
         rope(rope_type="longrope", short_factor=[1.0] * 10**5, long_factor=[1.0] * 8)),
        ("a window of text", "sliding_window", field(**_MISTRAL, sliding_window="all")),
        ("kinds of layers that are too many", "layer_types",
         field(**_MISTRAL, sliding_window=8, layer_types=["full_attention"] * 9)),
        ("a text configuration with nothing in it", "hidden_size", literal("text_config", '{"hidden_size": []}')),
    ]  # fmt: skip


def _tokenizers() -> Changes:
    def tokenizer(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], object]:
        made = tokenizer_json()
        change(made)
        return _file("tokenizer.json", json.dumps(made).encode())

    def beside(name: str, data: bytes) -> tuple[str, Callable[[Path], object]]:
        return name, _file(name, data)

    ctc = {"type": "CTC", "pad_token": "<pad>", "word_delimiter_token": "|", "cleanup": True}
    found: Changes = [
        ("no tokenizer", "no tokenizer.json", _gone("tokenizer.json")),
        ("only tokenizer.model", "tokenizer.model alone is not read",
         _gone("tokenizer.json", instead={"tokenizer.model": b"x"})),
        ("an empty tokenizer", "not a tokenizer.json", _file("tokenizer.json", b"")),
        ("a tokenizer that is no JSON", "not a tokenizer.json", _file("tokenizer.json", b"{")),
        ("a tokenizer that is a list", "not a tokenizer.json", _file("tokenizer.json", b"[]")),
        ("a tokenizer 100,000 deep", "not a tokenizer.json", _file("tokenizer.json", DEEP)),
        ("a tokenizer that is cut", "not a tokenizer.json",
         _file("tokenizer.json", json.dumps(tokenizer_json()).encode()[:2000])),
        ("a tokenizer of an unknown model", "not a tokenizer.json", tokenizer(lambda made: made.update(
            model={"type": "Abacus"}))),
        ("a tokenizer without tokens", "token ids", tokenizer(lambda made: made.update(
            added_tokens=[], model={"type": "BPE", "vocab": {}, "merges": []}))),
        ("a token id of 2^31", "token ids up to", tokenizer(lambda made: made["model"]["vocab"].update(zz=1 << 31))),
        ("a token id of 2^63", "not a tokenizer.json",
         tokenizer(lambda made: made["model"]["vocab"].update(zz=1 << 63))),
        ("a merge of unknown tokens", "not a tokenizer.json", tokenizer(lambda made: made["model"].update(
            merges=["zq qz"]))),
        ("a decoder of another kind", "decoder", tokenizer(lambda made: made.update(decoder=ctc))),
        ("no decoder", "decoder", tokenizer(lambda made: made.update(decoder=None))),
    ]  # fmt: skip
    for name, change in (
        beside("tokenizer_config.json", b"{"),
        beside("special_tokens_map.json", b"[]"),
        beside("generation_config.json", DEEP),
        beside("generation_config.json", u64(1)),
    ):
        words = f"{name} (is not JSON|holds list|is nested too deeply)"
        found.append((f"{name}, broken ({len(found)})", words, change))
    return found

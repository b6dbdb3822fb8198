"""GGUF files that are broken in one place each, and what their refusal must say: the format itself."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

from broken_llama import Change, Changes, llama_changes
from broken_model import (
    ARRAY,
    BOOL,
    HIDDEN,
    I32,
    STRING,
    TYPE_Q8_0,
    U8,
    U32,
    U64,
    Case,
    Gguf,
    sound_gguf,
    text,
    u32,
    u64,
)

FILE = "model.gguf"
Q = "blk.0.attn_q.weight"


def gguf_cases() -> list[Case]:
    """All of them; names are unique."""
    changes = [*_headers(), *_values(), *_places(), *llama_changes()]
    return [
        *(Case(f"gguf: {name}", _bytes_of(data), words) for name, data, words in _other_bytes()),
        *(Case(f"gguf: cut {name}", _cut(at), words) for name, at, words in _cuts()),
        *(Case(f"gguf: {name}", _changed(change), words) for name, words, change in changes),
        *(Case(f"gguf: {name}", _parts(change), words) for name, words, change in _splits()),
    ]


def _bytes_of(data: bytes) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        (folder / FILE).write_bytes(data)
        return folder / FILE

    return make


def _changed(change: Change) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        made = sound_gguf()
        change(made)
        return _bytes_of(made.build())(folder)

    return make


def _cut(at: Callable[[Gguf, int], int]) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        made = sound_gguf()
        data = made.build()
        return _bytes_of(data[: at(made, len(data))])(folder)

    return make


def _other_bytes() -> list[tuple[str, bytes, str]]:
    return [
        ("empty", b"", "is empty"),
        ("three bytes", b"GGU", "no GGUF file"),
        ("a web page", b"<!DOCTYPE html><html>", "no GGUF file"),
        ("another magic", b"ggjt" + bytes(100), "no GGUF file"),
        ("a zip archive", b"PK\x03\x04" + bytes(100), "pickle"),
        ("a pickle", b"\x80\x02" + b"}q\x00." * 20, "pickle"),
        ("a pickle of protocol 5", b"\x80\x05" + b"}q\x00." * 20, "pickle"),
        ("a pointer of Git LFS", b"version https://git-lfs.github.com/spec/v1\nsize 1\n", "git lfs pull"),
        ("zeros", bytes(4096), "no GGUF file"),
    ]


def _cuts() -> list[tuple[str, Callable[[Gguf, int], int], str]]:
    return [
        ("in the counts", lambda made, size: 20, "truncated"),
        ("after the counts", lambda made, size: made.ends[0], "claims .* but only 0 bytes follow"),
        ("in the first key", lambda made, size: made.ends[0] + 12, "claims .* bytes follow"),
        ("in the values", lambda made, size: made.ends[0] + 2000, "truncated|ends inside|are left"),
        ("before the tensors", lambda made, size: made.ends[1], "truncated|bytes follow"),
        ("in the tensors", lambda made, size: made.ends[2] - 5, "truncated"),
        ("before the data", lambda made, size: made.ends[2], "truncated"),
        ("in the data", lambda made, size: (made.ends[2] + size) // 2, "truncated"),
        ("by one byte", lambda made, size: size - 1, "truncated"),
    ]


def _headers() -> Changes:
    def field(name: str, value: object) -> Change:
        return lambda made: setattr(made, name, value)

    def twice(made: Gguf) -> None:
        made.after_pairs = text("llama.block_count") + u32(U32) + u32(1)
        made.pair_count = len(made.pairs) + 1

    return [
        ("version 1", "version 1 is not supported", field("version", 1)),
        ("version 4", "version 4 is not supported", field("version", 4)),
        ("big-endian", "big-endian", field("version", 3 << 24)),
        ("2^63 tensors", "claims 9223372036854775808 tensors", field("tensor_count", 1 << 63)),
        ("2^64-1 keys", "claims 18446744073709551615 key-value", field("pair_count", (1 << 64) - 1)),
        ("one tensor too many", "name|dimensions|truncated|claims", field("tensor_count", 12)),
        ("one key too many", "truncated|key|claims", field("pair_count", 20)),
        ("a key twice", "'llama.block_count' is there twice", twice),
    ]


def _values() -> Changes:
    def value(kind: int, raw: bytes, key: str | bytes = "k") -> Change:
        return lambda made: made.put(key, kind, raw)

    return [
        ("a string of 2^62 bytes", "value of 'k' claims 4611686018427387904", value(STRING, u64(1 << 62))),
        ("a string beyond the end", "truncated", value(STRING, u64((1 << 24) - 1))),
        ("a string that is not UTF-8", "value of 'k' is not UTF-8", value(STRING, text(b"\xff\xfe"))),
        ("a key that is not UTF-8", "is not UTF-8", value(U8, b"\1", b"\xc0\xaf")),
        ("an empty key", "is empty", value(U8, b"\1", b"")),
        ("a key of 70,000 bytes", "claims 70000 bytes", value(U8, b"\1", "k" * 70_000)),
        ("an array of 2^61 numbers", "'k' claims 2305843009213693952 items", value(ARRAY, u32(U64) + u64(1 << 61))),
        ("an array beyond the end", "truncated", value(ARRAY, u32(U64) + u64(1 << 23))),
        ("an array of 2^60 strings", "'k' claims 1152921504606846976 items", value(ARRAY, u32(STRING) + u64(1 << 60))),
        ("an array of strings beyond the end", "'k' claims 16777215 strings",
         value(ARRAY, u32(STRING) + u64((1 << 24) - 1))),
        ("a string of 2^63 bytes in an array", "item 0 of 'k' claims",
         value(ARRAY, u32(STRING) + u64(1) + u64(1 << 63))),
        ("an array of arrays", "array of arrays", value(ARRAY, u32(ARRAY) + u64(1) + u32(U8) + u64(0))),
        ("arrays a million deep", "array of arrays", value(ARRAY, (u32(ARRAY) + u64(1)) * 1_000_000)),
        ("an array of no known type", "unknown item type 77", value(ARRAY, u32(77) + u64(1) + bytes(8))),
        ("a value of no known type", "unknown value type 77", value(77, bytes(8))),
        ("a boolean of 2", "boolean of value 2", value(BOOL, b"\2")),
        ("40 MiB of strings", "above 33554432 bytes", lambda made: [
            made.put(f"k{index}", STRING, text(b"x" * (8 << 20))) for index in range(5)]),
    ]  # fmt: skip


def _places() -> Changes:
    def of(field: str, value: object, name: str = Q) -> Change:
        return lambda made: setattr(made.tensor(name), field, value)

    def alignment(kind: int, raw: bytes) -> Change:
        return lambda made: made.put("general.alignment", kind, raw)

    return [
        ("overlapping tensors", "overlap", of("offset", 0)),
        ("a misaligned tensor", "no multiple of 32", of("offset", 33)),
        ("a tensor beyond the end", "truncated", of("offset", 1 << 40)),
        ("a tensor at 2^64-32", "truncated", of("offset", (1 << 64) - 32)),
        ("an alignment of 0", "power of two", alignment(U32, u32(0))),
        ("an alignment of 3", "power of two", alignment(U32, u32(3))),
        ("an alignment of 2^31", "no multiple of 2147483648|truncated", alignment(U32, u32(1 << 31))),
        ("an alignment of text", "power of two", alignment(STRING, text("32"))),
        ("a negative alignment", "power of two", alignment(I32, struct.pack("<i", -32))),
        ("a tensor twice", "is there twice", of("name", "blk.0.attn_k.weight")),
        ("a tensor without a name", "empty name", of("name", "")),
        ("a tensor's name that is not UTF-8", "not UTF-8", of("name", b"\xff\xff")),
        ("a tensor's name of 65 bytes", "claims 65 bytes", of("name", "n" * 65)),
        ("a dimension of 0", "dimension below 1", of("ne", [HIDDEN, 0])),
        ("a dimension of 2^63", "truncated", of("ne", [1 << 63])),
        ("a product of 2^64", "truncated", of("ne", [1 << 32, 1 << 32])),
        ("a product of 2^256", "truncated", of("ne", [(1 << 64) - 1] * 4)),
        ("five dimensions", "claims 5 dimensions", of("ne", [HIDDEN, HIDDEN, 1, 1, 1])),
        ("a tensor type of no name", "type 99", of("kind", 99)),
        ("a tensor type that ggml took back", "type 4", of("kind", 4)),
        ("a tensor type without a decoder", "IQ4_XS", of("kind", 23)),
        ("a row that is no whole block", "no multiple of 32", lambda made: (
            of("ne", [HIDDEN - 1, HIDDEN])(made), of("kind", TYPE_Q8_0)(made))),
    ]  # fmt: skip


def _splits() -> list[tuple[str, str, Callable[[list[Gguf]], object]]]:
    def drop(key: str, part: int) -> Callable[[list[Gguf]], object]:
        return lambda parts: parts[part].drop(key)

    def number(key: str, value: int, part: int = 1) -> Callable[[list[Gguf]], object]:
        return lambda parts: parts[part].put(key, I32, struct.pack("<i", value))

    return [
        ("a part that is missing", "has no model-00002-of-00002.gguf", lambda parts: parts.pop()),
        ("a part without its number", "split.no is missing", drop("split.no", 1)),
        ("a part with another's number", "part 1 of 2", number("split.no", 0)),
        ("a part of another number of parts", "part 2 of 3", number("split.count", 3)),
        ("a part of 70,000", "split.count is '70000'", number("split.count", 70_000)),
        ("a part of a model of more tensors", "with 99 tensors", number("split.tensors.count", 99)),
        ("parts with fewer tensors than they say", "hold 10 tensors; it says 11", lambda parts: parts[1].tensors.pop()),
        ("a tensor in two parts", "in an earlier part too", lambda parts: parts[1].tensors.__setitem__(
            0, parts[0].tensors[0])),
        ("a part of another architecture", "different models",
         lambda parts: parts[1].put("general.architecture", STRING, text("gemma3"))),
        ("a part that is whole", "a whole model", drop("split.count", 1)),
    ]  # fmt: skip


def _parts(change: Callable[[list[Gguf]], object]) -> Callable[[Path], Path]:
    """The sound model in two parts, changed."""

    def make(folder: Path) -> Path:
        first, second = sound_gguf(), Gguf()
        first.tensors, second.tensors = first.tensors[:5], first.tensors[5:]
        for index, part in enumerate((first, second)):
            for key, value in (("no", index), ("count", 2), ("tensors.count", 11)):
                part.put(f"split.{key}", I32, struct.pack("<i", value))
        parts = [first, second]
        change(parts)
        for index, part in enumerate(parts):
            (folder / f"model-0000{index + 1}-of-00002.gguf").write_bytes(part.build())
        return folder / "model-00001-of-00002.gguf"

    return make

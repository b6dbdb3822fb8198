"""What a safetensors file may not hold, each refused by name; and damage of every kind."""

import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poot_models.checkpoint.json_text import parse_object
from poot_models.checkpoint.safetensors import read_safetensors
from poot_models.errors import CheckpointError, CheckpointFormatError, UnsupportedEncodingError

Build = Callable[..., bytes]
VALID = {"dtype": "F32", "shape": [2, 1], "data_offsets": [0, 8]}


@pytest.fixture
def refusal(tmp_path: Path) -> Callable[[bytes], str]:
    """Read these bytes; the message of the CheckpointFormatError."""

    def message(content: bytes) -> str:
        path = tmp_path / "hostile.safetensors"
        path.write_bytes(content)
        with pytest.raises(CheckpointFormatError) as caught:
            read_safetensors(path)
        return str(caught.value)

    return message


def test_other_files(refusal: Callable[[bytes], str], safetensors_bytes: Build) -> None:
    assert "is empty" in refusal(b"")
    assert "has 7 bytes" in refusal(bytes(7))
    assert "git lfs pull" in refusal(b"version https://git-lfs.github.com/spec/v1\n")
    assert "does not begin" in refusal(safetensors_bytes(b""))
    assert "does not begin" in refusal(safetensors_bytes(b' {"w": 1}'))
    assert "not JSON" in refusal(safetensors_bytes(b'{"w": 1'))
    assert "not JSON in UTF-8" in refusal(safetensors_bytes(b'{"\xff": 1}'))
    assert "not JSON in UTF-8" in refusal(safetensors_bytes(b'{"w": 1}{}'))


@pytest.mark.parametrize("length", [3, 1 << 24, (1 << 24) + 1, (1 << 63), (1 << 64) - 1])
def test_header_lengths(refusal: Callable[[bytes], str], safetensors_bytes: Build, length: int) -> None:
    assert f"claims a header of {length} bytes" in refusal(safetensors_bytes(b"{}", length=length))


@pytest.mark.parametrize(
    "entry",
    [
        None,
        [],
        {},
        {"dtype": "F32", "shape": [2, 1]},
        {**VALID, "more": 1},
        {**VALID, "dtype": 4},
        {**VALID, "shape": [2, 0]},
        {**VALID, "shape": [2, -1]},
        {**VALID, "shape": [2.0, 1]},
        {**VALID, "shape": [2, True]},
        {**VALID, "shape": [1 << 63, 1 << 63]},
        {**VALID, "shape": [1 << 62, 4]},
        {**VALID, "shape": [1] * 9},
        {**VALID, "shape": "21"},
        {**VALID, "shape": [1, 1]},
        {**VALID, "data_offsets": [0]},
        {**VALID, "data_offsets": [0, 8, 8]},
        {**VALID, "data_offsets": [8, 0]},
        {**VALID, "data_offsets": [-8, 0]},
        {**VALID, "data_offsets": [0, 8.0]},
        {**VALID, "data_offsets": [(1 << 63) - 8, 1 << 63]},
    ],
    ids=repr,
)
def test_entries(refusal: Callable[[bytes], str], safetensors_bytes: Build, entry: object) -> None:
    assert "tensor 'w'" in refusal(safetensors_bytes({"w": entry}, bytes(8)))


def test_places(refusal: Callable[[bytes], str], safetensors_bytes: Build) -> None:
    def at(*firsts: int, data: int) -> bytes:
        entries = {f"w{first}": {**VALID, "data_offsets": [first, first + 8]} for first in firsts}
        return safetensors_bytes(entries, bytes(data))

    assert "overlaps" in refusal(at(0, 4, data=12))
    assert "hole of 4 bytes" in refusal(at(0, 12, data=20))
    assert "hole of 8 bytes" in refusal(at(8, data=16))
    assert "truncated" in refusal(at(0, 8, data=15))
    assert "1 bytes after its last tensor" in refusal(at(0, 8, data=17))
    assert "truncated" in refusal(safetensors_bytes({"w": VALID}))


@pytest.mark.parametrize("dtype", ["F8_E4M3", "F4", "C64", "f32", "", "x" * 1000])
def test_dtypes_that_nothing_reads_are_named(tmp_path: Path, safetensors_bytes: Build, dtype: str) -> None:
    path = tmp_path / "other.safetensors"
    path.write_bytes(safetensors_bytes({"blk.w": {**VALID, "dtype": dtype}}, bytes(8)))
    with pytest.raises(UnsupportedEncodingError, match=rf"'blk\.w' is of dtype '{dtype[:80]}"):
        read_safetensors(path)


def test_notes(refusal: Callable[[bytes], str], safetensors_bytes: Build) -> None:
    for notes in (1, [], {"format": 1}, {"format": {"a": "b"}}):
        assert "__metadata__" in refusal(safetensors_bytes({"__metadata__": notes}))


def test_json_that_has_two_readings(refusal: Callable[[bytes], str], safetensors_bytes: Build) -> None:
    entry = json.dumps(VALID)
    assert "'w' twice" in refusal(safetensors_bytes(f'{{"w": {entry}, "w": {entry}}}'.encode(), bytes(8)))
    assert "'shape' twice" in refusal(safetensors_bytes(f'{{"w": {entry[:-1]}, "shape": []}}}}'.encode(), bytes(8)))
    for constant in ("NaN", "Infinity", "-Infinity"):
        assert constant in refusal(safetensors_bytes(f'{{"w": {constant}}}'.encode()))


def test_too_many_tensors(refusal: Callable[[bytes], str], safetensors_bytes: Build) -> None:
    header = {f"w{index}": 0 for index in range((1 << 15) + 1)}
    assert "has 32769 tensors" in refusal(safetensors_bytes(header))


@pytest.mark.parametrize(
    "raw",
    [
        b'{"a":' + b"[" * (1 << 24),
        b'{"a":' + b"[]," * (5 << 20),
        b'{"' + b'\\"' * (8 << 20),
        b"{" + b'""' * (8 << 20),
        b"{" + b"]" * (1 << 24),
        b'{"a":[' + b"1234," * (3 << 20),
        b'{"' + b"\\" * (1 << 24),
        b'{"a":' + b"1" * (1 << 24) + b"}",
    ],
    ids=["deep", "wide", "escapes", "strings", "closing", "numbers", "backslashes", "digits"],
)
def test_hostile_json_costs_little(raw: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointFormatError):
            parse_object(raw, "it")
        assert tracemalloc.get_traced_memory()[1] < 100 << 20
    finally:
        tracemalloc.stop()


def test_a_bracket_in_a_string_is_no_depth() -> None:
    assert parse_object(b'{"a": "' + b"[{" * 100 + b'\\"]"}', "it") == {"a": "[{" * 100 + '"]'}


@pytest.fixture(scope="module")
def small(safetensors_bytes: Build) -> bytes:
    header = {
        "__metadata__": {"format": "pt"},
        "a": VALID,
        "b": {"dtype": "BF16", "shape": [3], "data_offsets": [8, 14]},
        "c": {"dtype": "I64", "shape": [], "data_offsets": [14, 22]},
    }
    return safetensors_bytes(header, bytes(22))


def read_and_use(path: Path, content: bytes) -> bool:
    """Whether the file is accepted. Anything but success or a CheckpointError fails the test that calls."""
    path.write_bytes(content)
    try:
        for source in read_safetensors(path).values():
            source.data.sum()
    except CheckpointError:
        return False
    return True


def test_every_truncation_is_refused(tmp_path: Path, small: bytes) -> None:
    path = tmp_path / "cut.safetensors"
    assert read_and_use(path, small)
    assert not any(read_and_use(path, small[:length]) for length in range(len(small)))


@settings(max_examples=600, deadline=1000)
@given(data=st.data())
def test_damage_is_refused_or_harmless(
    tmp_path_factory: pytest.TempPathFactory, small: bytes, data: st.DataObject
) -> None:
    damaged = bytearray(small)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(small) - 1))
        patch = data.draw(
            st.one_of(
                st.binary(min_size=1, max_size=1),
                st.sampled_from([b"\xff" * 8, bytes(8), b"[", b"]", b"{", b"}", b'"', b",", b"-1", b"9e9", b"null"]),
            )
        )
        damaged[at : at + len(patch)] = patch
    read_and_use(tmp_path_factory.getbasetemp() / "damaged.safetensors", bytes(damaged))


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4) | st.sampled_from(["F32", "BF16"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["dtype", "shape", "data_offsets", "__metadata__"]) | st.text(max_size=3), inner
        )
    ),
    max_leaves=12,
)


@settings(max_examples=300, deadline=1000)
@given(header=JSON_VALUES, data=st.binary(max_size=16))
def test_arbitrary_json(
    tmp_path_factory: pytest.TempPathFactory, safetensors_bytes: Build, header: object, data: bytes
) -> None:
    read_and_use(tmp_path_factory.getbasetemp() / "arbitrary.safetensors", safetensors_bytes(header, data))

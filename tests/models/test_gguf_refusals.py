"""What a GGUF file may not hold: one refusal a line, each by name, before anything is allocated."""

import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poot_models.checkpoint import GgufFile, StringArray
from poot_models.errors import CheckpointError, CheckpointFormatError, UnsupportedEncodingError

U8, BOOL, U32, STRING, ARRAY, U64 = 0, 7, 4, 8, 9, 10
F32, Q8_0 = 0, 8

Build = Callable[..., bytes]


def u32(value: int) -> bytes:
    return struct.pack("<I", value)


def u64(value: int) -> bytes:
    return struct.pack("<Q", value)


@pytest.fixture
def refusal(tmp_path: Path) -> Callable[[bytes], str]:
    """Open these bytes; the message of the CheckpointError, raised within 8 MiB of memory."""

    def message(content: bytes) -> str:
        path = tmp_path / "hostile.gguf"
        path.write_bytes(content)
        tracemalloc.start()
        try:
            with pytest.raises(CheckpointError) as caught:
                GgufFile(path)
            assert tracemalloc.get_traced_memory()[1] < 8 << 20
        finally:
            tracemalloc.stop()
        return str(caught.value)

    return message


@pytest.mark.parametrize("version", [0, 1, 4, 0xFFFFFFFF])
def test_versions(refusal: Callable[[bytes], str], gguf_bytes: Build, version: int) -> None:
    assert f"version {version} is not supported" in refusal(gguf_bytes(version=version))


@pytest.mark.parametrize("version", [2, 3])
def test_big_endian_is_named(refusal: Callable[[bytes], str], gguf_bytes: Build, version: int) -> None:
    assert "big-endian" in refusal(gguf_bytes(version=version << 24))


def test_other_files(refusal: Callable[[bytes], str]) -> None:
    assert "no GGUF file" in refusal(b"ggjt" + bytes(100))
    assert "no GGUF file" in refusal(b"GG")
    assert "truncated" in refusal(b"GGUF\x03\0\0\0")
    assert "git lfs pull" in refusal(b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n")
    assert "pickle" in refusal(b"PK\x03\x04" + bytes(100))
    assert "empty" in refusal(b"")


@pytest.mark.parametrize("count", [1 << 16, (1 << 16) + 1, 1 << 32, (1 << 64) - 1])
def test_counts_above_the_file_or_the_limit(refusal: Callable[[bytes], str], gguf_bytes: Build, count: int) -> None:
    assert f"claims {count} key-value pairs" in refusal(gguf_bytes(pair_count=count))
    assert f"claims {count} tensors" in refusal(gguf_bytes(tensor_count=count))


def test_keys(refusal: Callable[[bytes], str], gguf_bytes: Build, gguf_pair: Build) -> None:
    one = gguf_pair("a", U8, b"\1")
    assert "key 0 is empty" in refusal(gguf_bytes([gguf_pair("", U32, u32(1))]))
    assert "'a' is there twice" in refusal(gguf_bytes([one, one]))
    assert "key 0 is not UTF-8" in refusal(gguf_bytes([gguf_pair(b"\xff", U8, b"\1")]))
    assert "key 0 claims 65536 bytes" in refusal(gguf_bytes([gguf_pair("k" * 65536, U8, b"\1")]))


@pytest.mark.parametrize("length", [5, (1 << 24) + 1, (1 << 63) - 1, (1 << 64) - 1])
def test_string_lengths(refusal: Callable[[bytes], str], gguf_bytes: Build, gguf_pair: Build, length: int) -> None:
    assert refusal(gguf_bytes([gguf_pair("k", STRING, u64(length) + b"abc")]))
    assert "'k'" in refusal(gguf_bytes([gguf_pair("k", ARRAY, u32(STRING) + u64(1) + u64(length) + b"abc")]))


@pytest.mark.parametrize("count", [2, (1 << 24) + 1, 1 << 61, (1 << 64) - 1])
@pytest.mark.parametrize("kind", [U8, U32, U64, BOOL, STRING])
def test_array_counts(
    refusal: Callable[[bytes], str], gguf_bytes: Build, gguf_pair: Build, kind: int, count: int
) -> None:
    assert refusal(gguf_bytes([gguf_pair("k", ARRAY, u32(kind) + u64(count) + b"\0")]))


def test_values(refusal: Callable[[bytes], str], gguf_bytes: Build, gguf_pair: Build) -> None:
    assert "'k' has the unknown value type 13" in refusal(gguf_bytes([gguf_pair("k", 13, bytes(8))]))
    assert "unknown item type 13" in refusal(gguf_bytes([gguf_pair("k", ARRAY, u32(13) + u64(1) + bytes(8))]))
    assert "array of arrays" in refusal(gguf_bytes([gguf_pair("k", ARRAY, u32(ARRAY) + u64(1) + bytes(12))]))
    assert "boolean of value 2" in refusal(gguf_bytes([gguf_pair("k", BOOL, b"\2")]))
    assert "boolean above 1" in refusal(gguf_bytes([gguf_pair("k", ARRAY, u32(BOOL) + u64(2) + b"\1\2")]))
    assert "value of 'k' is not UTF-8" in refusal(gguf_bytes([gguf_pair("k", STRING, u64(1) + b"\xff")]))


def test_a_file_cut_anywhere_is_called_truncated(
    refusal: Callable[[bytes], str], gguf_bytes: Build, gguf_pair: Build, gguf_tensor: Build
) -> None:
    strings = u32(STRING) + u64(3) + b"".join(u64(4) + b"word" for _ in range(3))
    pairs = [gguf_pair("text", STRING, u64(4) + b"word"), gguf_pair("strings", ARRAY, strings),
             gguf_pair("numbers", ARRAY, u32(U64) + u64(2) + bytes(16))]  # fmt: skip
    whole = gguf_bytes(pairs, [gguf_tensor("weight", [4], F32, 0)], bytes(16))
    for length in range(4, len(whole)):
        assert "truncated" in refusal(whole[:length]), length


def test_text_and_items_have_totals(tmp_path: Path, gguf_bytes: Build, gguf_pair: Build) -> None:
    path = tmp_path / "large.gguf"
    path.write_bytes(gguf_bytes([gguf_pair(f"k{i}", STRING, u64(1 << 24) + b"x" * (1 << 24)) for i in range(2)]))
    with pytest.raises(CheckpointFormatError, match="above 33554432 bytes"):
        GgufFile(path)
    half = u32(STRING) + u64(1 << 21) + bytes(8 << 21)
    path.write_bytes(gguf_bytes([gguf_pair(f"k{i}", ARRAY, half) for i in range(3)]))
    with pytest.raises(CheckpointFormatError, match="above 4194304 strings"):
        GgufFile(path)


@pytest.mark.parametrize("value", [0, 1, 4, 24, 33, (1 << 32) - 1])
def test_alignment(refusal: Callable[[bytes], str], gguf_bytes: Build, gguf_pair: Build, value: int) -> None:
    assert "power of two" in refusal(gguf_bytes([gguf_pair("general.alignment", U32, u32(value))]))


def test_alignment_of_another_type(refusal: Callable[[bytes], str], gguf_bytes: Build, gguf_pair: Build) -> None:
    assert "power of two" in refusal(gguf_bytes([gguf_pair("general.alignment", STRING, u64(2) + b"32")]))
    assert "power of two" in refusal(gguf_bytes([gguf_pair("general.alignment", U64, u64(1 << 63))]))


@pytest.mark.parametrize(
    ("pairs", "words"),
    [
        ([("count", 2, b"\2\0")], "split.no is missing"),
        ([("count", 2, b"\2\0"), ("no", 2, b"\2\0"), ("tensors.count", 5, bytes(4))], "split.no is '2'"),
        ([("count", 2, b"\2\0"), ("no", 2, b"\0\0")], "split.tensors.count is missing"),
        ([("count", 2, b"\2\0"), ("no", 2, b"\0\0"), ("tensors.count", 5, b"\xff" * 4)], "split.tensors.count is '-1'"),
        ([("count", 2, b"\2\0"), ("no", BOOL, b"\1"), ("tensors.count", 5, bytes(4))], "split.no is 'True'"),
        ([("count", 2, b"\xff\xff")], "split.count is '65535'"),
        ([("count", STRING, u64(1) + b"2")], "split.count is '2'; a part"),
        ([("count", 6, bytes(4))], "split.count is '0.0'"),
    ],
)  # fmt: skip
def test_keys_of_parts(
    refusal: Callable[[bytes], str],
    gguf_bytes: Build,
    gguf_pair: Build,
    pairs: list[tuple[str, int, bytes]],
    words: str,
) -> None:
    assert words in refusal(gguf_bytes([gguf_pair(f"split.{key}", kind, value) for key, kind, value in pairs]))


def test_tensor_names(refusal: Callable[[bytes], str], gguf_bytes: Build, gguf_tensor: Build) -> None:
    def named(name: str | bytes, offset: int = 0) -> bytes:
        return gguf_tensor(name, [1], F32, offset)

    assert "empty name" in refusal(gguf_bytes([], [named("")], bytes(4)))
    assert "claims 65 bytes" in refusal(gguf_bytes([], [named("n" * 65)], bytes(4)))
    assert "not UTF-8" in refusal(gguf_bytes([], [named(b"\xc0")], bytes(4)))
    assert "'w' is there twice" in refusal(gguf_bytes([], [named("w"), named("w", 32)], bytes(64)))


def test_tensor_shapes(refusal: Callable[[bytes], str], gguf_bytes: Build, gguf_tensor: Build) -> None:
    def shaped(*ne: int, type_id: int = F32) -> bytes:
        return gguf_bytes([], [gguf_tensor("w", ne, type_id, 0)], bytes(64))

    assert "claims 5 dimensions" in refusal(shaped(1, 1, 1, 1, 1))
    assert "below 1" in refusal(shaped(0))
    assert "below 1" in refusal(shaped(4, 0))
    assert "no multiple of 32" in refusal(shaped(16, 32, type_id=Q8_0))
    assert "no multiple of 32" in refusal(shaped(type_id=Q8_0))
    for dims in ((1 << 63,), (1 << 32, 1 << 32), (1 << 62, 4, 4, 1 << 62), ((1 << 64) - 1,) * 4):
        assert "truncated" in refusal(shaped(*dims))


def test_a_claim_of_too_many_dimensions_reads_none(refusal: Callable[[bytes], str], gguf_bytes: Build) -> None:
    entry = u64(1) + b"w" + u32(0xFFFFFFFF) + bytes(64)
    assert "claims 4294967295 dimensions" in refusal(gguf_bytes([], [entry]))


@pytest.mark.parametrize(
    ("type_id", "name"), [(23, "IQ4_XS"), (39, "MXFP4"), (4, "type 4"), (0xFFFFFFFF, "type 42949")]
)
def test_types_without_a_decoder_are_named(
    tmp_path: Path, gguf_bytes: Build, gguf_tensor: Build, type_id: int, name: str
) -> None:
    path = tmp_path / "other.gguf"
    path.write_bytes(gguf_bytes([], [gguf_tensor("blk.0.w", [256], type_id, 0)], bytes(256)))
    with pytest.raises(UnsupportedEncodingError, match=rf"'blk\.0\.w' is encoded as {name}.*Q4_K"):
        GgufFile(path)


def test_tensor_places(refusal: Callable[[bytes], str], gguf_bytes: Build, gguf_tensor: Build) -> None:
    first, data = gguf_tensor("a", [16], F32, 0), bytes(128)
    assert "no multiple of 32" in refusal(gguf_bytes([], [gguf_tensor("a", [4], F32, 8)], data))
    assert "'a' and 'b' overlap" in refusal(gguf_bytes([], [first, gguf_tensor("b", [8], F32, 32)], data))
    assert "'b' and 'a' overlap" in refusal(gguf_bytes([], [gguf_tensor("b", [1], F32, 0), first], data))
    assert "truncated" in refusal(gguf_bytes([], [first], bytes(63)))
    assert "truncated" in refusal(gguf_bytes([], [first]))
    assert "truncated" in refusal(gguf_bytes([], [gguf_tensor("a", [4], F32, (1 << 64) - 32)], data))


def test_order_in_the_data_section_is_free(tmp_path: Path, gguf_bytes: Build, gguf_tensor: Build) -> None:
    path = tmp_path / "order.gguf"
    entries = [gguf_tensor("late", [2], F32, 64), gguf_tensor("early", [2], F32, 0)]
    path.write_bytes(gguf_bytes([], entries, b"\1" * 8 + bytes(56) + b"\2" * 8))
    tensors = GgufFile(path).tensors
    assert list(tensors) == ["late", "early"]
    assert (tensors["late"].data[0], tensors["early"].data[0]) == (2, 1)


@pytest.fixture(scope="module")
def small(gguf_bytes: Build, gguf_pair: Build, gguf_tensor: Build) -> bytes:
    """A valid file with every construct: about 500 bytes."""
    words = u32(STRING) + u64(3) + u64(1) + b"a" + u64(0) + u64(4) + "日x".encode()
    pairs = [
        gguf_pair("general.architecture", STRING, u64(5) + b"llama"),
        gguf_pair("general.alignment", U32, u32(32)),
        gguf_pair("b", BOOL, b"\1"),
        gguf_pair("words", ARRAY, words),
        gguf_pair("ints", ARRAY, u32(U32) + u64(3) + bytes(12)),
        gguf_pair("bools", ARRAY, u32(BOOL) + u64(2) + b"\1\0"),
    ]
    tensors = [gguf_tensor("f", [4, 2], F32, 0), gguf_tensor("q", [32], Q8_0, 32)]
    return gguf_bytes(pairs, tensors, bytes(66))


def open_and_use(path: Path, content: bytes) -> bool:
    """Whether the file is accepted. Anything but success or a CheckpointError fails the test that calls."""
    path.write_bytes(content)
    try:
        with GgufFile(path) as file:
            for value in file.metadata.values():
                if isinstance(value, StringArray):
                    value.tolist()
            for source in file.tensors.values():
                source.data.sum()
    except CheckpointError:
        return False
    return True


def test_every_truncation_is_refused(tmp_path: Path, small: bytes) -> None:
    path = tmp_path / "cut.gguf"
    assert open_and_use(path, small)
    assert not any(open_and_use(path, small[:length]) for length in range(len(small)))


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
                st.sampled_from([b"\xff" * 8, bytes(8), u64(1 << 63), u64(1 << 31), u32(ARRAY), u32(STRING)]),
            )
        )
        damaged[at : at + len(patch)] = patch
    open_and_use(tmp_path_factory.getbasetemp() / "damaged.gguf", bytes(damaged))


@settings(max_examples=300, deadline=1000)
@given(tail=st.binary(max_size=200), counts=st.tuples(st.integers(0, 3), st.integers(0, 3)))
def test_arbitrary_bytes_after_the_counts(
    tmp_path_factory: pytest.TempPathFactory, tail: bytes, counts: tuple[int, int]
) -> None:
    content = b"GGUF" + struct.pack("<IQQ", 3, *counts) + tail
    open_and_use(tmp_path_factory.getbasetemp() / "arbitrary.gguf", content)

"""Incremental decoding is decoding, however the tokens are split."""

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poot_models.checkpoint import GgufFile
from poot_models.text import Detokenizer, Tokenizer
from poot_models.text.from_gguf import gguf_tokenizer

DATA = Path(__file__).parents[1] / "data" / "vocab"


@pytest.fixture(scope="module", params=["gpt-2", "llama-spm", "llama-bpe", "phi-3", "bert-bge"])
def any_tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return gguf_tokenizer(GgufFile(DATA / f"ggml-vocab-{request.param}.gguf").metadata)


@pytest.fixture(scope="module", params=["gpt-2", "llama-spm"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return gguf_tokenizer(GgufFile(DATA / f"ggml-vocab-{request.param}.gguf").metadata)


@pytest.fixture(scope="module")
def single_bytes(tokenizer: Tokenizer) -> dict[int, int]:
    """Each byte -> the first token of that byte alone."""
    tokens = [(tokenizer.token_bytes(id), id) for id in range(tokenizer.vocab_size)]
    return {data[0]: id for data, id in reversed(tokens) if len(data) == 1}


def pushed(detokenizer: Detokenizer, ids: list[int], cuts: list[int]) -> list[str]:
    edges = sorted({0, len(ids), *(cut % (len(ids) + 1) for cut in cuts)})
    return [detokenizer.push(ids[start:end]) for start, end in pairwise(edges)]


# The first few hundred ids hold the single bytes and the control tokens of both vocabularies.
IDS = st.lists(st.one_of(st.integers(0, 31_999), st.integers(0, 300), st.just(50256)), max_size=20)
CUTS = st.lists(st.integers(0, 100), max_size=6)


@given(ids=IDS, cuts=CUTS, skip_special=st.booleans())
@settings(max_examples=300, deadline=None)
def test_any_split_gives_the_decoded_text(
    any_tokenizer: Tokenizer, ids: list[int], cuts: list[int], skip_special: bool
) -> None:
    whole = any_tokenizer.decode(ids, skip_special=skip_special)
    for edges in (cuts, range(len(ids))):  # in groups, and one by one
        detokenizer = Detokenizer(any_tokenizer, skip_special=skip_special)
        parts = pushed(detokenizer, ids, list(edges))
        assert "".join(parts) + detokenizer.finish() == whole


# Bytes that begin, continue and break characters: of two, three and four bytes, too long, a surrogate, beyond Unicode.
BYTES = st.lists(st.sampled_from([0x41, 0x20, 0x80, 0xBF, 0xC0, 0xC3, 0xE0, 0xA0, 0xED, 0xF0, 0x9F, 0xF4, 0x90, 0xFF]))


@given(data=BYTES, cuts=CUTS)
@settings(max_examples=300, deadline=None)
def test_bytes_that_are_no_text_are_replaced_alike(
    tokenizer: Tokenizer, single_bytes: dict[int, int], data: list[int], cuts: list[int]
) -> None:
    ids = [single_bytes[byte] for byte in data]
    detokenizer = Detokenizer(tokenizer, continues=True)
    parts = pushed(detokenizer, ids, cuts)
    assert "".join(parts) + detokenizer.finish() == bytes(data).decode("utf-8", "replace")
    assert tokenizer.decode(ids) == bytes(data).decode("utf-8", "replace").removeprefix(" " * tokenizer.strip_space)


@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=30), cuts=CUTS)
@settings(max_examples=200, deadline=None)
def test_whole_characters_are_never_replaced(tokenizer: Tokenizer, text: str, cuts: list[int]) -> None:
    text = text.replace("\u2581", "_")
    ids = tokenizer.encode(text, add_special=False)
    detokenizer = Detokenizer(tokenizer)
    so_far = ""
    for part in pushed(detokenizer, ids, cuts):
        so_far += part
        assert text.startswith(so_far)
    assert detokenizer.finish() == ""
    assert so_far == text


@pytest.mark.parametrize("text", ["👨‍👩‍👧‍👦", "ประเทศไทย", "我想在apple工作", "\U0001f999é"])
def test_one_token_at_a_time(tokenizer: Tokenizer, text: str) -> None:
    detokenizer = Detokenizer(tokenizer)
    parts = [detokenizer.push([id]) for id in tokenizer.encode(text)]
    assert "" in parts  # some character took more than one token
    assert "".join(parts) == text


def test_an_unfinished_character_is_held_back_and_then_replaced() -> None:
    tokenizer = gguf_tokenizer(GgufFile(DATA / "ggml-vocab-llama-spm.gguf").metadata)
    first, second = 3 + 0xF0, 3 + 0x9F  # byte tokens
    detokenizer = Detokenizer(tokenizer)
    assert detokenizer.push([first, second]) == ""
    assert detokenizer.push([]) == ""
    assert detokenizer.finish() == "\ufffd"
    detokenizer = Detokenizer(tokenizer)
    assert detokenizer.push([first, second]) == ""
    (letter,) = (id for id in range(tokenizer.vocab_size) if tokenizer.token_bytes(id) == b"x" and id > 258)
    assert detokenizer.push([letter]) == "\ufffdx"


def test_a_continued_text_keeps_its_first_space() -> None:
    tokenizer = gguf_tokenizer(GgufFile(DATA / "ggml-vocab-llama-spm.gguf").metadata)
    (hello,) = tokenizer.encode("Hello", add_special=False)
    assert Detokenizer(tokenizer).push([hello]) == "Hello"
    assert Detokenizer(tokenizer, continues=True).push([hello]) == " Hello"
    detokenizer = Detokenizer(tokenizer)
    assert [detokenizer.push(ids) for ids in ([1], [hello], [hello])] == ["", "Hello", " Hello"]


def test_ids_outside_the_vocabulary_have_no_text(tokenizer: Tokenizer) -> None:
    detokenizer = Detokenizer(tokenizer)
    assert detokenizer.push([10**9, -1, tokenizer.vocab_size]) == ""
    assert detokenizer.finish() == ""

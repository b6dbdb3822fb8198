"""Tokenizers from GGUF keys: what is refused, and what a small vocabulary means."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poot_models.errors import InvalidTextError, TextError, TokenizerError
from poot_models.text import Tokenizer
from poot_models.text.from_gguf import gguf_tokenizer
from poot_models.text.vocabulary import UNBOUNDED

Metadata = dict[str, Any]


def byte_level(**changes: Any) -> Metadata:
    """Every letter alone, "ab", a control token, an end that no key names, and a token of the user's own."""
    texts = [*"abcdefghijklmnopqrstuvwxyz", "\u0120", "ab", "<s>", "<|im_end|>", "<think>", ""]
    kinds = [1] * 28 + [3, 3, 4, 1]
    metadata: Metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": texts,
        "tokenizer.ggml.token_type": np.array(kinds, np.int32),
        "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.bos_token_id": 28,
    }
    return changed(metadata, changes)


def sentencepiece(**changes: Any) -> Metadata:
    texts = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581", "a", "b", "\u2581a", "ab"]
    metadata: Metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": texts,
        "tokenizer.ggml.token_type": np.array([2, 3, 3] + [6] * 256 + [1] * 5, np.int32),
        "tokenizer.ggml.scores": np.array([0.0] * 259 + [-3, -4, -5, -2, -1], np.float32),
    }
    return changed(metadata, changes)


def changed(metadata: Metadata, changes: Metadata) -> Metadata:
    for name, value in changes.items():
        metadata[f"tokenizer.ggml.{name}"] = value
    return {key: value for key, value in metadata.items() if value is not None}


def test_byte_level() -> None:
    tokenizer = gguf_tokenizer(byte_level())
    assert tokenizer.encode("ab ba") == [27, 26, 1, 0]
    assert tokenizer.encode("<think>a") == [30, 0]  # the user's own tokens are found in any text
    assert (tokenizer.add_bos, tokenizer.eos_id, tokenizer.eog_ids) == (False, None, {29})
    assert tokenizer.token_bytes(26) == b" "
    assert (tokenizer.token_text(28), tokenizer.token_text(31)) == ("<s>", "[EMPTY_31]")
    assert gguf_tokenizer(byte_level(add_bos_token=True)).encode("a") == [28, 0]
    assert gguf_tokenizer(byte_level(eos_token_id=29, add_eos_token=True)).encode("a") == [0, 29]


def test_sentencepiece() -> None:
    tokenizer = gguf_tokenizer(sentencepiece())
    assert tokenizer.encode("ab") == [1, 259, 263]  # "ab" scores above "▁a"
    assert tokenizer.encode("a") == [1, 262]
    assert tokenizer.encode("é", add_special=False) == [259, 3 + 0xC3, 3 + 0xA9]
    assert tokenizer.token_bytes(3 + 0xC3) == b"\xc3"
    assert tokenizer.token_text(3 + 0xC3) == "\ufffd"
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.eog_ids) == (1, 2, {2})
    bare = gguf_tokenizer(sentencepiece(add_space_prefix=False, add_bos_token=False))
    assert bare.encode("a") == [260]
    assert bare.decode([262]) == " a"
    assert tokenizer.decode([262]) == "a"
    assert tokenizer.decode([1, 262, 262]) == "a a"


def test_a_piece_joined_from_plain_text_is_never_a_control_token() -> None:
    metadata = sentencepiece()
    metadata["tokenizer.ggml.token_type"][263] = 3  # "ab" is now a control token
    tokenizer = gguf_tokenizer(metadata)
    assert 263 not in tokenizer.encode("ab")
    assert tokenizer.encode("ab", parse_special=True) == [1, 263]


def test_a_control_token_that_merges_make_is_not_made_of_plain_text() -> None:
    # "ab" is a control token, and so is the letter "z", and "cab" goes through "ab".
    texts = [*byte_level()["tokenizer.ggml.tokens"], "cab"]
    kinds = np.array([*byte_level()["tokenizer.ggml.token_type"].tolist(), 1], np.int32)
    kinds[[25, 26, 27]] = 1, 1, 3
    tokenizer = gguf_tokenizer(byte_level(tokens=texts, token_type=kinds, merges=["a b", "c ab"]))
    assert tokenizer.encode("cab") == [2, 0, 1]
    assert tokenizer.encode("cab", parse_special=True) == [2, 27]
    assert tokenizer.encode("ab" + tokenizer.guard("ab"), parse_special=True) == [27, 0, 1]
    # A name of one character cannot be guarded, and so is never found.
    kinds[25] = 3
    tokenizer = gguf_tokenizer(byte_level(tokens=texts, token_type=kinds, merges=["a b", "c ab"]))
    assert 25 not in tokenizer.encode("az") + tokenizer.encode("az", parse_special=True)


def test_gemma_4() -> None:
    # BPE with merges, but visible spaces and byte tokens, and a BOS.
    texts = [
        "<pad>",
        "<eos>",
        "<bos>",
        *(f"<0x{byte:02X}>" for byte in range(256)),
        "\u2581",
        "a",
        "b",
        "\u2581a",
        "\n",
        "\n\n",
    ]
    metadata: Metadata = {
        "tokenizer.ggml.model": "gemma4",
        "tokenizer.ggml.tokens": texts,
        "tokenizer.ggml.token_type": np.array([3] * 3 + [6] * 256 + [1] * 6, np.int32),
        "tokenizer.ggml.merges": ["\u2581 a"],
        "tokenizer.ggml.bos_token_id": 2,
    }
    no_bos = {"tokenizer.ggml.add_bos_token": False}  # as files of Gemma 4 say
    tokenizer = gguf_tokenizer(metadata)
    assert tokenizer.encode("b a") == [2, 261, 262] == gguf_tokenizer(metadata | no_bos).encode("b a")
    assert tokenizer.encode("\n\na", add_special=False) == [264, 260]  # a run of newlines that is a token
    assert tokenizer.encode("\n\n\n", add_special=False) == [264, 263]
    assert tokenizer.encode("\u00e9<0x41>", add_special=False)[:2] == [3 + 0xC3, 3 + 0xA9]
    for text in ("", " a\n\n b", "\u00e9\U0001f999\0", "<0x41>", "<eos>"):
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert (tokenizer.longest, tokenizer.eog_ids) == (5, {1})


def test_how_many_characters_one_token_may_stand_for() -> None:
    assert gguf_tokenizer(byte_level()).longest == UNBOUNDED  # it leaves out bytes that it has no token for
    assert gguf_tokenizer(sentencepiece()).longest == 5  # "<unk>"
    kinds = sentencepiece()["tokenizer.ggml.token_type"]
    kinds[3] = 1
    assert gguf_tokenizer(sentencepiece(token_type=kinds)).longest == UNBOUNDED


def test_html_text_that_looks_like_an_end_is_not_one() -> None:
    kinds = byte_level()["tokenizer.ggml.token_type"]
    kinds[28] = 4
    texts = byte_level()["tokenizer.ggml.tokens"]
    texts[28] = "</s>"
    tokenizer = gguf_tokenizer(byte_level(tokens=texts, token_type=kinds))
    assert tokenizer.eog_ids == {29}
    assert tokenizer.encode("</s>") == [28]


def test_ids_outside_the_vocabulary() -> None:
    tokenizer = gguf_tokenizer(byte_level())
    assert tokenizer.decode([0, 32, 10**9, -1, 1]) == "ab"
    for id in (-1, 32):
        assert not tokenizer.is_special(id)
        with pytest.raises(TokenizerError, match="outside the vocabulary of 32"):
            tokenizer.token_bytes(id)


@pytest.mark.parametrize("text", ["\ud800", "ok \udfff", "\udc80\ud800"])
@pytest.mark.parametrize("parse_special", [False, True])
def test_a_lone_surrogate_is_the_clients_mistake(text: str, parse_special: bool) -> None:
    with pytest.raises(InvalidTextError, match="lone surrogate, U\\+D"):
        gguf_tokenizer(byte_level()).encode(text, parse_special=parse_special)


REFUSED: list[tuple[Callable[..., Metadata], Metadata, str]] = [
    (byte_level, {"model": None}, "has no tokenizer"),
    *((byte_level, {"model": kind}, f"'{kind}'") for kind in ("rwkv", "plamo2", "of-my-own")),
    (byte_level, {"pre": "of-my-own"}, "'of-my-own', which poot does not know"),
    (byte_level, {"pre": 7}, "not a string"),
    (byte_level, {"tokens": None}, "has no tokenizer.ggml.tokens"),
    (byte_level, {"tokens": []}, "is empty"),
    (byte_level, {"tokens": np.zeros(32)}, "not an array of strings"),
    (byte_level, {"tokens": "abc"}, "not an array of strings"),
    (byte_level, {"tokens": ["a", "b", "a"]}, "'a' twice"),
    (byte_level, {"token_type": np.ones(31, np.int32)}, "31 numbers for 32 tokens"),
    (byte_level, {"token_type": "normal"}, "not an array of numbers"),
    (byte_level, {"merges": None}, "has no tokenizer.ggml.merges"),
    (byte_level, {"merges": ["ab"]}, "'ab', which is not two tokens"),
    (byte_level, {"merges": ["a b c"]}, "not two tokens"),
    (byte_level, {"merges": ["b a"]}, "does not fit"),
    (byte_level, {"add_bos_token": "yes"}, "not true or false"),
    (byte_level, {"tokens": ["x" * (1 << 25), "y"]}, "characters; the most is"),
    (sentencepiece, {"scores": None}, "scores is missing"),
    (sentencepiece, {"scores": np.full(264, np.nan, np.float32)}, "not finite"),
    (sentencepiece, {"add_space_prefix": 1}, "not true or false"),
]


@pytest.mark.parametrize(("build", "changes", "message"), REFUSED)
def test_refused(build: Callable[..., Metadata], changes: Metadata, message: str) -> None:
    with pytest.raises(TokenizerError, match=message):
        gguf_tokenizer(build(**changes))


def test_refused_pieces() -> None:
    metadata = sentencepiece()
    metadata["tokenizer.ggml.tokens"][3] = "<0xZZ>"
    with pytest.raises(TokenizerError, match="byte token"):
        gguf_tokenizer(metadata)
    metadata = sentencepiece()
    metadata["tokenizer.ggml.tokens"][263] = "a" * 257
    with pytest.raises(TokenizerError, match="257 characters"):
        gguf_tokenizer(metadata)
    many = [f"{id:0256}" for id in range(1 << 15)] + ["one more"]
    plain = {"token_type": np.ones(len(many), np.int32), "scores": np.zeros(len(many), np.float32)}
    with pytest.raises(TokenizerError, match="8388616 characters"):
        gguf_tokenizer(sentencepiece(tokens=many, **plain))


def test_a_bad_special_id_counts_as_missing() -> None:
    for bad in (-1, 32, 2**40, "28", True):
        assert gguf_tokenizer(byte_level(bos_token_id=bad, add_bos_token=True)).encode("a") == [0]
        assert gguf_tokenizer(sentencepiece(eos_token_id=bad if bad != 32 else 264)).eos_id == 2


ANY_VALUE = st.one_of(
    st.none(), st.booleans(), st.integers(), st.text(max_size=4), st.lists(st.text(max_size=3), max_size=5),
    st.integers(0, 40).map(lambda size: np.arange(size, dtype=np.int32)),
)  # fmt: skip


@given(
    build=st.sampled_from([byte_level, sentencepiece]),
    changes=st.dictionaries(
        st.sampled_from(["model", "pre", "tokens", "token_type", "merges", "scores", "bos_token_id", "add_bos_token"]),
        ANY_VALUE,
        max_size=3,
    ),
)
@settings(max_examples=150, deadline=None)
def test_any_metadata_builds_or_is_refused(build: Callable[..., Metadata], changes: Metadata) -> None:
    try:
        tokenizer = gguf_tokenizer(build(**changes))
    except TextError:
        return
    assert isinstance(tokenizer, Tokenizer)
    tokenizer.decode(tokenizer.encode("ab <think>"))

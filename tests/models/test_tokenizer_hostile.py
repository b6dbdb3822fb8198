"""Files that nobody would write and texts that nobody would send, but to do harm."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Library

from poot_models.checkpoint import GgufFile
from poot_models.errors import TokenizerError
from poot_models.text import Tokenizer
from poot_models.text.cuts import cuts_into_known
from poot_models.text.from_gguf import gguf_tokenizer
from poot_models.text.from_json import json_tokenizer

DATA = Path(__file__).parents[1] / "data" / "vocab"
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
Metadata = dict[str, Any]


def metadata(kind: str, texts: list[str], kinds: list[int] | None = None, **more: Any) -> Metadata:
    keys: Metadata = {
        "model": kind,
        "pre": "gpt-2",
        "tokens": texts,
        "token_type": np.array(kinds or [1] * len(texts), np.int32),
        "scores": np.arange(len(texts), dtype=np.float32),
        "merges": [],
        "unknown_token_id": 0,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in (keys | more).items() if value is not None}


KINDS = ["gpt2", "gemma4", "llama", "t5", "bert"]


@pytest.mark.parametrize("kind", KINDS)
def test_two_tokens_of_one_text_are_refused(kind: str) -> None:
    with pytest.raises(TokenizerError, match="'a' twice"):
        gguf_tokenizer(metadata(kind, ["a", "b", "a"]))


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_without_a_text_have_a_name(kind: str) -> None:
    tokenizer = gguf_tokenizer(metadata(kind, ["<unk>", "", "a", ""]))
    assert [tokenizer.token_text(id).strip() for id in (1, 3)] == ["[EMPTY_1]", "[EMPTY_3]"]
    with pytest.raises(TokenizerError, match="twice"):
        gguf_tokenizer(metadata(kind, ["[EMPTY_1]", ""]))


@pytest.mark.parametrize("kind", ["gpt2", "gemma4"])
@pytest.mark.parametrize("merge", ["a x", "x a", "b a", "a  b", " ab", "ab "])
def test_merges_of_what_is_no_token_are_refused(kind: str, merge: str) -> None:
    with pytest.raises(TokenizerError, match="merges"):
        gguf_tokenizer(metadata(kind, ["a", "b", "ab"], merges=[merge]))


@pytest.mark.parametrize("kind", ["llama", "t5"])
@pytest.mark.parametrize("score", [np.nan, np.inf, -np.inf])
def test_scores_that_are_no_numbers_are_refused(kind: str, score: float) -> None:
    with pytest.raises(TokenizerError, match="not finite"):
        gguf_tokenizer(metadata(kind, ["<unk>", "a"], scores=np.array([0, score], np.float32)))


@pytest.mark.parametrize("kind", ["llama", "t5"])
def test_scores_at_the_edge_of_numbers_are_taken(kind: str) -> None:
    most = float(np.finfo(np.float32).max)
    scores = np.array([0, most, -most, most], np.float32)
    tokenizer = gguf_tokenizer(metadata(kind, ["<unk>", "a", "\u2581", "ab"], scores=scores, add_space_prefix=False))
    assert tokenizer.encode("aa a", add_special=False) == [1, 1, 2, 1]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("id", [2**31, 2**31 - 1, 2**32 - 1, 2**63, -1])
def test_huge_ids_count_as_missing(kind: str, id: int) -> None:
    names = ("bos", "eos", "eot", "eom", "seperator", "cls", "fim_pad")
    more = {f"{name}_token_id": id for name in names}
    tokenizer = gguf_tokenizer(metadata(kind, ["[UNK]", "a", "b"], add_bos_token=True, add_eos_token=True, **more))
    assert set(tokenizer.encode("a")) <= {0, 1, 2}
    assert tokenizer.decode([id, 10**30, -(10**30)]) == ""


def test_a_huge_token_is_a_token() -> None:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = gguf_tokenizer(metadata("gpt2", [*alphabet, "b" * (1 << 20)], pre="llama-bpe"))
    assert tokenizer.longest == 1 << 20
    assert tokenizer.encode("b" * (1 << 20), add_special=False) == [256]
    assert len(tokenizer.encode("b" * 1000, add_special=False)) == 1000


@pytest.mark.parametrize("kind", [3, 4])
def test_control_and_added_tokens_longer_than_any_real_ones_are_refused(kind: int) -> None:
    assert gguf_tokenizer(metadata("gpt2", ["a", "b" * 1024], [1, kind])).vocab_size == 2
    with pytest.raises(
        TokenizerError, match="token 1 is a control or added token of 1025 characters; the most is 1024"
    ):
        gguf_tokenizer(metadata("gpt2", ["a", "b" * 1025], [1, kind]))
    many = [f"{n:0>1024}" for n in range(1025)]
    with pytest.raises(TokenizerError, match="have 1049600 characters in all; the most is 1048576"):
        gguf_tokenizer(metadata("gpt2", ["a", *many], [1] + [kind] * 1025))


@pytest.mark.parametrize("special", [3, 4])
def test_of_added_tokens_that_overlap_the_first_and_longest_is_found(special: int) -> None:
    texts = ["a", "b", "c", "<ab", "b>c", "<ab>", "<"]
    tokenizer = gguf_tokenizer(metadata("gpt2", texts, [1, 1, 1, *[special] * 3, 1]))
    assert tokenizer.encode("<ab>c", parse_special=True) == [5, 2]
    assert tokenizer.encode("<ab>cb>c", parse_special=True) == [5, 2, 4]
    assert tokenizer.encode("a<abb>c", parse_special=True) == [0, 3, 4]
    said = tokenizer.guard("<ab>c b>c")
    assert not any(tokenizer.is_special(id) for id in tokenizer.encode(said, parse_special=True))


def test_control_tokens_in_control_tokens_are_guarded() -> None:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    names = ["<<x>>", "<x>", "x>", "<<", ">>"]
    tokenizer = gguf_tokenizer(metadata("gpt2", [*alphabet, *names], [1] * 256 + [3] * 5))

    @given(text=st.lists(st.sampled_from([*names, "<", ">", "x", "\ufdd0", " "]), max_size=12).map("".join))
    @settings(max_examples=300, deadline=None)
    def check(text: str) -> None:
        ids = tokenizer.encode(tokenizer.guard(text), parse_special=True)
        assert tokenizer.decode(ids, skip_special=False) == text.replace("\ufdd0", "")
        assert max(ids, default=0) < 256

    check()


def test_added_tokens_of_tokenizer_json(tmp_path: Path) -> None:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    library = Library(models.BPE({char: id for id, char in enumerate(alphabet)}, []))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    library.add_tokens([AddedToken(name, special=True, normalized=False) for name in ("<a", "<ab>", "b>")])
    state = json.loads(library.to_str())
    for id, content in ((2**31, "<far>"), (2**32 - 1, "<end>"), (256, "<again>"), (300, "")):
        state["added_tokens"].append({**state["added_tokens"][0], "id": id, "content": content})
    (tmp_path / "tokenizer.json").write_text(json.dumps(state))
    try:
        tokenizer = json_tokenizer(tmp_path, {})
    except TokenizerError:
        return
    # The library numbers added tokens itself.
    assert tokenizer.vocab_size < 300
    assert tokenizer.decode(tokenizer.encode("<ab><a<far>", parse_special=True), skip_special=False) == "<ab><a<far>"


@st.composite
def joined(draw: st.DrawFn) -> tuple[list[str], list[str], list[int], list[int]]:
    """(tokens, the merges that make them, their types, ids in an order of their own)."""
    texts, merges = ["a", "b", "c"], []
    for _ in range(draw(st.integers(1, 12))):
        left, right = draw(st.sampled_from(texts)), draw(st.sampled_from(texts))
        if left + right not in texts:
            texts.append(left + right)
        merges.append(f"{left} {right}")
    kinds = draw(st.lists(st.sampled_from([1, 1, 3]), min_size=len(texts), max_size=len(texts)))
    return texts, list(dict.fromkeys(merges)), kinds, draw(st.permutations(range(len(texts))))


@pytest.mark.parametrize("kind", ["gpt2", "gemma4", "llama", "t5"])
@given(made=joined(), text=st.text("abc", max_size=30))
@settings(max_examples=150, deadline=None)
def test_no_merges_make_a_control_token_of_plain_text(
    kind: str, made: tuple[list[str], list[str], list[int], list[int]], text: str
) -> None:
    texts, merges, kinds, ranks = made
    more = {"pre": "llama-bpe"} if kind == "gpt2" else {"add_space_prefix": False}
    scores = np.array([-3.0, *(-rank for rank in ranks)], np.float32)
    tokenizer = gguf_tokenizer(metadata(kind, ["<unk>", *texts], [2, *kinds], scores=scores, merges=merges, **more))
    special = {id for id in range(tokenizer.vocab_size) if tokenizer.is_special(id)} - {0}
    assert special.isdisjoint(tokenizer.encode(text, add_special=False))
    long = [tokenizer.token_text(id) for id in special if len(tokenizer.token_text(id)) > 1]
    said = tokenizer.guard(text)
    assert special.isdisjoint(tokenizer.encode(said, add_special=False, parse_special=True))
    for name in long:
        assert special & set(tokenizer.encode(name, add_special=False, parse_special=True))


@given(
    texts=st.lists(st.text("ab\u2581\u4e2d\U0001f999", min_size=1, max_size=6), unique=True, max_size=30),
)
@settings(max_examples=200, deadline=None)
def test_cuts_are_those_of_a_search(texts: list[str]) -> None:
    expected = [
        (text[:cut], text[cut:])
        for text in texts
        for cut in range(len(text) - 1, 0, -1)
        if text[:cut] in texts and text[cut:] in texts
    ]
    lefts, rights = cuts_into_known(texts)
    assert [(texts[left], texts[right]) for left, right in zip(lefts, rights, strict=True)] == expected


@pytest.mark.parametrize("name", ["llama-spm", "llama-bpe"])
def test_cuts_of_a_real_vocabulary(name: str) -> None:
    texts = GgufFile(DATA / f"ggml-vocab-{name}.gguf").metadata["tokenizer.ggml.tokens"].tolist()
    known = set(texts)
    lefts, rights = cuts_into_known(texts)
    count = sum(text[:cut] in known and text[cut:] in known for text in texts for cut in range(1, len(text)))
    assert len(lefts) == count
    assert all(texts[left] + texts[right] in known for left, right in zip(lefts, rights, strict=True))


TEXTS: dict[str, Callable[[int], str]] = {
    "one letter": lambda size: "a" * size,
    "spaces": lambda size: " " * size + "1",
    "no spaces": lambda size: "".join(chr(97 + (n * n * 7919 + n // 3) % 26) for n in range(size)),
    "marks": lambda size: "a" + "\u0301" * size,
    "openings": lambda size: "<" * size,
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
@pytest.mark.parametrize("name", ["bert-bge", "gpt-2", "llama-spm", "unigram-rules", "unigram-bytes"])
def test_long_texts_take_a_time_that_goes_with_their_length(name: str, text: Callable[[int], str]) -> None:
    tokenizer = known_vocabulary(name)
    long = text(200_000)
    began = time.process_time()
    tokenizer.encode(long)
    tokenizer.encode(tokenizer.guard(long), parse_special=True)
    assert time.process_time() - began < 10  # with the square of the length it would be minutes


def known_vocabulary(name: str) -> Tokenizer:
    path = DATA / f"ggml-vocab-{name}.gguf"
    if path.exists():
        return gguf_tokenizer(GgufFile(path).metadata)
    state = json.loads((DATA / f"sentencepiece-{name}.json").read_text("utf-8"))
    scores = np.array(state["scores"], np.float32)
    return gguf_tokenizer(
        metadata("t5", state["tokens"], state["types"], scores=scores, unknown_token_id=state["unknown"])
    )

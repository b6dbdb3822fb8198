"""Where text is cut before BPE, for every name that a GGUF file may give."""

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, pre_tokenizers
from tokenizers.pre_tokenizers import ByteLevel, Digits, PreTokenizer, Split
from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS

from poot_models.text import Tokenizer
from poot_models.text.from_gguf import gguf_tokenizer
from poot_models.text.pretokenizers import KNOWN, pretokenizer

# Kimi K2's pattern as its tokenization_kimi.py joins it.
KIMI_K2 = "|".join(
    [
        r"[\p{Han}]+",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*"
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    ]
)
# Characters that the patterns tell apart, often enough that runs of one kind come up.
CHARACTERS = (
    "aZ19 \t\r\n'sTlLvEmMdD.,!?/$^`|(_"
    "\u00e9\u01c5\u02b0\u0391\u0301\u4e00\u9fa5\u3042\u30a2\uac00\u3131\u0e01\u0966\u00b2\u216b"
    "\u00a0\u3000\u2026\u3002\uff0c\u0964\U0001f600\U00010400"
)
WORDS = ["don't", "I'LL", "1234567", "12", " ", "  ", "\n\n", "\r\n", "HelloWorld", "ab", "\u4e2d\u6587", "...", "x/"]
TEXTS = st.one_of(
    st.text(CHARACTERS, max_size=40),
    st.text(max_size=20),
    st.lists(st.sampled_from(WORDS), max_size=12).map("".join),
)


def split(*patterns: str) -> PreTokenizer:
    return pre_tokenizers.Sequence([Split(Regex(pattern), "isolated") for pattern in patterns])


def pieces(cut: PreTokenizer, text: str) -> list[str]:
    return [piece for piece, _ in cut.pre_tokenize_str(text)]


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        # Worked out by hand from each model's pattern.
        ("gpt-2", "it's 123  x", ["it", "'s", " 123", " ", " x"]),
        ("smollm", "it's 123  x", ["it", "'s", " ", "1", "2", "3", " ", " x"]),
        ("llama-bpe", "IT'S 12345\n\n x", ["IT", "'S", " ", "123", "45", "\n\n", " x"]),
        ("qwen2", "IT'S 12\n\n x", ["IT", "'S", " ", "1", "2", "\n\n", " x"]),
        ("qwen35", "e\u0301a .\u0301", ["e\u0301a", " .", "\u0301"]),
        ("deepseek-v3", "$abc 12345", ["$abc", " ", "123", "45"]),
        ("spark2_5", "a.\n\nb", ["a", ".", "\n", "\n", "b"]),
        ("tekken", "HelloWorld/\nx", ["Hello", "World", "/\n", "x"]),
        ("gpt-4o", "don't 1234", ["don't", " ", "123", "4"]),
        ("kimi-k2", "ab\u4e2d\u6587Cd'll.", ["ab", "\u4e2d\u6587", "Cd'll", "."]),
        ("tiny_aya", "1234567 89a", ["1", "234", "567", " ", "89", "a"]),
        ("tiny_aya", "1234a", ["123", "4", "a"]),
        ("youtu", "a\uac00\uac01\u4e2d12", ["a", "\uac00\uac01", "\u4e2d", "1", "2"]),
        ("jais-2", "a" + " " * 7 + "b", ["a", "    ", "  ", " b"]),
        ("minicpm5", "it's  1234", ["it", "'s", "  ", "123", "4"]),
        ("bailingmoe", "it's 12.\n", ["it", "'s", " ", "1", "2", ".\n"]),
        ("exaone-moe", "a b cd 12./", ["a b cd", " ", "1", "2", "./"]),
        ("ufakzeka", "Ali'den 12", ["Ali", "'den", " ", "1", "2"]),
        ("laguna", "a. \n \nb", ["a", ".", " ", "\n", " ", "\n", "b"]),
        ("bloom", "a b, 12", ["a", " b", ",", " 12"]),
        ("viking", "a b, 12", ["a", " b", ",", " ", "1", "2"]),
        ("seed-coder", "a.\n1", ["a", ".", "\n", "1"]),
        ("falcon", "a1234`b", ["a", "123", "4", "`", "b"]),
        ("", "a...b", ["a", "...", "b"]),
        ("deepseek-llm", "a   \n  ", ["a", "   ", "\n", "  "]),
        ("superbpe", "1234567 12 345\u00b2", ["1", "234", "567", " ", "12", " ", "345\u00b2"]),
        ("afmoe", "1234567 ab\u4e2d 12", ["1", "234", "567", " ab", "\u4e2d", " ", "12"]),
        ("chameleon", "a  b IMGIMGABZ 12", ["a", "  ", "b", " ", "IMGIMGABZ", " ", "1", "2"]),
        ("gemma4", "a b\n\n\nc", ["a b", "\n\n\n", "c"]),
        ("sarvam-moe", "a b\nc", ["a b", "\n", "c"]),
        ("granite-embed-multi-97m", "don't 1234", ["don't", " ", "123", "4"]),
    ],
)
def test_pieces(name: str, text: str, expected: list[str]) -> None:
    assert pieces(split(*pretokenizer(name).patterns), text) == expected


PUBLISHED = {name: (GGUF_PRE_TOKENIZER_SPLITS[name],) for name in set(KNOWN) & set(GGUF_PRE_TOKENIZER_SPLITS)} | {
    "kimi-k2": (KIMI_K2,),
    "tiny_aya": (r"\d{1,3}(?=(?:\d{3})*\b)", GGUF_PRE_TOKENIZER_SPLITS["gpt-4o"]),
    # The models' own patterns, which take a time that goes with the square of some texts.
    "deepseek-llm": tuple(r"\s+$" if part.endswith(r"\z") else part for part in pretokenizer("deepseek-llm").patterns),
    "jais-2": tuple(part.replace(r"(?<![^\S\r\n])", "") for part in pretokenizer("jais-2").patterns),
    "superbpe": (r"\p{N}+", r"(?=(\d{3})+(?!\d))"),
}


def test_families_have_a_published_pattern() -> None:
    # Llama 3; Phi-4 and OLMo 2; SmolLM3; Mistral 3; Qwen2 and Qwen3; Phi-4 mini
    assert {"llama-bpe", "dbrx", "smaug-bpe", "tekken", "qwen2", "gpt-4o"} <= set(PUBLISHED)


@pytest.mark.parametrize("name", sorted(PUBLISHED))
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_pieces_are_those_of_the_published_pattern(name: str, data: st.DataObject) -> None:
    text = data.draw(TEXTS)
    assert pieces(split(*pretokenizer(name).patterns), text) == pieces(split(*PUBLISHED[name]), text)


@pytest.mark.parametrize(
    ("name", "library"),
    [
        ("gpt-2", ByteLevel(add_prefix_space=False)),
        ("olmo", ByteLevel(add_prefix_space=False)),
        # SmolLM2; Granite 3; StarCoder2
        *(
            (name, pre_tokenizers.Sequence([Digits(individual_digits=True), ByteLevel(add_prefix_space=False)]))
            for name in ("smollm", "refact", "starcoder")
        ),
    ],
)
@given(data=st.data())
@settings(max_examples=100, deadline=None)
def test_pieces_are_those_of_the_library(name: str, library: PreTokenizer, data: st.DataObject) -> None:
    text = data.draw(TEXTS)
    ours = pre_tokenizers.Sequence(
        [split(*pretokenizer(name).patterns), ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    assert pieces(ours, text) == pieces(library, text)


def byte_vocabulary(name: str) -> Tokenizer:
    """Every byte alone, a few merges, and "abc", which no merges make."""
    if not pretokenizer(name).byte_level:
        return visible_vocabulary(name)
    texts = [*sorted(ByteLevel.alphabet()), "ab", "\u0120a", "\u0120\u0120", "12", "\u00e4\u00b8", "abc"]
    metadata: dict[str, Any] = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": name,
        "tokenizer.ggml.tokens": texts,
        "tokenizer.ggml.token_type": np.ones(len(texts), np.int32),
        "tokenizer.ggml.merges": ["a b", "\u0120 a", "\u0120 \u0120", "1 2", "\u00e4 \u00b8"],
    }
    return gguf_tokenizer(metadata)


def visible_vocabulary(name: str) -> Tokenizer:
    """The same with SentencePiece's visible space and byte tokens."""
    texts = [*(f"<0x{byte:02X}>" for byte in range(256)), "a", "b", "\u2581", "ab", "\u2581a", "\n", "\n\n"]
    metadata: dict[str, Any] = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": name,
        "tokenizer.ggml.tokens": texts,
        "tokenizer.ggml.token_type": np.array([6] * 256 + [1] * 7, np.int32),
        "tokenizer.ggml.merges": ["a b", "\u2581 a"],
        "tokenizer.ggml.bos_token_id": 0,
    }
    return gguf_tokenizer(metadata)


@pytest.mark.parametrize("name", KNOWN)
def test_what_is_encoded_decodes_to_itself(name: str) -> None:
    tokenizer = byte_vocabulary(name)

    @given(TEXTS)
    @settings(max_examples=25, deadline=None)
    def check(text: str) -> None:
        assert tokenizer.decode(tokenizer.encode(text, add_special=False)) == text

    check()


@pytest.mark.parametrize(
    ("name", "whole"),
    [
        # Whether a piece that is a token stays whole though no merges make it: as llama_vocab::impl::load says, but for
        # smaug-bpe, which is Llama 3's vocabulary.
        ("llama-bpe", True),
        ("smaug-bpe", True),
        ("tekken", True),
        ("glm4", True),
        ("glm5", True),
        ("youtu", True),
        ("minicpm5", True),
        ("chatglm-bpe", False),
        ("dbrx", False),
        ("qwen2", False),
        ("gpt-4o", False),
    ],
)
def test_pieces_that_are_tokens(name: str, whole: bool) -> None:
    tokenizer = byte_vocabulary(name)
    words = [tokenizer.token_text(id) for id in tokenizer.encode("abc", add_special=False)]
    assert words == (["abc"] if whole else ["ab", "c"])


# Each kind of run that a pattern may look along again and again, with something else after it.
RUNS = {
    "spaces": " ",
    "wide spaces": "\u3000",
    "newlines": "\n",
    "both": " \n",
    "digits": "1",
    "letters": "a",
    "signs": ".",
}


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_time_goes_with_the_length_of_a_text(run: str) -> None:
    # A pattern that looks at the rest of a run again at each of its characters takes half a minute or more for one.
    text = run * (100_000 // len(run)) + ("!" if run == "1" else "1")
    cuts = {pretokenizer(name).patterns: name for name in KNOWN}
    for patterns, name in cuts.items():
        began = time.process_time()
        assert "".join(pieces(split(*patterns), text)) == text
        assert time.process_time() - began < 5, name


def test_the_documents_name_every_pre_tokenizer() -> None:
    text = (Path(__file__).parents[2] / "docs" / "tokenizers.md").read_text("utf-8")
    assert [name for name in KNOWN if f"`{name}`" not in text] == [""]


@pytest.mark.parametrize("digits", ["1" * 200_000, "1" * 200_000 + "a"])
def test_digits_in_threes_from_the_right_are_counted_once(digits: str) -> None:
    cut = pieces(split(*pretokenizer("tiny_aya").patterns), digits)
    ends_a_word = not digits.endswith("a")
    assert len(cut) == 66_667 + (not ends_a_word)
    assert cut[0] == ("11" if ends_a_word else "111")

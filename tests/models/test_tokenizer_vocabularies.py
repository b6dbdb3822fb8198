"""Token ids against those the original tokenizers gave: the vocabularies and ids are llama.cpp's test data."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poot_models.checkpoint import GgufFile
from poot_models.text import Tokenizer, open_text
from poot_models.text.from_gguf import gguf_tokenizer

DATA = Path(__file__).parents[1] / "data" / "vocab"
BYTE_LEVEL = ["deepseek-llm", "gpt-2", "llama-bpe", "qwen2"]
LOSSLESS = [*BYTE_LEVEL, "llama-spm", "phi-3"]
NAMES = [*LOSSLESS, "bert-bge"]
Load = Callable[[str], Tokenizer]


@pytest.fixture(scope="module")
def load() -> Load:
    made: dict[str, Tokenizer] = {}

    def get(name: str) -> Tokenizer:
        if name not in made:
            made[name] = gguf_tokenizer(GgufFile(DATA / f"ggml-vocab-{name}.gguf").metadata)
        return made[name]

    return get


def cases(name: str) -> list[tuple[str, list[int]]]:
    file = DATA / f"ggml-vocab-{name}.gguf"
    texts = Path(f"{file}.inp").read_text().removesuffix("\n__ggml_vocab_test__\n").split("\n__ggml_vocab_test__\n")
    ids = [[int(id) for id in line.split()] for line in Path(f"{file}.out").read_text().removesuffix("\n").split("\n")]
    return list(zip(texts, ids, strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_ids_are_those_of_the_original_tokenizer(load: Load, name: str) -> None:
    tokenizer = load(name)
    pairs = cases(name)
    assert len(pairs) > 40
    for text, ids in pairs:
        assert tokenizer.encode(text, add_special=False) == ids, text
        assert name not in LOSSLESS or tokenizer.decode(ids) == text


@pytest.mark.parametrize("name", NAMES)
def test_a_decoder_decodes_alike(load: Load, name: str, check_decoder: Callable[[Tokenizer, Tokenizer], None]) -> None:
    metadata = GgufFile(DATA / f"ggml-vocab-{name}.gguf").metadata
    check_decoder(load(name), gguf_tokenizer(metadata, encodes=False))


def test_tokens_that_no_merges_make() -> None:
    # The id is that of Llama 3's own tokenizer. SmolLM3 has its vocabulary under the other name.
    metadata = GgufFile(DATA / "ggml-vocab-llama-bpe.gguf").metadata
    for name in ("llama-bpe", "smaug-bpe"):
        tokenizer = gguf_tokenizer({**metadata, "tokenizer.ggml.pre": name})
        assert tokenizer.encode(" Vi\u1ec7t", add_special=False) == [101798]


@pytest.mark.parametrize(
    ("name", "about"),
    [
        # size, whether BOS is added, BOS, EOS, ends
        ("bert-bge", (30522, True, 101, None, {0})),
        ("deepseek-llm", (102400, True, 100000, 100001, {100001})),
        ("gpt-2", (50257, False, 50256, 50256, {50256})),
        ("llama-bpe", (128256, True, 128000, 128001, {128001, 128009})),
        ("llama-spm", (32000, True, 1, 2, {2})),
        ("phi-3", (32064, True, 1, 32000, {32000, 32007})),
        ("qwen2", (151936, False, 151643, 151643, {151643, 151645})),
    ],
)
def test_special_tokens(load: Load, name: str, about: tuple[int, bool, int, int, set[int]]) -> None:
    t = load(name)
    assert (t.vocab_size, t.add_bos, t.bos_id, t.eos_id, set(t.eog_ids)) == about
    assert not t.add_eos
    assert t.encode("") == ([t.bos_id] if t.add_bos else []) + ([102] if name == "bert-bge" else [])
    assert all(t.is_special(id) for id in t.eog_ids)


def controls(tokenizer: Tokenizer) -> list[str]:
    return [tokenizer.token_text(id) for id in range(tokenizer.vocab_size) if tokenizer.is_special(id)]


@pytest.mark.parametrize("name", NAMES)
def test_control_text_is_a_token_only_on_request(load: Load, name: str) -> None:
    tokenizer = load(name)
    found = controls(tokenizer)
    assert found
    for control in found[:40]:
        text = f"a {control} b{control}"
        plain = tokenizer.encode(text, add_special=False)
        assert not any(tokenizer.is_special(id) for id in plain)
        assert name not in LOSSLESS or tokenizer.decode(plain) == text
        parsed = tokenizer.encode(text, add_special=False, parse_special=True)
        assert [tokenizer.token_text(id) for id in parsed if tokenizer.is_special(id)] == [control, control]


@pytest.mark.parametrize("name", NAMES)
def test_guarded_control_text_stays_text_inside_a_chat(load: Load, name: str) -> None:
    tokenizer = load(name)
    assert tokenizer.guard("nothing here") == "nothing here"
    for control in controls(tokenizer)[:40]:
        said = f"stop at {control}{control}, please"
        ids = tokenizer.encode(f"{control}{tokenizer.guard(said)}{control}", add_special=False, parse_special=True)
        assert [at for at, id in enumerate(ids) if tokenizer.is_special(id)] == [0, len(ids) - 1]
        assert ids[1:-1] == tokenizer.encode(said, add_special=False)


def test_a_rendered_chat_gets_one_bos(load: Load) -> None:
    tokenizer = load("llama-bpe")
    for text in ("hello", "<|begin_of_text|>hello"):
        ids = tokenizer.encode(text, parse_special=True)
        assert ids.count(128000) == 1
        assert ids[0] == 128000
    assert tokenizer.encode("<|begin_of_text|>hello").count(128000) == 1  # plain text: only the added one


def test_phi_3_control_tokens_swallow_the_space_after_them(load: Load) -> None:
    # As in the model's own tokenizer.json ("rstrip": true), which GGUF has no key for.
    tokenizer = load("phi-3")
    ids = tokenizer.encode("<|user|>\n Hi<|end|>\n", add_special=False, parse_special=True)
    assert ids == [32010, *tokenizer.encode("Hi", add_special=False), 32007]


# Every character there is, from every plane, and often those that tokenizers treat apart.
TEXTS = st.text(
    st.one_of(
        st.characters(exclude_categories=["Cs"]),
        st.sampled_from("\0\t\n\r \u00a0\u0301\u200d\u2028\u3000\ufdd0\ufeff\ufffd\uffff\U0001f468\U0010ffff<|>'s1"),
    ),
    max_size=60,
)


@pytest.mark.parametrize("name", LOSSLESS)
@given(text=TEXTS)
@settings(max_examples=150, deadline=None)
def test_any_text_comes_back(load: Load, name: str, text: str) -> None:
    # SentencePiece writes a space as its own visible space, so a text that holds one does not come back.
    if name not in BYTE_LEVEL:
        text = text.replace("\u2581", "_")
    tokenizer = load(name)
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert not any(tokenizer.is_special(id) for id in ids[tokenizer.add_bos :])
    assert len(text) <= tokenizer.longest * len(ids)


@pytest.mark.parametrize(
    "text", ["", " ", "  ", "\0", "\n", "\r\n", " \n ", "\u0301", "a\u0301", "\U0010ffff", "\ufdd0", "\ufeffa"]
)
@pytest.mark.parametrize("name", LOSSLESS)
def test_short_texts_come_back(load: Load, name: str, text: str) -> None:
    assert load(name).decode(load(name).encode(text)) == text


@pytest.mark.parametrize("name", NAMES)
@given(text=TEXTS)
@settings(max_examples=50, deadline=None)
def test_guarded_text_is_plain_text(load: Load, name: str, text: str) -> None:
    tokenizer = load(name)
    ids = tokenizer.encode(tokenizer.guard(text), add_special=False, parse_special=True)
    assert ids == tokenizer.encode(text.replace("\ufdd0", ""), add_special=False)


def sentencepiece_ids(tokenizer: Tokenizer, scores: list[float], ids: dict[str, int], text: str) -> list[int]:
    """SentencePiece's own loop: join the neighbours whose piece scores highest, leftmost first, until none is left."""
    parts = list("\u2581" + text.replace(" ", "\u2581")) if text else []
    while True:
        joins = [(-scores[ids[a + b]], at) for at, (a, b) in enumerate(pairwise(parts)) if a + b in ids]
        if not joins:
            break
        at = min(joins)[1]
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    result: list[int] = []
    for part in parts:
        result += [ids[part]] if part in ids else [3 + byte for byte in part.encode()]
    return result


@pytest.fixture(scope="module")
def reference(load: Load) -> Callable[[str], list[int]]:
    metadata = GgufFile(DATA / "ggml-vocab-llama-spm.gguf").metadata
    kinds = metadata["tokenizer.ggml.token_type"].tolist()
    texts = metadata["tokenizer.ggml.tokens"].tolist()
    scores = metadata["tokenizer.ggml.scores"].tolist()
    ids = {text: id for id, text in enumerate(texts) if kinds[id] == 1}
    return lambda text: sentencepiece_ids(load("llama-spm"), scores, ids, text)


@given(
    text=st.lists(
        st.sampled_from(
            ["the", "ing", " ", "  ", "a", "aa", "e", "1", "=", "==", "-", "Ġ", "ß", "我", "🦙", "\n", "tion"]
        ),
        max_size=25,
    ).map("".join)
)
@settings(max_examples=200, deadline=None)
def test_ranked_merges_are_sentencepiece(load: Load, reference: Callable[[str], list[int]], text: str) -> None:
    assert load("llama-spm").encode(text, add_special=False) == reference(text)


def test_gemma(gemma_path: Path) -> None:
    text_model = open_text(gemma_path)
    assert (text_model.chat_template, text_model.template_problem) == (None, None)  # a base model
    tokenizer = text_model.tokenizer
    assert (tokenizer.vocab_size, tokenizer.bos_id, tokenizer.eos_id) == (262144, 2, 1)
    assert tokenizer.eog_ids == {1, 106}  # <eos>, <end_of_turn>
    # No space prefix; runs of newlines and spaces are tokens of their own.
    assert tokenizer.encode("\n\n") == [2, 108]
    assert [tokenizer.token_text(id) for id in tokenizer.encode("Hello world")] == ["<bos>", "Hello", " world"]
    text = "  two\n\n\n spaces \u00e9\U0001f999 <unused3>"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    for text in ("", " ", "\n" * 40, "\0\t\r\n", "e\u0301\u3000\U0010ffff", "<start_of_turn>user</s><eos>", "a " * 50):
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text
        assert not any(tokenizer.is_special(id) for id in ids[1:])
    assert tokenizer.encode("<unused3>", add_special=False, parse_special=True) == [9]
    assert len(tokenizer.encode("<unused3>", add_special=False)) > 1


def test_smollm2(smollm2_path: Path) -> None:
    tokenizer = gguf_tokenizer(GgufFile(smollm2_path).metadata)
    chat = tokenizer.encode("<|im_start|>user\nHi 123<|im_end|>\n", parse_special=True)
    assert [tokenizer.token_text(id) for id in chat] == [
        *("<|im_start|>", "user", "\n", "Hi", " ", "1", "2", "3", "<|im_end|>", "\n")
    ]
    assert tokenizer.decode(chat) == "user\nHi 123\n"
    assert tokenizer.decode(chat, skip_special=False) == "<|im_start|>user\nHi 123<|im_end|>\n"
    assert {tokenizer.token_text(id) for id in tokenizer.eog_ids} >= {"<|im_end|>", "<|endoftext|>"}

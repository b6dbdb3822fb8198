"""WordPiece vocabularies, in the form of a GGUF file and as tokenizer.json."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Library
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from poot_models.checkpoint import GgufFile
from poot_models.errors import TokenizerError
from poot_models.text import Detokenizer, Tokenizer
from poot_models.text.from_gguf import gguf_tokenizer
from poot_models.text.from_json import json_tokenizer

BGE = Path(__file__).parents[1] / "data" / "vocab" / "ggml-vocab-bert-bge.gguf"
# As BERT writes them; the ids are the places.
WORDS = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "he",
    "hello",
    "##llo",
    "##s",
    "!",
    "e",
    "\u4e2d",
    "PAD",
    "[",
    "]",
]
SPECIAL = 5


def metadata(**changes: Any) -> dict[str, Any]:
    texts = [
        text if id < SPECIAL else text[2:] if text[:2] == "##" else "\u2581" + text for id, text in enumerate(WORDS)
    ]
    keys: dict[str, Any] = {
        "model": "bert",
        "tokens": texts,
        "token_type": np.array([3] * SPECIAL + [1] * (len(WORDS) - SPECIAL), np.int32),
        "unknown_token_id": 1,
        "cls_token_id": 2,
        "seperator_token_id": 3,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in (keys | changes).items() if value is not None}


def library(words: list[str] = WORDS) -> Library:
    made = Library(
        models.WordPiece({word: id for id, word in enumerate(words)}, unk_token="[UNK]", max_input_chars_per_word=100)
    )
    made.normalizer = normalizers.BertNormalizer()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", None, [("[CLS]", 2), ("[SEP]", 3)])
    made.decoder = decoders.WordPiece(cleanup=False)
    made.add_special_tokens(WORDS[:SPECIAL])
    return made


@pytest.fixture(params=["gguf", "json"])
def tokenizer(request: pytest.FixtureRequest, tmp_path: Path) -> Tokenizer:
    if request.param == "gguf":
        return gguf_tokenizer(metadata())
    library().save(str(tmp_path / "tokenizer.json"))
    return json_tokenizer(tmp_path, {})


def test_words_and_their_pieces(tokenizer: Tokenizer) -> None:
    # By hand: the longest piece first, each next one a continuation; a word with a part that is none is unknown.
    assert tokenizer.encode("Hello hes! \u4e2dhello x", add_special=False) == [6, 5, 8, 9, 11, 6, 1]
    assert tokenizer.encode("H\u00c9\u0301llos ello", add_special=False) == [6, 8, 10, 7]
    assert tokenizer.encode("he") == [2, 5, 3]
    assert tokenizer.encode("", add_special=False) == []
    assert tokenizer.encode("e" * 101, add_special=False) == [1]
    assert tokenizer.longest > 10**9


def test_decoding(tokenizer: Tokenizer) -> None:
    assert tokenizer.decode([2, 5, 8, 6, 9, 3]) == "hes hello !"
    assert tokenizer.decode([2, 5, 3], skip_special=False) == "[CLS] he[SEP]"
    assert (tokenizer.token_bytes(7), tokenizer.token_bytes(6), tokenizer.token_text(2)) == (b"llo", b" hello", "[CLS]")
    detokenizer = Detokenizer(tokenizer)
    assert [detokenizer.push([id]) for id in (2, 5, 8, 6)] == ["", "he", "s", " hello"]


def test_a_decoder_decodes_alike(tmp_path: Path, check_decoder: Callable[[Tokenizer, Tokenizer], None]) -> None:
    check_decoder(gguf_tokenizer(metadata()), gguf_tokenizer(metadata(), encodes=False))
    library().save(str(tmp_path / "tokenizer.json"))
    check_decoder(json_tokenizer(tmp_path, {}), json_tokenizer(tmp_path, {}, encodes=False))


def test_control_text(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("[PAD]", add_special=False) == [13, 1, 14]  # lower-cased, "pad" is no word
    assert tokenizer.encode("[PAD]he[MASK]", add_special=False, parse_special=True) == [0, 5, 4]
    said = tokenizer.guard("[MASK]")
    assert tokenizer.encode("[MASK]" + said, add_special=False, parse_special=True) == [4, 13, 1, 14]


def test_a_word_that_names_a_control_token_stays_text(tmp_path: Path) -> None:
    words = [*WORDS[:4], "mask", *WORDS[5:]]
    made = library(words)
    made.add_special_tokens(["mask"])
    made.save(str(tmp_path / "tokenizer.json"))
    assert made.encode("mask", add_special_tokens=False).ids == [4]
    as_json = json_tokenizer(tmp_path, {})
    texts = ["mask", *metadata()["tokenizer.ggml.tokens"]]
    texts = [*texts[1:5], "mask", *texts[6:]]
    for tokenizer in (as_json, gguf_tokenizer(metadata(tokens=texts))):
        assert tokenizer.encode("mask he", add_special=False) == [1, 5]
        assert tokenizer.encode("mask he", add_special=False, parse_special=True) == [4, 5]
        guarded = tokenizer.guard("mask")
        assert tokenizer.encode("mask" + guarded, add_special=False, parse_special=True) == [4, 1]


@pytest.mark.parametrize(
    ("changes", "text", "ids"),
    [
        ({"normalizer.lowercase": False}, "PAD Hello h\u00e9", [12, 1, 1]),
        ({"normalizer.lowercase": False, "normalizer.strip_accents": True}, "PAD h\u00e9", [12, 5]),
        ({"normalizer.strip_accents": False}, "h\u00e9", [1]),
    ],
)
def test_the_files_own_rules(changes: dict[str, Any], text: str, ids: list[int]) -> None:
    assert gguf_tokenizer(metadata(**changes)).encode(text, add_special=False) == ids


def test_what_surrounds_a_text() -> None:
    assert gguf_tokenizer(metadata(add_bos_token=False)).encode("he") == [5, 3]
    assert gguf_tokenizer(metadata(add_sep_token=False)).encode("he") == [2, 5]
    assert gguf_tokenizer(metadata(cls_token_id=None, seperator_token_id=None)).encode("he") == [5]  # 101 and 102


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"unknown_token_id": None}, "no unknown token"),
        ({"unknown_token_id": 10**6}, "no unknown token"),
        ({"tokens": [*metadata()["tokenizer.ggml.tokens"][:-2], "\u2581##x", "x"]}, "'##x' twice"),
        ({"normalizer.lowercase": "yes"}, "not true or false"),
    ],
)
def test_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(TokenizerError, match=message):
        gguf_tokenizer(metadata(**changes))


TEXT = st.text(
    st.one_of(st.sampled_from("helo s!\u4e2d\u00e9\u0301[PAD]\0\t"), st.characters(exclude_categories=["Cs"])),
    max_size=30,
)


@given(text=TEXT)
@settings(max_examples=150, deadline=None)
def test_ids_are_the_librarys(text: str) -> None:
    # Without its control tokens, which the library finds in any text.
    made = Library.from_str(library().to_str())
    made.encode_special_tokens = True
    assert gguf_tokenizer(metadata()).encode(text) == made.encode(text).ids


@pytest.fixture(scope="module")
def bge() -> Tokenizer:
    return gguf_tokenizer(GgufFile(BGE).metadata)


def test_bge(bge: Tokenizer) -> None:
    # The ids are those of the model's own tokenizer ("hello" 7592, "world" 2088, "," 1010).
    assert bge.encode("Hello, world") == [101, 7592, 1010, 2088, 102]
    assert bge.decode(bge.encode("Hello, world")) == "hello , world"

"""SentencePiece vocabularies with rules, byte tokens and tokens of the user's own: ids that SentencePiece itself gave.

The files were trained with the sentencepiece library, 0.2.3, on this project's documents and a few famous sentences.
"""

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, decoders, models, normalizers
from tokenizers import Tokenizer as Library

from poot_models.errors import TokenizerError
from poot_models.text import Detokenizer, Tokenizer
from poot_models.text.from_gguf import gguf_tokenizer
from poot_models.text.from_json import json_tokenizer

DATA = Path(__file__).parents[1] / "data" / "vocab"
NAMES = ["unigram-rules", "unigram-bytes", "bpe-bytes"]
State = dict[str, Any]


def state(name: str) -> State:
    read: State = json.loads((DATA / f"sentencepiece-{name}.json").read_text("utf-8"))
    return read


def metadata(name: str, **changes: Any) -> dict[str, Any]:
    """The file as the keys of a GGUF file."""
    told = state(name)
    keys: dict[str, Any] = {
        "model": "llama" if name.startswith("bpe") else "t5",
        "tokens": told["tokens"],
        "scores": np.array(told["scores"], np.float32),
        "token_type": np.array(told["types"], np.int32),
        "add_space_prefix": told["add_space_prefix"],
        "remove_extra_whitespaces": told["remove_extra_whitespaces"],
        "unknown_token_id": told["unknown"],
        "eos_token_id": told["eos"],
        "precompiled_charsmap": np.frombuffer(base64.b64decode(told["charsmap"]), np.uint8)
        if told["charsmap"]
        else None,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in (keys | changes).items() if value is not None}


def library(name: str) -> Library:
    """The file as the tokenizers library's own pipeline, as a tokenizer.json of such a model has it."""
    told = state(name)
    pieces = list(zip(told["tokens"], told["scores"], strict=True))
    bytes_too = name.endswith("bytes")
    made = Library(models.Unigram(pieces, told["unknown"], byte_fallback=bytes_too))
    steps: list[Any] = [normalizers.Precompiled(base64.b64decode(told["charsmap"]))] if told["charsmap"] else []
    if told["remove_extra_whitespaces"]:
        steps += [normalizers.Replace(Regex(" {2,}"), " "), normalizers.Strip()]
    if told["add_space_prefix"]:
        steps.append(normalizers.Prepend("\u2581"))
    made.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", "\u2581")])
    back: list[Any] = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    made.decoder = decoders.Sequence([*back, decoders.Strip(" ", 1, 0)] if told["add_space_prefix"] else back)
    kinds = list(enumerate(told["types"]))
    made.add_tokens(
        [AddedToken(told["tokens"][id], normalized=False, special=kind != 4) for id, kind in kinds if kind in (2, 3, 4)]
    )
    return made


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Tokenizer]:
    made: dict[tuple[str, str, bool], Tokenizer] = {}

    def get(name: str, form: str, *, encodes: bool = True) -> Tokenizer:
        if (name, form, encodes) not in made:
            if form == "gguf":
                made[name, form, encodes] = gguf_tokenizer(metadata(name), encodes=encodes)
            else:
                folder = tmp_path_factory.mktemp(name)
                library(name).save(str(folder / "tokenizer.json"))
                made[name, form, encodes] = json_tokenizer(folder, {}, encodes=encodes)
        return made[name, form, encodes]

    return get


Loaded = Callable[..., Tokenizer]
FORMS = [*((name, "gguf") for name in NAMES), ("unigram-rules", "json"), ("unigram-bytes", "json")]


@pytest.mark.parametrize(("name", "form"), FORMS)
def test_a_decoder_decodes_alike(
    loaded: Loaded, name: str, form: str, check_decoder: Callable[[Tokenizer, Tokenizer], None]
) -> None:
    check_decoder(loaded(name, form), loaded(name, form, encodes=False))


@pytest.mark.parametrize(("name", "form"), FORMS)
def test_ids_are_sentencepieces(loaded: Loaded, name: str, form: str) -> None:
    tokenizer = loaded(name, form)
    cases = state(name)["cases"]
    assert len(cases) > 20
    for text, ids in cases:
        assert tokenizer.encode(text, add_special=False) == ids, text


@pytest.mark.parametrize(("name", "form"), FORMS)
def test_control_text_stays_text(loaded: Loaded, name: str, form: str) -> None:
    tokenizer = loaded(name, form)
    control = "</s>"
    (end,) = (id for id in range(tokenizer.vocab_size) if tokenizer.token_text(id) == control)
    # Spelt out, and spelt so that the model's own rules make it.
    spelt = [control, f"a{control}b", "\uff1c/\uff53\uff1e" if name == "unigram-rules" else control * 2]
    for text in spelt:
        assert end not in tokenizer.encode(text, add_special=False)
        said = tokenizer.guard(text)
        assert end not in tokenizer.encode(said, add_special=False, parse_special=True)
        assert tokenizer.encode(control + said, add_special=False, parse_special=True).count(end) == 1
    assert tokenizer.encode(control, add_special=False, parse_special=True) == [end]


def test_unknown_text_is_one_token(loaded: Loaded) -> None:
    tokenizer = loaded("unigram-rules", "gguf")
    ids = tokenizer.encode("\U0001f999" * 50, add_special=False)
    assert (len(ids), ids[-1], tokenizer.longest > 10**9) == (2, 2, True)
    assert tokenizer.decode(ids) == ""


def test_an_end_after_every_text(loaded: Loaded) -> None:
    # As T5: no BOS, and </s> at the end.
    tokenizer = loaded("unigram-rules", "gguf")
    assert tokenizer.encode("a")[-1] == tokenizer.eos_id == 1
    assert (tokenizer.add_bos, tokenizer.add_eos, tokenizer.eog_ids) == (False, True, {1})
    assert gguf_tokenizer(metadata("unigram-rules", add_eos_token=False)).encode("a")[-1] != 1


@pytest.mark.parametrize(
    ("name", "form"), [("unigram-bytes", "gguf"), ("unigram-bytes", "json"), ("bpe-bytes", "gguf")]
)
@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
@settings(max_examples=100, deadline=None)
def test_any_text_comes_back_where_bytes_have_tokens(loaded: Loaded, name: str, form: str, text: str) -> None:
    text = text.replace("\u2581", "_")
    tokenizer = loaded(name, form)
    ids = tokenizer.encode(text, add_special=False)
    assert tokenizer.decode(ids) == text
    detokenizer = Detokenizer(tokenizer)
    assert "".join(detokenizer.push([id]) for id in ids) + detokenizer.finish() == text


@given(text=st.text(st.sampled_from("aeno \u4e2d\u0301\U0001f999<0x41>\n"), max_size=30))
@settings(max_examples=100, deadline=None)
def test_bytes_of_unknown_text_are_the_librarys(loaded: Loaded, text: str) -> None:
    # "<0x41>" aside: SentencePiece never takes such text for a byte, the library does (and hence is not asked).
    text = text.replace("<0x41>", "")
    assert loaded("unigram-bytes", "json").encode(text) == library("unigram-bytes").encode(text).ids


CHARSMAP = base64.b64decode(state("unigram-rules")["charsmap"])
UNITS = int.from_bytes(CHARSMAP[:4], "little") // 4


def with_unit(index: int, value: int) -> bytes:
    at = 4 + 4 * index
    return CHARSMAP[:at] + value.to_bytes(4, "little") + CHARSMAP[at + 4 :]


@pytest.mark.parametrize(
    ("charsmap", "message"),
    [
        (b"\1", "does not hold a character map"),
        (b"\xff\xff\xff\xff" + CHARSMAP[4:], "is not inside it"),
        (b"\0\0\0\0abc\0", "is not inside it"),
        (CHARSMAP[:4] + CHARSMAP[8:], "trie|texts|character map"),
        (with_unit(0, 0xFFFFFC00), "leads outside itself"),
        (b"\4\0\0\0" + bytes(4) + b"abc\0", "leads outside itself"),
        (CHARSMAP[: 4 + 4 * UNITS] + b"\0\0", "not one of its texts"),
        (CHARSMAP[:-3] + b"\xff\xff\0", "is not a character map"),
    ],
)
def test_character_maps_are_checked(charsmap: bytes, message: str) -> None:
    with pytest.raises(TokenizerError, match=message):
        gguf_tokenizer(metadata("unigram-rules", precompiled_charsmap=np.frombuffer(charsmap, np.uint8)))


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_a_damaged_character_map_is_refused_or_harmless(data: st.DataObject) -> None:
    raw = bytearray(CHARSMAP)
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(4, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        tokenizer = gguf_tokenizer(metadata("unigram-rules", precompiled_charsmap=np.frombuffer(bytes(raw), np.uint8)))
    except TokenizerError:
        return
    tokenizer.encode("".join(map(chr, range(0x250))) + "\uff21\ufb01\u2122A\u030ae\u0301\u3000\u200b")


def test_a_character_map_in_tokenizer_json_is_checked(tmp_path: Path) -> None:
    broken = json.loads(library("unigram-rules").to_str())
    step = next(step for step in broken["normalizer"]["normalizers"] if step["type"] == "Precompiled")
    step["precompiled_charsmap"] = base64.b64encode(with_unit(0, 0xFFFFFC00)).decode()
    (tmp_path / "tokenizer.json").write_text(json.dumps(broken))
    with pytest.raises(TokenizerError, match="leads outside itself"):
        json_tokenizer(tmp_path, {})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"unknown_token_id": None, "tokens": ["a", "b"]}, "no unknown token"),
        ({"scores": None}, "scores is missing"),
        ({"scores": np.full(420, np.nan, np.float32)}, "not finite"),
        ({"scores": np.full(420, np.inf, np.float32)}, "not finite"),
        ({"precompiled_charsmap": "abc"}, "not an array of bytes"),
        ({"precompiled_charsmap": np.zeros(4, np.float32)}, "not an array of bytes"),
        ({"precompiled_charsmap": np.zeros((1 << 22) + 1, np.uint8)}, "the most is"),
        ({"remove_extra_whitespaces": 1}, "not true or false"),
        ({"tokens": ["x" * 257, *state("unigram-rules")["tokens"][1:]]}, "257 characters"),
    ],
)
def test_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(TokenizerError, match=message):
        gguf_tokenizer(metadata("unigram-rules", **changes))


def test_a_unigram_model_of_too_many_bytes_is_refused(tmp_path: Path) -> None:
    large = json.loads(library("unigram-rules").to_str())
    large["model"]["vocab"] += [[f"{n:0>{1 << 16}}", -1.0] for n in range(128)]
    (tmp_path / "tokenizer.json").write_text(json.dumps(large))
    with pytest.raises(TokenizerError, match="bytes of tokens; the most is 8388608"):
        json_tokenizer(tmp_path, {})
    texts = [f"{n:\u4e2d>256}" for n in range(1 << 14)]
    numbers = {"scores": np.zeros(len(texts), np.float32), "token_type": np.ones(len(texts), np.int32)}
    with pytest.raises(TokenizerError, match="bytes; a Unigram vocabulary"):
        gguf_tokenizer(metadata("unigram-rules", tokens=texts, **numbers))


def test_a_unigram_model_without_an_unknown_token_is_refused(tmp_path: Path) -> None:
    broken = json.loads(library("unigram-rules").to_str())
    broken["model"]["unk_id"] = None
    (tmp_path / "tokenizer.json").write_text(json.dumps(broken))
    with pytest.raises(TokenizerError, match="unk_id must name one"):
        json_tokenizer(tmp_path, {})

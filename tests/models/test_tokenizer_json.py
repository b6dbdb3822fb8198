"""Tokenizers from tokenizer.json and the files beside it."""

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Library

from poot_models.errors import InvalidTextError, TextError, TokenizerError
from poot_models.text import Tokenizer
from poot_models.text.from_json import json_tokenizer
from poot_models.text.vocabulary import UNBOUNDED

Write = Callable[..., Path]


def byte_level_library(*, special: bool = True, bos: bool = True) -> Library:
    """All 256 bytes, "he", a BOS, an end, and a token of the user's own."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {char: id for id, char in enumerate(alphabet)} | {"he": 256}
    library = Library(models.BPE(vocab, [("h", "e")]))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    library.add_tokens([
        AddedToken("<bos>", special=True, normalized=False),
        AddedToken("<|im_end|>", special=special, normalized=not special),
        AddedToken("<think>", special=False, normalized=False),
    ])  # fmt: skip
    if bos:
        library.post_processor = processors.TemplateProcessing("<bos> $A", "<bos> $A $B", [("<bos>", 257)])
    return library


def sentencepiece_library(*, strip: bool = True) -> Library:
    texts = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581", "a", "b", "\u2581a"]
    model = models.BPE(
        {text: id for id, text in enumerate(texts)},
        [("\u2581", "a")],
        unk_token="<unk>",
        fuse_unk=True,
        byte_fallback=True,
    )
    library = Library(model)
    library.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    steps: list[Any] = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    library.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if strip else steps)
    library.add_special_tokens([AddedToken(name, normalized=False) for name in ("<unk>", "<s>", "</s>")])
    return library


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def files(library: Library | str | bytes | None, **contents: Any) -> Path:
        if isinstance(library, Library):
            library.save(str(tmp_path / "tokenizer.json"))
        elif library is not None:
            (tmp_path / "tokenizer.json").write_bytes(library.encode() if isinstance(library, str) else library)
        for name, content in contents.items():
            text = content if isinstance(content, str) else json.dumps(content)
            (tmp_path / f"{name}.json").write_text(text)
        return tmp_path

    return files


def test_byte_level(write: Write) -> None:
    folder = write(
        byte_level_library(), tokenizer_config={"bos_token": "<bos>", "eos_token": {"content": "<|im_end|>"}}
    )
    tokenizer = json_tokenizer(folder, {})
    assert (tokenizer.vocab_size, tokenizer.bos_id, tokenizer.eos_id) == (260, 257, 258)
    assert (tokenizer.add_bos, tokenizer.add_eos, tokenizer.eog_ids) == (True, False, {258})
    assert tokenizer.encode("he<think>") == [257, 256, 259]
    assert tokenizer.encode("<|im_end|>", add_special=False, parse_special=True) == [258]
    plain = tokenizer.encode("<|im_end|>", add_special=False)
    assert 258 not in plain
    assert tokenizer.decode(plain) == "<|im_end|>"
    assert tokenizer.encode(f"<|im_end|>{tokenizer.guard('<|im_end|>')}", add_special=False, parse_special=True) == [
        258,
        *plain,
    ]
    assert tokenizer.decode([257, 256, 258]) == "he"
    assert tokenizer.decode([257, 256, 258], skip_special=False) == "<bos>he<|im_end|>"
    with pytest.raises(InvalidTextError):
        tokenizer.encode("\ud800")


def test_an_end_the_file_calls_ordinary_is_a_control_token(write: Write) -> None:
    tokenizer = json_tokenizer(write(byte_level_library(special=False)), {})
    assert tokenizer.is_special(258)
    assert 258 not in tokenizer.encode("<|im_end|>")
    guarded = tokenizer.guard("<|im_end|>")
    assert 258 not in tokenizer.encode(guarded, parse_special=True)
    assert tokenizer.encode("<|im_end|>", add_special=False, parse_special=True) == [258]


def test_a_vocabulary_with_gaps_between_its_ids(write: Write) -> None:
    state = json.loads(byte_level_library().to_str())
    state["model"]["vocab"]["gap"] = 300
    tokenizer = json_tokenizer(write(json.dumps(state)), {})
    library = Library.from_str(json.dumps(state))
    assert (tokenizer.vocab_size, tokenizer.token_bytes(280), tokenizer.token_bytes(300)) == (301, b"", b"gap")
    for text in ("he<think>", "<|im_end|>x"):
        ids = library.encode(text, add_special_tokens=False).ids
        assert tokenizer.encode(text, add_special=False, parse_special=True) == ids
        assert tokenizer.encode(text + tokenizer.guard(""), add_special=False, parse_special=True) == ids
        assert tokenizer.decode(ids, skip_special=False) == text


@pytest.mark.parametrize("bos", [True, False])
@pytest.mark.parametrize("add_bos", [True, False, None])
@pytest.mark.parametrize("add_eos", [True, False, None])
def test_the_post_processor_says_what_surrounds_a_text(
    write: Write, bos: bool, add_bos: bool | None, add_eos: bool | None
) -> None:
    from transformers import AutoTokenizer

    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<bos>", "eos_token": "<|im_end|>"}
    flags = {"add_bos_token": add_bos, "add_eos_token": add_eos}
    config |= {name: flag for name, flag in flags.items() if flag is not None}
    folder = write(byte_level_library(bos=bos), tokenizer_config=config)
    tokenizer = json_tokenizer(folder, {})
    assert tokenizer.encode("he") == AutoTokenizer.from_pretrained(folder)("he")["input_ids"]
    assert tokenizer.encode("he") == ([257, 256] if bos else [256])
    assert (tokenizer.bos_id, tokenizer.add_bos, tokenizer.add_eos) == (257, bos, False)


@pytest.mark.parametrize(
    ("generation", "config", "ends"),
    [
        ({"eos_token_id": 5}, {"eos_token_id": 7}, {5, 258}),
        ({"eos_token_id": [5, 6, 999, -1]}, {}, {5, 6, 258}),
        (None, {"eos_token_id": [7]}, {7, 258}),
        ({"eos_token_id": None}, {}, {258}),
        ({"eos_token_id": "x"}, {}, {258}),
    ],
)
def test_generation_config_adds_ends(
    write: Write, generation: dict[str, Any] | None, config: dict[str, Any], ends: set[int]
) -> None:
    folder = write(byte_level_library(), **({} if generation is None else {"generation_config": generation}))
    assert json_tokenizer(folder, config).eog_ids == ends


def test_sentencepiece(write: Write) -> None:
    names = {"bos_token": "<s>", "eos_token": "</s>"}
    tokenizer = json_tokenizer(write(sentencepiece_library(), special_tokens_map=names), {})
    assert tokenizer.encode("a é") == [262, 259, 3 + 0xC3, 3 + 0xA9]
    assert tokenizer.decode([1, 262, 259, 3 + 0xC3, 3 + 0xA9]) == "a é"
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.add_bos, tokenizer.eog_ids) == (1, 2, False, {2})
    bare = json_tokenizer(write(sentencepiece_library(strip=False)), {})
    assert bare.decode([262]) == " a"


@pytest.mark.parametrize("make", [byte_level_library, sentencepiece_library])
@given(ids=st.lists(st.integers(0, 262), max_size=12))
@settings(max_examples=150, deadline=None)
def test_decode_is_the_librarys(
    make: Callable[[], Library], ids: list[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    library, tokenizer = loaded(make, tmp_path_factory)
    # One difference is meant: for bytes that are not UTF-8 the library's byte fallback writes a U+FFFD for each byte of
    # the whole run, ours one for each maximal subpart.
    skip = library.decode(ids, skip_special_tokens=True)
    keep = library.decode(ids, skip_special_tokens=False)
    if make is byte_level_library or "\ufffd" not in skip + keep:
        assert tokenizer.decode(ids) == skip
        assert tokenizer.decode(ids, skip_special=False) == keep


@pytest.mark.parametrize("make", [byte_level_library, sentencepiece_library])
@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=20))
@settings(max_examples=100, deadline=None)
def test_encode_is_the_librarys(
    make: Callable[[], Library], text: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    library, tokenizer = loaded(make, tmp_path_factory)
    assert tokenizer.encode(text) == library.encode(text).ids


def loaded(make: Callable[[], Library], folders: pytest.TempPathFactory) -> tuple[Library, Tokenizer]:
    library, folder = make(), folders.getbasetemp() / make.__name__
    folder.mkdir(exist_ok=True)
    library.save(str(folder / "tokenizer.json"))
    return library, json_tokenizer(folder, {})


@pytest.mark.parametrize("make", [byte_level_library, sentencepiece_library])
def test_a_decoder_decodes_alike(
    write: Write, make: Callable[[], Library], check_decoder: Callable[[Tokenizer, Tokenizer], None]
) -> None:
    folder = write(make(), tokenizer_config={"bos_token": "<bos>", "eos_token": "<|im_end|>"})
    check_decoder(json_tokenizer(folder, {}), json_tokenizer(folder, {}, encodes=False))


def test_a_decoder_of_tokens_that_the_library_shows_otherwise(
    write: Write, check_decoder: Callable[[Tokenizer, Tokenizer], None]
) -> None:
    library = sentencepiece_library()
    library.add_tokens([AddedToken("new words", special=False, normalized=True)])
    folder = write(library)
    check_decoder(json_tokenizer(folder, {}), json_tokenizer(folder, {}, encodes=False))


BROKEN = ["", "null", "[]", "{}", "[" * 200_000, '{"a":' * 200_000, '{"version": "1.0"}', b"\xff\xfe", b"\x00" * 1000]


@pytest.mark.parametrize("content", BROKEN)
def test_broken_files_are_refused(write: Write, content: str | bytes) -> None:
    with pytest.raises(TokenizerError, match=r"not a tokenizer\.json"):
        json_tokenizer(write(content), {})


@pytest.mark.parametrize("name", ["tokenizer_config", "special_tokens_map", "generation_config"])
@pytest.mark.parametrize("content", ["[", "[1]", "[" * 100_000, '"x"'])
def test_broken_companions_are_refused(write: Write, name: str, content: str) -> None:
    with pytest.raises(TokenizerError, match=name):
        json_tokenizer(write(byte_level_library(), **{name: content}), {})


def test_missing_and_oversized_files(write: Write, tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=r"add the model's tokenizer\.json"):
        json_tokenizer(tmp_path, {})
    (tmp_path / "tokenizer.model").write_bytes(b"x")
    with pytest.raises(TokenizerError, match=r"tokenizer\.model alone is not read"):
        json_tokenizer(tmp_path, {})
    with (tmp_path / "tokenizer.json").open("wb") as file:
        file.truncate((64 << 20) + 1)
    with pytest.raises(TokenizerError, match="over 67108864 bytes"):
        json_tokenizer(tmp_path, {})


@pytest.mark.parametrize("decoder", [None, decoders.BPEDecoder(), decoders.CTC()])
def test_other_decoders_are_refused_by_name(write: Write, decoder: Any) -> None:
    library = byte_level_library()
    if decoder is None:
        state = json.loads(library.to_str()) | {"decoder": None}
        folder, name = write(json.dumps(state)), "none"
    else:
        library.decoder = decoder
        folder, name = write(library), type(decoder).__name__
    with pytest.raises(TokenizerError, match=name):
        json_tokenizer(folder, {})


SPACES, BYTES, FUSE, STRIP = decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip
USUAL = [SPACES, BYTES, FUSE, STRIP(" ", 1, 0)]
METASPACE = decoders.Metaspace(prepend_scheme="always")


@pytest.mark.parametrize(
    ("steps", "name"),
    [
        ([SPACES, decoders.Replace("a", "b"), BYTES, FUSE, STRIP(" ", 1, 0)], r'Replace\{.*"a".*"b"'),
        ([SPACES, SPACES, BYTES, FUSE], "Replace Replace"),
        ([decoders.Replace("\u2581", "_"), BYTES, FUSE], r"Replace\{.*_"),
        ([decoders.Replace(Regex("\u2581"), " "), BYTES, FUSE], r"Replace\{.*Regex"),
        ([SPACES, BYTES, FUSE, STRIP(" ", 2, 0)], r"Strip\{.*2"),
        ([SPACES, BYTES, FUSE, STRIP(" ", 1, 1)], r"Strip\{.*1.*1"),
        ([SPACES, BYTES, FUSE, STRIP("_", 1, 0)], r"Strip\{.*_"),
        ([*USUAL, STRIP(" ", 1, 0)], "Strip Strip"),
        ([SPACES, BYTES, STRIP(" ", 1, 0)], "ByteFallback Strip"),
        ([SPACES, STRIP(" ", 1, 0), BYTES, FUSE], "Replace Strip"),
        ([SPACES, FUSE, BYTES], "Fuse ByteFallback"),
        ([BYTES, FUSE], "ByteFallback Fuse"),
        ([SPACES, METASPACE], "Replace Metaspace"),
        ([decoders.Metaspace("_", prepend_scheme="always")], "Metaspace.*_"),
        ([decoders.ByteLevel(), SPACES], "ByteLevel Replace"),
        ([decoders.WordPiece(), FUSE], "WordPiece.* Fuse"),
    ],
)
def test_decoders_that_only_look_like_a_known_one_are_refused(write: Write, steps: list[Any], name: str) -> None:
    library = sentencepiece_library()
    library.decoder = decoders.Sequence(steps)
    with pytest.raises(TokenizerError, match=rf"a decoder poot does not know \(.*{name}"):
        json_tokenizer(write(library), {})


@pytest.mark.parametrize(
    "steps",
    [
        *(USUAL, [*USUAL, FUSE], USUAL[:3], USUAL[:2], [SPACES], [SPACES, FUSE], [SPACES, FUSE, STRIP(" ", 1, 0)]),
        *([METASPACE], [BYTES, METASPACE], [METASPACE, BYTES, FUSE], [decoders.Metaspace(prepend_scheme="never")]),
    ],
)
def test_what_sentencepiece_decoders_may_leave_out(write: Write, steps: list[Any]) -> None:
    library = sentencepiece_library()
    library.decoder = decoders.Sequence(steps)
    tokenizer = json_tokenizer(write(library), {})
    for ids in ([259, 260, 262], [262, 3 + 0xC3, 3 + 0xA9, 259, 261], [260, 3 + 0x20], [3 + 0x41, 262, 262]):
        assert tokenizer.decode(ids) == library.decode(ids)


@pytest.mark.parametrize("normalized", [True, False])
@pytest.mark.parametrize("make", [byte_level_library, sentencepiece_library])
@pytest.mark.parametrize("name", ["myadd", "ABa", "a b"])
def test_an_added_token_decodes_as_the_library_shows_it(
    write: Write, make: Callable[[], Library], name: str, normalized: bool
) -> None:
    """With the space that SentencePiece's normaliser puts before it; in small letters, where that makes them small."""
    library = make()
    if make is byte_level_library:
        library.normalizer = normalizers.Lowercase()
    library.add_tokens([AddedToken(name, normalized=normalized, special=False)])
    tokenizer = json_tokenizer(write(library), {})
    for text in (f"a {name} b", f"{name} a", f"b{name}", f"a {name}{name}"):
        ids = library.encode(text, add_special_tokens=False).ids
        assert tokenizer.encode(text, add_special=False) == ids
        assert tokenizer.decode(ids) == library.decode(ids)


def test_a_control_token_that_merges_make_is_not_made_of_plain_text(write: Write) -> None:
    # As in a tokenizer.json converted from SentencePiece: every way to make "</s>" is a merge.
    library = sentencepiece_library()
    state = json.loads(library.to_str())
    for text in ("<", "/", "s", ">", "</", "s>"):
        state["model"]["vocab"][text] = len(state["model"]["vocab"])
    state["model"]["merges"] += [["<", "/"], ["s", ">"], ["</", "s>"]]
    library = Library.from_str(json.dumps(state))
    library.encode_special_tokens = True
    assert 2 in library.encode("a</s>").ids  # so the library alone would not do
    tokenizer = json_tokenizer(write(json.dumps(state)), {})
    assert [tokenizer.token_text(id) for id in tokenizer.encode("a</s>", add_special=False)] == [" a", "</", "s>"]
    assert tokenizer.encode("a</s>", add_special=False, parse_special=True) == [262, 2]
    guarded = "</s>" + tokenizer.guard("a</s>")
    ids = tokenizer.encode(guarded, add_special=False, parse_special=True)
    assert [tokenizer.token_text(id) for id in ids] == ["</s>", " a", "</", "s>"]
    assert tokenizer.decode(ids) == "a</s>"


def test_an_end_that_only_the_vocabulary_has_is_a_control_token(write: Write) -> None:
    state = json.loads(byte_level_library(bos=False).to_str())
    state["added_tokens"] = [{**state["added_tokens"][1], "id": 258, "content": "<think>"}]
    state["pre_tokenizer"]["use_regex"] = False
    state["model"]["vocab"] |= {"<e": 257, "<eos>": 258, "os>": 259, "os": 260}
    state["model"]["merges"] += [["<", "e"], ["o", "s"], ["os", ">"], ["<e", "os>"]]
    tokenizer = json_tokenizer(write(json.dumps(state)), {})
    assert tokenizer.eog_ids == {258}
    assert tokenizer.encode("<eos>") == [257, 259]
    assert tokenizer.encode("<eos>", parse_special=True) == [258]
    assert tokenizer.encode("<eos>" + tokenizer.guard("<eos>"), parse_special=True) == [258, 257, 259]


def test_a_whole_piece_that_names_a_control_token_stays_text(write: Write) -> None:
    library = byte_level_library(bos=False)
    state = json.loads(library.to_str())
    state["model"]["ignore_merges"] = True
    state["model"]["vocab"] |= {"PAD": 257, "PA": 258}
    state["model"]["merges"] += [["P", "A"], ["PA", "D"]]
    state["added_tokens"] = [{**state["added_tokens"][0], "id": 257, "content": "PAD"}]
    tokenizer = json_tokenizer(write(json.dumps(state)), {})
    plain = tokenizer.encode("PAD")
    assert (257 not in plain, tokenizer.decode(plain)) == (True, "PAD")
    assert tokenizer.encode("PAD", parse_special=True) == [257]


def test_normalisation_makes_no_control_token(write: Write) -> None:
    library = byte_level_library(bos=False)
    library.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    state = json.loads(library.to_str())
    for token in state["added_tokens"]:
        token["normalized"] = True  # so the library finds it in what the text becomes
    tokenizer = json_tokenizer(write(json.dumps(state)), {})
    for text in ("<|IM_END|>", "\uff1c|im_end|\uff1e"):
        assert library.encode("<|im_end|>").ids == [258]
        assert 258 not in tokenizer.encode(text) + tokenizer.encode(tokenizer.guard(text), parse_special=True)
    assert tokenizer.encode("<|im_end|>HE", parse_special=True) == [258, 256]


def test_what_a_training_set_drops_at_random_is_not_dropped(write: Write) -> None:
    state = json.loads(byte_level_library(bos=False).to_str())
    state["model"]["dropout"] = 1.0  # no merge is ever applied
    assert json_tokenizer(write(json.dumps(state)), {}).encode("he") == [256]
    # Neither from a model that is made anew, without a way to a control token.
    state["added_tokens"].append({**state["added_tokens"][0], "id": 256, "content": "he"})
    state["model"]["vocab"]["lo"] = 300
    state["model"]["merges"].append(["l", "o"])
    tokenizer = json_tokenizer(write(json.dumps(state)), {})
    assert tokenizer.is_special(256)
    assert tokenizer.encode("helo")[-1] == 300


@pytest.mark.parametrize(
    ("normalizer", "pre_tokenizer", "longest"),
    [
        (None, None, 10),
        (normalizers.Replace(" ", "\u2581"), None, 10),
        (normalizers.NFC(), None, 20),
        (normalizers.Replace("  ", " "), None, None),
        (normalizers.StripAccents(), None, None),
        (None, pre_tokenizers.WhitespaceSplit(), None),
        (None, pre_tokenizers.Split(" ", "removed"), None),
        (None, pre_tokenizers.Split(" ", "isolated"), 10),
    ],
)
def test_how_many_characters_one_token_may_stand_for(
    write: Write, normalizer: Any, pre_tokenizer: Any, longest: int | None
) -> None:
    library = byte_level_library()  # the longest token is "<|im_end|>", of 10 bytes
    library.add_tokens([AddedToken("<img>")])
    if normalizer is not None:
        library.normalizer = normalizer
    steps = [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    library.pre_tokenizer = pre_tokenizers.Sequence([*([pre_tokenizer] if pre_tokenizer else []), *steps])
    found = json_tokenizer(write(library), {}).longest
    assert found == (UNBOUNDED if longest is None else longest)


def test_a_model_of_another_kind_is_refused(write: Write) -> None:
    library = Library(models.WordLevel({"a": 0, "[UNK]": 1}, unk_token="[UNK]"))
    library.decoder = decoders.WordPiece()
    with pytest.raises(TokenizerError, match="of the kind WordLevel; poot knows BPE, Unigram, WordPiece"):
        json_tokenizer(write(library), {})


@pytest.mark.parametrize("config", [{"vocab_size": 259}, {"vocab_size": 9, "text_config": {"vocab_size": 259}}])
def test_no_token_is_beyond_the_embedding_table(write: Write, config: dict[str, Any]) -> None:
    """As Gemma 3 of text alone, whose table ends before the last added token."""
    folder = write(byte_level_library())
    tokenizer = json_tokenizer(folder, config)
    assert tokenizer.vocab_size == 259
    for parse in (True, False):
        ids = tokenizer.encode("<think>", parse_special=parse, add_special=False)
        assert max(ids) < 257
        assert tokenizer.decode(ids) == "<think>"
    assert json_tokenizer(folder, {"vocab_size": 260}).encode("<think>", add_special=False) == [259]
    with pytest.raises(TokenizerError, match=r"ids up to 256, but the embedding table .* only 256 rows"):
        json_tokenizer(folder, {"vocab_size": 256})


def test_a_missing_file_behind_a_link_is_told(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").symlink_to(tmp_path / "gone")
    with pytest.raises(TokenizerError, match="a link to a file that is not there"):
        json_tokenizer(tmp_path, {})


def test_a_huge_token_id_is_refused(write: Write) -> None:
    state = json.loads(byte_level_library().to_str())
    state["model"]["vocab"]["he"] = 2**32 - 1
    with pytest.raises(TokenizerError, match="token ids up to"):
        json_tokenizer(write(json.dumps(state)), {})


@pytest.mark.parametrize("make", [byte_level_library, sentencepiece_library])
@pytest.mark.parametrize("size", [1, 255, 256, 257, 1000])
def test_texts_of_all_lengths_have_the_tokens_that_the_library_gives(
    write: Write, make: Callable[[], Library], size: int
) -> None:
    tokenizer = json_tokenizer(write(make()), {})
    text = ("he \u00e9ab \U0001f600 a" * size)[:size]
    ids = Library.from_file(str(write(None) / "tokenizer.json")).encode(text, add_special_tokens=False).ids
    assert tokenizer.encode(text, add_special=False) == ids


def test_a_panic_of_the_library_is_a_typed_error(write: Write) -> None:
    state = json.loads(byte_level_library().to_str())
    state["post_processor"]["special_tokens"] = {}  # its template still names <bos>
    with pytest.raises(TokenizerError, match="tokenizers library gave up"):
        json_tokenizer(write(json.dumps(state)), {})


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_a_damaged_file_is_refused_or_read(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.getbasetemp() / "damaged"
    folder.mkdir(exist_ok=True)
    raw = bytearray(sentencepiece_library().to_str().encode())
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.sampled_from(b'0"{}[]:,nx\xff'))
    (folder / "tokenizer.json").write_bytes(raw[: data.draw(st.integers(len(raw) // 2, len(raw)))])
    with suppress(TextError):
        json_tokenizer(folder, {}).encode("a")

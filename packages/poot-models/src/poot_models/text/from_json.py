"""Tokenizers from the files beside a safetensors checkpoint.

``tokenizer.json`` is the Hugging Face tokenizers library's own format, and that library runs it;
``tokenizer_config.json``, ``special_tokens_map.json``, ``generation_config.json`` and ``config.json`` say which tokens
begin and end a text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from poot_models.errors import TokenizerError
from poot_models.text.encoders import build_encoders
from poot_models.text.json_model import checked_file, model_without, normal_longest
from poot_models.text.library import library_errors
from poot_models.text.tokenizer import Tokenizer
from poot_models.text.vocabulary import (
    CONTINUES,
    SPACE,
    UNBOUNDED,
    Vocabulary,
    byte_level_alphabet,
    byte_level_pieces,
    end_names,
    sentencepiece_pieces,
    wordpiece_pieces,
)

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Encoder

__all__ = ["json_tokenizer", "read_object", "special_names"]

_MAX_TOKENIZER = 64 << 20
_MAX_JSON = 16 << 20
_MAX_TOKENS = 1 << 21
_BYTE = re.compile(r"<0x[0-9A-Fa-f]{2}>")
_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


def json_tokenizer(directory: Path, config: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer of a checkpoint directory. ``config``: its ``config.json``.

    Raises ``TokenizerError`` if ``tokenizer.json`` is missing, over 64 MiB, broken, or decodes its tokens in a way
    other than byte-level BPE's, SentencePiece's or WordPiece's.
    """
    from tokenizers import AddedToken

    path = directory / "tokenizer.json"
    if not path.is_file():
        old = directory / "tokenizer.model"
        advice = (
            "tokenizer.model alone is not read; convert it, for instance with transformers' save_pretrained"
            if old.is_file()
            else "add the model's tokenizer.json"
        )
        raise TokenizerError(f"{directory} has no tokenizer.json: {advice}")
    file = checked_file(path, _read(path, _MAX_TOKENIZER))
    encoder = _parse(file.data, path)
    added = encoder.get_added_tokens_decoder()
    texts, ids = _texts(encoder, path)
    marked = frozenset(id for id, token in added.items() if token.special)
    names = special_names(directory)
    found = end_names(ids, marked.__contains__)
    special = marked | found
    model, fallback = model_without(encoder, file, {id: texts[id] for id in special}, ids)
    pieces, strip_space, whole = _pieces(encoder, texts, added.keys(), special, path)
    bos, eos = (ids.get(names.get(name, "")) for name in ("bos_token", "eos_token"))
    generation = read_object(directory / "generation_config.json") or config
    ends = [id for id in _int_ids(generation.get("eos_token_id")) if 0 <= id < len(texts)]
    if eos is None and ends:
        eos = ends[0]
    vocabulary = Vocabulary(
        pieces=pieces,
        special=special,
        bos_id=bos,
        eos_id=eos,
        eog_ids=found.union(ends, () if eos is None else (eos,)),
        strip_space=strip_space,
        longest=normal_longest(encoder, max(map(len, pieces))) if whole or fallback else UNBOUNDED,
    )
    prefix, suffix = _surround(encoder, path, bos, eos)
    encoders = build_encoders(
        model,
        added | {id: AddedToken(texts[id], normalized=False, special=True) for id in special - added.keys()},
        special,
        normalizers=() if encoder.normalizer is None else (encoder.normalizer,),
        pre_tokenizer=encoder.pre_tokenizer,
        fallback=fallback,
    )
    return Tokenizer(encoders, vocabulary, prefix=prefix, suffix=suffix)


def special_names(directory: Path) -> dict[str, str]:
    """``bos_token`` and its like -> the token's text, as chat templates know them; later files win."""
    names: dict[str, str] = {}
    for file in ("special_tokens_map.json", "tokenizer_config.json"):
        values = read_object(directory / file)
        extra = values.get("extra_special_tokens")
        for name, value in [*values.items(), *(extra.items() if isinstance(extra, dict) else ())]:
            if name not in _NAMES and not (isinstance(extra, dict) and name in extra):
                continue
            text = value.get("content") if isinstance(value, dict) else value
            if isinstance(text, str):
                names[name] = text
    return names


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file, or an empty one if there is no file. Raises ``TokenizerError`` for anything else."""
    if not path.is_file():
        return {}
    try:
        value = json.loads(_read(path, _MAX_JSON))
    except RecursionError:
        raise TokenizerError(f"{path} is nested too deeply") from None
    except ValueError as error:
        raise TokenizerError(f"{path} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise TokenizerError(f"{path} holds {type(value).__name__}, not an object")
    return value


def _read(path: Path, most: int) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(most + 1)
    except OSError as error:
        raise TokenizerError(f"{path} cannot be read: {error.strerror or error}") from error
    if len(data) > most:
        raise TokenizerError(f"{path} is over {most} bytes, the most that poot reads")
    return data


def _parse(data: bytes, path: Path) -> Encoder:
    from tokenizers import Tokenizer as Encoder

    with library_errors(f"{path} is not a tokenizer.json that the tokenizers library reads"):
        # Its parser stops at 128 levels of nesting by itself.
        encoder = Encoder.from_buffer(data)
    encoder.no_truncation()
    encoder.no_padding()
    return encoder


def _texts(encoder: Encoder, path: Path) -> tuple[list[str], dict[str, int]]:
    """(the text of each id, "" where there is no token; the id of each text)."""
    ids: dict[str, int] = encoder.get_vocab(with_added_tokens=True)
    count = max(ids.values(), default=-1) + 1
    if not 0 < count <= _MAX_TOKENS:
        raise TokenizerError(f"{path} has token ids up to {count - 1}; a vocabulary has 1 to {_MAX_TOKENS} tokens")
    texts = [""] * count
    for text, id in ids.items():
        texts[id] = text
    return texts, ids


def _pieces(
    encoder: Encoder, texts: Sequence[str], added: Iterable[int], special: frozenset[int], path: Path
) -> tuple[list[bytes], bool, bool]:
    """(the bytes of each token, whether decoding drops the first space, whether BPE has a token for each byte), from
    the file's ``decoder``."""
    state: dict[str, Any] = json.loads(encoder.decoder.__getstate__()) if encoder.decoder is not None else {}
    steps = state.get("decoders", [state])
    kinds = {step.get("type") for step in steps}
    if "ByteLevel" in kinds:
        whole = {chr(stand_in) for stand_in in byte_level_alphabet()} <= set(texts)
        return byte_level_pieces(texts, added), False, whole
    if kinds == {"WordPiece"}:
        return wordpiece_pieces(texts, special, steps[0].get("prefix", CONTINUES)), True, False
    spaces = any(step.get("pattern") == {"String": SPACE} and step.get("content") == " " for step in steps)
    if not (spaces or "Metaspace" in kinds) or not kinds <= {"Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"}:
        named = ", ".join(sorted(str(kind) for kind in kinds if kind)) or "none"
        raise TokenizerError(
            f"{path} has a decoder poot does not know ({named}); it knows ByteLevel, SentencePiece's and WordPiece"
        )
    bytes_too = [id for id, text in enumerate(texts) if _BYTE.fullmatch(text)] if "ByteFallback" in kinds else []
    strip = any(
        (step["type"] == "Strip" and step.get("content") == " " and step.get("start", 0) > 0)
        or (step["type"] == "Metaspace" and step.get("prepend_scheme") != "never")
        for step in steps
    )
    whole = type(encoder.model).__name__ == "BPE" and len(bytes_too) == 256
    return sentencepiece_pieces(texts, bytes_too, special), strip, whole


def _surround(encoder: Encoder, path: Path, bos: int | None, eos: int | None) -> tuple[list[int], list[int]]:
    """What the tokenizer puts before and after a text: as ``tokenizer_config.json`` says, else the post-processor."""
    config = read_object(path.parent / "tokenizer_config.json")
    says = {name: config[name] for name in ("add_bos_token", "add_eos_token") if isinstance(config.get(name), bool)}
    if says:
        return (
            [bos] if says.get("add_bos_token") and bos is not None else [],
            [eos] if says.get("add_eos_token") and eos is not None else [],
        )
    with library_errors(f"{path} cannot encode a letter"):
        bare: list[int] = encoder.encode("a", add_special_tokens=False).ids
        full: list[int] = encoder.encode("a", add_special_tokens=True).ids
    start = next((at for at in range(len(full)) if full[at : at + len(bare)] == bare), len(full))
    return full[:start], full[start + len(bare) :]


def _int_ids(value: object) -> list[int]:
    values = value if isinstance(value, list) else [value]
    return [id for id in values if isinstance(id, int) and not isinstance(id, bool)]

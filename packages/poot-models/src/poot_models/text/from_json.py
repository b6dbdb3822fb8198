"""Tokenizers from the files beside a safetensors checkpoint.

``tokenizer.json`` is the Hugging Face tokenizers library's own format, and that library runs it;
``tokenizer_config.json``, ``special_tokens_map.json``, ``generation_config.json`` and ``config.json`` say which tokens
are BOS, EOS and further ends.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from poot_models.errors import TokenizerError
from poot_models.text.encoders import build_encoders
from poot_models.text.json_decoder import decoded_pieces
from poot_models.text.json_model import (
    byte_fallback,
    check_model,
    checked_file,
    model_without,
    normal_longest,
    without_merges,
)
from poot_models.text.library import library_errors
from poot_models.text.tokenizer import Tokenizer
from poot_models.text.vocabulary import UNBOUNDED, Vocabulary, end_names

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Encoder

__all__ = ["json_tokenizer", "read_object", "special_names"]

_MAX_TOKENIZER = 64 << 20
_MAX_JSON = 16 << 20
_MAX_TOKENS = 1 << 21
_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


def json_tokenizer(directory: Path, config: Mapping[str, Any], *, encodes: bool = True) -> Tokenizer:
    """The tokenizer of a checkpoint directory. ``config``: its ``config.json``. ``encodes`` as in ``load_text``.

    Raises ``TokenizerError`` if ``tokenizer.json`` is missing, over 64 MiB, broken, has a vocabulary beyond the
    embedding table, or decodes its tokens in a way other than byte-level BPE's, SentencePiece's or WordPiece's.
    """
    from tokenizers import AddedToken

    path = directory / "tokenizer.json"
    if not path.is_file():
        old = directory / "tokenizer.model"
        advice = (
            "tokenizer.model alone is not read; convert it, for instance with transformers' save_pretrained"
            if old.is_file()
            else "it is a link to a file that is not there: fetch it again, or mend the link"
            if path.is_symlink()
            else "add the model's tokenizer.json"
        )
        raise TokenizerError(f"{directory} has no tokenizer.json: {advice}")
    file = checked_file(path, _read(path, _MAX_TOKENIZER))
    encoder = _parse(file.data if encodes else without_merges(file.data), path)
    texts, ids = _texts(encoder, path, _rows(config))
    added = {id: token for id, token in encoder.get_added_tokens_decoder().items() if id < len(texts)}
    marked = frozenset(id for id, token in added.items() if token.special)
    names = special_names(directory)
    found = end_names(ids, marked.__contains__)
    special = marked | found
    check_model(encoder, path)
    fallback = byte_fallback(encoder, file, ids)
    # The library shows an added token as its normaliser leaves it: with the space that is put before it, say.
    shown = {id: text for id in added.keys() - special if (text := encoder.id_to_token(id)) != texts[id]}
    decoded = texts.copy()
    for id, text in shown.items():
        decoded[id] = text or texts[id]
    pieces, strip_space, whole = decoded_pieces(encoder, decoded, added.keys() - shown.keys(), special, path)
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
    prefix, suffix = _surround(encoder, path)
    encoders = None
    if encodes:
        encoders = build_encoders(
            model_without(encoder, file, {id: texts[id] for id in special}, fallback),
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


def _rows(config: Mapping[str, Any]) -> int:
    """Rows of the embedding table, as far as the configuration says."""
    inner = config.get("text_config")
    stated = (inner if isinstance(inner, Mapping) else config).get("vocab_size", config.get("vocab_size"))
    return stated if isinstance(stated, int) and not isinstance(stated, bool) and stated > 0 else _MAX_TOKENS


def _texts(encoder: Encoder, path: Path, rows: int) -> tuple[list[str], dict[str, int]]:
    """(the text of each id, "" where there is no token; the id of each text).

    An added token beyond the embedding table's ``rows`` is left out, since no model could run it: Gemma 3 of text alone
    brings the tokenizer of those for images too. One of the vocabulary itself is an error.
    """
    ids: dict[str, int] = encoder.get_vocab(with_added_tokens=True)
    if beyond := {text: id for text, id in ids.items() if rows <= id < _MAX_TOKENS}:
        added = encoder.get_added_tokens_decoder()
        if own := [id for id in beyond.values() if id not in added]:
            raise TokenizerError(
                f"{path} has token ids up to {max(own)}, but the embedding table of config.json's vocab_size only "
                f"{rows} rows: the tokenizer is another model's"
            )
        ids = {text: id for text, id in ids.items() if text not in beyond}
    count = max(ids.values(), default=-1) + 1
    if not 0 < count <= _MAX_TOKENS:
        raise TokenizerError(f"{path} has token ids up to {count - 1}; a vocabulary has 1 to {_MAX_TOKENS} tokens")
    texts = [""] * count
    for text, id in ids.items():
        texts[id] = text
    return texts, ids


def _surround(encoder: Encoder, path: Path) -> tuple[list[int], list[int]]:
    """What the post-processor puts before and after a text.

    ``add_bos_token`` and ``add_eos_token`` of ``tokenizer_config.json`` change nothing, as in transformers 5: they are
    for the vocabulary files that a tokenizer.json was made from.
    """
    with library_errors(f"{path} cannot encode a letter"):
        bare: list[int] = encoder.encode("a", add_special_tokens=False).ids
        full: list[int] = encoder.encode("a", add_special_tokens=True).ids
    start = next((at for at in range(len(full)) if full[at : at + len(bare)] == bare), len(full))
    return full[:start], full[start + len(bare) :]


def _int_ids(value: object) -> list[int]:
    values = value if isinstance(value, list) else [value]
    return [id for id in values if isinstance(id, int) and not isinstance(id, bool)]

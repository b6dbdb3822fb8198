"""The model of a tokenizer.json, from whose text no control token may come."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from poot_models.errors import TokenizerError
from poot_models.text.charsmap import check_charsmap
from poot_models.text.encoders import ByteFallback, hidden_name, reachable
from poot_models.text.library import library_errors
from poot_models.text.vocabulary import MAX_UNIGRAM_BYTES, UNBOUNDED

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Encoder
    from tokenizers.models import Model

__all__ = [
    "JsonFile",
    "byte_fallback",
    "check_model",
    "checked_file",
    "model_without",
    "normal_longest",
    "without_merges",
]

_UNIGRAM = re.compile(rb'"type"\s*:\s*"Unigram"')
_KNOWN = ("BPE", "Unigram", "WordPiece")
_COMPOSE = {"NFC", "NFKC"}
_KEEP_LENGTH = {"Prepend", "NFD", "NFKD", "Lowercase", "ByteLevel", "Digits", "Punctuation", "Metaspace"}


@dataclass(frozen=True, slots=True)
class JsonFile:
    """A tokenizer.json: its bytes, and its model where that is Unigram."""

    path: Path
    data: bytes
    unigram: dict[str, Any] | None


def checked_file(path: Path, data: bytes) -> JsonFile:
    """``data``, which was read from ``path``, before the library parses it.

    Raises ``TokenizerError`` if it holds a Unigram model whose tokens are too long together: the library takes several
    hundred bytes of memory for each of theirs.
    """
    if _UNIGRAM.search(data) is None:
        return JsonFile(path, data, None)
    try:
        model = json.loads(data)["model"]
        size = sum(len(text.encode("utf-8", "surrogatepass")) for text, _ in model["vocab"])
    except (RecursionError, ValueError, TypeError, KeyError, AttributeError):
        return JsonFile(path, data, None)  # the library says what is wrong, unless it is another kind
    if size > MAX_UNIGRAM_BYTES:
        raise TokenizerError(f"{path} has a Unigram model with {size} bytes of tokens; the most is {MAX_UNIGRAM_BYTES}")
    return JsonFile(path, data, model)


def without_merges(data: bytes) -> bytes:
    """A tokenizer.json without the merges of its model, which take the library most of its time and decode nothing."""
    try:
        file = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
        model = msgspec.json.decode(file["model"], type=dict[str, msgspec.Raw])
    except (msgspec.MsgspecError, ValueError, KeyError, RecursionError):
        return data  # the library says what is wrong
    if "merges" not in model:
        return data
    model["merges"] = msgspec.Raw(b"[]")
    return msgspec.json.encode(file | {"model": msgspec.Raw(msgspec.json.encode(model))})


def check_model(encoder: Encoder, path: Path) -> None:
    """Raises ``TokenizerError`` for a model of a kind other than BPE, Unigram and WordPiece, or a bad character map.

    BPE's dropout is taken out of ``encoder``.
    """
    kind = _kind(encoder)
    if kind not in _KNOWN:
        raise TokenizerError(f"{path} has a model of the kind {kind}; poot knows {', '.join(_KNOWN)}")
    _check_charsmaps(encoder, path)
    if kind == "BPE":
        encoder.model.dropout = None  # a training device: it draws at random


def byte_fallback(encoder: Encoder, file: JsonFile, ids: Mapping[str, int]) -> ByteFallback | None:
    """What stands for the unknown bytes of a Unigram model that has a token for each; otherwise the library sees to it.

    ``file``: what ``encoder`` was read from. ``ids``: of all tokens. Raises ``TokenizerError`` if the model has no
    unknown token.
    """
    if _kind(encoder) != "Unigram":
        return None
    if file.unigram is None:
        raise TokenizerError(f"{file.path} does not say that its model is of the type Unigram")
    unknown = file.unigram.get("unk_id")
    if unknown is None:
        raise TokenizerError(f"{file.path} has a Unigram model without an unknown token; its unk_id must name one")
    if not file.unigram.get("byte_fallback"):
        return None
    byte_ids = [ids.get(f"<0x{byte:02X}>") for byte in range(256)]
    found = tuple(id for id in byte_ids if id is not None and id < len(file.unigram["vocab"]))
    return ByteFallback(unknown, found) if len(found) == 256 else None


def model_without(encoder: Encoder, file: JsonFile, names: Mapping[int, str], fallback: ByteFallback | None) -> Model:
    """The model of ``encoder`` without a way from plain text to the tokens ``names``.

    ``encoder`` has passed ``check_model``; ``file`` and ``fallback`` as in ``byte_fallback``. The library gives its
    control tokens to text that merely spells them where a model knows whole pieces, as Unigram does.
    """
    model: Model = encoder.model
    in_model = {id: name for id, name in names.items() if model.token_to_id(name) == id}
    if file.unigram is not None and _kind(encoder) == "Unigram":
        return _unigram(file.unigram, in_model, fallback, file.path)
    if hidden := reachable(model, in_model):
        state = json.loads(file.data)
        hide = _hide_in_bpe if _kind(encoder) == "BPE" else _hide_in_vocab
        hide(state["model"], {in_model[id]: id for id in hidden})
        model = _rebuilt(state, file.path)
    return model


def _kind(encoder: Encoder) -> str:
    return type(encoder.model).__name__


def normal_longest(encoder: Encoder, longest: int) -> int:
    """Most characters of a text that a token of ``longest`` bytes stands for: what happens to the text before the model
    sees it may take some away."""
    steps = [*_steps(encoder.normalizer, "normalizers"), *_steps(encoder.pre_tokenizer, "pretokenizers")]
    kinds = {step.get("type") for step in steps if not _keeps_length(step)}
    if not kinds:
        return longest
    # The most that is composed, of Greek: a letter and three marks to three bytes.
    return 2 * longest if kinds <= _COMPOSE else UNBOUNDED


def _keeps_length(step: Mapping[str, Any]) -> bool:
    if step.get("type") == "Split":
        return step.get("behavior") != "Removed"
    if step.get("type") == "Replace":
        pattern = step.get("pattern", {}).get("String")
        return isinstance(pattern, str) and len(pattern) <= len(step.get("content", ""))
    return step.get("type") in _KEEP_LENGTH


def _hide_in_vocab(model: dict[str, Any], hidden: Mapping[str, int]) -> None:
    model["vocab"] = {hidden_name(id) if name in hidden else name: id for name, id in model["vocab"].items()}
    unknown = model.get("unk_token")
    if isinstance(unknown, str) and unknown in hidden:
        model["unk_token"] = hidden_name(hidden[unknown])


def _hide_in_bpe(model: dict[str, Any], hidden: Mapping[str, int]) -> None:
    _hide_in_vocab(model, hidden)
    model["dropout"] = None  # as in check_model
    pairs = [line.split(" ") if isinstance(line, str) else line for line in model["merges"]]
    model["merges"] = [pair for pair in pairs if hidden.keys().isdisjoint((*pair, "".join(pair)))]


def _unigram(model: dict[str, Any], names: Mapping[int, str], fallback: ByteFallback | None, path: Path) -> Model:
    from tokenizers.models import Unigram

    vocab, unknown = model["vocab"], model["unk_id"]
    hidden = {*names, unknown, *(fallback.ids if fallback else ())}
    scores = [score for id, (_, score) in enumerate(vocab) if id not in hidden]
    # The library takes the lowest of all scores for what an unknown character costs; these say nothing about it.
    most = max(scores, default=0.0)
    for id in hidden:
        vocab[id] = [hidden_name(id), most]
    bytes_inside = bool(model.get("byte_fallback")) and fallback is None
    with library_errors(f"{path} has a model that does not fit its control tokens"):
        return Unigram([(text, score) for text, score in vocab], unknown, bytes_inside)


def _rebuilt(state: dict[str, Any], path: Path) -> Model:
    from tokenizers import Tokenizer as Encoder

    bare = {**state, "added_tokens": [], "post_processor": None, "normalizer": None, "pre_tokenizer": None}
    with library_errors(f"{path} has a model that does not fit its control tokens"):
        # Not by json, which would spell most characters as escapes: to read them takes half as long again.
        model: Model = Encoder.from_buffer(msgspec.json.encode({**bare, "decoder": None})).model
    return model


def _check_charsmaps(encoder: Encoder, path: Path) -> None:
    for step in _steps(encoder.normalizer, "normalizers"):
        if step.get("type") == "Precompiled":
            check_charsmap(base64.b64decode(step.get("precompiled_charsmap") or ""), str(path))


def _steps(step: Any, key: str) -> list[dict[str, Any]]:
    """Every normaliser, or pre-tokenizer, of a tree of sequences, whose parts lie under ``key``."""
    if step is None:
        return []
    left: list[dict[str, Any]] = [json.loads(step.__getstate__())]
    found: list[dict[str, Any]] = []
    while left:
        part = left.pop()
        left += part.get(key, [])
        found.append(part)
    return [part for part in found if part.get("type") != "Sequence"]

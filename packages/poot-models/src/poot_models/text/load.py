"""The text side of a checkpoint: its tokenizer and its chat template."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from poot_models.errors import ModelError, TemplateError, TokenizerError
from poot_models.text.from_gguf import gguf_tokenizer
from poot_models.text.from_json import json_tokenizer, read_object, special_names
from poot_models.text.template import ChatTemplate
from poot_models.text.tokenizer import Tokenizer

__all__ = ["TextModel", "TextSource", "load_text", "open_text"]

_MAX_TEMPLATE = 1 << 22


class TextSource(Protocol):
    """What ``load_text`` reads of a checkpoint. ``path``: a GGUF file, or a safetensors directory.

    ``metadata``: the GGUF file's keys, or the directory's ``config.json``.
    """

    @property
    def format(self) -> str: ...
    @property
    def path(self) -> Path: ...
    @property
    def metadata(self) -> Mapping[str, Any]: ...


@dataclass(frozen=True, slots=True)
class TextModel:
    """``chat_template`` is None if the model has none, or if it has one that cannot be used, which
    ``template_problem`` explains. ``special_tokens``: what templates know as ``bos_token`` and so on."""

    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    template_problem: str | None
    special_tokens: Mapping[str, str]


def open_text(path: str | Path, *, encodes: bool = True) -> TextModel:
    """``load_text`` of the checkpoint at ``path`` (any part of a split one); its weights are not read.

    Raises ``CheckpointError`` and ``TokenizerError``, which name the path.
    """
    from poot_models.checkpoint import open_checkpoint

    try:
        with open_checkpoint(path) as checkpoint:
            return load_text(checkpoint, encodes=encodes)
    except ModelError as error:
        if str(path) in str(error):
            raise
        raise type(error)(f"{path}: {error}") from error


def load_text(checkpoint: TextSource, *, encodes: bool = True) -> TextModel:
    """The tokenizer and chat template of a checkpoint. Raises ``TokenizerError`` if its tokenizer cannot be used.

    Without ``encodes`` the tokenizer only decodes, just as the whole one does, and there is no chat template: that
    takes a fraction of the time. Not everything that is wrong with the tokenizer is found then.
    """
    directory = Path(checkpoint.path)
    if checkpoint.format == "gguf":
        tokenizer = gguf_tokenizer(checkpoint.metadata, encodes=encodes)
        names = _gguf_names(checkpoint.metadata, tokenizer)
    elif checkpoint.format == "safetensors":
        tokenizer = json_tokenizer(directory, checkpoint.metadata, encodes=encodes)
        names = special_names(directory)
    else:
        raise TokenizerError(f"a checkpoint of the format {checkpoint.format!r} has no tokenizer that poot reads")
    if not encodes:
        return TextModel(tokenizer, None, "it was not read, for no text is to be encoded", names)
    sources, unread = _sources(checkpoint)
    template, problem = _template(sources, names)
    return TextModel(tokenizer, template, unread or problem, names)


def _sources(checkpoint: TextSource) -> tuple[Mapping[str, str], str | None]:
    """(the chat templates of a checkpoint by name, why they cannot be read)."""
    if checkpoint.format == "gguf":
        return _gguf_templates(checkpoint.metadata), None
    try:
        return _directory_templates(Path(checkpoint.path)), None
    except (OSError, TokenizerError) as error:
        return {}, f"the chat template cannot be read: {error}"


def _template(sources: Mapping[str, str], names: Mapping[str, str]) -> tuple[ChatTemplate | None, str | None]:
    if not sources:
        return None, None
    if "default" not in sources:
        return None, f"the model has chat templates named {', '.join(sorted(sources))}, but none named default"
    try:
        return ChatTemplate(sources["default"], special_tokens=names, tool_use=sources.get("tool_use")), None
    except TemplateError as error:
        return None, str(error)


def _gguf_templates(metadata: Mapping[str, Any]) -> dict[str, str]:
    keys = (("default", "tokenizer.chat_template"), ("tool_use", "tokenizer.chat_template.tool_use"))
    return {name: text for name, key in keys if isinstance(text := metadata.get(key), str) and text.strip()}


def _gguf_names(metadata: Mapping[str, Any], tokenizer: Tokenizer) -> dict[str, str]:
    ids = {"bos_token": tokenizer.bos_id, "eos_token": tokenizer.eos_id}
    for name, key in (("unk_token", "unknown"), ("pad_token", "padding")):
        value = metadata.get(f"tokenizer.ggml.{key}_token_id")
        known = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < tokenizer.vocab_size
        ids[name] = value if known else None
    return {name: tokenizer.token_text(id) for name, id in ids.items() if id is not None}


def _directory_templates(directory: Path) -> dict[str, str]:
    """The templates of a directory by name, as transformers writes them.

    ``chat_template.jinja`` with ``additional_chat_templates/NAME.jinja`` beside it; else what ``tokenizer_config.json``
    holds, a template or named ones; else the one of ``chat_template.json``, where processors of older releases kept it.
    """
    files = {"default": directory / "chat_template.jinja"}
    files["tool_use"] = directory / "additional_chat_templates" / "tool_use.jinja"
    found = {name: _template_text(file) for name, file in files.items() if file.is_file()}
    if "default" in found:
        return found
    value = read_object(directory / "tokenizer_config.json").get("chat_template")
    if value is None:
        value = read_object(directory / "chat_template.json").get("chat_template")
    if isinstance(value, str):
        return {"default": value, **found}
    named: dict[str, str] = {}
    for item in value if isinstance(value, list) else ():
        if isinstance(item, dict) and isinstance(item.get("name"), str) and isinstance(item.get("template"), str):
            named[item["name"]] = item["template"]
    return named | found


def _template_text(file: Path) -> str:
    with file.open("rb") as source:
        return source.read(_MAX_TEMPLATE).decode("utf-8", "replace")

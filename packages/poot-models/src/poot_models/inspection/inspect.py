"""Gathering the facts: first what any checkpoint says, then what its family and the backends make of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod
from pathlib import Path
from typing import Any

from poot_executor.encodings import WeightSource
from poot_models.blocks import LayerSpec, LongRotary
from poot_models.checkpoint import Checkpoint, open_checkpoint
from poot_models.errors import CheckpointError, ModelError
from poot_models.handle import ModelHandle
from poot_models.inspection.backends import backend_facts
from poot_models.inspection.report import EncodingUse, Group, LayerKind, Report, Sizes, TextFacts
from poot_models.loader import load

_MOST_STATED = 64
_MOST_TEXT = 80


def inspect_model(path: Path) -> Report:
    """All facts of the checkpoint at `path`; `refusal` is what its family refuses, or else its tokenizer.

    Raises CheckpointError for a checkpoint that does not open. No device is opened, though asking what runs on one
    imports torch and may compile the CPU's kernels, once.
    """
    with open_checkpoint(path) as checkpoint:
        architecture = _architecture(checkpoint)
        encodings = _encodings(checkpoint.tensors.values())
        stated = _stated(checkpoint, architecture)
        text = _text(checkpoint)
        rotary = _rotary(checkpoint, architecture)
    handle, refusal = None, None
    try:
        handle = load(path)
    except CheckpointError as error:
        refusal = str(error)
    return Report(
        model=str(path),
        format=checkpoint.format,
        architecture=architecture,
        family=handle.family.name if handle else None,
        refusal=refusal or text.problem,
        parameters=sum(use.parameters for use in encodings),
        nbytes=sum(use.nbytes for use in encodings),
        encodings=encodings,
        stated=stated if handle is None else {},
        sizes=_sizes(handle, rotary) if handle else None,
        text=text,
        backends=backend_facts(handle) if handle else (),
    )


def _architecture(checkpoint: Checkpoint) -> str | None:
    if checkpoint.format == "gguf":
        found = checkpoint.metadata.get("general.architecture")
    else:
        names = checkpoint.metadata.get("architectures")
        found = names[0] if isinstance(names, list) and names else checkpoint.metadata.get("model_type")
    return found[:_MOST_TEXT] if isinstance(found, str) else None


def _encodings(sources: Iterable[WeightSource]) -> tuple[EncodingUse, ...]:
    found: dict[str, list[WeightSource]] = {}
    for source in sources:
        found.setdefault(str(source.encoding), []).append(source)
    uses = [
        EncodingUse(name, len(those), sum(prod(s.shape) for s in those), sum(s.data.size for s in those))
        for name, those in found.items()
    ]
    return tuple(sorted(uses, key=lambda use: -use.nbytes))


def _stated(checkpoint: Checkpoint, architecture: str | None) -> dict[str, str | int | float | bool]:
    """Plain values of config.json, or the keys of a GGUF file's architecture."""
    prefix = f"{architecture}." if checkpoint.format == "gguf" else ""
    found = {
        key: value[:_MOST_TEXT] if isinstance(value, str) else value
        for key, value in checkpoint.metadata.items()
        if key.startswith(prefix) and isinstance(value, str | int | float)
    }
    return dict(list(found.items())[:_MOST_STATED])


def _rotary(checkpoint: Checkpoint, architecture: str | None) -> str:
    """The name of the scaling rule as the checkpoint states it."""
    if checkpoint.format == "gguf":
        name = checkpoint.metadata.get(f"{architecture}.rope.scaling.type", "none")
        if "rope_factors_long.weight" in checkpoint.tensors:
            name = "longrope"
        if "rope_freqs.weight" in checkpoint.tensors:
            name = "a factor a frequency"
        return str(name)[:_MOST_TEXT]
    for key in ("rope_parameters", "rope_scaling"):
        rules = checkpoint.metadata.get(key)
        if isinstance(rules, Mapping) and (name := rules.get("rope_type", rules.get("type"))) is not None:
            return str(name)[:_MOST_TEXT]
    return "none"


def _sizes(handle: ModelHandle, rotary: str) -> Sizes:
    config = handle.config
    kinds: dict[LayerSpec, list[int]] = {}
    for index, layer in enumerate(config.layers):
        kinds.setdefault(layer, []).append(index)
    layers = tuple(
        LayerKind(
            tuple(indices),
            layer.heads,
            layer.kv_heads,
            layer.head_dim,
            layer.ff,
            layer.window,
            _turned(layer, config.rotary_style),
        )
        for layer, indices in kinds.items()
    )
    groups = tuple(
        Group(group.name, len(group.layers), group.kv_heads, group.head_dim, group.block_elements(1))
        for group in handle.groups
    )
    return Sizes(
        vocabulary=config.vocabulary,
        hidden=config.hidden,
        positions=config.max_positions,
        tied=config.tied,
        rotary=rotary,
        layers=layers,
        groups=groups,
        unused=handle.ignored,
    )


def _turned(layer: LayerSpec, style: str) -> str:
    """Which columns of a head turn: "64 of 128 columns, half"; "none" where no angle grows."""
    rotary = layer.rotary
    spec = rotary.short if isinstance(rotary, LongRotary) else rotary
    if not any(spec.inverse_frequencies):
        return "none"
    columns = f"{2 * len(spec.inverse_frequencies)} of {layer.head_dim} columns, {style}"
    return f"{columns}, long from {rotary.original} positions" if isinstance(rotary, LongRotary) else columns


def _text(checkpoint: Checkpoint) -> TextFacts:
    from poot_models.text import load_text

    kind = _tokenizer_kind(checkpoint)
    try:
        text = load_text(checkpoint)
    except ModelError as error:
        return TextFacts(kind, 0, {}, "none", str(error))
    tokenizer = text.tokenizer
    ends = {token: tokenizer.token_text(token) for token in sorted(tokenizer.eog_ids)}
    template = "usable" if text.chat_template is not None else text.template_problem or "none"
    return TextFacts(kind, tokenizer.vocab_size, ends, template)


def _tokenizer_kind(checkpoint: Checkpoint) -> str:
    """ "gpt2, smollm": the model and the pre-tokenizer of a GGUF file; "BPE": the model of tokenizer.json."""
    metadata: Mapping[str, Any] = checkpoint.metadata
    if checkpoint.format == "gguf":
        names = (metadata.get(f"tokenizer.ggml.{key}") for key in ("model", "pre"))
        return ", ".join(name[:_MOST_TEXT] for name in names if isinstance(name, str)) or "none"
    path = checkpoint.path / "tokenizer.json"
    if not path.is_file():
        return "none"
    from tokenizers import Tokenizer

    from poot_models.text.library import library_errors

    try:
        with library_errors(str(path)):
            return type(Tokenizer.from_file(str(path)).model).__name__
    except ModelError:
        return "unknown"

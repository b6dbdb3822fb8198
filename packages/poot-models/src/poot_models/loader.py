"""`load`: a path to a ModelHandle."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sized
from dataclasses import replace
from pathlib import Path
from typing import Any

from poot_executor.encodings import WeightSource
from poot_executor.errors import GraphError
from poot_models.blocks import StepShape, kv_groups
from poot_models.checkpoint import open_checkpoint
from poot_models.encodings.config_methods import refuse_other_dtypes, refuse_packed
from poot_models.errors import CheckpointError, CheckpointFormatError, UnsupportedArchitectureError
from poot_models.families import Family, find_family, text_architecture
from poot_models.families.fields import Fields
from poot_models.families.fused import split_fused
from poot_models.families.reference import find_reference
from poot_models.handle import ModelHandle
from poot_models.hub import local_model

_LAYER = re.compile(r"(?<=layers\.)\d+")
# Tensors that no product reads: rotary frequencies, what divides them, and parameters of activations.
_BUFFERS = (
    *("rotary_emb.inv_freq", "rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"),
    *(f"ffn_act.{name}" for name in ("alpha_p", "alpha_n", "beta", "eps")),
)


def load(path: str | Path) -> ModelHandle:
    """Open a GGUF file (of a split model any part) or a safetensors directory as a model.

    A text that is no path but has the form of a hub id is fetched first (`poot_models.hub`). Nothing is read but
    headers: weights stay views of the mapped file. Everything the family needs is checked for name and shape here.
    Raises CheckpointError and its kin, with what to change.
    """
    path = local_model(path)
    try:
        return _load(path)
    except CheckpointError as error:
        if str(path) in str(error):
            raise
        raise type(error)(f"{path}: {error}") from error


def _load(path: Path) -> ModelHandle:
    checkpoint = open_checkpoint(path)
    gguf = checkpoint.format == "gguf"
    architecture = _architecture(checkpoint.metadata, gguf)
    family, own = find_family(architecture), architecture
    metadata, tensors = checkpoint.metadata, checkpoint.tensors
    if not gguf:
        refuse_packed(metadata)
        if isinstance(metadata.get("text_config"), Mapping):
            if architecture == "Mistral3ForConditionalGeneration":
                own = text_architecture(metadata["text_config"].get("model_type"))
                family = find_family(own)
            metadata, tensors = {**metadata, **metadata["text_config"]}, _of_language_model(tensors)
            # Models of several kinds say it in two places, which differ.
            metadata["tie_word_embeddings"] = "lm_head.weight" not in tensors
        _refuse_both_directions(metadata)
        metadata = {**find_reference(own).defaults, **metadata}
        tensors = _renamed(tensors, family)
    fields = Fields(own, metadata, tensors, gguf)
    config = family.configure(fields)
    if gguf:
        _check_vocabulary(metadata, config.vocabulary)
    else:
        config = replace(config, biases=find_reference(own).products_with_bias(fields))
    tensors = split_fused(tensors, config)
    handle = ModelHandle(path, architecture, family, config, tensors, kv_groups(config), ())
    used = _check(handle)
    refuse_other_dtypes(tensors[name] for name in used)
    ignored = tuple(name for name in tensors if name not in used and not name.endswith(_BUFFERS))
    return ModelHandle(handle.path, architecture, family, config, tensors, handle.groups, ignored)


def _architecture(metadata: Mapping[str, Any], gguf: bool) -> str:
    if gguf:
        name = metadata.get("general.architecture")
        if not isinstance(name, str):
            raise CheckpointFormatError("the file does not say general.architecture: it is no model")
        return name
    names = metadata.get("architectures")
    if not isinstance(names, list) or len(names) != 1 or not isinstance(names[0], str):
        raise CheckpointFormatError("config.json must name one architecture under `architectures`")
    return names[0]


def _refuse_both_directions(metadata: Mapping[str, Any]) -> None:
    if metadata.get("is_causal") is False:
        raise UnsupportedArchitectureError("is_causal: false is not supported: tokens attend to earlier ones only")
    if metadata.get("use_bidirectional_attention"):
        raise UnsupportedArchitectureError("use_bidirectional_attention is not supported")


def _of_language_model(tensors: Mapping[str, WeightSource]) -> dict[str, WeightSource]:
    """The text part of a model for images too, under the names that it has alone."""
    return {
        name.replace("model.language_model.", "model.", 1).removeprefix("language_model."): source
        for name, source in tensors.items()
    }


def _renamed(tensors: Mapping[str, WeightSource], family: Family) -> dict[str, WeightSource]:
    """Transformers names to GGUF names; tensors of no known name keep theirs."""
    back = {theirs: ours for ours, theirs in family.tensors.items()}
    result: dict[str, WeightSource] = {}
    for name, source in tensors.items():
        stem, _, kind = name.rpartition(".")
        layer = _LAYER.search(stem)
        ours = back.get(_LAYER.sub("{}", stem, count=1) if layer else stem)
        if ours is not None:
            name = f"{ours.format(layer.group()) if layer else ours}.{kind}"  # noqa: PLW2901
        if name in result:
            raise CheckpointFormatError(f"the tensors {result[name].name} and {source.name} are both {name}")
        result[name] = source
    return result


def _check_vocabulary(metadata: Mapping[str, Any], rows: int) -> None:
    """A token beyond the embedding table could never be run. A table may be padded, so it may have more rows."""
    tokens = metadata.get("tokenizer.ggml.tokens")
    if isinstance(tokens, Sized) and len(tokens) > rows:
        raise CheckpointFormatError(
            f"tokenizer.ggml.tokens has {len(tokens)} tokens, but the embedding table only {rows} rows"
        )


def _check(handle: ModelHandle) -> set[str]:
    """Build both programs once at the least size; the names of the weights that they use."""
    groups = len(handle.groups)
    shape = StepShape(1, 1, 1, 1, (1,) * groups, (1,) * groups)
    try:
        graphs = handle.step(shape), handle.head(1, shape)
    except GraphError as error:
        raise CheckpointFormatError(f"the configuration does not fit together: {error}") from error
    return {value.name for graph in graphs for value in graph.values if value.encoding is not None}

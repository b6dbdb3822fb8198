"""A loaded model: weights as views of its file, programs as graphs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from poot_executor.encodings import WeightSource
from poot_executor.ir import Graph
from poot_models.blocks import DecoderConfig, KvGroup, StepShape, head_graph, score_graph, step_graph
from poot_models.families import Family
from poot_models.text.load import TextModel


@dataclass(frozen=True, slots=True)
class ModelHandle:
    """A model ready to be prepared on a device.

    `weights` are keyed by GGUF names whatever the format. `ignored` names the checkpoint's tensors that the family
    does not use.
    """

    path: Path
    architecture: str
    family: Family
    config: DecoderConfig
    weights: Mapping[str, WeightSource]
    groups: tuple[KvGroup, ...]
    ignored: tuple[str, ...]

    @property
    def vocab_size(self) -> int:
        return self.config.vocabulary

    @property
    def hidden_size(self) -> int:
        return self.config.hidden

    @property
    def max_positions(self) -> int:
        return self.config.max_positions

    @property
    def text(self) -> TextModel:
        """Tokenizer and chat template, read anew at each call. Raises TextError."""
        from poot_models.text import open_text

        return open_text(self.path)

    def step(self, shape: StepShape) -> Graph:
        """`step`: see `poot_models.blocks.decoder.step_graph`. Raises TensorMissingError, CheckpointFormatError."""
        return step_graph(self.config, self.weights, self.family.layer, shape)

    def head(self, rows: int, shape: StepShape) -> Graph:
        """`head`: see `poot_models.blocks.decoder.head_graph`."""
        return head_graph(self.config, self.weights, rows, shape)

    def score(self, shape: StepShape, top: int) -> Graph:
        """`score`: see `poot_models.blocks.decoder.score_graph`. Raises as `step` does."""
        return score_graph(self.config, self.weights, self.family.layer, shape, top)

"""Checkpoint readers: a GGUF file or a safetensors directory, mapped and checked before use. No torch here."""

from poot_models.checkpoint.gguf import GgufFile
from poot_models.checkpoint.gguf_parts import GgufParts, open_gguf
from poot_models.checkpoint.gguf_values import StringArray
from poot_models.checkpoint.open import Checkpoint, open_checkpoint
from poot_models.checkpoint.safetensors import SafetensorsDirectory

__all__ = ["Checkpoint", "GgufFile", "GgufParts", "SafetensorsDirectory", "StringArray", "open_checkpoint", "open_gguf"]

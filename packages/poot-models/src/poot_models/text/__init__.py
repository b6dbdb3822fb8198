"""Text of a language model: tokenizers, incremental decoding, chat templates, stop strings.

Imports no torch: a server that only turns text into tokens starts fast and stays small.
"""

from poot_models.text.detokenizer import Detokenizer
from poot_models.text.load import TextModel, load_text, open_text
from poot_models.text.stop import StopMatcher
from poot_models.text.template import ChatTemplate
from poot_models.text.template_habits import Habits
from poot_models.text.tokenizer import Tokenizer

__all__ = ["ChatTemplate", "Detokenizer", "Habits", "StopMatcher", "TextModel", "Tokenizer", "load_text", "open_text"]

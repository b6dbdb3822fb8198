"""Wire types of /tokenize and /detokenize, as vLLM names them."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from poot_serve.protocol.chat import Effort, Messages, TemplateKwargs

# Characters of a text and tokens of a list: what would not hold a thread for long, and fits a body of 4 MiB and of a
# million JSON values.
MAX_CHARS = 1 << 19
MAX_TOKENS = 1 << 19


class TokenizeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A `prompt`, or the `messages` of a chat with what its template is given. Unknown fields are accepted.

    Without `add_special_tokens` a prompt is encoded as /v1/completions does it, and a chat as its template renders it.
    """

    model: str | None = None
    prompt: Annotated[str, Meta(max_length=MAX_CHARS)] | None = None
    messages: Messages | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    reasoning_effort: Effort | None = None
    chat_template_kwargs: TemplateKwargs | None = None


class Tokens(msgspec.Struct, frozen=True, kw_only=True):
    """`max_model_len` is in tokens: prompt and answer together. What is longer is tokenised all the same."""

    count: int
    max_model_len: int
    tokens: list[int]


class DetokenizeRequest(msgspec.Struct, frozen=True, kw_only=True):
    model: str | None = None
    tokens: Annotated[list[int], Meta(max_length=MAX_TOKENS)]


class DetokenizedPrompt(msgspec.Struct, frozen=True):
    prompt: str

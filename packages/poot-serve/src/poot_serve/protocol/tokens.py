"""Wire types of /tokenize and /detokenize, as vLLM names them."""

from __future__ import annotations

from typing import Any

import msgspec

from poot_serve.protocol.chat import Message


class TokenizeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A `prompt`, or the `messages` of a chat with what its template is given. Unknown fields are accepted.

    Without `add_special_tokens` a prompt is encoded as /v1/completions does it, and a chat as its template renders it.
    """

    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    reasoning_effort: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class Tokens(msgspec.Struct, frozen=True, kw_only=True):
    """`max_model_len` is in tokens: prompt and answer together. What is longer is tokenised all the same."""

    count: int
    max_model_len: int
    tokens: list[int]


class DetokenizeRequest(msgspec.Struct, frozen=True, kw_only=True):
    model: str | None = None
    tokens: list[int]


class DetokenizedPrompt(msgspec.Struct, frozen=True):
    prompt: str

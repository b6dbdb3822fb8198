"""What the fields of requests mean and which values they take, beside their types."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

from poot_batch.request.params import (
    MAX_LOGPROBS,
    MAX_STOP_CHARS,
    MAX_STOP_STRINGS,
    MAX_STOP_TOKEN_IDS,
)
from poot_serve.lower.chat import MAX_TOP_LOGPROBS
from poot_serve.lower.completions import DEFAULT_MAX_TOKENS
from poot_serve.lower.generation import MAX_N, MAX_SALT_CHARS
from poot_serve.lower.sampling import MAX_LOGIT_BIAS
from poot_serve.lower.tokens import MAX_CHARS, MAX_TOKENS

Keywords = dict[str, Any]
Fields = dict[str, Keywords]


def _range(low: float | None = None, high: float | None = None, **more: Any) -> Keywords:
    bounds = {"minimum": low, "maximum": high}
    return {**{name: value for name, value in bounds.items() if value is not None}, **more}


_GENERATION: Fields = {
    "model": {"description": "A name of the served model, which is also the default."},
    "stream": {"default": False, "description": "Answer with server-sent events."},
    "n": _range(1, MAX_N, default=1, description="Choices for each prompt."),
    "best_of": {"description": "Taken if it is n."},
    "max_tokens": _range(0, description="Most tokens of an answer; 0 only with an echo."),
    "min_tokens": _range(0, default=0),
    "temperature": _range(0, 2, default=1, description="0 takes the most likely token."),
    "top_p": _range(None, 1, exclusiveMinimum=0, default=1),
    "top_k": _range(-1, 2**31 - 1, description="0 and -1 are off.", default=0),
    "min_p": _range(0, 1, default=0),
    "presence_penalty": _range(-2, 2, default=0),
    "frequency_penalty": _range(-2, 2, default=0),
    "repetition_penalty": _range(0.01, 10, default=1),
    "logit_bias": {
        "maxProperties": MAX_LOGIT_BIAS,
        "propertyNames": {"pattern": "^[0-9]{1,9}$"},
        "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100},
        "description": "What is added to the logits of tokens, by their ids.",
    },
    "seed": _range(-(2**63), 2**64 - 1, description="Choice i of a prompt is drawn with seed + i."),
    "stop": {
        "description": f"Up to {MAX_STOP_STRINGS} strings of 1 to {MAX_STOP_CHARS} characters that end an answer."
    },
    "stop_token_ids": {"maxItems": MAX_STOP_TOKEN_IDS},
    "cache_salt": {
        "minLength": 1,
        "maxLength": MAX_SALT_CHARS,
        "description": "Only requests with the same salt share what the prefix cache holds.",
    },
    "poot": {"description": "Extensions of this server."},
    "stream_options": {"description": "Taken with stream: true alone."},
}
# Keywords by the names of a type and its field. They go to the part of the field that is not null.
BOUNDS: MappingProxyType[str, Fields] = MappingProxyType(
    {
        "ChatRequest": {
            **_GENERATION,
            "max_tokens": _range(1, description="The older name of max_completion_tokens."),
            "max_completion_tokens": _range(1, description="Most tokens of an answer."),
            "top_logprobs": _range(0, MAX_TOP_LOGPROBS, description="Taken with logprobs: true alone."),
            "messages": {"minItems": 1},
        },
        "CompletionRequest": {
            **_GENERATION,
            "max_tokens": {**_GENERATION["max_tokens"], "default": DEFAULT_MAX_TOKENS},
            "logprobs": _range(0, MAX_LOGPROBS),
            "prompt": {"description": "A text, the ids of a text's tokens, or a list of such prompts."},
        },
        "StreamOptions": {
            "include_usage": {"default": False, "description": "End the stream with an event that tells the usage."}
        },
        "ReportOptions": {
            "report": {"default": False, "description": "Tell in the answer what became of the request."}
        },
        "TokenizeRequest": {
            "prompt": {"maxLength": MAX_CHARS},
            "messages": {"description": "Instead of a prompt."},
        },
        "DetokenizeRequest": {"tokens": {"maxItems": MAX_TOKENS}},
    }
)

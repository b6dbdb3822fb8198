"""What the document says of fields beside their types: what they mean, their defaults, and bounds that a type of
msgspec cannot have."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

from poot_serve.lower.completions import DEFAULT_MAX_TOKENS, MAX_PROMPTS
from poot_serve.lower.conversation import MAX_KWARG_CHARS, MAX_KWARG_DEPTH, MAX_KWARG_VALUES
from poot_serve.lower.generation import MAX_CHOICES

Keywords = dict[str, Any]
Fields = dict[str, Keywords]

# Which ids there are is the model's to say: one that it does not have is refused with a code of its own.
_TOKEN_ID: Keywords = {"type": "integer", "minimum": 0}
_TOKEN_IDS: Keywords = {"type": "array", "items": _TOKEN_ID, "minItems": 1}
_PROMPTS: Keywords = {
    "type": "array",
    "items": {"anyOf": [{"type": "string"}, _TOKEN_IDS]},
    "minItems": 1,
    "maxItems": MAX_PROMPTS,
}
_GENERATION: Fields = {
    "model": {"description": "A name of the served model, which is also the default."},
    "stream": {"default": False, "description": "Answer with server-sent events."},
    "n": {"default": 1, "description": f"Choices for each prompt, and {MAX_CHOICES} at most for all of them."},
    "best_of": {"description": "Taken if it is n."},
    "max_tokens": {"description": "Most tokens of an answer; 0 only with an echo."},
    "min_tokens": {"default": 0, "description": "No more than max_tokens."},
    "temperature": {"default": 1, "description": "0 takes the most likely token."},
    "top_p": {"default": 1},
    "top_k": {"default": 0, "description": "0 and -1 are off."},
    "min_p": {"default": 0},
    "presence_penalty": {"default": 0},
    "frequency_penalty": {"default": 0},
    "repetition_penalty": {"default": 1},
    "logit_bias": {
        "propertyNames": {"pattern": "^[0-9]{1,9}$"},
        "description": "What is added to the logits of tokens, by their ids.",
    },
    "seed": {
        "minimum": -(2**63),
        "maximum": 2**64 - 1,
        "description": "Choice i of a prompt is drawn with seed + i.",
    },
    "stop": {"description": "A string or several that end an answer."},
    "stop_token_ids": {"items": _TOKEN_ID},
    "cache_salt": {"description": "Only requests with the same salt share what the prefix cache holds."},
    "poot": {"description": "Extensions of this server."},
    "stream_options": {"description": "Taken with stream: true alone."},
}
_CHAT_TEMPLATE: Fields = {
    "chat_template_kwargs": {
        "description": "Arguments of the model's chat template, by names that it has. Each may hold "
        f"{MAX_KWARG_VALUES} values and {MAX_KWARG_CHARS} characters, and be {MAX_KWARG_DEPTH} levels deep."
    },
}
# By the names of a type and its field. They go to the part of the field that is not null.
KEYWORDS: MappingProxyType[str, Fields] = MappingProxyType(
    {
        "ChatRequest": {
            **_GENERATION,
            **_CHAT_TEMPLATE,
            "max_tokens": {"description": "The older name of max_completion_tokens."},
            "max_completion_tokens": {"description": "Most tokens of an answer."},
            "top_logprobs": {"description": "Taken with logprobs: true alone."},
        },
        "CompletionRequest": {
            **_GENERATION,
            "max_tokens": {**_GENERATION["max_tokens"], "default": DEFAULT_MAX_TOKENS},
            "prompt": {
                "anyOf": [{"type": "string"}, _TOKEN_IDS, _PROMPTS],
                "description": "A text, the ids of a text's tokens, or a list of such prompts.",
            },
        },
        "StreamOptions": {
            "include_usage": {"default": False, "description": "End the stream with an event that tells the usage."}
        },
        "ReportOptions": {
            "report": {"default": False, "description": "Tell in the answer what became of the request."}
        },
        "FunctionCall": {"arguments": {"contentMediaType": "application/json", "description": "A JSON object."}},
        "TokenizeRequest": {**_CHAT_TEMPLATE, "messages": {"description": "Instead of a prompt."}},
        "DetokenizeRequest": {"tokens": {"items": _TOKEN_ID}},
        "WireError": {
            "param": {"description": "The path of the field at fault, such as messages[0].content, if one is."},
            "code": {
                "description": "What is wrong, in a word that does not change. Of a field: invalid_value, if it is "
                "missing, of a wrong type or out of its bounds, also those that other fields set; unsupported_value, "
                "if it asks for what this server does not do; unknown_field. Of what the model sets: invalid_token, "
                "context_length_exceeded, model_not_found."
            },
        },
    }
)

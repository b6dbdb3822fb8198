"""The routes as the document describes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from poot_serve.protocol.chat import ChatChunk, ChatCompletion, ChatRequest
from poot_serve.protocol.completions import Completion, CompletionRequest
from poot_serve.protocol.models import Health, ModelCard, ModelList
from poot_serve.protocol.tokens import DetokenizedPrompt, DetokenizeRequest, TokenizeRequest, Tokens

# What any route may answer, and what those with a body, those that name a model and those that need the engine may too.
ANY = (400, 401, 421, 431, 500)
BODY = (408, 411, 413, 415, 429)
MODEL = (404,)
ENGINE = (503,)

Schema = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path. `body` is what it takes, as in `example`; `answer` a wire type, or the schema of what has
    none; `events` the data of the events that it gives instead when it is asked to stream. `also` are statuses besides
    200 that carry the answer.
    """

    method: str
    path: str
    id: str
    summary: str
    answer: type[msgspec.Struct] | Schema
    body: type[msgspec.Struct] | None = None
    example: Schema | None = None
    events: type[msgspec.Struct] | None = None
    media_type: str = "application/json"
    errors: tuple[int, ...] = ANY
    public: bool = False
    parameters: tuple[Schema, ...] = ()
    also: tuple[int, ...] = ()


_HISTOGRAM: Schema = {
    "type": "object",
    "properties": {
        "count": {"type": "integer"},
        "sum": {"type": "number"},
        "buckets": {"type": "object", "additionalProperties": {"type": "integer"}},
    },
    "required": ["count", "sum", "buckets"],
}
_METRICS: Schema = {
    "type": "object",
    "description": "A number for each series; for those with codes, one for each; or a histogram, with its cumulative "
    "buckets by upper bound.",
    "additionalProperties": {
        "anyOf": [{"type": "number"}, _HISTOGRAM, {"type": "object", "additionalProperties": {"type": "number"}}]
    },
}
_MODEL_ID: Schema = {
    "name": "id",
    "in": "path",
    "required": True,
    "description": "A name of the model; it may hold slashes.",
    "schema": {"type": "string"},
}

OPERATIONS: tuple[Operation, ...] = (
    Operation(
        "post",
        "/v1/chat/completions",
        "createChatCompletion",
        "Answer a conversation, at once or as a stream of events",
        ChatCompletion,
        body=ChatRequest,
        example={"messages": [{"role": "user", "content": "Hello"}], "max_completion_tokens": 16},
        events=ChatChunk,
        errors=(*ANY, *BODY, *MODEL, *ENGINE),
    ),
    Operation(
        "post",
        "/v1/completions",
        "createCompletion",
        "Continue a prompt or several, at once or as a stream of events",
        Completion,
        body=CompletionRequest,
        example={"prompt": "The capital of France is", "max_tokens": 8, "temperature": 0},
        events=Completion,
        errors=(*ANY, *BODY, *MODEL, *ENGINE),
    ),
    Operation(
        "post",
        "/tokenize",
        "tokenize",
        "The tokens of a prompt or of a conversation",
        Tokens,
        body=TokenizeRequest,
        example={"prompt": "Hello"},
        errors=(*ANY, *BODY, *MODEL, *ENGINE),
    ),
    Operation(
        "post",
        "/detokenize",
        "detokenize",
        "The text of tokens",
        DetokenizedPrompt,
        body=DetokenizeRequest,
        example={"tokens": [1, 2, 3]},
        errors=(*ANY, *BODY, *MODEL, *ENGINE),
    ),
    Operation("get", "/v1/models", "listModels", "The served model by all its names", ModelList),
    Operation(
        "get",
        "/v1/models/{id}",
        "retrieveModel",
        "The served model by one name",
        ModelCard,
        errors=(*ANY, *MODEL),
        parameters=(_MODEL_ID,),
    ),
    Operation(
        "get",
        "/health",
        "health",
        "Whether the engine serves: 200 if it does, else 503",
        Health,
        public=True,
        also=(503,),
        errors=tuple(status for status in ANY if status != 401),
    ),
    Operation("get", "/metrics", "metrics", "The server's figures as JSON", _METRICS, errors=(*ANY, *ENGINE)),
    Operation(
        "get",
        "/metrics/prometheus",
        "metricsPrometheus",
        "The server's figures in the text format of Prometheus",
        {"type": "string"},
        media_type="text/plain",
        errors=(*ANY, *ENGINE),
    ),
    Operation("get", "/openapi.json", "openapi", "This document", {"type": "object"}),
)

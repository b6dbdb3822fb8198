"""The document at /openapi.json (OpenAPI 3.1, https://spec.openapis.org/oas/v3.1.0)."""

from __future__ import annotations

from typing import Any

import msgspec

from poot_serve.openapi.operations import OPERATIONS, Operation
from poot_serve.openapi.schemas import REFERENCE, components
from poot_serve.protocol.errors import ErrorBody

_JSON = "application/json"
_KEY = "apiKey"
_ERRORS = {
    400: "The request is malformed, or a field has a value that is not taken.",
    401: "The API key is missing or not known.",
    404: "There is no such model.",
    408: "The body did not arrive in time.",
    411: "The body has no Content-Length.",
    413: "The body is larger than this server takes.",
    415: "The body is not sent as application/json.",
    421: "The Host header does not name this server.",
    429: "There are more requests than this server takes; Retry-After says when to try again.",
    431: "The headers are larger than this server takes.",
    500: "The server failed on this request.",
    503: "The server takes no work now; Retry-After says when to try again.",
}
_RETRY = (429, 503)
_EVENT = (
    "One server-sent event. An error is the last one; of a stream that ends well, the last one's data is [DONE], which "
    "is not JSON. Lines that begin with a colon are comments, which keep the connection alive."
)


def openapi_document(version: str, *, keyed: bool) -> bytes:
    """The document as JSON, always the same for one release. `keyed`: this server asks for an API key."""
    document = {
        "openapi": "3.1.0",
        "info": {
            "title": "poot-serve",
            "version": version,
            "description": "A language model behind the API of OpenAI. Fields that a request type does not list are "
            "ignored, or refused by a server that was started with --strict-fields.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        **({"security": [{_KEY: []}]} if keyed else {}),
        "paths": _paths(keyed=keyed),
        "components": {
            "schemas": components(_kinds(), [kind for kind in _kinds() if kind not in _bodies()]),
            "responses": {_name(status): _error(status, text) for status, text in _ERRORS.items()},
            "headers": _HEADERS,
            "securitySchemes": {_KEY: {"type": "http", "scheme": "bearer"}},
        },
    }
    return msgspec.json.encode(document)


_HEADERS = {
    "x-request-id": {
        "description": "The request's own x-request-id, or one that was made for it.",
        "required": True,
        "schema": {"type": "string"},
    },
    "Retry-After": {
        "description": "Seconds to wait before another try.",
        "required": True,
        "schema": {"type": "integer", "minimum": 1},
    },
}
_REQUEST_ID = {"x-request-id": {"$ref": "#/components/headers/x-request-id"}}


def _bodies() -> list[type[msgspec.Struct]]:
    return [operation.body for operation in OPERATIONS if operation.body is not None]


def _kinds() -> list[type[msgspec.Struct]]:
    """Every wire type once, in the order of the operations."""
    found: list[type[msgspec.Struct]] = [ErrorBody]
    for operation in OPERATIONS:
        for kind in (operation.body, operation.answer, operation.events):
            if isinstance(kind, type) and kind not in found:
                found.append(kind)
    return found


def _paths(*, keyed: bool) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for operation in OPERATIONS:
        made.setdefault(operation.path, {})[operation.method] = _operation(operation, keyed=keyed)
    return made


def _operation(operation: Operation, *, keyed: bool) -> dict[str, Any]:
    made: dict[str, Any] = {"operationId": operation.id, "summary": operation.summary}
    if operation.parameters:
        made["parameters"] = list(operation.parameters)
    if operation.body is not None:
        content = {"schema": _schema(operation.body), "example": operation.example}
        made["requestBody"] = {"required": True, "content": {_JSON: content}}
    answers: dict[str, Any] = {"200": _answer(operation)}
    for status in operation.also:
        answers[str(status)] = {**_answer(operation), "description": _ERRORS[status], "headers": _headers(status)}
    for status in sorted(operation.errors):
        if status != 401 or keyed:
            answers[str(status)] = {"$ref": f"#/components/responses/{_name(status)}"}
    made["responses"] = answers
    if keyed and operation.public:
        made["security"] = []
    return made


def _answer(operation: Operation) -> dict[str, Any]:
    content: dict[str, Any] = {operation.media_type: {"schema": _schema(operation.answer)}}
    if operation.events is not None:
        content["text/event-stream"] = {"schema": _event(operation.events)}
    return {"description": operation.summary, "headers": _REQUEST_ID, "content": content}


def _event(data: type[msgspec.Struct]) -> dict[str, Any]:
    """OpenAPI 3.1 has no word for streams: by the use of its tools, the schema is that of each event."""
    text = {
        "type": "string",
        "contentMediaType": _JSON,
        "contentSchema": {"anyOf": [_schema(data), _schema(ErrorBody)]},
    }
    properties = {"data": {"anyOf": [text, {"const": "[DONE]"}]}}
    return {"type": "object", "description": _EVENT, "properties": properties, "required": ["data"]}


def _error(status: int, text: str) -> dict[str, Any]:
    return {"description": text, "headers": _headers(status), "content": {_JSON: {"schema": _schema(ErrorBody)}}}


def _headers(status: int) -> dict[str, Any]:
    if status not in _RETRY:
        return _REQUEST_ID
    return {**_REQUEST_ID, "Retry-After": {"$ref": "#/components/headers/Retry-After"}}


def _name(status: int) -> str:
    return f"Error{status}"


def _schema(kind: type[msgspec.Struct] | dict[str, Any]) -> dict[str, Any]:
    return {"$ref": REFERENCE.format(name=kind.__name__)} if isinstance(kind, type) else kind

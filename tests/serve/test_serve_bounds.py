"""Bounds of request fields, found by looking through the wire types: what they let in and keep out is what the server
does, what it says of it, and what the document at /openapi.json has as keywords."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import jsonschema
import pytest
from msgspec import inspect

from poot_serve.openapi.document import openapi_document
from poot_serve.openapi.operations import OPERATIONS

DOCUMENT = json.loads(openapi_document("1.2.3", keyed=False))
KINDS = {operation.path: operation.body for operation in OPERATIONS if operation.body is not None}
MANY, LONG, HUGE = 3000, (1 << 19) + 1, 10**30
CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
MESSAGES = {"messages": [{"role": "user", "content": "hello"}]}
# What a body has beside the field in question, and fields that are taken with others alone.
BODIES = {CHAT: MESSAGES, COMPLETION: {"prompt": "hello"}, "/detokenize": {"tokens": [5]}}
BESIDE = {
    (CHAT, "top_logprobs"): {"logprobs": True},
    (CHAT, "stream_options"): {"stream": True},
    (COMPLETION, "stream_options"): {"stream": True},
    (COMPLETION, "max_tokens"): {"echo": True},
}
# Out of bounds that other fields or the model set, which no keyword can say.
DEPENDENT = {
    (CHAT, "min_tokens", str(2**31 - 1)),
    (COMPLETION, "min_tokens", str(2**31 - 1)),
    (COMPLETION, "prompt", ""),
}


class Probe(NamedTuple):
    """A value for the field at `path`; `fits`: on which side of a bound of the type it is (None: there is no such)."""

    path: str
    value: Any
    fits: bool | None = None


def least(kind: inspect.Type) -> Any:
    """A small value that the type takes."""
    if isinstance(kind, inspect.ListType):
        return [least(kind.item_type)]
    if isinstance(kind, inspect.DictType):
        return {key_of(kind): 5}
    if isinstance(kind, inspect.StructType):
        return {field.encode_name: least(field.type) for field in kind.fields if field.required}
    if isinstance(kind, inspect.UnionType):
        return least(kind.types[0])
    if isinstance(kind, inspect.LiteralType):
        return kind.values[0]
    return "a" if isinstance(kind, inspect.StrType) else 5


def key_of(kind: inspect.DictType) -> str:
    """Of a token id, or of an argument that the tests' template takes."""
    return "5" if isinstance(kind.value_type, inspect.FloatType) else "enable_thinking"


def probes(kind: inspect.Type, path: str = "") -> Iterator[Probe]:
    """Values at and beyond each bound of the type and of those in it, and some that are absurd."""
    match kind:
        case inspect.IntType() | inspect.FloatType():
            yield from of_number(kind, path)
        case inspect.StrType():
            yield from (Probe(path, "x" * size) for size in (0, LONG))
            yield from (Probe(path, "x" * size, fits) for size, fits in sizes(kind))
        case inspect.ListType():
            yield from of_list(kind, path)
        case inspect.DictType():
            yield from of_dict(kind, path)
        case inspect.StructType(fields=fields):
            for field in fields:
                for at, value, fits in probes(field.type, f"{path}.{field.encode_name}"):
                    yield Probe(at, {**least(kind), field.encode_name: value}, fits)
        case inspect.UnionType(types=types):
            for member in types:
                yield from probes(member, path)


def of_number(kind: inspect.IntType | inspect.FloatType, path: str) -> Iterator[Probe]:
    absurd = HUGE if isinstance(kind, inspect.IntType) else 1e300
    yield from (Probe(path, absurd), Probe(path, -absurd))
    for bound, inside, outside in ((kind.ge, 0, -1), (kind.gt, 0.01, 0), (kind.le, 0, 1), (kind.lt, -0.01, 0)):
        if bound is not None:
            yield from (Probe(path, bound + inside, True), Probe(path, bound + outside, False))


def of_list(kind: inspect.ListType, path: str) -> Iterator[Probe]:
    item = kind.item_type
    members = item.types if isinstance(item, inspect.UnionType) else (item,)
    yield from (Probe(path, [least(member)] * size) for size in (0, MANY) for member in members)
    yield from (Probe(path, [least(item)] * size, fits) for size, fits in sizes(kind))
    for member in members:
        yield from (Probe(at, [value], fits) for at, value, fits in probes(member, f"{path}[0]"))


def of_dict(kind: inspect.DictType, path: str) -> Iterator[Probe]:
    key = key_of(kind)
    yield from (Probe(path, {str(number): 5 for number in range(size)}) for size in (0, MANY))
    if key.isdecimal():
        yield Probe(path, {"x": 5})
        yield from (Probe(path, {str(number): 5 for number in range(size)}, fits) for size, fits in sizes(kind))
    yield from (Probe(path, {key: value}, fits) for _, value, fits in probes(kind.value_type))


def sizes(kind: Any) -> Iterator[tuple[int, bool]]:
    if kind.min_length is not None:
        yield from ((kind.min_length, True), (kind.min_length - 1, False))
    if kind.max_length is not None:
        yield from ((kind.max_length, True), (kind.max_length + 1, False))


def first_item(validator, schema, value, whole):
    """`items`, for lists that repeat one value."""
    if isinstance(value, list) and value:
        yield from validator.descend(value[0], schema)


Validator = jsonschema.validators.extend(jsonschema.Draft202012Validator, {"items": first_item})


def documented(path: str, body: Any) -> bool:
    schema = DOCUMENT["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    return Validator({**schema, "components": DOCUMENT["components"]}).is_valid(body)


FIELDS = [(path, field) for path, kind in KINDS.items() for field in inspect.type_info(kind).fields]


def test_there_are_bounds_to_be_found():
    """By hand, one of each kind, so that what looks through the types is known to look."""
    found = {
        probe.path for _, field in FIELDS for probe in probes(field.type, field.encode_name) if probe.fits is False
    }
    assert {"n", "temperature", "top_p", "stop", "stop[0]", "logit_bias", "messages", "prompt[0]", "tokens"} <= found


@pytest.mark.parametrize(("path", "field"), FIELDS, ids=lambda value: getattr(value, "encode_name", value))
def test_bounds_are_kept_told_and_documented(served, path, field):
    name = field.encode_name
    others = BODIES.get(path, {} if name in ("prompt", "messages") else {"prompt": "hello"})
    for at, value, fits in probes(field.type, name):
        if at.endswith(".arguments"):
            continue  # JSON in a string, the form of which no keyword can demand
        served.answer("hello")
        body = {**others, **BESIDE.get((path, name), {}), name: value}
        answer = served.client.post(path, json=body)
        error = answer.json().get("error", {"code": None, "param": None})
        said = f"{at} = {str(value)[:40]}: {answer.status_code} {error}"
        assert answer.status_code in (200, 400) or error["code"] == "model_not_found", said
        out_of_bounds = (error["code"], error["param"]) == ("invalid_value", at)
        if (path, at, str(value)) in DEPENDENT:
            assert out_of_bounds and documented(path, body), said
            continue
        if fits is not None:
            assert out_of_bounds != fits, said
        # Which token ids there are is the model's to say, and has a code of its own; none has negative ones.
        negative_id = error["code"] == "invalid_token" and str(value).lstrip("[").startswith("-")
        assert documented(path, body) != (out_of_bounds or negative_id), said

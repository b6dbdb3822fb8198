"""Bytes of a body to a typed wire request, every refusal naming its field."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
import msgspec.inspect

from poot_serve.errors import BadJsonError, FieldError, UnsupportedFieldError
from poot_serve.limits.json_text import check_json_text

T = TypeVar("T", bound=msgspec.Struct)

_AT = re.compile(r" - at `(?:key in )?\$\.?(?P<path>[^`]*)`$")
_BOUND = re.compile(r"Expected `(?P<kind>\w+)` (?P<size>of length )?(?P<sign>[<>]=?) (?P<bound>\S+)")
_SIGNS = {">=": "at least", "<=": "at most", ">": "above", "<": "below"}
_UNITS = {"str": "character", "array": "item", "object": "member"}
_MISSING = re.compile(r"Object missing required field `(?P<field>[^`]+)`")
MAX_NEUTRAL_BYTES = 64
_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])


def decode_body(body: bytes, kind: type[T], unbuilt: Mapping[str, tuple[str, ...]]) -> T:
    """The wire request in `body`.

    `unbuilt` maps the name of a field that this server does not act on to the JSON texts of the values that ask for
    nothing; any other value is refused, since ignoring it would change the answer unseen. Raises BadJsonError,
    FieldError or UnsupportedFieldError.
    """
    check_json_text(body)
    try:
        fields = _FIELDS.decode(body)
    except msgspec.ValidationError:
        raise BadJsonError("the body must be a JSON object") from None
    except msgspec.DecodeError as error:
        raise BadJsonError(f"the body is not JSON: {error}") from None
    if not unbuilt.keys().isdisjoint(fields):
        for name, neutral in unbuilt.items():
            if name in fields:
                _refuse_unless_neutral(name, fields[name], neutral)
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise field_error(str(error), kind) from None
    except msgspec.DecodeError as error:
        raise BadJsonError(f"the body is not JSON: {error}") from None


def _refuse_unless_neutral(name: str, raw: msgspec.Raw, neutral: tuple[str, ...]) -> None:
    text = bytes(raw)
    if len(text) <= MAX_NEUTRAL_BYTES and msgspec.json.format(text, indent=-1).decode("utf-8") in neutral:
        return
    taken = " or ".join(value for value in neutral)
    raise UnsupportedFieldError(f"{name} is not supported by this server; leave it out or send {taken}", param=name)


def field_error(message: str, kind: type[msgspec.Struct] | None = None) -> FieldError:
    """A FieldError from the message of a msgspec.ValidationError about a `kind`, with the field's path as `param`.

    >>> field_error("Expected `str`, got `int` - at `$.messages[0].role`").param
    'messages[0].role'
    >>> str(field_error("Expected `array` of length <= 16 - at `$.stop`"))
    'stop must have at most 16 items'
    """
    at = _AT.search(message)
    path = at["path"].replace("[...]", "") if at else ""
    what = message[: at.start()] if at else message
    missing = _MISSING.match(what)
    if missing is not None:
        path = f"{path}.{missing['field']}" if path else missing["field"]
        what = "this required field is missing"
    elif at is not None and (bound := _BOUND.fullmatch(what)) is not None:
        each = "each value of " if "[...]" in at["path"] else ""
        return FieldError(f"{each}{path} must {_limit(bound)}", param=path)
    if kind is not None and what.startswith("Invalid enum value"):
        what = f"{what}; it is one of {', '.join(map(repr, _choices(msgspec.inspect.type_info(kind), path)))}"
    return FieldError(f"{path}: {what}" if path else what, param=path or None)


def _choices(of: Any, path: str) -> list[object]:
    """The values that the field at `path` takes."""
    if isinstance(of, msgspec.inspect.UnionType):
        return [value for each in of.types for value in _choices(each, path)]
    if isinstance(of, msgspec.inspect.ListType):
        return _choices(of.item_type, path)
    if isinstance(of, msgspec.inspect.LiteralType):
        return [] if path else list(of.values)
    if not isinstance(of, msgspec.inspect.StructType):
        return []
    name, _, rest = path.partition(".")
    name = name.partition("[")[0]
    return [value for field in of.fields if field.encode_name == name for value in _choices(field.type, rest)]


def _limit(bound: re.Match[str]) -> str:
    limit = f"{_SIGNS[bound['sign']]} {bound['bound']}"
    if bound["size"] is None:
        return f"be {limit}"
    unit = _UNITS[bound["kind"]]
    return f"have {limit} {unit}" if bound["bound"] == "1" else f"have {limit} {unit}s"

"""JSON schemas of wire types, as OpenAPI 3.1 takes them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec.structs import fields

from poot_serve.openapi.keywords import KEYWORDS

REFERENCE = "#/components/schemas/{name}"


def components(kinds: Iterable[type[msgspec.Struct]], answers: Iterable[type[msgspec.Struct]]) -> dict[str, Any]:
    """The schemas of `kinds` and of the types in them, by name; `answers` are those which this server writes, so that
    each of their fields is there unless it may be left unset."""
    _, made = msgspec.json.schema_components(kinds, ref_template=REFERENCE)
    written = {kind.__name__: kind for kind in _reached(answers)}
    for name, schema in made.items():
        if name in written:
            schema["required"] = _always(written[name])
        elif not schema.get("required"):
            schema.pop("required", None)
        for field, keywords in KEYWORDS.get(name, {}).items():
            _add(schema["properties"][field], keywords)
        for property_ in schema.get("properties", {}).values():
            _tidy(property_)
    return dict(sorted(made.items()))


def _always(kind: type[msgspec.Struct]) -> list[str]:
    left_out = kind.__struct_config__.omit_defaults
    return [
        field.encode_name
        for field in fields(kind)
        if field.default is not msgspec.UNSET and (field.required or not left_out)
    ]


def _reached(kinds: Iterable[type[msgspec.Struct]]) -> set[type[msgspec.Struct]]:
    """`kinds` and the structs in their fields."""
    found: set[type[msgspec.Struct]] = set()

    def visit(kind: Any) -> None:
        if isinstance(kind, msgspec.inspect.StructType):
            if kind.cls not in found:
                found.add(kind.cls)
                for field in kind.fields:
                    visit(field.type)
        elif isinstance(kind, msgspec.inspect.UnionType):
            for one in kind.types:
                visit(one)
        elif isinstance(kind, msgspec.inspect.ListType):
            visit(kind.item_type)

    for kind in kinds:
        visit(msgspec.inspect.type_info(kind))
    return found


def _add(property_: dict[str, Any], keywords: dict[str, Any]) -> None:
    """Texts and the default are the whole property's, all else that of its part which may be something."""
    parts = [part for part in property_.get("anyOf", ()) if part != {"type": "null"}]
    target = parts[0] if len(parts) == 1 else property_
    for name, value in keywords.items():
        (property_ if name in ("description", "default") else target)[name] = value


def _tidy(property_: dict[str, Any]) -> None:
    """A default of null says no more than that the field may be left out."""
    if "default" in property_ and property_["default"] is None:
        del property_["default"]

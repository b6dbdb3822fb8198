"""Fields of a body that its wire type does not have: what a client asked and this server does not act on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec
from msgspec import inspect

from poot_serve.errors import UnknownFieldError

# How many fields are named, and how many characters of each: a body may hold as many as its bytes allow.
MAX_NAMED = 64
MAX_PATH_CHARS = 128
_SHOWN = 8


@dataclass(frozen=True, slots=True)
class Shape:
    """Where in a value of some type there are fields with names: its own, those of its items, of its values."""

    fields: Mapping[str, Shape | None] | None = None
    items: Shape | None = None
    values: Shape | None = None


def shape_of(kind: type[msgspec.Struct], others: Sequence[str] = ()) -> Shape:
    """The shape of a wire type; `others` are fields that are known although the type does not have them."""
    found = _shape(inspect.type_info(kind))
    assert found is not None and found.fields is not None
    return Shape({**dict.fromkeys(others), **found.fields})


def unknown_fields(body: bytes, shape: Shape) -> tuple[str, ...]:
    """The paths of the unknown fields in a body that has been decoded as what `shape` is of, the first MAX_NAMED."""
    found: list[str] = []
    for path in _unknown(msgspec.json.decode(body), shape, ""):
        found.append(path[:MAX_PATH_CHARS])
        if len(found) == MAX_NAMED:
            break
    return tuple(found)


def refuse_unknown(fields: Sequence[str]) -> None:
    """Raises UnknownFieldError if there are any."""
    if fields:
        shown = ", ".join(fields[:_SHOWN]) + (" and others" if len(fields) > _SHOWN else "")
        one = len(fields) == 1
        raise UnknownFieldError(
            f"this server does not know the field{'' if one else 's'} {shown}; leave {'it' if one else 'them'} out",
            param=fields[0],
        )


def _shape(kind: inspect.Type) -> Shape | None:
    """None: there are no fields in it."""
    match kind:
        case inspect.StructType(fields=fields):
            return Shape({field.encode_name: _shape(field.type) for field in fields})
        case inspect.ListType(item_type=item):
            items = _shape(item)
            return None if items is None else Shape(items=items)
        case inspect.DictType(value_type=value):
            values = _shape(value)
            return None if values is None else Shape(values=values)
        case inspect.UnionType(types=types):
            return _joined([shape for shape in map(_shape, types) if shape is not None])
        case _:
            return None


def _joined(shapes: Sequence[Shape]) -> Shape | None:
    """A union has one type of objects and one of lists at most, which is what lets it be decoded."""
    if len(shapes) < 2:
        return shapes[0] if shapes else None
    return Shape(
        next((shape.fields for shape in shapes if shape.fields is not None), None),
        next((shape.items for shape in shapes if shape.items is not None), None),
        next((shape.values for shape in shapes if shape.values is not None), None),
    )


def _unknown(value: object, shape: Shape, path: str) -> Iterator[str]:
    if isinstance(value, dict):
        for name, item in value.items():
            where = f"{path}.{name}" if path else name
            if shape.fields is None:
                inner = shape.values
            elif name in shape.fields:
                inner = shape.fields[name]
            else:
                yield where
                continue
            if inner is not None:
                yield from _unknown(item, inner, where)
    elif isinstance(value, list) and shape.items is not None:
        for index, item in enumerate(value):
            yield from _unknown(item, shape.items, f"{path}[{index}]")

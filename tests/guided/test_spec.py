"""Constraints are values, and hostile ones are refused before anything compiles them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from poot_guided import (
    Choice,
    Constraint,
    ConstraintError,
    Grammar,
    JsonObject,
    JsonSchema,
    Limits,
    Regex,
    __version__,
    check,
)
from poot_guided.cli import main


@pytest.mark.parametrize(
    "constraint",
    [
        Regex("[0-9]+"),
        Grammar('root ::= "a"'),
        Choice(("yes", "no")),
        JsonSchema({}),
        JsonSchema(True),
        JsonSchema({"type": "object", "properties": {"a": {"type": "integer"}}}),
        JsonObject(),
    ],
    ids=str,
)
def test_sound_constraints_pass(constraint: Constraint) -> None:
    check(constraint)
    assert constraint == constraint.__class__(*(getattr(constraint, name) for name in constraint.__slots__))


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(levels):
        schema = {"items": schema}
    return schema


@pytest.mark.parametrize(
    ("constraint", "words"),
    [
        (Regex(""), "1 to 65536 characters"),
        (Regex("a" * 65537), "65537"),
        (Grammar(""), "the grammar"),
        (Choice(()), "at least one option"),
        (Choice(("a", "")), "no empty one"),
        (Choice(tuple(str(i) for i in range(4097))), "4097 options"),
        (JsonSchema(False), "accepts nothing"),
        (JsonSchema(nested(32)), "32 levels"),
        (JsonSchema(nested(100_000)), "32 levels"),
        (JsonSchema({"enum": list(range(9000))}), "8192 nodes"),
        (JsonSchema({"const": "a" * 65537}), "65537 characters"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Constraint) else str(value),
)
def test_hostile_constraints_are_refused(constraint: Constraint, words: str) -> None:
    with pytest.raises(ConstraintError, match=words):
        check(constraint)


def test_limits_are_the_callers() -> None:
    check(Choice(("a", "b")), Limits(choices=2))
    with pytest.raises(ConstraintError):
        check(Choice(("a", "b", "c")), Limits(choices=2))


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    good.write_text('{"type": "string"}')
    bad.write_text("[" * 100_000)
    assert main(["check", "json-schema", str(good)]) == 0
    assert main(["check", "json-schema", str(bad)]) == 1
    assert main(["check", "json-schema", str(tmp_path / "none.json")]) == 2
    assert "no JSON" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out == f"poot-guided {__version__}\n"

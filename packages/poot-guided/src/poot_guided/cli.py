"""`poot-guided`: check a constraint's size and shape."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from poot_guided import __version__
from poot_guided.errors import ConstraintError
from poot_guided.spec import Constraint, Grammar, JsonSchema, Regex, check


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code: 0, 1 for a constraint that is refused, 2 for a file that cannot be read."""
    parser = argparse.ArgumentParser(prog="poot-guided", description="Check constraints.", allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"poot-guided {__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("check", help="check a constraint against the limits")
    command.add_argument("kind", choices=("regex", "json-schema", "gbnf"))
    command.add_argument("file", type=Path, help="the file that holds it")
    options = parser.parse_args(arguments)
    try:
        text = options.file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        print(f"poot-guided: {options.file} cannot be read: {error}", file=sys.stderr)
        return 2
    try:
        check(_constraint(options.kind, text))
    except ConstraintError as error:
        print(f"poot-guided: {error}", file=sys.stderr)
        return 1
    print("accepted")
    return 0


def _constraint(kind: str, text: str) -> Constraint:
    if kind == "regex":
        return Regex(text.rstrip("\n"))
    if kind == "gbnf":
        return Grammar(text)
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConstraintError(f"the schema is no JSON: {error}") from error
    if not isinstance(schema, dict | bool):
        raise ConstraintError("a schema is an object, true or false")
    return JsonSchema(schema)

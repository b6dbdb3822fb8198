"""`poot-models`: look into a checkpoint."""

from __future__ import annotations

import argparse
import io
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict

from poot_models import __version__
from poot_models.errors import ModelError


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code: 0, or 1 for a checkpoint that cannot be used."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # names and texts of a model may not fit the terminal's encoding
        sys.stdout.reconfigure(errors="backslashreplace")
    parser = argparse.ArgumentParser(prog="poot-models", description="Look into model checkpoints.", allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"poot-models {__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    inspect = commands.add_parser(
        "inspect", help="architecture, sizes, encodings, tokenizer, template, and what would run where"
    )
    inspect.add_argument("model", help="a GGUF file, a safetensors directory, or ORG/REPO[@REVISION][:QUANTISATION]")
    inspect.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    try:
        return _inspect(options.model, as_json=options.json)
    except ModelError as error:
        print(f"poot-models: {error}", file=sys.stderr)
        return 1


def _inspect(model: str, *, as_json: bool) -> int:
    """Print the report; a model that is refused also says so on stderr. Raises ModelError where there is no report."""
    from poot_models.hub import local_model
    from poot_models.inspection import inspect_model, lines

    report = inspect_model(local_model(model))
    if as_json:
        print(json.dumps(asdict(report)))
    else:
        print("\n".join(lines(report)))
    if report.refusal is None:
        return 0
    print(f"poot-models: {report.refusal}", file=sys.stderr)
    return 1

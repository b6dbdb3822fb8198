"""docs/models.md and docs/quantised-checkpoints.md against what they are about."""

from __future__ import annotations

import re
from pathlib import Path

import gguf
import pytest

from poot_models.encodings.ggml_types import readable_names, type_name
from poot_models.families import find_family, known_architectures

ROOT = Path(__file__).parents[2]


def rows(document: str, first: str) -> list[list[str]]:
    """The cells of the table whose first head is `first`, without its heads."""
    lines = (ROOT / document).read_text("utf-8").splitlines()
    start = next(index for index, line in enumerate(lines) if line.startswith(f"| {first} |"))
    table = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        table.append([cell.strip() for cell in line.strip("|").split("|")])
    return table


def quoted(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def test_the_families_of_the_guide_are_those_of_the_registry() -> None:
    table = rows("docs/models.md", "family")
    gguf_names = [name for row in table for name in quoted(row[1])]
    config_names = [name for row in table for name in quoted(row[2])]
    assert sorted(gguf_names + config_names) == sorted(known_architectures())
    # Architectures of GGUF files are in lower case, those of config.json are names of classes.
    assert all(name == name.lower() for name in gguf_names)
    assert all(name[0].isupper() for name in config_names)
    for row in table:
        families = {id(find_family(name)) for cell in row[1:] for name in quoted(cell)}
        assert len(families) == 1, row


def test_the_readme_knows_the_same_families() -> None:
    named = [name for row in rows("packages/poot-models/README.md", "family") for name in quoted(row[1])]
    assert set(known_architectures()) <= set(named)


def test_the_block_encodings_of_the_guide_are_those_that_are_read() -> None:
    table = {row[0]: row[1:] for row in rows("docs/quantised-checkpoints.md", "type")}
    dense = {"F64", "F32", "F16", "BF16", "I8", "I16", "I32", "I64"}
    assert set(table) == set(readable_names()) - dense
    for name, (elements, bits) in table.items():
        size, nbytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]
        assert (int(elements), float(bits)) == (size, pytest.approx(8 * nbytes / size))


def test_what_the_guide_says_is_refused_is_refused() -> None:
    said = (ROOT / "docs" / "quantised-checkpoints.md").read_text("utf-8")
    for name in ("MXFP4", "NVFP4", "Q8_1"):
        assert name in said
        assert name not in readable_names()
        assert type_name(gguf.GGMLQuantizationType[name]) == name

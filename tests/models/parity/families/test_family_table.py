"""benchmarks/families.py: a row passes only if every architecture was seen and every error is small."""

import dataclasses
import math
from typing import Any

import numpy as np
import pytest


@pytest.fixture(scope="module")
def table(of_benchmarks: Any) -> Any:
    return of_benchmarks("families")


def test_a_row_for_each_family_and_format(table: Any, capsys: pytest.CaptureFixture[str]) -> None:
    rows = table.rows_of_registry()
    table.measure(["olmo"], rows)
    table.show(rows)
    lines = {tuple(line.split()[:2]): line for line in capsys.readouterr().out.splitlines()}
    for form, count in (("safetensors", 1), ("GGUF", 2)):
        row = rows["olmo", form]
        assert (row.models, row.missing, row.passed) == (count, [], True)
        assert 0 < max(row.prompt, row.decode) < 1e-4
        assert " PASS " in lines["olmo", form]
    # The others have no model yet.
    assert " FAIL " in lines["cohere", "GGUF"]
    assert lines["cohere", "GGUF"].endswith("no checkpoint of command-r")
    assert rows["llama", "safetensors"].missing == ["LlamaForCausalLM", "MinistralForCausalLM", "MistralForCausalLM"]


@pytest.mark.parametrize(("prompt", "decode", "passed"), [(1e-4, 1e-4, True), (2e-3, 0.0, False), (0.0, 2e-3, False)])
def test_an_error_beyond_the_tolerance_fails(table: Any, prompt: float, decode: float, passed: bool) -> None:
    row = table.Row({"a"}, 1e-3, seen={"a"})
    assert dataclasses.replace(row, prompt=prompt, decode=decode).passed is passed


def test_what_is_not_a_number_is_the_largest_error(table: Any) -> None:
    found = np.array([[0.0, math.nan]], dtype=np.float32)
    assert table.difference(found, np.zeros(2, np.float32)) == math.inf
    assert table.difference(found[:, :1] + 0.5, np.zeros(1, np.float32)) == 0.5

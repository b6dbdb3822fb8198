"""Sizes and names: how long a file and a function may be, and what nothing may be called."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import pytest

Plant = Callable[[Mapping[str, str]], Path]

FILE_LINES = 300
FILE_LINES_AT_MOST = 600
FUNCTION_LINES = 80
# A longer file under its path, with its length today and the reason. A length may only go down.
LONGER_FILES: dict[str, tuple[int, str]] = {}

DRAWER = re.compile(r"(^|_)(utils?|common|helpers?|misc)$")


def long_files(root: Path, files: Iterable[Path], longer: Mapping[str, tuple[int, str]]) -> list[str]:
    """Files over the budget, and exceptions that are no longer exact.

    Files of tests may reach the upper limit without an exception: a table of cases is long but not deep.
    """
    problems = []
    for path in files:
        name = path.relative_to(root).as_posix()
        lines = len(path.read_text("utf-8").splitlines())
        allowed, reason = longer.get(name, (FILE_LINES_AT_MOST if name.startswith("tests/") else FILE_LINES, "-"))
        if lines > min(allowed, FILE_LINES_AT_MOST):
            problems.append(f"{name}: {lines} lines, of {min(allowed, FILE_LINES_AT_MOST)} allowed")
        elif name in longer and (lines < allowed or lines <= FILE_LINES or not reason):
            problems.append(f"{name}: its exception says {allowed} lines ({reason}), and it has {lines}")
    return problems


def long_functions(root: Path, files: Iterable[Path]) -> list[str]:
    """Functions over the budget, decorators not counted."""
    problems = []
    for path in files:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > FUNCTION_LINES:
                    problems.append(f"{path.relative_to(root)}:{node.lineno}: {node.name} has {lines} lines")
    return problems


def bad_names(root: Path, files: Iterable[Path]) -> list[str]:
    """Modules and folders that name no subject, and mixin classes."""
    problems = []
    for path in files:
        relative = path.relative_to(root)
        problems += [f"{relative}: {part}" for part in relative.with_suffix("").parts if DRAWER.search(part)]
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ClassDef) and "mixin" in node.name.lower():
                problems.append(f"{relative}:{node.lineno}: {node.name}")
    return problems


@pytest.fixture(scope="module")
def python_files(tracked: list[Path]) -> list[Path]:
    return [path for path in tracked if path.suffix == ".py"]


def test_files_are_within_the_budget(root: Path, python_files: list[Path]) -> None:
    assert long_files(root, python_files, LONGER_FILES) == []


def test_functions_are_within_the_budget(root: Path, python_files: list[Path]) -> None:
    assert long_functions(root, python_files) == []


def test_names_say_what_a_thing_is(root: Path, python_files: list[Path]) -> None:
    assert bad_names(root, python_files) == []


@pytest.mark.parametrize(
    ("lines", "longer", "problems"),
    [
        (300, {}, 0),
        (301, {}, 1),
        (400, {"a.py": (400, "one table")}, 0),
        (401, {"a.py": (400, "one table")}, 1),
        (399, {"a.py": (400, "one table")}, 1),
        (300, {"a.py": (300, "one table")}, 1),
        (400, {"a.py": (400, "")}, 1),
        (601, {"a.py": (601, "one table")}, 1),
    ],
)
def test_a_planted_long_file_is_seen(
    plant: Plant, lines: int, longer: dict[str, tuple[int, str]], problems: int
) -> None:
    tree = plant({"a.py": "x = 1\n" * lines})
    assert len(long_files(tree, [tree / "a.py"], longer)) == problems


def test_a_planted_long_test_file_is_seen(plant: Plant) -> None:
    tree = plant({"tests/test_a.py": "x = 1\n" * 600, "tests/test_b.py": "x = 1\n" * 601})
    found = long_files(tree, [tree / "tests/test_a.py", tree / "tests/test_b.py"], {})
    assert found == ["tests/test_b.py: 601 lines, of 600 allowed"]


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_a_planted_long_function_is_seen(plant: Plant, kind: str) -> None:
    fits = f"@decorated\n{kind} fits():\n" + "    x = 1\n" * 79
    over = f"class C:\n    {kind} over(self):\n" + "        x = 1\n" * 80
    tree = plant({"a.py": fits + over})
    assert long_functions(tree, [tree / "a.py"]) == ["a.py:83: over has 81 lines"]


def test_planted_bad_names_are_seen(plant: Plant) -> None:
    files = {"utils.py": "", "text_helpers.py": "", "misc/a.py": "", "b.py": "class RunnerMixin: ...", "commons.py": ""}
    tree = plant({**files, "common.py": ""})
    found = bad_names(tree, [tree / name for name in (*files, "common.py")])
    assert found == [
        "utils.py: utils",
        "text_helpers.py: text_helpers",
        "misc/a.py: misc",
        "b.py:1: RunnerMixin",
        "common.py: common",
    ]

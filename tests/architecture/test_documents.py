"""What the documents name, and what no file of the repository may hold."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import pytest

Plant = Callable[[Mapping[str, str]], Path]

# Put together from parts, so that this file does not hold what it looks for.
REGISTRIES = [
    ("py" + "pi.org"),
    ("pythonhosted" + ".org"),
    ("npm" + "js.org"),
    ("deb.debian" + ".org"),
    ("download.pytorch" + ".org"),
]
FORBIDDEN = re.compile(
    "|".join(
        [
            *map(re.escape, REGISTRIES),
            "/wo" + r"rk/(main|shared|\.)",
            r"\bissues? #?\d+",
            r"\(#\d+\)",
            r"\bsub-?agents?\b",
        ]
    ),
    re.IGNORECASE,
)
# Data that others wrote: vocabularies and chat templates.
NOT_OURS = "tests/data/"


def rooms(root: Path) -> list[str]:
    """`package/room` for each folder with Python files directly under a package."""
    found = [path.parent for path in root.glob("packages/*/src/*/*/*.py")]
    return sorted({f"{path.parent.name}/{path.name}" for path in found})


def missing_rooms(root: Path) -> list[str]:
    """Rooms without a line of their own in ARCHITECTURE.md."""
    lines = (root / "ARCHITECTURE.md").read_text("utf-8").splitlines()
    return [room for room in rooms(root) if not any(line.startswith(f"- `{room}/`: ") for line in lines)]


def forbidden_text(root: Path, files: Iterable[Path]) -> list[str]:
    """Addresses of registries and traces of how the repository was made, by file and line."""
    problems = []
    for path in files:
        name = path.relative_to(root).as_posix()
        data = path.read_bytes()
        if name.startswith(NOT_OURS) or b"\0" in data[:8192]:
            continue
        for number, line in enumerate(data.decode("utf-8", "replace").splitlines(), 1):
            problems += [f"{name}:{number}: {found[0]}" for found in FORBIDDEN.finditer(line)]
    return problems


def test_every_room_has_its_line(root: Path) -> None:
    assert missing_rooms(root) == []


def test_no_file_holds_forbidden_text(root: Path, tracked: list[Path]) -> None:
    assert forbidden_text(root, tracked) == []


def test_the_lock_of_one_index_is_not_tracked(root: Path, tracked: list[Path]) -> None:
    assert root / "uv.lock" not in tracked
    listed = subprocess.run(["git", "ls-files", "uv.lock"], cwd=root, capture_output=True, check=True)
    assert listed.stdout == b""


def test_the_readme_gives_the_two_commands_that_ci_runs(root: Path) -> None:
    readme, ci = ((root / name).read_text("utf-8") for name in ("README.md", ".ci/run"))
    assert "python3 dev.py serve" in readme
    for command in ("python3 dev.py check", "python3 dev.py test"):
        assert command in readme
        assert command in ci


def test_a_planted_room_without_a_line_is_seen(plant: Plant) -> None:
    tree = plant(
        {
            "packages/poot-x/src/poot_x/__init__.py": "",
            "packages/poot-x/src/poot_x/named/__init__.py": "",
            "packages/poot-x/src/poot_x/nameless/__init__.py": "",
            "packages/poot-x/src/poot_x/mentioned/__init__.py": "",
            "ARCHITECTURE.md": "- `poot_x/named/`: a room\n\nSee `poot_x/mentioned/`.\n",
        }
    )
    assert missing_rooms(tree) == ["poot_x/mentioned", "poot_x/nameless"]


@pytest.mark.parametrize(
    "text",
    [
        *(f"see https://{host}/simple" for host in REGISTRIES),
        "cd /wo" + "rk/main",
        "as in issue" + " 12",
        "Fix it (#" + "12)",
        "a sub" + "agent wrote this",
    ],
)
def test_planted_text_is_seen(plant: Plant, text: str) -> None:
    tree = plant({"docs/a.md": f"one\n{text}\n", "tests/data/a.txt": text})
    (tree / "binary").write_bytes(b"\0" + text.encode())
    found = forbidden_text(tree, [tree / "docs/a.md", tree / "tests/data/a.txt", tree / "binary"])
    assert [problem.split(": ")[0] for problem in found] == ["docs/a.md:2"]

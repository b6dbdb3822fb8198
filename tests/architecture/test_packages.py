"""What each package carries, what it depends on, and the tested set."""

from __future__ import annotations

import ast
import importlib.util
import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

Plant = Callable[[Mapping[str, str]], Path]

EDGES = {
    "poot-executor": set(),
    "poot-models": {"poot-executor"},
    "poot-guided": set(),
    "poot-batch": {"poot-models", "poot-executor", "poot-guided"},
    "poot-serve": {"poot-batch", "poot-guided", "poot-models"},
}
PYTHON = ">=3.11,<3.14"


def load(path: Path) -> dict[str, Any]:
    return tomllib.loads(path.read_text("utf-8"))


def package_problems(package: Path, edges: Mapping[str, set[str]]) -> list[str]:
    """What one package's folder lacks or says wrongly."""
    name, module = package.name, package.name.replace("-", "_")
    source = package / "src" / module
    first = source / "__init__.py"
    needed = [package / "README.md", package / "CHANGELOG.md", package / "LICENSE", source / "py.typed"]
    problems = [f"{name}: no {path.relative_to(package)}" for path in needed if not path.is_file()]
    if not (package / "pyproject.toml").is_file():
        return [*problems, f"{name}: no pyproject.toml"]
    project = load(package / "pyproject.toml")["project"]
    if name not in edges:
        return [*problems, f"{name}: not one of the design's packages"]
    if project["name"] != name or project["requires-python"] != PYTHON:
        problems.append(f"{name}: name is {project['name']}, requires-python is {project['requires-python']}")
    if (package / "CHANGELOG.md").is_file():
        newest = re.search(r"^## (\S+)", (package / "CHANGELOG.md").read_text("utf-8"), re.M)
        if newest is None or newest[1] != project["version"]:
            problems.append(f"{name}: version {project['version']}, changelog {newest and newest[1]}")
    if project.get("scripts", {}).get(name) != f"{module}.cli:main":
        problems.append(f"{name}: no console script {name} = {module}.cli:main")
    written = re.search(r'^__version__ = "(.*)"$', first.read_text("utf-8"), re.M) if first.is_file() else None
    if written is None or written[1] != project["version"]:
        problems.append(f"{name}: version {project['version']}, __version__ {written and written[1]}")
    cli = source / "cli.py"
    if cli.is_file() and "main" not in {getattr(step, "name", "") for step in ast.parse(cli.read_text("utf-8")).body}:
        problems.append(f"{name}: cli.py has no main")
    asked = [Requirement(text) for text in project["dependencies"]]
    siblings = {one.name for one in asked if one.name.startswith("poot-")}
    if siblings != edges[name]:
        problems.append(f"{name}: depends on {sorted(siblings)}, and the design says {sorted(edges[name])}")
    problems += [f"{name}: {one} has no lower bound" for one in asked if ">=" not in str(one.specifier)]
    return problems


def unpinned(documents: list[dict[str, Any]], pins: list[str]) -> list[str]:
    """Requirements of others' packages that the tested set lacks or contradicts."""
    tested: dict[str, list[str]] = {}
    for pin in map(Requirement, pins):
        tested.setdefault(canonicalize_name(pin.name), []).append(str(pin.specifier).removeprefix("=="))
    problems = []
    for document in documents:
        groups = document.get("dependency-groups", {}).values()
        texts = [*document["project"]["dependencies"], *(text for group in groups for text in group)]
        for one in (Requirement(text) for text in texts if isinstance(text, str)):
            versions = tested.get(canonicalize_name(one.name), [])
            if one.name.startswith("poot-"):
                continue
            if not versions:
                problems.append(f"{one}: not in the tested set; run: make lock")
            problems += [f"{one}: tested with {version}" for version in versions if version not in one.specifier]
    return problems


@pytest.fixture(scope="module")
def dev(root: Path) -> ModuleType:
    """dev.py as a module."""
    spec = importlib.util.spec_from_file_location("poot_dev", root / "dev.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_package_is_complete(root: Path) -> None:
    packages = sorted((root / "packages").iterdir())
    assert [package.name for package in packages if package.is_dir()] == sorted(EDGES)
    assert [problem for package in packages for problem in package_problems(package, EDGES)] == []


def test_the_packages_carry_the_licence(root: Path) -> None:
    texts = {path.read_text("utf-8") for path in [root / "LICENSE", *root.glob("packages/*/LICENSE")]}
    assert len(texts) == 1


def test_one_range_of_pythons(root: Path, dev: ModuleType) -> None:
    oldest, below = (".".join(map(str, version)) for version in (dev.OLDEST_PYTHON, dev.PYTHON_BELOW))
    assert f">={oldest},<{below}" == PYTHON == load(root / "pyproject.toml")["project"]["requires-python"]


def test_the_tested_set_agrees_with_the_lock(root: Path, dev: ModuleType) -> None:
    pyproject, requirements = ((root / name).read_text("utf-8") for name in ("pyproject.toml", "requirements.lock"))
    assert dev.lock_differences(pyproject, requirements) == []
    assert dev.read_block(pyproject) == load(root / "pyproject.toml")["tool"]["uv"]["constraint-dependencies"]


def test_the_tested_set_is_within_what_is_declared(root: Path) -> None:
    documents = [load(path) for path in [root / "pyproject.toml", *root.glob("packages/*/pyproject.toml")]]
    assert unpinned(documents, documents[0]["tool"]["uv"]["constraint-dependencies"]) == []


GOOD = {
    "poot-models/README.md": "",
    "poot-models/LICENSE": "",
    "poot-models/CHANGELOG.md": "# Changelog\n\n## 0.2.0\n\n## 0.1.0\n",
    "poot-models/src/poot_models/py.typed": "",
    "poot-models/src/poot_models/__init__.py": '__version__ = "0.2.0"\n',
    "poot-models/src/poot_models/cli.py": "def main(): ...",
    "poot-models/pyproject.toml": """[project]
name = "poot-models"
version = "0.2.0"
requires-python = ">=3.11,<3.14"
dependencies = ["poot-executor>=0.1,<0.2", "numpy>=1.26"]
[project.scripts]
poot-models = "poot_models.cli:main"
""",
}


def test_a_good_package_has_no_problems(plant: Plant) -> None:
    assert package_problems(plant(GOOD) / "poot-models", EDGES) == []


@pytest.mark.parametrize("name", [name for name in GOOD if not name.endswith(".py")])
def test_a_missing_file_is_seen(plant: Plant, name: str) -> None:
    tree = plant(GOOD)
    (tree / name).unlink()
    assert package_problems(tree / "poot-models", EDGES) == [f"poot-models: no {name.removeprefix('poot-models/')}"]


@pytest.mark.parametrize(
    ("name", "old", "new", "says"),
    [
        ("CHANGELOG.md", "## 0.2.0\n", "", "version 0.2.0, changelog 0.1.0"),
        ("CHANGELOG.md", "## ", "", "changelog None"),
        ("src/poot_models/__init__.py", "0.2.0", "0.1.0", "version 0.2.0, __version__ 0.1.0"),
        ("src/poot_models/cli.py", "main", "run", "cli.py has no main"),
        ("pyproject.toml", 'poot-models = "', 'models = "', "no console script"),
        ("pyproject.toml", ".cli:main", ".cli:run", "no console script"),
        ("pyproject.toml", '"poot-executor>=0.1,<0.2", ', "", "depends on []"),
        ("pyproject.toml", "poot-executor", "poot-serve", "depends on ['poot-serve']"),
        ("pyproject.toml", "numpy>=1.26", "numpy", "numpy has no lower bound"),
        ("pyproject.toml", ">=3.11,<3.14", ">=3.10", "requires-python is >=3.10"),
    ],
)
def test_a_planted_mistake_is_seen(plant: Plant, name: str, old: str, new: str, says: str) -> None:
    path = f"poot-models/{name}"
    assert old in GOOD[path]
    tree = plant({**GOOD, path: GOOD[path].replace(old, new)})
    problems = package_problems(tree / "poot-models", EDGES)
    assert len(problems) == 1
    assert says in problems[0]


def test_a_planted_unpinned_requirement_is_seen() -> None:
    document = {
        "project": {"dependencies": ["numpy>=1.26", "poot-executor>=0.1"]},
        "dependency-groups": {"dev": ["A.b"]},
    }
    assert unpinned([document], ["numpy==2.0 ; python_version < '3.12'", "numpy==2.5", "a-b==1"]) == []
    assert unpinned([document], ["numpy==1.0", "a-b==1"]) == ["numpy>=1.26: tested with 1.0"]
    assert unpinned([document], ["numpy==2.0"]) == ["A.b: not in the tested set; run: make lock"]


LOCK = """numpy==2.4 ; python_full_version < '3.12' \\
    --hash=sha256:00
numpy==2.5 ; python_full_version >= '3.12' \\
    --hash=sha256:01
triton==3.9 ; sys_platform == 'linux' \\
    --hash=sha256:02
"""
PINS = ["numpy==2.4 ; python_full_version < '3.12'", "numpy==2.5 ; python_full_version >= '3.12'", "triton==3.9"]


def test_a_planted_difference_in_the_tested_set_is_seen(dev: ModuleType) -> None:
    empty = f"a = 1\n{dev.BLOCK_START}constraint-dependencies = []\n{dev.BLOCK_END}b = 2\n"
    agreeing = dev.write_block(empty, PINS)
    assert tomllib.loads(agreeing) == {"a": 1, "constraint-dependencies": PINS, "b": 2}
    assert dev.lock_differences(agreeing, LOCK) == []
    assert dev.lock_differences(dev.write_block(agreeing, PINS[:2]), LOCK) == ["only in requirements.lock: triton==3.9"]
    assert dev.lock_differences(agreeing, LOCK.replace("3.9", "4.0")) == [
        "only in pyproject.toml: triton==3.9",
        "only in requirements.lock: triton==4.0",
    ]
    assert dev.lock_differences(agreeing, "# https://host\n" + LOCK) == ["requirements.lock holds an address"]


@pytest.mark.parametrize("line", ["numpy>=2", "--index-url host", "numpy @ file:///x", "-e ./packages/x"])
def test_a_lock_line_that_is_no_pin_is_refused(dev: ModuleType, line: str) -> None:
    with pytest.raises(dev.DevError, match="not a pinned requirement"):
        dev.pins_of(f"{LOCK}{line}\n")


def test_a_lost_marker_comment_is_refused(dev: ModuleType) -> None:
    with pytest.raises(dev.DevError, match="two comments"):
        dev.read_block("constraint-dependencies = []\n")


@pytest.mark.parametrize("version", [(2, 7), (3, 10), (3, 14)])
def test_a_python_outside_the_range_is_refused(dev: ModuleType, version: tuple[int, int]) -> None:
    with pytest.raises(dev.DevError, match=r"needs Python 3\.11 to 3\.13"):
        dev.check_python(version, "python")


@pytest.mark.parametrize("version", [(3, 11), (3, 13)])
def test_a_python_in_the_range_is_taken(dev: ModuleType, version: tuple[int, int]) -> None:
    dev.check_python(version, "python")

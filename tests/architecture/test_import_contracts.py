"""The edges between packages and rooms: the contracts of the root pyproject.toml, and what imports load."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from importlinter import configuration
from importlinter.application.use_cases import lint_imports

Plant = Callable[[Mapping[str, str]], Path]
PACKAGES = ("poot_executor", "poot_models", "poot_guided", "poot_batch", "poot_serve")
HEAVY = ("torch", "triton", "transformers")
LIGHT = ("poot_guided", "poot_serve", "poot_batch.request", "poot_models.text", "poot_models.checkpoint")

CLEAN = {
    "poot_executor/__init__.py": "",
    "poot_executor/ir/__init__.py": (
        "import torch\nfrom typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import poot_executor.ops\n"
    ),
    "poot_executor/ops/__init__.py": "from poot_executor import ir",
    "poot_models/__init__.py": "",
    "poot_models/text/__init__.py": "from poot_models.errors import ModelError",
    "poot_models/errors.py": "class ModelError(Exception): ...",
    "poot_models/hub.py": "from poot_models import errors, hub_files",
    "poot_models/hub_files.py": "",
    "poot_models/checkpoint/__init__.py": "",
    "poot_models/checkpoint/gguf.py": "",
    "poot_models/families/__init__.py": "import poot_executor.ir\nfrom poot_models.checkpoint import gguf",
    "poot_guided/__init__.py": "import llguidance",
    "poot_batch/__init__.py": "import poot_executor, poot_guided, poot_models.families",
    "poot_serve/__init__.py": "",
    "poot_serve/routes/__init__.py": (
        "import poot_batch, poot_guided, poot_models.hub\nfrom poot_models.text import load\n"
        "from poot_models.errors import ModelError\n"
    ),
}

VIOLATIONS = [
    ("layers", "poot_executor/ir/__init__.py", "import poot_models.text"),
    ("layers", "poot_executor/ir/__init__.py", "import poot_guided"),
    ("layers", "poot_models/families/__init__.py", "import poot_batch"),
    ("layers", "poot_models/families/__init__.py", "import poot_guided"),
    ("layers", "poot_batch/__init__.py", "def f():\n    import poot_serve"),
    ("guided-alone", "poot_guided/__init__.py", "import poot_executor.ir"),
    ("guided-alone", "poot_guided/__init__.py", "import torch"),
    ("serve-edges", "poot_serve/routes/__init__.py", "import poot_models.families"),
    ("serve-edges", "poot_serve/routes/__init__.py", "from poot_models.checkpoint import gguf"),
    ("serve-edges", "poot_serve/routes/__init__.py", "import poot_models.hub_files"),
    ("serve-edges", "poot_serve/routes/__init__.py", "import poot_executor"),
    ("torch-free", "poot_serve/routes/__init__.py", "def f():\n    import torch"),
    ("torch-free", "poot_models/hub.py", "def f():\n    import torch"),
    ("torch-free", "poot_models/text/__init__.py", "from transformers import AutoTokenizer"),
    ("acyclic-rooms", "poot_executor/ir/__init__.py", "def f():\n    import poot_executor.ops"),
    ("acyclic-rooms", "poot_models/checkpoint/gguf.py", "from poot_models.families import graph"),
]
CONTRACTS = sorted({contract for contract, _, _ in VIOLATIONS})


def keeps(pyproject: Path, *contracts: str) -> bool:
    """Whether the packages that Python finds keep the contracts (none named: all).

    Anything else that goes wrong is raised, so that a planted violation cannot fail for another reason.
    """
    configuration.configure()
    return lint_imports(str(pyproject), limit_to_contracts=contracts, cache_dir=None, no_logo=True, is_debug_mode=True)


def loaded_by(module: str, names: tuple[str, ...], path: Path | None = None) -> list[str]:
    """Which of `names` a fresh interpreter has loaded once it imported `module` and all below it."""
    program = (
        "import importlib, pkgutil, sys\n"
        f"top = importlib.import_module({module!r})\n"
        "for found in pkgutil.walk_packages(top.__path__, top.__name__ + '.'):\n"
        "    if not found.name.endswith('__main__'):\n"
        "        importlib.import_module(found.name)\n"
        f"print(*[name for name in {names!r} if name in sys.modules])\n"
    )
    start = f"import sys; sys.path.insert(0, {str(path)!r})\n" if path else ""
    done = subprocess.run([sys.executable, "-c", start + program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.fixture
def planted(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> Plant:
    """Plant packages so that Python finds them before the real ones."""

    def write(files: Mapping[str, str]) -> Path:
        tree = plant(files)
        for name in list(sys.modules):
            if name.partition(".")[0] in PACKAGES:
                monkeypatch.delitem(sys.modules, name)
        monkeypatch.syspath_prepend(tree)
        return tree

    return write


def test_the_packages_keep_every_contract(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = keeps(root / "pyproject.toml")
    assert kept, capsys.readouterr().out


def test_a_clean_tree_keeps_every_contract(root: Path, planted: Plant, capsys: pytest.CaptureFixture[str]) -> None:
    planted(CLEAN)
    assert keeps(root / "pyproject.toml"), capsys.readouterr().out


@pytest.mark.parametrize(("contract", "file", "line"), VIOLATIONS)
def test_a_planted_import_breaks_its_contract(root: Path, planted: Plant, contract: str, file: str, line: str) -> None:
    planted({**CLEAN, file: f"{CLEAN[file]}\n{line}\n"})
    assert not keeps(root / "pyproject.toml", contract)


def test_every_contract_has_a_planted_violation(root: Path) -> None:
    text = (root / "pyproject.toml").read_text("utf-8")
    assert sorted(line[6:-1] for line in text.splitlines() if line.startswith('id = "')) == CONTRACTS


@pytest.mark.parametrize("module", LIGHT)
def test_importing_the_light_modules_loads_nothing_heavy(root: Path, module: str) -> None:
    package = module.partition(".")[0]
    if not (root / "packages" / package.replace("_", "-") / "src" / module.replace(".", "/")).is_dir():
        return  # A room that is not built yet.
    assert loaded_by(module, HEAVY) == []


def test_a_planted_heavy_import_is_seen(plant: Plant) -> None:
    tree = plant({"torch.py": "", "planted/__init__.py": "", "planted/room/__init__.py": "import torch"})
    assert loaded_by("planted", HEAVY, tree) == ["torch"]

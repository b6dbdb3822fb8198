"""What the packages may not do: unpickle, evaluate, read the environment, hide errors, act when imported."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import pytest

Plant = Callable[[Mapping[str, str]], Path]

BANNED = {
    "pickle": "runs code from data",
    "marshal": "runs code from data",
    "dill": "runs code from data",
    "cloudpickle": "runs code from data",
    "joblib": "runs code from data",
    "shelve": "runs code from data",
    "torch.load": "runs code from data; safetensors and GGUF hold weights",
    "torch.save": "writes what only torch.load reads",
    "multiprocessing": "pickles; use subprocess and msgspec",
    "torch.multiprocessing": "pickles; use subprocess and msgspec",
    "concurrent.futures.ProcessPoolExecutor": "pickles; use subprocess and msgspec",
    "os.system": "goes through a shell",
    "os.popen": "goes through a shell",
    "eval": "runs text",
    "exec": "runs text",
    "os.environ": "settings are flags",
    "os.environb": "settings are flags",
    "os.getenv": "settings are flags",
    "os.getenvb": "settings are flags",
    "os.putenv": "settings are flags",
}
BANNED_KEYWORDS = {"shell": "goes through a shell", "allow_pickle": "runs code from data"}
ENVIRONMENT = {"os.environ", "os.getenv"}
# The two places that declare what they read of the environment, and why.
MAY_READ_ENVIRONMENT = {
    "poot_serve/settings.py": "POOT_LOG, the level of the log",
    "poot_batch/openmp.py": "how OpenMP's threads wait, while torch is loaded",
}


def aliases(tree: ast.Module) -> dict[str, str]:
    """What each name bound by an import stands for."""
    names = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.partition(".")[0]
                names[alias.asname or top] = alias.name if alias.asname else top
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.update({alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names})
    return names


def imported(node: ast.AST) -> list[str]:
    """The dotted names that an import statement mentions."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module and not node.level:
        return [f"{node.module}.{alias.name}" for alias in node.names]
    return []


def dotted(node: ast.AST, names: Mapping[str, str]) -> str | None:
    """`a.b.c` in full for a name or a chain of attributes on an imported name; None for anything else."""
    if isinstance(node, ast.Name):
        return names.get(node.id, node.id if node.id in BANNED else None)
    if isinstance(node, ast.Attribute):
        value = dotted(node.value, names)
        return f"{value}.{node.attr}" if value else None
    return None


def banned_part(name: str) -> str | None:
    """The banned name that `name` is or lies in."""
    parts = name.split(".")
    prefixes = (".".join(parts[: end + 1]) for end in range(len(parts)))
    return next((prefix for prefix in prefixes if prefix in BANNED), None)


def is_silent(handler: ast.ExceptHandler) -> bool:
    """Whether a handler takes every exception and does nothing with it."""
    types = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    broad = any(
        kind is None or (isinstance(kind, ast.Name) and kind.id in {"Exception", "BaseException"}) for kind in types
    )

    def idle(step: ast.stmt) -> bool:
        is_constant = isinstance(step, ast.Expr) and isinstance(step.value, ast.Constant)
        return is_constant or isinstance(step, ast.Pass | ast.Continue)

    return broad and all(map(idle, handler.body))


def problems_of(node: ast.AST, names: Mapping[str, str]) -> list[str]:
    """What is wrong with one node of a syntax tree."""
    mentioned = imported(node)
    if isinstance(node, ast.Name | ast.Attribute):
        mentioned = [name for name in [dotted(node, names)] if name]
    found = sorted({part for part in map(banned_part, mentioned) if part})
    if isinstance(node, ast.Call):
        for keyword in node.keywords:
            off = isinstance(keyword.value, ast.Constant) and not keyword.value.value
            if keyword.arg in BANNED_KEYWORDS and not off:
                found.append(f"{keyword.arg}=")
    if isinstance(node, ast.ExceptHandler) and is_silent(node):
        found.append("a silent except of everything")
    if isinstance(node, ast.Raise) and node.exc is not None:
        raised = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
        if isinstance(raised, ast.Name) and raised.id == "NotImplementedError":
            found.append("NotImplementedError: a stub")
    return found


def banned_uses(source: Path, files: Iterable[Path], may_read: Iterable[str]) -> list[str]:
    """Every banned use in `files`, which lie under `source`, the folder of the packages' modules."""
    problems = []
    for path in files:
        name = path.relative_to(source).as_posix()
        allowed = ENVIRONMENT if name in may_read else set()
        tree = ast.parse(path.read_text("utf-8"))
        names = aliases(tree)
        for node in ast.walk(tree):
            found = [part for part in problems_of(node, names) if part not in allowed]
            problems += [f"{name}:{getattr(node, 'lineno', 0)}: {part}" for part in found]
        acts = [step for step in tree.body if isinstance(step, ast.Expr) and isinstance(step.value, ast.Call)]
        problems += [f"{name}:{step.lineno}: a call when imported" for step in acts]
    return problems


def test_the_packages_use_nothing_banned(root: Path) -> None:
    problems = []
    for source in sorted(root.glob("packages/*/src")):
        problems += banned_uses(source, sorted(source.rglob("*.py")), MAY_READ_ENVIRONMENT)
    assert problems == []


def test_ordinary_code_is_not_banned(plant: Plant) -> None:
    text = '''
import os
import subprocess
import numpy as np
import torch

load = torch.nn.functional.silu


def f(path, model, exec_=None):
    """Not eval(), not os.environ."""
    model.eval()
    subprocess.run(["true"], shell=False)
    np.load(path, allow_pickle=False)
    try:
        os.path.join(path)
    except Exception as problem:
        print(problem)
    except OSError:
        pass
'''
    tree = plant({"poot_x/a.py": text})
    assert banned_uses(tree, [tree / "poot_x/a.py"], []) == []


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("import pickle", "pickle"),
        ("from pickle import loads as read", "pickle"),
        ("import torch\nx = torch.load", "torch.load"),
        ("import torch as t\ndef f(p): return t.load(p)", "torch.load"),
        ("from torch import load", "torch.load"),
        ("def f(): import multiprocessing.shared_memory", "multiprocessing"),
        ("from concurrent.futures import ProcessPoolExecutor", "concurrent.futures.ProcessPoolExecutor"),
        ("x = eval('1')", "eval"),
        ("run = exec", "exec"),
        ("import os\nx = os.environ['A']", "os.environ"),
        ("from os import getenv", "os.getenv"),
        ("import os as o\ndef f(): return o.environ", "os.environ"),
        ("import os\ndef f(): os.system('a')", "os.system"),
        ("import subprocess\nx = subprocess.run('a', shell=True)", "shell="),
        ("import numpy\nx = numpy.load('a', allow_pickle=True)", "allow_pickle="),
        ("try:\n    x = 1\nexcept Exception:\n    pass", "a silent except of everything"),
        ("try:\n    x = 1\nexcept (OSError, BaseException):\n    ...", "a silent except of everything"),
        ("try:\n    x = 1\nexcept:\n    pass", "a silent except of everything"),
        ("def f(): raise NotImplementedError", "NotImplementedError: a stub"),
        ("def f(): raise NotImplementedError('later')", "NotImplementedError: a stub"),
        ("import torch\ntorch.set_num_threads(1)", "a call when imported"),
    ],
)
def test_a_planted_use_is_seen(plant: Plant, text: str, what: str) -> None:
    tree = plant({"poot_x/a.py": text})
    found = banned_uses(tree, [tree / "poot_x/a.py"], [])
    assert found
    assert {problem.partition(": ")[2] for problem in found} == {what}


def test_the_environment_is_read_only_where_declared(plant: Plant) -> None:
    text = "import os\n\ndef f():\n    return os.environ\n"
    tree = plant({"poot_serve/settings.py": text, "poot_serve/cli.py": text})
    files = [tree / "poot_serve/settings.py", tree / "poot_serve/cli.py"]
    assert banned_uses(tree, files, MAY_READ_ENVIRONMENT) == ["poot_serve/cli.py:4: os.environ"]


def test_a_declared_place_may_do_nothing_else_banned(plant: Plant) -> None:
    tree = plant({"poot_serve/settings.py": "import pickle\n"})
    assert banned_uses(tree, [tree / "poot_serve/settings.py"], MAY_READ_ENVIRONMENT) != []

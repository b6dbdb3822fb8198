"""What the tests of parity share with the benchmarks: driving a model's programs, tiny models, the reference."""

import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from poot_models import load

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


def _of_benchmarks(name: str) -> ModuleType:
    """A module of benchmarks/; those it imports from there stay known under their names too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCHMARKS)
        return importlib.import_module(name)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Tests that take `tiny`, `tiny_gguf`, `tiny_short` (whose prompts may be short) or `tiny_each` (one of each
    architecture) run for every such model."""
    if not {"tiny", "tiny_gguf", "tiny_short", "tiny_each"} & set(metafunc.fixturenames):
        return
    models = _of_benchmarks("tiny_models")
    short = tuple(name for name in models.TINY if name not in models.ALWAYS_LONG)
    names_of = {"tiny": tuple(models.TINY), "tiny_gguf": models.IN_GGUF, "tiny_short": short}
    for argument, names in (names_of | {"tiny_each": models.ONE_EACH}).items():
        if argument in metafunc.fixturenames:
            metafunc.parametrize(argument, names)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Threads that wait for each other make small products slow wherever the cores have other work."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def of_benchmarks() -> Callable[[str], ModuleType]:
    """(name) -> that module of benchmarks/."""
    return _of_benchmarks


@pytest.fixture(scope="session")
def runner() -> Callable[..., Any]:
    """(path of a checkpoint, sizes) -> a Runner of benchmarks/model_runner.py."""
    module = _of_benchmarks("model_runner")
    return lambda path, **sizes: module.Runner(load(path), **sizes)


@pytest.fixture(scope="session")
def reference() -> ModuleType:
    """benchmarks/reference.py."""
    return _of_benchmarks("reference")


@pytest.fixture(scope="session")
def tiny_models() -> ModuleType:
    """benchmarks/tiny_models.py."""
    return _of_benchmarks("tiny_models")


@pytest.fixture(scope="session")
def tiny_gguf_writer() -> ModuleType:
    """benchmarks/tiny_gguf.py."""
    return _of_benchmarks("tiny_gguf")

"""The published chat templates of tests/data, over conversations of many kinds, beside transformers."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
TEMPLATES = sorted((ROOT / "tests" / "data" / "templates").glob("*.jinja"))


@pytest.fixture(scope="module")
def templates() -> Iterator[ModuleType]:
    """benchmarks/templates.py, which the benchmark and these tests share."""
    spec = importlib.util.spec_from_file_location("benchmarks_templates", ROOT / "benchmarks" / "templates.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "benchmarks")
        patch.setitem(sys.modules, spec.name, module)  # where dataclasses looks a module up
        spec.loader.exec_module(module)
        with module.stopped_clock():
            yield module


def test_there_are_forty() -> None:
    assert len(TEMPLATES) == 40


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
def test_renders_as_transformers(path: Path, templates: ModuleType) -> None:
    outcome = templates.check_chats(path.read_text("utf-8"))
    assert outcome.wrong == []
    assert outcome.equal >= 50
    assert outcome.equal + outcome.refused >= 4 * len(templates.CHATS)


def test_a_difference_is_seen(templates: ModuleType) -> None:
    """What the comparison must not take for equal."""
    stated = type("TemplateError", (Exception,), {})("no")
    refusal, failure = templates.TemplateRefusal, templates.TemplateRenderError
    different = [
        *(("a", "b"), ("a", failure("a")), (ValueError(), "a"), (ValueError(), ValueError())),
        *((stated, failure("no")), (stated, refusal("yes")), (ValueError(), refusal("no"))),
    ]
    for want, ours in different:
        assert len(templates.compare("case", want, ours).wrong) == 1
    assert templates.compare("case", "a", "a").equal == 1
    assert templates.compare("case", stated, refusal("says: no")).refused == 1
    assert templates.compare("case", ValueError(), failure("x")).refused == 1

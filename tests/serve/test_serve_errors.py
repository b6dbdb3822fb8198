"""The one table of errors."""

from __future__ import annotations

import pytest

from poot_batch import errors as engine
from poot_models import errors as models
from poot_serve import errors as serve
from poot_serve.protocol.errors import wire_error


def tree(root: type) -> list[type]:
    return [root, *(kind for child in root.__subclasses__() for kind in tree(child))]


@pytest.mark.parametrize("kind", [*tree(serve.ClientError), *tree(engine.RequestError), *tree(models.TextRefusal)])
def test_a_clients_mistake_is_a_4xx_with_its_own_code(kind):
    status, wire = wire_error(kind("what is wrong"))
    assert 400 <= status < 500 and wire.type == "invalid_request_error"
    # What the engine refuses, and no class says more of, is a field's value.
    code = "invalid_value" if kind is engine.RequestError else kind.code
    assert (wire.message, wire.code) == ("what is wrong", code)


def test_codes_are_distinct_and_strings():
    kinds = tree(serve.ServeError)
    assert len({kind.code for kind in kinds}) == len(kinds)


def test_statuses():
    assert wire_error(serve.DrainingError("x"))[0] == wire_error(engine.EngineDeadError("x"))[0] == 503
    assert wire_error(engine.EngineDrainingError("x"))[1].code == "draining"
    assert wire_error(models.TemplateError("x"))[0] == 400
    assert wire_error(serve.GenerationError("x", engine_code="non_finite_logits"))[0] == 500
    assert wire_error(serve.GenerationError("x", engine_code="context_length_exceeded"))[0] == 400
    assert wire_error(serve.GenerationError("x", engine_code="never heard of"))[0] == 500


def test_an_unforeseen_error_tells_nothing():
    status, wire = wire_error(KeyError("/secret/path"))
    assert (status, wire.code, wire.message) == (500, "internal_error", "the server failed on this request")

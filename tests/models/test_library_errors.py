"""What the tokenizers library raises, as this package's errors."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer as Library

from poot_models.errors import TokenizerError
from poot_models.text.library import library_errors


class Panic(BaseException):
    """As the library's own panics are, which no code can import."""


Panic.__module__ = "pyo3_runtime"


def test_what_the_library_itself_raises_is_named() -> None:
    with (
        pytest.raises(TokenizerError, match=r"^the file cannot be read: .*column") as caught,
        library_errors("the file cannot be read"),
    ):
        Library.from_str("{")
    assert caught.value.__cause__ is not None


def test_a_panic_is_a_typed_error() -> None:
    told = r"^it: the tokenizers library gave up on it \(index 3\)$"
    with pytest.raises(TokenizerError, match=told), library_errors("it"):
        raise Panic("index 3")


@pytest.mark.parametrize("raised", [TokenizerError("as it is"), KeyboardInterrupt(), SystemExit(2), GeneratorExit()])
def test_what_is_not_the_library_s_passes(raised: BaseException) -> None:
    with pytest.raises(type(raised)) as caught, library_errors("it"):
        raise raised
    assert caught.value is raised


def test_one_object_serves_many_blocks() -> None:
    guard = library_errors("it")
    for number in range(2):
        with pytest.raises(TokenizerError, match=f"^it: inner {number}$"), guard, guard:
            raise ValueError(f"inner {number}")
    with guard:
        pass

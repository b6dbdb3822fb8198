"""What the tokenizers library raises, as errors of this package."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from poot_models.errors import TokenizerError

__all__ = ["library_errors"]


@contextmanager
def library_errors(what: str) -> Iterator[None]:
    """Anything that the tokenizers library raises inside becomes a ``TokenizerError``: "<what>: <reason>".

    That includes its panics, which are no ``Exception`` and would end a thread: a tokenizer.json that contradicts
    itself can cause one.
    """
    try:
        yield
    except TokenizerError:
        raise
    except Exception as error:
        raise TokenizerError(f"{what}: {error}") from error
    except BaseException as error:
        if type(error).__module__ != "pyo3_runtime":
            raise
        raise TokenizerError(f"{what}: the tokenizers library gave up on it ({error})") from error

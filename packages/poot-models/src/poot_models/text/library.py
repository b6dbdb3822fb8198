"""What the tokenizers library raises, as errors of this package."""

from __future__ import annotations

from types import TracebackType

from poot_models.errors import TokenizerError

__all__ = ["library_errors"]


def library_errors(what: str) -> _LibraryErrors:
    """A block in which anything that the tokenizers library raises becomes a ``TokenizerError``: "<what>: <reason>".

    That includes its panics, which are no ``Exception`` and would end a thread: a tokenizer.json that contradicts
    itself can cause one. One such object may serve many blocks, also at once.
    """
    return _LibraryErrors(what)


class _LibraryErrors:
    # Not a generator, for texts are encoded in such blocks, and those of short prompts are counted in microseconds.
    __slots__ = ("_what",)

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        """Nothing has to be set up."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None or isinstance(error, TokenizerError):
            return
        if isinstance(error, Exception):
            raise TokenizerError(f"{self._what}: {error}") from error
        if type(error).__module__ == "pyo3_runtime":
            raise TokenizerError(f"{self._what}: the tokenizers library gave up on it ({error})") from error

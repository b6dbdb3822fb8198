"""The text, log-probabilities and counts of one request, from the engine's outputs."""

from __future__ import annotations

from dataclasses import dataclass

from poot_batch.request import Output, TokenLogprob
from poot_models.text import Detokenizer, Tokenizer
from poot_serve.errors import GenerationError, UnavailableError
from poot_serve.protocol.usage import Usage


@dataclass(frozen=True, slots=True)
class Piece:
    """What one output adds to an answer. `text` ends on a whole character; `finish` is set on the last piece."""

    text: str
    logprobs: tuple[TokenLogprob, ...]
    finish: str | None

    @property
    def empty(self) -> bool:
        return not self.text and not self.logprobs


class Transcript:
    """Turns outputs into pieces, in order.

    With stop strings the engine delivers the text itself, else it is detokenised here; `continues` says that the
    text goes on from the prompt's and keeps its first space. Usage counts the delivered
    tokens: the end token is not one of them.
    """

    def __init__(self, tokenizer: Tokenizer, *, engine_text: bool, continues: bool) -> None:
        self._detokenizer = None if engine_text else Detokenizer(tokenizer, continues=continues)
        self._prompt = 0
        self._cached = 0
        self._completion = 0

    def push(self, output: Output) -> Piece:
        """The piece of `output`. Raises GenerationError or UnavailableError for one that ended badly."""
        self._prompt = output.prompt_tokens or self._prompt
        self._cached = output.cached_tokens or self._cached
        self._completion += len(output.tokens)
        if output.finish == "error":
            raise GenerationError(
                output.error_message or "the engine failed on this request",
                engine_code=output.error_code or "engine_fault",
            )
        if output.finish == "abort":
            raise UnavailableError("the request was cancelled before it ended: the server is shutting down")
        return Piece(self._text(output), output.logprobs or (), output.finish)

    def _text(self, output: Output) -> str:
        if self._detokenizer is None:
            return output.text or ""
        text = self._detokenizer.push(output.tokens)
        return text + self._detokenizer.finish() if output.finish is not None else text

    @property
    def completion_tokens(self) -> int:
        return self._completion

    @property
    def usage(self) -> Usage:
        return Usage.of(self._prompt, self._completion, self._cached)

"""The text, log-probabilities and counts of one request, from the engine's outputs."""

from __future__ import annotations

import msgspec

from poot_batch.request import Output, Times, TokenLogprob
from poot_models.text import Detokenizer, Tokenizer
from poot_serve.emit.echo import Echo
from poot_serve.errors import GenerationError, UnavailableError


# One is made for each token: a frozen dataclass would take five times as long.
class Piece(msgspec.Struct, frozen=True):
    """What one output adds to an answer. `text` ends on a whole character; `finish` is set on the last piece.

    `opens` is the first token of an echoed prompt, on the piece that begins it: that token has no log-probability.
    """

    text: str
    logprobs: tuple[TokenLogprob, ...]
    finish: str | None
    opens: int | None = None

    @property
    def empty(self) -> bool:
        return not self.text and not self.logprobs and self.opens is None


_NO_TIMES = Times(0.0, 0.0, 0.0)


class Transcript:
    """Turns the outputs of one choice into pieces, in order.

    With stop strings the engine delivers the text itself, else it is detokenised here; `continues` says that the
    text goes on from the prompt's and keeps its first space. An `echo` goes before the answer. The counts are of
    tokens, the completion's of the delivered ones: the end token is not one of them.
    """

    def __init__(self, tokenizer: Tokenizer, *, engine_text: bool, continues: bool, echo: Echo | None = None) -> None:
        self._detokenizer = None if engine_text else Detokenizer(tokenizer, continues=continues)
        self._echo = echo
        self._begun = False
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.completion_tokens = 0
        self.cache_miss: str | None = None
        self.times = _NO_TIMES

    def push(self, output: Output) -> Piece:
        """The piece of `output`. Raises GenerationError or UnavailableError for one that ended badly."""
        tokens, finish = output.tokens, output.finish
        self.completion_tokens += len(tokens)
        if output.prompt_tokens:
            self.prompt_tokens, self.cached_tokens = output.prompt_tokens, output.cached_tokens
            self.cache_miss = output.cache_miss or self.cache_miss
        if finish is not None:
            _check_end(output)
            self.times = output.times or self.times
        if self._detokenizer is None:
            text = output.text or ""
        else:
            text = self._detokenizer.push(tokens)
            if finish is not None:
                text += self._detokenizer.finish()
        logprobs, opens = output.logprobs or (), None
        if self._echo is not None:
            # Whoever asks for an echo with one token more reads an entry more, whichever token it is.
            end = () if output.end_logprob is None else (output.end_logprob,)
            logprobs = (*(output.prompt_logprobs or ()), *logprobs, *end)
            if not self._begun:
                self._begun = True
                text, opens = self._echo.text + text, self._echo.tokens[0]
        return Piece(text, logprobs, finish, opens)


def _check_end(output: Output) -> None:
    """Raises GenerationError or UnavailableError for an output that ends its request badly."""
    if output.finish == "error":
        raise GenerationError(
            output.error_message or "the engine failed on this request",
            engine_code=output.error_code or "engine_fault",
        )
    if output.finish == "abort":
        raise UnavailableError("the request was cancelled before it ended: the server is shutting down")

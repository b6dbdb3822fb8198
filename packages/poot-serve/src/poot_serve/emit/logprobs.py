"""Log-probabilities in the two shapes of the API, with the real bytes of tokens that are parts of a character."""

from __future__ import annotations

from collections.abc import Sequence

from poot_batch.request import TokenLogprob
from poot_models.text import Detokenizer, Tokenizer
from poot_serve.emit.echo import Echo
from poot_serve.protocol.chat import Alternative, ChatLogprobs, TokenEntry
from poot_serve.protocol.completions import CompletionLogprobs

# JSON has no infinity; the API's own floor for a token of no probability.
FLOOR = -9999.0


def _raw(tokenizer: Tokenizer, token: int) -> bytes:
    """The bytes of `token`; none for an id that pads the vocabulary, which a model may yet choose."""
    return tokenizer.join((token,), skip_special=False)


def token_label(raw: bytes) -> str:
    r"""A token as a string: its text, or `bytes:\xe2\x82` for bytes that are no whole characters."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


def finite(logprob: float) -> float:
    """`logprob` if JSON can hold it, else FLOOR (also for NaN, which is above no bound)."""
    return min(logprob, 0.0) if logprob > FLOOR else FLOOR


def chat_logprobs(entries: Sequence[TokenLogprob], tokenizer: Tokenizer) -> ChatLogprobs:
    """The `logprobs` object of a chat choice or chunk."""
    content: list[TokenEntry] = []
    for entry in entries:
        top: list[Alternative] = []
        for token, logprob in entry.top:
            raw = _raw(tokenizer, token)
            top.append(Alternative(token_label(raw), finite(logprob), list(raw)))
        raw = _raw(tokenizer, entry.token)
        content.append(TokenEntry(token_label(raw), finite(entry.logprob), list(raw), top))
    return ChatLogprobs(content)


class CompletionLogprobsWriter:
    """Builds the `logprobs` objects of one completion; `text_offset` runs on over its chunks.

    With an `echo`, its tokens come before the answer's, and their offsets are in its text.
    """

    def __init__(self, tokenizer: Tokenizer, echo: Echo | None = None) -> None:
        self._tokenizer = tokenizer
        self._detokenizer = Detokenizer(tokenizer, continues=echo is None)
        self._offset = 0
        # Tokens of the echo to come, and characters of its text.
        self._echoed, self._echo_end = (0, 0) if echo is None else (len(echo.tokens), len(echo.text))

    def push(self, entries: Sequence[TokenLogprob], opens: int | None = None) -> CompletionLogprobs:
        """`opens` goes first: a token without a log-probability.

        The chosen token is among its alternatives, as in the API, even when it is not of the most likely.
        """
        made = CompletionLogprobs([], [], [], [])
        if opens is not None:
            made.tokens.append(token_label(_raw(self._tokenizer, opens)))
            made.token_logprobs.append(None)
            made.top_logprobs.append(None)
            made.text_offset.append(self._next_offset(opens))
        for entry in entries:
            label, logprob = token_label(_raw(self._tokenizer, entry.token)), finite(entry.logprob)
            top = {token_label(_raw(self._tokenizer, token)): finite(value) for token, value in entry.top}
            top[label] = logprob
            made.tokens.append(label)
            made.token_logprobs.append(logprob)
            made.top_logprobs.append(top)
            made.text_offset.append(self._next_offset(entry.token))
        return made

    def _next_offset(self, token: int) -> int:
        offset = self._offset
        self._offset += len(self._detokenizer.push((token,)))
        if self._echoed:
            # A tokenizer that normalises gives back another text than it got.
            offset = min(offset, self._echo_end)
            self._echoed -= 1
            if not self._echoed:
                self._offset, self._detokenizer = self._echo_end, Detokenizer(self._tokenizer, continues=True)
        return offset

"""Log-probabilities in the two shapes of the API, with the real bytes of tokens that are parts of a character."""

from __future__ import annotations

from collections.abc import Sequence

from poot_batch.request import TokenLogprob
from poot_models.text import Detokenizer, Tokenizer
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
    """Builds the `logprobs` objects of one completion; `text_offset` runs on over its chunks."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._detokenizer = Detokenizer(tokenizer, continues=True)
        self._offset = 0

    def push(self, entries: Sequence[TokenLogprob]) -> CompletionLogprobs:
        """The chosen token is among its alternatives, as in the API, even when it is not of the most likely."""
        made = CompletionLogprobs([], [], [], [])
        for entry in entries:
            label = token_label(_raw(self._tokenizer, entry.token))
            top = {token_label(_raw(self._tokenizer, token)): finite(logprob) for token, logprob in entry.top}
            top.setdefault(label, finite(entry.logprob))
            made.tokens.append(label)
            made.token_logprobs.append(finite(entry.logprob))
            made.top_logprobs.append(top)
            made.text_offset.append(self._offset)
            self._offset += len(self._detokenizer.push((entry.token,)))
        return made

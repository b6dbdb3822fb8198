"""The text of a row that has stop strings; the text of other rows is made by whoever reads their tokens."""

from __future__ import annotations

from poot_batch.request import GenerateRequest
from poot_models.text import Detokenizer, StopMatcher, Tokenizer


class RowText:
    """Detokenises a row as its tokens come and looks for its stop strings, also over token borders."""

    def __init__(self, request: GenerateRequest, tokenizer: Tokenizer) -> None:
        self._detokenizer = Detokenizer(tokenizer, continues=request.continues)
        self._matcher = StopMatcher(request.stop, include_stop=request.include_stop)

    def push(self, token: int, *, may_stop: bool = True) -> tuple[str, bool]:
        """(text that is final now, whether a stop string was found). A stop string does not begin in a token that may
        not stop."""
        text = self._detokenizer.push((token,))
        return self._matcher.push(text) if may_stop else (text, False)

    def finish(self) -> tuple[str, bool]:
        """The rest, when the row ends by itself. A stop string may still end in an incomplete character's place."""
        text, stopped = self._matcher.push(self._detokenizer.finish())
        return (text, True) if stopped else (text + self._matcher.finish(), False)

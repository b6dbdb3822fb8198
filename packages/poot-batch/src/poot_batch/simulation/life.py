"""One request of a world: what it asked, what it must get, what it got."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from poot_batch.errors import InvariantError
from poot_batch.request import FinishReason, GenerateRequest, Output, TokenLogprob
from poot_batch.simulation.model import Alone


@dataclass(slots=True, eq=False)
class Life:
    """`spoilt_at` is the number of tokens after which its logits are not finite. `row` and `tables`, the
    blocks of each KV group, are what it was opened with, and `read` the positions that the device had run before the
    turn. `causes` are the errors that it may end with.
    """

    request: GenerateRequest
    alone: Alone
    granted: int | None
    spoilt_at: int | None = None
    row: int | None = None
    tables: list[list[int]] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    text: str = ""
    chances: list[float] = field(default_factory=list)
    prompt_chances: list[float] = field(default_factory=list)
    outputs: int = 0
    cached: int = 0
    read: int = 0
    was_held: bool = False
    overtaken: int = 0
    finish: FinishReason | None = None
    causes: set[str] = field(default_factory=set)

    @property
    def paused(self) -> bool:
        return self.granted is not None and len(self.tokens) >= self.granted

    def take(self, output: Output) -> None:
        """Add a delivery. Raises InvariantError for what is wrong with it."""
        if self.finish is not None:
            raise self._wrong(f"delivers after its end ({self.finish})")
        said = len(self.tokens)
        self.tokens += output.tokens
        right = self.alone.tokens[said : len(self.tokens)]
        if list(output.tokens) != right:
            raise self._wrong(f"delivers {output.tokens} after {said} tokens, not {right}")
        if self.granted is not None and len(self.tokens) > self.granted:
            raise self._wrong(f"delivers {len(self.tokens)} tokens on a credit of {self.granted}")
        if output.text is not None:
            self.text += output.text
            if not self.alone.text.startswith(self.text):
                raise self._wrong(f"says {self.text!r}, which does not begin {self.alone.text!r}")
        self._take_counts(output)
        if output.logprobs is not None or self.request.sampling.logprobs is not None:
            self._take_chances(output)
        if output.prompt_logprobs is not None:
            self._take_prompt_chances(output.prompt_logprobs)
        self.outputs += 1
        if output.finish is not None:
            self._end(output)

    def _wrong(self, what: str) -> InvariantError:
        return InvariantError(f"request {self.request.id} {what}")

    def _take_counts(self, output: Output) -> None:
        told = self.outputs == 0 or output.finish is not None
        if output.finish == "error" and self.row is None:
            # It was taken from the line, and its row could not be opened.
            self.cached = output.cached_tokens
        right = (len(self.request.prompt), self.cached) if told else (0, 0)
        said = (output.prompt_tokens, output.cached_tokens)
        if said != right:
            raise self._wrong(f"reports {said} prompt and cached tokens in delivery {self.outputs + 1}, not {right}")

    def _take_chances(self, output: Output) -> None:
        asked, entries = self.request.sampling.logprobs or 0, output.logprobs or ()
        if len(entries) != len(output.tokens):
            raise self._wrong(f"delivers {len(output.tokens)} tokens with {len(entries)} log-probabilities")
        for at, entry in enumerate(entries, len(self.tokens) - len(entries)):
            right = (self.alone.tokens[at], self.alone.chances[at], _top(asked))
            if (entry.token, entry.logprob, entry.top) != right:
                raise self._wrong(f"has {entry} of token {at}, not {right}")

    def _take_prompt_chances(self, entries: Sequence[TokenLogprob]) -> None:
        asked, prompt = self.request.prompt_logprobs, self.request.prompt
        if asked is None:
            raise self._wrong("gets log-probabilities of its prompt unasked")
        for entry in entries:
            at = len(self.prompt_chances)
            self.prompt_chances.append(entry.logprob)
            if at + 1 == len(prompt):
                raise self._wrong("has more log-probabilities of its prompt than there are tokens")
            right = (prompt[at + 1], self.alone.prompt_chances[at], _top(asked))
            if (entry.token, entry.logprob, entry.top) != right:
                raise self._wrong(f"has {entry} of prompt token {at + 1}, not {right}")

    def _end(self, output: Output) -> None:
        self.finish, alone = output.finish, self.alone
        if output.finish in ("error", "abort"):
            cause = output.error_code or "abort"
            if cause not in self.causes:
                raise self._wrong(f"ends with {cause} without a cause")
            return
        said, right = (output.finish, len(self.tokens)), (alone.finish, len(alone.tokens))
        if said != right:
            raise self._wrong(f"ends with {said}, not {right}")
        if self.spoilt_at is not None and self.spoilt_at < alone.sampled:
            raise self._wrong(f"ends well although its logits after {self.spoilt_at} tokens were not finite")
        if self.request.stop and self.text != alone.text:
            raise self._wrong(f"says {self.text!r}, not {alone.text!r}")
        entry = output.end_logprob
        if (None if entry is None else (entry.token, entry.logprob)) != alone.end_chance:
            raise self._wrong(f"has {entry} of its end token, not {alone.end_chance}")
        if self.prompt_chances != alone.prompt_chances:
            raise self._wrong(f"has {len(self.prompt_chances)} log-probabilities of its prompt")


def _top(asked: int) -> tuple[tuple[int, float], ...]:
    return tuple((n, -float(n)) for n in range(asked))

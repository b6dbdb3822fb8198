"""One request while it runs."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from poot_batch.kv import Chain, Reservation
from poot_batch.request import GenerateRequest, Times


@dataclass(slots=True, eq=False)
class Sequence:
    """Host state of a request.

    `scheduled` positions have been given to steps, and `committed` tokens were sampled and kept; with a step in flight
    the host knows fewer tokens than the device has. A finished sequence stays in the steps it is in; what those
    bring is dropped. A step may run the row one token further while `prompt_length <= scheduled < limit`: within
    max_tokens and the client's credit.

    `tokens` are the prompt and what was sampled so far. If the prompt is `looked_up` in the prefix cache, its first
    `cached` positions were found there and are never run; `cache_miss` says why it is not more. A fork waits while its
    `leader` is there. One that `awaits` a block, by its digest, has a row and is held until others have computed that.
    `passed` counts those that were given something before it although they came after it. `arrived`, `opened` and
    `answered` are times of the engine's clock: of its submission, its row and its first token.
    """

    request: GenerateRequest
    max_tokens: int
    seed: int
    arrived: float
    opened: float | None = None
    answered: float | None = None
    row: int = -1
    reservation: Reservation | None = None
    scheduled: int = 0
    committed: int = 0
    finished: bool = False
    stops: frozenset[int] = frozenset()
    leader: Sequence | None = None
    awaits: bytes | None = None
    passed: int = 0
    chain: Chain | None = None
    looked_up: bool = False
    cached: int = 0
    cache_miss: str | None = None
    prompt_length: int = field(init=False)
    limit: int = field(init=False)
    tokens: array[int] = field(init=False)
    _granted: int | None = field(init=False)

    def __post_init__(self) -> None:
        self.prompt_length = len(self.request.prompt)
        self.tokens = array("i", self.request.prompt)
        self._granted = self.request.credit
        self._set_limit()

    def grant(self, tokens: int) -> None:
        """Raise the client's credit; without any, the row is unbounded already."""
        if self._granted is not None:
            self._granted += tokens
            self._set_limit()

    def times(self, now: float) -> Times:
        """Where its time went, if it ends `now`."""
        opened = now if self.opened is None else self.opened
        answered = now if self.answered is None else self.answered
        return Times((opened - self.arrived) * 1000, (answered - opened) * 1000, (now - answered) * 1000)

    @property
    def prompt_left(self) -> int:
        """Prompt tokens that no step has been given yet."""
        return max(0, self.prompt_length - self.scheduled)

    @property
    def scored(self) -> bool:
        """Whether its prompt is read for the log-probabilities of its tokens: whole, and in steps of their own."""
        return self.request.prompt_logprobs is not None

    @property
    def following(self) -> bool:
        """Whether it still waits until its leader's prompt has been read, or the leader has ended."""
        leader = self.leader
        return leader is not None and not leader.finished and not leader.committed

    def _set_limit(self) -> None:
        tokens = self.max_tokens if self._granted is None else min(self.max_tokens, self._granted)
        # The first token is sampled by the prompt's last position, and the last token is never run.
        self.limit = self.prompt_length + tokens - 1

"""One request while it runs."""

from __future__ import annotations

from dataclasses import dataclass, field

from poot_batch.kv import Reservation
from poot_batch.request import GenerateRequest


@dataclass(slots=True, eq=False)
class Sequence:
    """Host state of a request.

    `scheduled` positions have been given to steps, and `committed` tokens were sampled and kept; with a step in flight
    the host knows fewer tokens than the device has. A finished sequence stays in the steps it is in; what those
    bring is dropped. A step may run the row one token further while `prompt_length <= scheduled < limit`: within
    max_tokens and the client's credit.
    """

    request: GenerateRequest
    max_tokens: int
    seed: int
    arrived: float
    row: int = -1
    reservation: Reservation | None = None
    scheduled: int = 0
    committed: int = 0
    finished: bool = False
    stops: frozenset[int] = frozenset()
    prompt_length: int = field(init=False)
    limit: int = field(init=False)
    _granted: int | None = field(init=False)

    def __post_init__(self) -> None:
        self.prompt_length = len(self.request.prompt)
        self._granted = self.request.credit
        self._set_limit()

    def grant(self, tokens: int) -> None:
        """Raise the client's credit; without any, the row is unbounded already."""
        if self._granted is not None:
            self._granted += tokens
            self._set_limit()

    @property
    def prompt_left(self) -> int:
        """Prompt tokens that no step has been given yet."""
        return max(0, self.prompt_length - self.scheduled)

    def _set_limit(self) -> None:
        tokens = self.max_tokens if self._granted is None else min(self.max_tokens, self._granted)
        # The first token is sampled by the prompt's last position, and the last token is never run.
        self.limit = self.prompt_length + tokens - 1

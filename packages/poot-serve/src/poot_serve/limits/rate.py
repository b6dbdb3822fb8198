"""How often one client may ask: a fixed window for each address."""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable

from poot_serve.errors import RateLimitError

WINDOW_SECONDS = 60.0
# Addresses that are remembered: some 20 MB of them.
MAX_ADDRESSES = 1 << 16


class RateLimit:
    """At most `most` requests of an address in the 60 seconds that its first one begins; 0 means no limit.

    The addresses heard longest ago are forgotten when there are too many of them: who has that many addresses is not
    held back by a limit for each of them, and nobody else is refused for it.
    """

    def __init__(
        self, most: int, *, clock: Callable[[], float] = time.monotonic, max_addresses: int = MAX_ADDRESSES
    ) -> None:
        self._most, self._clock, self._room = most, clock, max_addresses
        # End of the window and requests in it, the address heard longest ago first.
        self._windows: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def __len__(self) -> int:
        """Addresses remembered."""
        return len(self._windows)

    def take(self, address: str) -> None:
        """Counts one request of `address`. Raises RateLimitError, and does not count it, when it is one too many."""
        if self._most == 0:
            return
        now = self._clock()
        end, count = self._windows.get(address, (0.0, 0))
        if now >= end or count == 0:
            end, count = now + WINDOW_SECONDS, 0
        elif count >= self._most:
            self._windows.move_to_end(address)
            raise RateLimitError(
                f"more than {self._most} requests of this address within a minute",
                retry_after=max(1, math.ceil(end - now)),
            )
        self._windows[address] = (end, count + 1)
        self._windows.move_to_end(address)
        if len(self._windows) > self._room:
            self._windows.popitem(last=False)

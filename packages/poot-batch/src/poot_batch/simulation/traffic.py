"""What the clients of a world ask, drawn from its seed."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from poot_batch.request import GenerateRequest, SamplingParams
from poot_batch.simulation.device import Shape
from poot_batch.simulation.model import LETTERS, VOCABULARY


@dataclass(frozen=True, slots=True)
class Rates:
    """Chances of a world: of what happens at a turn, and, for a request, of what it is like. All 0 to 1."""

    arrive: float
    cancel: float
    read: float
    fork: float
    burst: float
    shared: float
    slow: float
    scored: float
    stops: float
    fault: float
    refuse: float
    spoil: float
    abandon: float
    crowd: float


def draw_rates(random: Random) -> Rates:
    """Most worlds are whole; some see faults, some see many. In a few, small requests throng about large ones."""
    chance = random.random
    if chance() < 0.003:
        quiet = dict.fromkeys(
            ("fork", "burst", "shared", "slow", "scored", "stops", "fault", "refuse", "spoil", "abandon"), 0.0
        )
        return Rates(arrive=0.9, cancel=0.0, read=0.0, crowd=0.97, **quiet)
    troubled = chance() < 0.35
    return Rates(
        arrive=0.05 + 0.5 * chance(),
        cancel=random.choice((0.0, 0.01, 0.03, 0.1)),
        read=0.02 + 0.2 * chance(),
        fork=random.choice((0.0, 0.2, 0.5)),
        burst=random.choice((0.0, 0.0, 0.2, 0.5)),
        shared=random.choice((0.2, 0.7, 0.95)),
        slow=random.choice((0.0, 0.3, 0.8)),
        scored=random.choice((0.0, 0.1, 0.4)),
        stops=random.choice((0.0, 0.3, 0.6)),
        fault=random.choice((0.01, 0.05, 0.2)) if troubled and chance() < 0.7 else 0.0,
        refuse=random.choice((0.05, 0.3)) if troubled and chance() < 0.5 else 0.0,
        spoil=random.choice((0.02, 0.1)) if troubled and chance() < 0.5 else 0.0,
        abandon=0.01 if chance() < 0.05 else 0.0,
        crowd=0.0,
    )


def draw_shape(random: Random, crowd: bool) -> Shape:
    """Small sizes: what can go wrong goes wrong in little room."""
    pick = random.choice
    if crowd:
        block, depth, whole = pick((4, 8)), pick((1, 2)), 6
        return Shape(6, depth, block, 40, 3, whole * block, (whole,), (whole,), (None,))
    rows, block, capacity = pick((1, 2, 3, 6)), pick((2, 4, 4, 8)), pick((6, 8, 17, 40))
    max_seq = pick((24, 40, 64))
    whole = -(-max_seq // block)
    tables: list[int] = [whole]
    windows: list[int | None] = [None]
    if random.random() < 0.15:
        window = pick((1, 2, 3))
        ring = min(whole, window + -(-capacity // block) + 1)
        tables.append(ring)
        windows.append(window)
        if random.random() < 0.5:
            tables, windows = tables[1:], windows[1:]
    room = pick((1.0, 1.0, 1.3, 2.0, float(rows)))
    return Shape(
        rows=rows,
        depth=pick((1, 2)),
        block=block,
        capacity=capacity,
        score_capacity=pick((3, 5)),
        max_seq=max_seq,
        pools=tuple(int(table * min(room, rows)) for table in tables),
        tables=tuple(tables),
        windows=tuple(windows),
    )


class Traffic:
    """Requests, one after another, some of them in groups. What earlier ones held and got makes later prompts."""

    def __init__(self, random: Random, rates: Rates, max_seq: int) -> None:
        self._random, self._rates, self._max_seq = random, rates, max_seq
        self._systems = [self._tokens(random.choice((3, 8, 16, 21))) for _ in range(2)]
        self._salts = (None, None, None, "a", "b") if random.random() < 0.3 else (None,)
        self._next = 0
        self.said: list[tuple[int, ...]] = []
        """Prompts with their answers, to go on from."""

    def _tokens(self, count: int) -> tuple[int, ...]:
        return tuple([byte % VOCABULARY for byte in self._random.randbytes(count)])

    def _prompt(self) -> tuple[int, ...]:
        random = self._random
        if self._rates.crowd:
            return self._tokens(1 if random.random() < self._rates.crowd else self._max_seq - 1)
        tail = self._tokens(random.choice((1, 2, 5, 9, 17)))
        if random.random() < self._rates.shared:
            before = random.choice(self.said) if self.said and random.random() < 0.5 else random.choice(self._systems)
            # At times the very same again, which leaves nothing new to run.
            tail = before + tail if random.random() < 0.8 else before
        return tail[: self._max_seq]

    def requests(self, recent: list[int]) -> list[GenerateRequest]:
        """The next arrivals: one request, several that begin alike, or the choices of one prompt. `recent` are ids
        that a fork may name."""
        random, rates = self._random, self._rates
        prompt, salt = self._prompt(), random.choice(self._salts)
        if rates.burst and random.random() < rates.burst:
            tails = [self._tokens(random.choice((0, 1, 3, 9))) for _ in range(random.choice((2, 3, 5)))]
            return [self._one((prompt + tail)[: self._max_seq], salt, None) for tail in tails]
        leader = self._one(prompt, salt, None)
        if random.random() >= rates.fork:
            return [leader]
        if recent and random.random() < 0.1:
            # Of another prompt, or ended: what it waits for is no help to it.
            return [self._one(prompt, salt, random.choice(recent))]
        return [leader, *(self._one(prompt, salt, leader.id) for _ in range(random.choice((1, 2, 4))))]

    def _one(self, prompt: tuple[int, ...], salt: str | None, fork_of: int | None) -> GenerateRequest:
        random, rates = self._random, self._rates
        chance = random.random
        room = self._max_seq - len(prompt)
        # A prompt that leaves no room can only be scored.
        scored = chance() < rates.scored or not room
        most = random.choice((None, 1, 2, 3, 6, 6, 12, 20))
        if scored and (chance() < 0.5 or not room):
            most = 0
        if rates.crowd:
            most = 2
        most = None if most is None else min(most, room)
        stop: tuple[str, ...] = ()
        ids: tuple[int, ...] = ()
        if chance() < rates.stops:
            drawn = "".join(random.choices(LETTERS, k=5))
            stop = random.choice(((drawn[:2],), (drawn[:3], drawn[1:3]), (drawn[0],), (drawn[:2], drawn[2:])))
            ids = random.choice(((), self._tokens(2)))
        self._next += 1
        return GenerateRequest(
            id=self._next,
            prompt=prompt,
            sampling=SamplingParams(seed=random.getrandbits(20), logprobs=2 if chance() < 0.15 else None),
            max_tokens=most,
            min_tokens=min(random.choice((0, 0, 0, 2, 4)), room if most is None else most),
            stop=stop,
            stop_token_ids=ids,
            include_stop=chance() < 0.3,
            ignore_eos=chance() < 0.4,
            credit=random.choice((1, 3, 8)) if chance() < rates.slow else None,
            prompt_logprobs=random.choice((0, 2)) if scored else None,
            fork_of=fork_of,
            cache_salt=salt,
        )

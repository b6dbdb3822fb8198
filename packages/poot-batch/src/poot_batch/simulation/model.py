"""What the fake model says: a pure function of a sequence's own tokens, whatever else the batch holds.

A position's digest stands for its keys and values: it depends on every token up to there. What is sampled depends on
the digests that lie at the ends of the blocks in view, as attention depends on what lies in the blocks, so a block that
holds anything else gives another token. Digests are hashes of tuples of whole numbers, which do not differ from one
process to another.
"""

from __future__ import annotations

from collections.abc import Sequence

from poot_batch.request import FinishReason, GenerateRequest

VOCABULARY = 60
ENDS = (0, 1)
TOP = 20
# Letters of the fake tokenizer: few, so that stop strings are found.
LETTERS = "abcdefg"


def root(salt: str | None) -> int:
    """The digest before the first token. What a salt separates must not be shared, so it shows in the text."""
    return hash((17, *salt.encode())) if salt else 17


def extend(digest: int, token: int) -> int:
    return hash((digest, token))


def draw(views: Sequence[tuple[int, ...]], seed: int) -> int:
    """The next token: `views` are the digests in view, for each KV group."""
    return hash((*views, seed)) % VOCABULARY


def chance_of(digest: int, token: int) -> float:
    """The log-probability of `token` after the sequence with this digest. A float32 holds it exactly."""
    return -float(hash((digest, token, 5)) % 4096) / 64


def text_of(tokens: Sequence[int]) -> str:
    return "".join(LETTERS[token % len(LETTERS)] for token in tokens)


class LetterTokenizer:
    """Each token is a letter; as much of a Tokenizer as the detokeniser asks for."""

    strip_space = False

    def join(self, ids: Sequence[int], *, skip_special: bool = True) -> bytes:
        return text_of(ids).encode()


class Alone:
    """What a request must get: its prompt run by itself, from nothing, one token after another.

    `most` bounds its tokens; `windows` are the blocks in view in each KV group, None for all. `tokens`, `text` and
    `finish` follow the rules of `GenerateRequest`; `sampled` counts the end token too. `digests` are those at the ends
    of its full blocks. `prompt_chances` has an entry for each prompt token but the first, `chances` for each of
    `tokens`, and `end_chance` is the end token's; only if they are asked for.
    """

    def __init__(self, request: GenerateRequest, most: int, block: int, windows: Sequence[int | None]) -> None:
        self.request = request
        self._seed, self._block, self._windows = request.sampling.seed or 0, block, windows
        self.digests: list[int] = []
        self._digest, self._length = root(request.cache_salt), 0
        self.prompt_chances: list[float] = []
        for index, token in enumerate(request.prompt):
            if index and request.prompt_logprobs is not None:
                self.prompt_chances.append(chance_of(self._digest, token))
            self._push(token)
        self.tokens: list[int] = []
        self.chances: list[float] = []
        self.sampled = 0
        self.end_chance: tuple[int, float] | None = None
        self.text, self.finish = self._generate(most)

    def _push(self, token: int) -> None:
        self._digest = hash((self._digest, token))
        self._length += 1
        if self._length % self._block == 0:
            self.digests.append(self._digest)

    def _next(self) -> int:
        views = []
        ends = self.digests if self._length % self._block == 0 else [*self.digests, self._digest]
        for window in self._windows:
            views.append(tuple(ends if window is None else ends[-window:]))
        return draw(views, self._seed)

    def _generate(self, most: int) -> tuple[str, FinishReason]:
        request = self.request
        stops = {*request.stop_token_ids, *(() if request.ignore_eos else ENDS)}
        text, unstoppable = "", 0
        for count in range(1, most + 1):
            token, self.sampled = self._next(), count
            may_stop = count > request.min_tokens
            if token in stops and may_stop and (token in ENDS or not request.include_stop):
                if request.sampling.logprobs is not None:
                    self.end_chance = (token, chance_of(self._digest, token))
                return text, "stop"
            self.tokens.append(token)
            if request.sampling.logprobs is not None:
                self.chances.append(chance_of(self._digest, token))
            self._push(token)
            text += LETTERS[token % len(LETTERS)]
            if not may_stop:
                unstoppable = len(text)
                continue
            found = [stop for stop in request.stop if text.endswith(stop, unstoppable)]
            if found:
                return text if request.include_stop else text[: -max(map(len, found))], "stop"
            if token in stops:
                return text, "stop"
        return text, "length"

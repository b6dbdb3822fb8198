"""The requests of serve.py: words that are one token each, so that a text and its token ids stand for each other."""

from __future__ import annotations

import random
from dataclasses import dataclass

from stream_load import Ask

from poot_models.text import Tokenizer

SHORTEST = 8  # mixed lengths begin at this part of the longest
WORDS = 2048


@dataclass(frozen=True)
class Load:
    """`clients` at once, each with `each` requests. `told`: whether they say max_tokens."""

    name: str
    clients: int
    each: int = 1
    mixed: bool = False
    told: bool = True


class Prompts:
    """Prompts of any length that share no prefix. The same seed makes the same ones in the same order."""

    def __init__(self, tokenizer: Tokenizer, seed: int, default_max_tokens: int) -> None:
        self._dice, self._tokenizer, self._default = random.Random(seed), tokenizer, default_max_tokens
        found: dict[int, str] = {}
        for token in self._dice.sample(range(tokenizer.vocab_size), tokenizer.vocab_size):
            text = tokenizer.decode([token])
            if text[:1] == " " and text[1:].isascii() and text[1:].islower() and text[1:].isalpha():
                found[token] = text
            if len(found) == WORDS:
                break
        self._words = list(found.items())

    def asks(self, load: Load, prompt: int, out: int) -> list[list[Ask]]:
        """The requests of every client, of lengths up to `prompt` and `out`."""
        return [[self._ask(load, prompt, out) for _ in range(load.each)] for _ in range(load.clients)]

    def _ask(self, load: Load, prompt: int, out: int) -> Ask:
        if load.mixed:
            prompt = self._dice.randint(max(1, prompt // SHORTEST), prompt)
            out = self._dice.randint(max(1, out // SHORTEST), out)
        words = self._dice.choices(self._words, k=prompt)
        ids = [token for token, _ in words]
        if load.told:
            return Ask(ids, out, max_tokens=out)
        text = "".join(word for _, word in words)
        if self._tokenizer.encode(text, add_special=False) != ids:
            raise RuntimeError(f"the words of {text[:80]!r}... are other tokens in a row")
        return Ask(ids, self._default, chat=text)

"""What the wire fuzzer sends: one case is what one client does on one connection, made of a seed and a number alone."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from json_mutations import CHAT, COMPLETION, ROUTES, TOKENIZE, broken, modest, mutated, valid
from wire_heads import HEAD_CHANGES

GETS = ("/health", "/metrics", "/metrics/prometheus", "/v1/models", "/openapi.json")
NEW_LINE = b"\r\n"
LONGEST = (4 << 20) - 20  # bytes of a prompt in a body that is still taken


@dataclass(frozen=True, slots=True)
class Send:
    data: bytes


@dataclass(frozen=True, slots=True)
class Pause:
    seconds: float


@dataclass(frozen=True, slots=True)
class HalfClose:
    """The client says that it sends no more, and goes on reading."""


@dataclass(frozen=True, slots=True)
class Leave:
    """The client closes the connection, by a reset if `reset`."""

    reset: bool


Action = Send | Pause | HalfClose | Leave


@dataclass(frozen=True, slots=True)
class Case:
    """`answers`: how many there must be, all of status 200 if `well`; None leaves both open.

    `deaf`: the client reads nothing, and the server must give it up. `silent`: the server must close by itself.
    """

    kind: str
    actions: tuple[Action, ...]
    answers: int | None = None
    well: bool = False
    deaf: bool = False
    silent: bool = False


@dataclass(frozen=True, slots=True)
class Limits:
    """Of the server under test: the port, and the seconds that it waits for a body and for a reader.

    `patient`: also cases that wait for the head's deadline, half a minute, and bodies as long as the server takes.
    """

    port: int
    body_seconds: float
    write_seconds: float
    patient: bool


Dice = random.Random


def make_case(seed: int, number: int, limits: Limits) -> Case:
    dice = Dice(f"{seed}:{number}")
    kinds = [(make, weight) for make, weight in KINDS if limits.patient or make is not _silent]
    make = dice.choices([make for make, _ in kinds], [weight for _, weight in kinds])[0]
    return make(dice, limits)


# ---- requests --------------------------------------------------------------------------------------------------


def head_lines(limits: Limits, path: str, length: int | None) -> list[bytes]:
    lines = [f"{'GET' if length is None else 'POST'} {path} HTTP/1.1".encode(), b"Host: 127.0.0.1:%d" % limits.port]
    if length is not None:
        lines += [b"Content-Type: application/json", b"Content-Length: %d" % length]
    return lines


def joined(lines: list[bytes], body: bytes = b"") -> bytes:
    return NEW_LINE.join([*lines, b"", body])


def post(limits: Limits, path: str, body: bytes) -> bytes:
    return joined(head_lines(limits, path, len(body)), body)


def good(dice: Dice, limits: Limits) -> bytes:
    """A request that is answered with 200."""
    if dice.random() < 0.25:
        return joined(head_lines(limits, dice.choice(GETS[:4]), None))
    path = dice.choice(ROUTES)
    return post(limits, path, json.dumps(valid(dice, path)).encode())


def stream(dice: Dice, limits: Limits, tokens: int) -> bytes:
    path = dice.choice((CHAT, COMPLETION))
    body = {**valid(dice, path), "stream": True, "max_tokens": tokens, "ignore_eos": True, "n": 1}
    return post(limits, path, json.dumps(body).encode())


def _in_parts(dice: Dice, data: bytes, most: int, seconds: float) -> list[Action]:
    """`data` in up to `most` parts, `seconds` apart in all."""
    cuts = sorted({0, len(data), *(dice.randrange(len(data)) for _ in range(dice.randint(1, most - 1)))})
    parts: list[Action] = []
    for at, to in pairwise(cuts):
        parts += [Send(data[at:to]), Pause(seconds / len(cuts))]
    return parts


# ---- kinds -----------------------------------------------------------------------------------------------------


def _good(dice: Dice, limits: Limits) -> Case:
    """One or more after another on one connection."""
    count = dice.choice((1, 1, 2, 4))
    return Case("good", (Send(b"".join(good(dice, limits) for _ in range(count))),), answers=count, well=True)


def _good_in_parts(dice: Dice, limits: Limits) -> Case:
    return Case("good, in parts", tuple(_in_parts(dice, good(dice, limits), 8, 0.4)), answers=1, well=True)


def _mutated(dice: Dice, limits: Limits) -> Case:
    path = dice.choice(ROUTES)
    text = mutated(dice, valid(dice, path))
    actions: list[Action] = [Send(post(limits, path, text.encode("utf-8", "surrogatepass")))]
    if modest(path, text):
        return Case("mutated body", tuple(actions), answers=1)
    return Case("mutated body, left", (*actions, Pause(dice.uniform(0, 1)), Leave(dice.random() < 0.5)))


def _broken_body(dice: Dice, limits: Limits) -> Case:
    path = dice.choice(ROUTES)
    text = broken(dice, json.dumps(valid(dice, path)).encode())
    request = Send(post(limits, path, text))
    if modest(path, text.decode("utf-8", "replace")):
        return Case("broken body", (request,), answers=1)
    return Case("broken body, left", (request, Pause(dice.uniform(0, 1)), Leave(False)))


def _wrong_length(dice: Dice, limits: Limits) -> Case:
    """The body is longer or shorter than it says; the rest may be read as the next request."""
    path = dice.choice(ROUTES)
    body = json.dumps(valid(dice, path)).encode()
    length = dice.choice((0, 1, len(body) - 1, len(body) + 1, len(body) + 1000, 4 << 20, (4 << 20) + 1, 2**63))
    data = joined(head_lines(limits, path, max(0, length)), body)
    return Case("wrong length", (Send(data), HalfClose()))


def _head(dice: Dice, limits: Limits) -> Case:
    """A whole request with something wrong in its head."""
    path = dice.choice(ROUTES)
    body = json.dumps(valid(dice, path)).encode()
    lines = head_lines(limits, path, len(body))
    for _ in range(dice.choice((1, 1, 2))):
        dice.choice(HEAD_CHANGES)(dice, lines)
    return Case("wrong head", (Send(joined(lines, body)),))


def _damaged_bytes(dice: Dice, limits: Limits) -> Case:
    return Case("damaged request", (Send(broken(dice, good(dice, limits))),))


def _random_bytes(dice: Dice, limits: Limits) -> Case:
    data = dice.choice(
        (b"", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"GET ")
    )
    data += bytes(dice.randrange(256) for _ in range(dice.choice((0, 1, 10, 1000))))
    return Case("random bytes", (Send(data + dice.choice((b"", b"\r\n\r\n", b"\n\n"))),))


def _pipelined(dice: Dice, limits: Limits) -> Case:
    """Good ones with something bad among them."""
    parts = [good(dice, limits) for _ in range(dice.randint(1, 8))]
    parts.insert(dice.randrange(len(parts)), broken(dice, good(dice, limits)))
    return Case("pipelined", (Send(b"".join(parts)),))


def _cut(dice: Dice, limits: Limits) -> Case:
    data = good(dice, limits)
    how: Action = dice.choice((Leave(False), Leave(True), HalfClose()))
    return Case("cut", (Send(data[: dice.randint(1, len(data))]), Pause(dice.choice((0, 0.02))), how))


def _left(dice: Dice, limits: Limits) -> Case:
    """In the middle of an answer."""
    data = stream(dice, limits, 100) + (good(dice, limits) if dice.random() < 0.2 else b"")
    return Case("left", (Send(data), Pause(dice.uniform(0, 0.5)), Leave(dice.random() < 0.5)))


def _half_closed(dice: Dice, limits: Limits) -> Case:
    data = dice.choice((stream(dice, limits, 100), good(dice, limits)))
    return Case("half-closed", (Send(data), Pause(dice.choice((0, 0.1))), HalfClose()))


def _slow_body(dice: Dice, limits: Limits) -> Case:
    data = good(dice, limits) if dice.random() < 0.1 else post(limits, CHAT, json.dumps(valid(dice, CHAT)).encode())
    wait = Pause(limits.body_seconds + 0.5)
    return Case("slow body", (Send(data[:-1]), wait, Send(data[-1:])))


UNITS = (b"a", b" ", "日".encode(), b"[", b'{"a":', b"0,", b'\\"', b"\\ud83d\\ude00")


def _huge(dice: Dice, limits: Limits) -> Case:
    sizes = (100_000, 1_000_000, LONGEST) if limits.patient else (10_000, 100_000)
    return huge(limits, dice.choice(ROUTES), dice.choice(UNITS), dice.choice(sizes), listed=dice.random() < 0.5)


def huge(limits: Limits, path: str, unit: bytes, size: int, *, listed: bool) -> Case:
    """A prompt of some `size` bytes of one `unit` after another, in a text or, if `listed`, a list."""
    text = unit * (size // len(unit))
    body = b'{"prompt": [' + text + b"]}" if listed else b'{"prompt": "' + text + b'"}'
    return Case("huge body", (Send(post(limits, path, body)),), answers=1)


def heaviest(limits: Limits) -> list[Case]:
    """What takes most memory of all cases, several times: what the allocators keep of it they keep from then on."""
    return [huge(limits, path, unit, LONGEST, listed=False) for path in (TOKENIZE, COMPLETION) for unit in UNITS * 3]


def _deaf(dice: Dice, limits: Limits) -> Case:
    """Answers of some megabytes, of which nothing is read."""
    body = json.dumps({"prompt": "a b" * 300_000}).encode()
    return Case("deaf", (Send(post(limits, TOKENIZE, body) * 4),), deaf=True)


def _silent(dice: Dice, limits: Limits) -> Case:
    data = good(dice, limits).partition(b"\r\n\r\n")[0]
    first: tuple[Action, ...] = (Send(data[: dice.randint(1, len(data))]),) if dice.random() < 0.7 else ()
    return Case("silent", first, silent=True)


KINDS: tuple[tuple[Callable[[Dice, Limits], Case], float], ...] = (
    (_good, 20), (_good_in_parts, 4), (_mutated, 40), (_broken_body, 10), (_wrong_length, 4), (_head, 14),
    (_damaged_bytes, 6), (_random_bytes, 3), (_pipelined, 4), (_cut, 5), (_left, 4), (_half_closed, 3),
    (_slow_body, 0.7), (_huge, 0.7), (_deaf, 0.2), (_silent, 0.1),
)  # fmt: skip

"""Bodies that are nearly right: valid requests of every POST route, with something in them turned wrong.

`mutated` knows the shape of what it changes: a value becomes one of another type or one at an edge, a key goes, comes
twice or is a stranger's, a list grows or nests. `broken` then damages the text itself. All from the given dice alone.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from typing import Any

CHAT, COMPLETION, TOKENIZE, DETOKENIZE = "/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"
ROUTES = (CHAT, COMPLETION, TOKENIZE, DETOKENIZE)
TEXTS = ("Name a colour.", "a b c d", "👩‍👩‍👧 ไทย 日本語", "def f(x):\n\treturn x", "¿Qué?")
GENERATION: dict[str, Callable[[random.Random], Any]] = {
    "temperature": lambda dice: dice.choice((0, 0.7, 1, 2)),
    "top_p": lambda dice: dice.choice((0.1, 0.9, 1)),
    "top_k": lambda dice: dice.choice((-1, 0, 1, 40)),
    "min_p": lambda dice: dice.choice((0, 0.1)),
    "presence_penalty": lambda dice: dice.uniform(-2, 2),
    "frequency_penalty": lambda dice: dice.uniform(-2, 2),
    "repetition_penalty": lambda dice: dice.uniform(0.5, 1.5),
    "logit_bias": lambda dice: {str(dice.randrange(49_000)): dice.randint(-100, 100) for _ in range(3)},
    "seed": lambda dice: dice.randrange(2**63),
    "stop": lambda dice: dice.choice(("zz", ["a", "b"], None)),
    "stop_token_ids": lambda dice: [dice.randrange(49_000)],
    "ignore_eos": lambda dice: dice.random() < 0.5,
    "min_tokens": lambda dice: dice.randint(0, 2),
    "n": lambda dice: dice.randint(1, 3),
    "stream": lambda dice: dice.random() < 0.6,
    "cache_salt": lambda dice: dice.choice(("a", "b")),
    "user": lambda dice: "someone",
    "include_stop_str_in_output": lambda dice: True,
}
# What a value may turn into, as JSON text: some of it no parser should take.
EDGES = (
    "null", "true", "false", "0", "-0", "-1", "1", "2", "0.5", "-0.0", "1e-300", "1e308", "1e400", "-1e400", "NaN",
    "Infinity", "2147483648", "4294967295", "9223372036854775807", "9223372036854775808", "18446744073709551616",
    "123456789012345678901234567890", "1.0000000000000000000001", '""', '"a"', '"0"', '"1"', '"true"', '"null"',
    '"\\u0000"', '"\\ud800"', '"\\udc00\\ud800"', '"\\ud83d\\ude00"', '"\u202e\u0000x"', '"<|im_end|>"',
    '"<|im_start|>system\\n"', '"{{ 7 * 7 }}"', '"../../etc/passwd"', '"%s%n%d"', '"\ufdd0"', '"\ufeff"', "[]", "{}",
    "[null]", "[[]]", "[1]", "[-1]", "[0.5]", '["a"]', '[""]', '["a", 1]', "[[1], [2]]", "[1e400]", '{"a": 1}',
    '{"": null}', '{"type": "text"}', '{"type": "text", "text": null}', '{"role": "user"}', "01", "+1", ".5", "'a'",
)  # fmt: skip
STRANGERS = ("tools", "functions", "response_format", "guided_json", "grammar", "audio", "unknown", "prompt_logprobs",
             "suffix", "best_of", "logprobs", "top_logprobs", "echo", "chat_template", "chat_template_kwargs",
             "continue_final_message", "add_generation_prompt", "reasoning_effort", "max_completion_tokens", "model",
             "stream_options", "messages", "prompt", "tokens", "documents", "poot", "__class__", "a.b", "a[0]", "$",
             "\u0000")  # fmt: skip
MOST_TOKENS, MOST_CHOICES = 4, 3
MOST_BYTES = 1 << 20


class Raw(str):
    """JSON text that stands where a value should."""

    __slots__ = ()


def valid(dice: random.Random, route: str) -> dict[str, Any]:
    """A body that must be answered with 200."""
    text = dice.choice(TEXTS)
    if route == TOKENIZE:
        return {"prompt": text} if dice.random() < 0.5 else {"messages": [{"role": "user", "content": text}]}
    if route == DETOKENIZE:
        return {"tokens": [dice.randrange(49_000) for _ in range(dice.randint(0, 8))]}
    body: dict[str, Any] = {"max_tokens": dice.randint(1, MOST_TOKENS)}
    for name in dice.sample(sorted(GENERATION), dice.randint(0, 5)):
        body[name] = GENERATION[name](dice)
    if body.get("min_tokens", 0) > body["max_tokens"]:
        del body["min_tokens"]
    if body.get("stream") and dice.random() < 0.5:
        body["stream_options"] = {"include_usage": dice.random() < 0.5}
    if route == CHAT:
        said = dice.choice((text, [{"type": "text", "text": text}]))
        body["messages"] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": said}]
        if dice.random() < 0.2:
            body |= {"logprobs": True, "top_logprobs": dice.randint(0, 20)}
    else:
        body["prompt"] = dice.choice((text, [text, "b"], [5, 6, 7], [[5, 6], [7]]))
        if dice.random() < 0.2:
            body |= {"logprobs": dice.randint(0, 5), "echo": dice.random() < 0.5}
    return body


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key or index) in `value`, outermost first."""
    found: list[tuple[Any, Any]] = []
    waiting = [value]
    while waiting:
        one = waiting.pop(0)
        inside = list(one.items()) if isinstance(one, dict) else list(enumerate(one)) if isinstance(one, list) else []
        for key, part in inside:
            found.append((one, key))
            waiting.append(part)
    return found


def mutated(dice: random.Random, body: dict[str, Any]) -> str:
    """`body` with one to three things wrong, as text."""
    made = copy.deepcopy(body)
    for _ in range(dice.choice((1, 1, 2, 3))):
        where = places(made)
        if not where:
            break
        container, key = dice.choice(where)
        dice.choice(CHANGES)(dice, container, key)
    return written(made)


def _edge(dice: random.Random, container: Any, key: Any) -> None:
    container[key] = Raw(dice.choice(EDGES))


def _number(dice: random.Random, container: Any, key: Any) -> None:
    container[key] = Raw(
        str(dice.choice((1, -1)) * dice.choice((1, 3, 2**7, 2**16, 2**31, 2**53, 2**64)) + dice.randint(-2, 2))
    )


def _gone(dice: random.Random, container: Any, key: Any) -> None:
    del container[key]


def _stranger(dice: random.Random, container: Any, key: Any) -> None:
    if isinstance(container, dict):
        container[dice.choice(STRANGERS)] = Raw(dice.choice(EDGES))
    else:
        container.insert(key, Raw(dice.choice(EDGES)))


def _renamed(dice: random.Random, container: Any, key: Any) -> None:
    if isinstance(container, dict):
        container[dice.choice((key.upper(), key + " ", key[:-1], "", dice.choice(STRANGERS)))] = container.pop(key)


def _nested(dice: random.Random, container: Any, key: Any) -> None:
    depth = dice.choice((1, 2, 60, 70, 3000))
    opening, closing = dice.choice((("[", "]"), ('{"a":', "}")))
    container[key] = Raw(opening * depth + written(container[key]) + closing * depth)


def _longer(dice: random.Random, container: Any, key: Any) -> None:
    value = container[key]
    times = dice.choice((2, 50, 2000))
    if len(written(value)) * times > MOST_BYTES:
        return
    if isinstance(value, str | list) and not isinstance(value, Raw):
        container[key] = value * times
    elif isinstance(value, dict):
        container[key] = {**value, **{f"key{index}": index for index in range(times)}}
    else:
        container[key] = [value] * times


def _strange_text(dice: random.Random, container: Any, key: Any) -> None:
    codes = [
        dice.choice((dice.randrange(0x80), dice.randrange(0x3000), dice.randrange(0x10000, 0x110000))) for _ in range(8)
    ]
    container[key] = "".join(chr(code) for code in codes if not 0xD800 <= code < 0xE000)


CHANGES: tuple[Callable[[random.Random, Any, Any], None], ...] = (
    _edge, _edge, _edge, _number, _gone, _stranger, _stranger, _renamed, _nested, _longer, _strange_text,
)  # fmt: skip


def written(value: Any) -> str:
    """JSON text of a tree with Raw parts."""
    if isinstance(value, Raw):
        return str(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)}: {written(part)}" for key, part in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(written(part) for part in value) + "]"
    return json.dumps(value, ensure_ascii=False)


def broken(dice: random.Random, text: bytes) -> bytes:
    """`text` with damage that no knowledge of it went into."""
    if not text:
        return bytes(dice.randrange(256) for _ in range(dice.randint(1, 64)))
    at, to = sorted((dice.randrange(len(text)), dice.randrange(len(text))))
    noise = bytes(dice.randrange(256) for _ in range(dice.randint(1, 16)))
    mark = dice.choice((b"\xef\xbb\xbf", b"\xff\xfe", b" ", b"\x00", b"[", b"{}"))
    return dice.choice(
        (
            text[:at],
            text[:at] + noise[:1] + text[at + 1 :],
            text[:at] + text[to:],
            text[:to] + text[at:],
            text[:at] + noise + text[at:],
            mark + text,
        )
    )


def modest(path: str, text: str) -> bool:
    """Whether a body asks for little enough that its answer, or refusal, may be waited for."""
    if path in {TOKENIZE, DETOKENIZE}:
        return True
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        return True
    if not isinstance(body, dict):
        return True
    asked = [body.get(name) for name in ("max_tokens", "max_completion_tokens", "min_tokens", "n")]
    prompts = body.get("prompt")
    several = isinstance(prompts, list) and len(prompts) > MOST_CHOICES and not isinstance(prompts[0], int)
    return not several and all(one <= MOST_TOKENS for one in asked if isinstance(one, int | float))

"""A prompt's text to tokens, unless it is too long whatever its tokens are."""

from __future__ import annotations

from poot_batch.errors import ContextLengthError
from poot_batch.request import EngineInfo
from poot_models.text import Tokenizer


def prompt_tokens(
    text: str,
    tokenizer: Tokenizer,
    info: EngineInfo,
    *,
    param: str,
    add_special: bool = True,
    parse_special: bool = False,
) -> tuple[int, ...]:
    """Raises ContextLengthError, before the work of encoding, for a text that must have too many tokens."""
    least = len(text) // tokenizer.longest
    if least > info.max_seq:  # one of as many may yet be echoed alone
        raise ContextLengthError(
            f"the prompt has {len(text)} characters, so at least {least} tokens, but this server runs sequences of "
            f"{info.max_seq} positions",
            param=param,
        )
    return tuple(tokenizer.encode(text, add_special=add_special, parse_special=parse_special))

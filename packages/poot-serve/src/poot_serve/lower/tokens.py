"""/tokenize and /detokenize: what is asked, and its answer. Neither needs the engine."""

from __future__ import annotations

from poot_batch.errors import InvalidTokenError
from poot_batch.request import EngineInfo
from poot_models.text import TextModel
from poot_serve.errors import FieldError
from poot_serve.lower.conversation import rendered
from poot_serve.protocol.tokens import MAX_CHARS, DetokenizedPrompt, DetokenizeRequest, TokenizeRequest, Tokens


def tokenized(wire: TokenizeRequest, text: TextModel, info: EngineInfo) -> Tokens:
    """The tokens that a generation route would make of the same prompt or messages.

    Raises FieldError, UnsupportedFieldError, TemplateRefusal, TemplateError or InvalidTextError.
    """
    prompt, messages = wire.prompt, wire.messages
    if (prompt is None) == (messages is None):
        raise FieldError("give either a prompt or messages", param="prompt")
    if messages is not None:
        prompt = rendered(wire, messages, text)
    assert prompt is not None
    chat = messages is not None
    if len(prompt) > MAX_CHARS:
        raise FieldError(
            f"the chat makes a text of {len(prompt)} characters; at most {MAX_CHARS} are taken", param="messages"
        )
    special = not chat if wire.add_special_tokens is None else wire.add_special_tokens
    tokens = text.tokenizer.encode(prompt, add_special=special, parse_special=chat)
    return Tokens(count=len(tokens), max_model_len=info.max_seq, tokens=tokens)


def detokenized(wire: DetokenizeRequest, text: TextModel, info: EngineInfo) -> DetokenizedPrompt:
    """The text of the tokens, control tokens by their names. Raises InvalidTokenError."""
    for token in (min(wire.tokens, default=0), max(wire.tokens, default=0)):
        if not 0 <= token < info.vocab_size:
            raise InvalidTokenError(
                f"tokens: token id {token} is outside the vocabulary of {info.vocab_size}", param="tokens"
            )
    return DetokenizedPrompt(text.tokenizer.decode(wire.tokens, skip_special=False))

"""Fields that other servers act on and this one does not, with the JSON texts of the values that ask for nothing."""

from __future__ import annotations

from types import MappingProxyType

Unbuilt = MappingProxyType[str, tuple[str, ...]]

_NONE = ("null",)
_OFF = ("null", "false")
_ON = ("null", "true")
_EMPTY = ("null", "[]")

_GENERATION: dict[str, tuple[str, ...]] = {
    "use_beam_search": _OFF,
    "logits_processors": _EMPTY,
    "logit_processors": _EMPTY,
    "response_format": ("null", '{"type":"text"}'),
    "guided_json": _NONE,
    "guided_regex": _NONE,
    "guided_choice": _NONE,
    "guided_grammar": _NONE,
    "guided_json_object": _OFF,
    "guided_whitespace_pattern": _NONE,
    "structured_outputs": _NONE,
    "grammar": ("null", '""'),
    "json_schema": _NONE,
    "prompt_logprobs": _NONE,
    "allowed_token_ids": _NONE,
    "bad_words": _EMPTY,
    "skip_special_tokens": _ON,
    "truncate_prompt_tokens": _NONE,
    "return_token_ids": _OFF,
    "return_tokens_as_token_ids": _OFF,
    "add_special_tokens": _NONE,
}
CHAT: Unbuilt = MappingProxyType(
    {
        **_GENERATION,
        "tools": _EMPTY,
        "tool_choice": ("null", '"none"'),
        "functions": _EMPTY,
        "function_call": ("null", '"none"'),
        "audio": _NONE,
        "modalities": ("null", '["text"]'),
        "web_search_options": _NONE,
        "verbosity": ("null", '"medium"'),
        "echo": _OFF,
        "documents": _EMPTY,
        "chat_template": _NONE,
    }
)
COMPLETION: Unbuilt = MappingProxyType({**_GENERATION, "suffix": ("null", '""')})
TOKENIZE: Unbuilt = MappingProxyType(
    {
        "tools": _EMPTY,
        "documents": _EMPTY,
        "chat_template": _NONE,
        "return_token_strs": _OFF,
        "mm_processor_kwargs": _NONE,
    }
)
NONE: Unbuilt = MappingProxyType({})

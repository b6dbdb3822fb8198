"""Wire to engine request: any JSON is taken or refused in type, and what is taken keeps its meaning."""

from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poot_batch.errors import RequestError
from poot_batch.request import validate
from poot_models.errors import TextError
from poot_serve.errors import ClientError, FieldError, UnsupportedFieldError
from poot_serve.lower import unbuilt
from poot_serve.lower.chat import lower_chat
from poot_serve.lower.completions import lower_completion
from poot_serve.lower.decode import decode_body, field_error
from poot_serve.protocol.chat import ChatRequest
from poot_serve.protocol.completions import CompletionRequest

scalars = st.none() | st.booleans() | st.integers(-3, 2**70) | st.floats(allow_nan=False) | st.text(max_size=4)
values = st.recursive(scalars, lambda v: st.lists(v, max_size=3) | st.dictionaries(st.text(max_size=3), v, max_size=3))
parts = st.fixed_dictionaries({"type": st.just("text")}, optional={"text": st.text(max_size=5) | values})
messages = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["system", "developer", "user", "assistant", "tool"])},
        optional={
            "content": st.text(max_size=9) | st.lists(parts, max_size=3) | values,
            "tool_calls": values,
            "name": values,
        },
    ),
    max_size=4,
)
fields = st.dictionaries(
    st.sampled_from([*ChatRequest.__struct_fields__, *CompletionRequest.__struct_fields__, *unbuilt.CHAT, "other"]),
    values,
    max_size=4,
)


@pytest.fixture(scope="session")
def lower(text):
    from types import SimpleNamespace

    info = SimpleNamespace(max_seq=64, vocab_size=text.tokenizer.vocab_size)

    def run(kind, body):
        given_body = json.dumps(body).encode()
        if kind == "chat":
            made = lower_chat(decode_body(given_body, ChatRequest, unbuilt.CHAT), text=text, info=info)
        else:
            wire = decode_body(given_body, CompletionRequest, unbuilt.COMPLETION)
            made = lower_completion(wire, tokenizer=text.tokenizer, info=info)
        for request in made.requests:
            validate(request, info)
        return made

    return run


@given(fields=fields, messages=messages | values)
def test_any_chat_is_taken_or_refused_in_type(lower, fields, messages):
    try:
        made = lower("chat", {"messages": messages, **fields})
    except (ClientError, RequestError, TextError):
        return
    assert all(request.prompt for request in made.requests)


@given(fields=fields, prompt=values | st.lists(st.integers(-1, 400), max_size=80) | st.text(max_size=20))
def test_any_completion_is_taken_or_refused_in_type(lower, fields, prompt):
    try:
        made = lower("completion", {"prompt": prompt, **fields})
    except (ClientError, RequestError, TextError):
        return
    for index, request in enumerate(made.requests):
        assert request.prompt and (request.max_tokens or fields.get("echo"))
        assert request.id == index and request.fork_of == (index - index % made.n if index % made.n else None)


@pytest.mark.parametrize("name", sorted(unbuilt.CHAT))
def test_unbuilt_fields_take_their_neutral_values_alone(lower, name):
    conversation = {"messages": [{"role": "user", "content": "a"}]}
    for neutral in unbuilt.CHAT[name]:
        lower("chat", {**conversation, name: json.loads(neutral)})
    with pytest.raises(UnsupportedFieldError) as caught:
        lower("chat", {**conversation, name: {"some": "thing"}})
    assert caught.value.param == name


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ("Expected `str`, got `int` - at `$.messages[0].role`", "messages[0].role"),
        ("Expected `float`, got `str` - at `$.logit_bias[...]`", "logit_bias"),
        ("Object missing required field `role` - at `$.messages[3]`", "messages[3].role"),
        ("Object missing required field `messages`", "messages"),
        ("Expected `object`, got `array`", None),
    ],
)
def test_field_paths(message, param):
    error = field_error(message)
    assert isinstance(error, FieldError) and error.param == param


def test_a_word_that_is_none_of_a_few_is_refused_with_those():
    call = {"type": "tool", "function": {"name": "f", "arguments": "{}"}}
    for message, param, choices in [
        ({"role": "bot", "content": "x"}, "messages[0].role", "'assistant', 'developer', 'system', 'tool', 'user'"),
        ({"role": "assistant", "tool_calls": [call]}, "messages[0].tool_calls[0].type", "'function'"),
    ]:
        with pytest.raises(FieldError, match=f"it is one of {choices}$") as raised:
            decode_body(json.dumps({"messages": [message]}).encode(), ChatRequest, unbuilt.CHAT)
        assert raised.value.param == param


def test_a_model_without_a_template_says_what_to_do(text):
    without = dataclasses.replace(text, chat_template=None, template_problem="odd")
    with pytest.raises(UnsupportedFieldError, match=r"odd.*--chat-template-file"):
        lower_chat(ChatRequest(messages=[]), text=without, info=None)


def test_what_many_choices_multiply_is_bounded(text):
    """Without the bound one request could put gigabytes on the wire to the engine."""
    from types import SimpleNamespace

    info = SimpleNamespace(max_seq=1 << 20, vocab_size=text.tokenizer.vocab_size)
    for body, param in [
        ({"prompt": [[5] * 40_000], "n": 128}, "n"),
        ({"prompt": [5], "n": 2, "logprobs": 2, "max_tokens": 1_000_000}, "logprobs"),
        ({"prompt": [5] * 300_000, "echo": True, "logprobs": 20}, "logprobs"),
    ]:
        wire = decode_body(json.dumps(body).encode(), CompletionRequest, unbuilt.COMPLETION)
        with pytest.raises(FieldError) as caught:
            lower_completion(wire, tokenizer=text.tokenizer, info=info)
        assert caught.value.param == param
    alone = CompletionRequest(prompt=[5], logprobs=20, max_tokens=1_000_000)
    assert lower_completion(alone, tokenizer=text.tokenizer, info=info).requests[0].max_tokens == 1_000_000


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"top_k": -2}, "top_k must be at least -1"),
        ({"top_p": 0}, "top_p must be above 0.0"),
        ({"n": 129}, "n must be at most 128"),
        ({"logit_bias": {"5": 101}}, "each value of logit_bias must be at most 100.0"),
        ({"logit_bias": {str(number): 0 for number in range(1025)}}, "logit_bias must have at most 1024 members"),
        ({"stop": ["a", ""]}, "stop[1] must have at least 1 character"),
        ({"stop": ["a"] * 17}, "stop must have at most 16 items"),
        ({"prompt": []}, "prompt must have at least 1 item"),
    ],
    ids=str,
)
def test_a_bound_is_named_with_its_field(lower, fields, says):
    with pytest.raises(FieldError) as caught:
        lower("completion", {"prompt": "a", **fields})
    assert str(caught.value) == says


def test_neutral_top_k_and_defaults(lower):
    sampling = lower("completion", {"prompt": "a", "top_k": -1, "temperature": None, "stop": None}).requests[0].sampling
    assert (sampling.top_k, sampling.temperature, sampling.top_p, sampling.logprobs) == (0, 1.0, 1.0, None)


def test_parts_are_joined_by_lines(lower):
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    forms = [lower("chat", {"messages": [{"role": "user", "content": content}]}) for content in (parts, "a\nb")]
    assert forms[0].requests[0].prompt == forms[1].requests[0].prompt

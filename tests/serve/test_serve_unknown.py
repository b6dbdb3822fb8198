"""Fields that a wire type does not have, by their paths."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poot_serve.lower.unbuilt import CHAT
from poot_serve.lower.unknown import MAX_NAMED, MAX_PATH_CHARS, shape_of, unknown_fields
from poot_serve.protocol.chat import ChatRequest
from poot_serve.protocol.completions import CompletionRequest

SHAPE = shape_of(ChatRequest, tuple(CHAT))
MESSAGE = {"role": "user", "content": "a"}


@pytest.mark.parametrize(
    ("body", "paths"),
    [
        ({"messages": [MESSAGE]}, []),
        ({"messages": [MESSAGE], "x": {"y": 1}}, ["x"]),
        ({"messages": [MESSAGE, {**MESSAGE, "x": 1, "y": None}]}, ["messages[1].x", "messages[1].y"]),
        ({"messages": [{"role": "user", "content": [{"type": "text"}, {"z": 1}]}]}, ["messages[0].content[1].z"]),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "strict": True}}]}]},
            ["messages[0].tool_calls[0].function.strict"],
        ),
        ({"messages": [], "chat_template_kwargs": {"x": {"y": 1}}, "logit_bias": {"1": 1}}, []),
        ({"messages": [], "tools": [], "response_format": {"type": "text"}}, []),
        ({"messages": [], "": 1}, [""]),
    ],
)
def test_paths(body, paths):
    assert list(unknown_fields(json.dumps(body).encode(), SHAPE)) == paths


def test_lists_of_tokens_are_not_looked_through():
    assert shape_of(CompletionRequest).fields["prompt"] is None


def test_names_and_their_number_are_bounded():
    body = json.dumps({"messages": [], **{f"{n}{'x' * 1000}": n for n in range(1000)}}).encode()
    found = unknown_fields(body, SHAPE)
    assert len(found) == MAX_NAMED
    assert max(map(len, found)) == MAX_PATH_CHARS


@given(st.dictionaries(st.text(max_size=4).map("?".__add__), st.none() | st.integers(), max_size=4), st.integers(0, 3))
def test_whatever_is_added_is_found(added, where):
    body = {
        "messages": [dict(MESSAGE), {"role": "user", "content": [{"type": "text", "text": "a"}]}],
        "stream_options": {"include_usage": True},
        "poot": {"report": True},
    }
    place, prefix = [
        (body, ""),
        (body["messages"][0], "messages[0]."),
        (body["messages"][1]["content"][0], "messages[1].content[0]."),
        (body["stream_options"], "stream_options."),
    ][where]
    place.update(added)
    found = unknown_fields(json.dumps(body).encode(), SHAPE)
    assert list(found) == [prefix + name for name in added]

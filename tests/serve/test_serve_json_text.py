"""Strict JSON against the standard library's parser, and the bounds on hostile bodies."""

from __future__ import annotations

import contextlib
import json
import time
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poot_serve.errors import BadJsonError
from poot_serve.limits.json_text import MAX_DEPTH, check_json_text

text = st.text(st.characters(exclude_categories=["Cs"]))
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | text,
    lambda inner: st.lists(inner) | st.dictionaries(text, inner),
    max_leaves=20,
)


@given(values, st.booleans())
def test_what_json_writes_is_taken(value, ascii_only):
    check_json_text(json.dumps(value, ensure_ascii=ascii_only).encode())


@given(st.binary(max_size=40) | st.text(r'{}[]":,\u0dD89abc1e-. ', max_size=40).map(str.encode))
def test_nothing_is_taken_that_json_refuses(data):
    try:
        check_json_text(data)
    except BadJsonError:
        return
    json.loads(data.decode("utf-8"))


@given(st.text(" \t\r\n\f\u00a0\ufeff[]{},1", max_size=20))
def test_what_is_not_json_is_told_as_the_standard_library_tells_it(data):
    """Space around it too: JSON has four kinds of it, and Python more."""
    try:
        json.JSONDecoder().decode(data)
    except json.JSONDecodeError as error:
        with pytest.raises(BadJsonError) as refused:
            check_json_text(data.encode())
        assert str(refused.value) == f"the body is not JSON: {error.msg} (character {error.pos})"
    else:
        check_json_text(data.encode())


@given(st.text('\ud83d\ude00a\\"', max_size=8))
def test_surrogates_are_taken_in_pairs_alone(value):
    paired = "\ufffd" not in value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    try:
        check_json_text(json.dumps([value]).encode())
    except BadJsonError:
        assert not paired
    else:
        assert paired


def test_depth_is_counted_outside_strings():
    check_json_text(b"[" * MAX_DEPTH + b"]" * MAX_DEPTH)
    check_json_text(json.dumps({"a": "[" * 5000, "b": '"' + "{" * 500}).encode())
    with pytest.raises(BadJsonError, match="deeper"):
        check_json_text(b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1))


@pytest.mark.parametrize(
    "body",
    [
        b"[" * (4 << 20),
        b'{"a":' * (800 << 10),
        b'"' + b'\\"' * (2 << 20),
        b"[" + b"{}," * (1 << 20) + b"{}]",
        b"[" + b"[]," * 990_000 + b"[]]",
        b"[" + b"1," * (2 << 20) + b"1]",
        b'["' + b'","' * (1 << 20) + b'"]',
        b'["' + b"\\ud83d\\ude00" * (340 << 10) + b'"]',
        b'["' + b"\\" * (4 << 20) + b'"]',
        b"{" + b",".join(b'"%d":0' % index for index in range(199_000)) + b"}",
        b"1" * (4 << 20),
        b" " * (4 << 20),
    ],
    ids=lambda body: repr(body[:12]),
)
def test_hostile_bodies_cost_little(body):
    began = time.process_time()
    with contextlib.suppress(BadJsonError):
        check_json_text(body)
    assert time.process_time() - began < 1.0
    if len(body) < 3 << 20:
        tracemalloc.start()
        try:
            with contextlib.suppress(BadJsonError):
                check_json_text(body)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < 100 << 20

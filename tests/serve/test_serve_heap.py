"""Freed memory goes back to the system after large bodies."""

from __future__ import annotations

import ctypes
import sys

import pytest

from poot_serve import heap, service


def test_there_is_nothing_to_do_where_the_c_library_has_no_such_call(monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    assert heap.find_trim()() is None


@pytest.mark.skipif(sys.platform != "linux", reason="of glibc")
def test_the_c_library_is_asked():
    heap.find_trim()()


def test_a_large_body_is_followed_by_one_call(served, monkeypatch, eventually):
    calls = []
    monkeypatch.setattr(service, "TRIM_SECONDS", 0.05)
    monkeypatch.setattr(served.service, "_give_back", lambda: calls.append(1))
    small, large = ({"prompt": "a" * size} for size in (100, service.LARGE_BYTES))
    assert served.client.post("/tokenize", json=small).status_code == 200
    assert served.service._trimming is None
    for _ in range(2):
        assert served.client.post("/tokenize", json=large).status_code == 200
    eventually(lambda: bool(calls) and served.service._trimming is None)
    assert len(calls) <= 2

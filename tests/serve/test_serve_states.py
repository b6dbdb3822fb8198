"""What every route answers in every state of the engine: one table, and at which moments it holds."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

import pytest
from msgspec.structs import replace

from poot_serve.app import make_routes

RECOVERY, LATER = "7", "5"  # Retry-After: of an engine that took 6.5 s to start, and where nothing is known


@dataclass(frozen=True)
class Expected:
    """Of a state: the status that /health gives, the code with which a POST is refused (None: it is served) and its
    Retry-After, what poot_engine_up is (None: figures are refused as a POST is), and the code that ends a stream."""

    health: str
    refused: str | None
    after: str | None
    up: int | None
    ends: str | None


# State of the engine, and whether the server drains.
TABLE = {
    ("serving", False): Expected("serving", None, None, 1, None),
    ("stalled", False): Expected("stalled", "engine_restarting", RECOVERY, 0, None),
    ("restarting", False): Expected("restarting", "engine_restarting", RECOVERY, 0, "engine_dead"),
    ("dead", False): Expected("dead", "unavailable", LATER, None, "engine_dead"),
    ("serving", True): Expected("draining", "draining", LATER, 1, None),
    ("draining", True): Expected("draining", "draining", LATER, 1, None),
    ("stalled", True): Expected("draining", "draining", LATER, 0, None),
    ("dead", True): Expected("dead", "unavailable", LATER, None, "engine_dead"),
}
BODIES = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "a"}]},
    "/v1/completions": {"prompt": "a"},
    "/tokenize": {"prompt": "a"},
    "/detokenize": {"tokens": [40]},
}
GENERATION = ("/v1/chat/completions", "/v1/completions")
HEALTH, METRICS = ("/health",), ("/metrics", "/metrics/prometheus")
ALWAYS = ("/v1/models", "/v1/models/tiny", "/openapi.json")


@pytest.fixture
def turn(served):
    """turn(state, draining): from now on that is what the server is at."""

    def change(state, draining):
        served.engine.state, served.service.draining = state, draining

    served.engine.info = replace(served.engine.info, start_seconds={"model": 2.0, "weights": 4.5})
    return change


@pytest.fixture
def turn_at_submit(served, turn, monkeypatch):
    """turn_at_submit(state, draining, taken=...): the same, when the engine has `taken` the next request or is just
    about to be given it."""

    def arm(state, draining, *, taken):
        submit = type(served.engine).submit

        def turning(request):
            if not taken:
                turn(state, draining)
            stream = submit(served.engine, request)
            turn(state, draining)
            return stream

        turn("serving", False)
        monkeypatch.setattr(served.engine, "submit", turning)

    return arm


def check_refusal(answer, expected):
    assert (answer.status_code, answer.headers["retry-after"]) == (503, expected.after)
    error = answer.json()["error"]
    assert (error["code"], error["type"], error["param"]) == (expected.refused, "server_error", None)


def test_the_table_has_every_route(served):
    known = {*BODIES, *HEALTH, *METRICS, *ALWAYS}
    assert {route.path.replace("{id:path}", "tiny") for route in make_routes(served.service)} == known


@pytest.mark.parametrize("at", TABLE, ids=str)
def test_every_route_in_every_state(served, turn, caplog, at):
    expected = TABLE[at]
    served.answer("x")
    turn(*at)
    for path, body in BODIES.items():
        answer = served.client.post(path, json=body)
        if expected.refused is None:
            assert answer.status_code == 200
        else:
            check_refusal(answer, expected)
    # Why is told once by who watches the engine or drains, not again for each request.
    assert ([record for record in caplog.records if record.levelname == "ERROR"] == []) == (at[0] != "dead")
    for path in HEALTH:
        answer = served.client.get(path)
        told = {name: answer.json()[name] for name in ("status", "backend", "rows", "max_seq")}
        assert told == {"status": expected.health, "backend": "cpu", "rows": 4, "max_seq": 512}
        assert (answer.status_code, answer.headers.get("retry-after")) == (
            503 if expected.after else 200,
            expected.after,
        )
    for path in METRICS:
        answer = served.client.get(path)
        if expected.up is None:
            check_refusal(answer, expected)
        else:
            assert answer.status_code == 200
            assert re.search(rf'\bpoot_engine_up"?[: ]{expected.up}\b', answer.text)
    for path in ALWAYS:
        assert served.client.get(path).status_code == 200


# A server that drains serves what it has taken in, and its engine takes that.
REFUSED = [at for at, expected in TABLE.items() if expected.refused and at != ("serving", True)]


@pytest.mark.parametrize("at", REFUSED, ids=str)
def test_a_request_between_the_door_and_the_engine_is_refused_like_the_next(served, turn_at_submit, at):
    """The state changes while its text is being made tokens."""
    for path in GENERATION:
        turn_at_submit(*at, taken=False)
        check_refusal(served.client.post(path, json=BODIES[path]), TABLE[at])


@pytest.mark.parametrize("form", ["a stream that has begun", "a stream", "buffered"])
@pytest.mark.parametrize("at", TABLE, ids=str)
def test_a_request_under_way(served, turn_at_submit, caplog, form, at):
    """It goes on unless its engine is lost: then a stream that has begun ends with an event, else with a status."""
    ends = TABLE[at].ends
    steps = [] if form == "a stream" else [[40], [41]]
    served.answer(steps=steps, finish="error" if ends else "stop", error_code=ends)
    for path in GENERATION:
        turn_at_submit(*at, taken=True)
        answer = served.client.post(path, json={**BODIES[path], "stream": form != "buffered"})
        if ends is None:
            assert answer.status_code == 200 and (form == "buffered" or answer.text.endswith("data: [DONE]\n\n"))
        elif form == "a stream that has begun":
            last = json.loads(answer.text.strip().rpartition("data: ")[2])
            assert (answer.status_code, last["error"]["code"]) == (200, ends)
        else:
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, ends)
            assert answer.headers["retry-after"] == TABLE[at].after
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []

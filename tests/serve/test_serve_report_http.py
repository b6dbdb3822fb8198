"""The report that a request may ask for, and the server that takes no field it does not know."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from poot_batch.request import Times
from poot_serve.errors import SettingsError
from poot_serve.settings import parse

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}]}
REPORT = {"poot": {"report": True}}
TIMES = Times(1.25, 2.0, 3.14159)


def ask(served, path="/v1/chat/completions", **fields):
    answer = served.client.post(path, json={**(CHAT if "chat" in path else {}), **fields})
    assert answer.status_code == 200, answer.text
    return answer


def chunks(answer):
    blocks = answer.text.split("\n\n")
    assert blocks[-2:] == ["data: [DONE]", ""]
    return [json.loads(block.removeprefix("data: ")) for block in blocks[:-2]]


def test_a_report_says_what_was_done_with_the_request(served):
    served.answer("hello world", cached=4, miss="its salt is new", times=TIMES)
    asked = {
        "max_tokens": 9, "temperature": 0.5, "top_k": -1, "seed": 7, "stop": "END", "logit_bias": {"5": 1, "6": 2},
        "user": "me", "store": None, "stream_options": None,
    }  # fmt: skip
    made = ask(served, **REPORT, **asked).json()
    tokens = len(served.engine.tokenizer.encode("hello world", add_special=False))
    assert made["poot"] == {
        "sampling": {
            "temperature": 0.5, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "presence_penalty": 0.0,
            "frequency_penalty": 0.0, "repetition_penalty": 1.0, "logit_bias": 2, "seed": 7, "min_tokens": 0,
            "stop": ["END"], "stop_token_ids": [], "include_stop_str_in_output": False, "ignore_eos": False,
        },
        "ignored_fields": ["user", "store"],
        "choices": [
            {
                "index": 0, "max_tokens": 9, "prompt_tokens": made["usage"]["prompt_tokens"], "cached_tokens": 4,
                "cache_miss": "its salt is new", "completion_tokens": tokens,
                "queue_ms": 1.25, "prefill_ms": 2.0, "decode_ms": 3.142,
            }
        ],
    }  # fmt: skip


@pytest.mark.parametrize("asked", [{}, {"poot": None}, {"poot": {}}, {"poot": {"report": False}}])
def test_no_report_unless_asked(served, asked):
    served.answer("hello")
    assert "poot" not in ask(served, **asked).json()
    assert "poot" not in ask(served, "/v1/completions", prompt="a", **asked).json()
    assert all("poot" not in chunk for chunk in chunks(ask(served, stream=True, **asked)))


@pytest.mark.parametrize("asked", [{"poot": True}, {"poot": {"report": 1}}])
def test_an_extension_of_a_wrong_type_is_refused(served, asked):
    answer = served.client.post("/v1/chat/completions", json={**CHAT, **asked})
    assert (answer.status_code, answer.json()["error"]["param"].partition(".")[0]) == (400, "poot")


@pytest.mark.parametrize(("path", "fields"), [("/v1/chat/completions", {}), ("/v1/completions", {"prompt": "a"})])
@pytest.mark.parametrize("usage", [False, True])
def test_a_stream_ends_with_its_report(served, path, fields, usage):
    served.answer("hello world", times=TIMES)
    asked = {"stream": True, "stream_options": {"include_usage": usage, "often": 1}, **REPORT, **fields}
    *others, last = chunks(ask(served, path, **asked))
    assert all("poot" not in chunk for chunk in others)
    assert last["choices"] == []
    assert ("usage" in last) == usage
    assert last["poot"]["ignored_fields"] == ["stream_options.often"]
    assert last["poot"]["choices"][0]["decode_ms"] == 3.142
    if usage:
        told = last["poot"]["choices"][0]
        assert (told["prompt_tokens"], told["completion_tokens"]) == (
            last["usage"]["prompt_tokens"],
            last["usage"]["completion_tokens"],
        )


def test_a_report_names_the_seed_that_the_choices_were_drawn_with(served):
    served.answer("hello")
    made = ask(served, "/v1/completions", prompt=["a", "b c"], n=2, max_tokens=3, **REPORT).json()
    seed = made["poot"]["sampling"]["seed"]
    assert 0 <= seed < 2**53
    assert [request.sampling.seed for request in served.engine.submitted] == [seed, seed + 1, seed, seed + 1]
    assert [choice["index"] for choice in made["poot"]["choices"]] == [0, 1, 2, 3]
    counts = [choice["prompt_tokens"] for choice in made["poot"]["choices"]]
    assert counts == [len(request.prompt) for request in served.engine.submitted]
    served.answer("hello")
    ask(served, "/v1/completions", prompt="a", max_tokens=3)
    assert served.engine.submitted[-1].sampling.seed is None


def test_a_report_says_the_default_of_max_tokens(served):
    """512 positions less the prompt's; 16 for a completion, as the API has it."""
    served.answer("hello")
    made = ask(served, **REPORT).json()
    assert made["poot"]["choices"][0]["max_tokens"] == 512 - made["usage"]["prompt_tokens"]
    served.answer("hello")
    made = ask(served, "/v1/completions", prompt="a", **REPORT).json()
    assert made["poot"]["choices"][0]["max_tokens"] == 16


def test_a_prompt_alone_took_no_time(served):
    served.answer("")
    made = ask(served, "/v1/completions", prompt="hello", echo=True, max_tokens=0, **REPORT).json()
    told = made["poot"]["choices"][0]
    assert (told["max_tokens"], told["completion_tokens"], told["prefill_ms"]) == (0, 0, 0.0)


@pytest.fixture
def strict(served):
    """The same server, started with --strict-fields."""
    before = served.service.settings
    served.service.settings = replace(before, strict_fields=True)
    yield served
    served.service.settings = before


@pytest.mark.parametrize(
    ("path", "body", "param", "message"),
    [
        ("/v1/chat/completions", {**CHAT, "temprature": 1}, "temprature", "the field temprature; leave it out"),
        ("/v1/completions", {"prompt": "a", "user": "me", "z": 1}, "user", "the fields user, z; leave them out"),
        ("/v1/completions", {"prompt": "a", "poot": {"x": 1}}, "poot.x", "the field poot.x;"),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "a", "detail": 1}]}]},
            "messages[0].content[0].detail",
            "the field messages[0].content[0].detail;",
        ),
        ("/tokenize", {"prompt": "a", "user": "me"}, "user", "the field user;"),
        ("/tokenize", {"messages": [{"role": "user", "content": "a", "x": 1}]}, "messages[0].x", "messages[0].x;"),
        ("/detokenize", {"tokens": [5], "skip_special_tokens": True}, "skip_special_tokens", "skip_special_tokens;"),
    ],
)
def test_a_strict_server_names_what_it_does_not_know(strict, path, body, param, message):
    answer = strict.client.post(path, json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (400, "unknown_field", param)
    assert message in error["message"]
    assert not strict.engine.submitted


def test_a_strict_server_takes_what_it_knows(strict):
    """Also fields of other servers that ask for nothing, and names that only a template reads."""
    strict.answer("hello")
    known = {"n": 1, "tools": [], "logit_bias": {"5": 1}, "chat_template_kwargs": {"enable_thinking": False}}
    assert ask(strict, **known, **REPORT).json()["poot"]["ignored_fields"] == []
    assert strict.client.post("/tokenize", json={"prompt": "a", "tools": []}).status_code == 200


def test_many_unknown_fields_are_not_all_named(strict):
    answer = strict.client.post("/v1/chat/completions", json={**CHAT, **{f"x{n}": n for n in range(1000)}})
    assert answer.json()["error"]["message"].count("x") < 20
    assert "x7 and others;" in answer.json()["error"]["message"]


def test_the_flag():
    """It takes no value, and is off unless given."""
    assert parse(["--strict-fields"]).strict_fields
    assert not parse([]).strict_fields
    with pytest.raises(SettingsError, match="--strict-fields takes no value"):
        parse(["--strict-fields=1"])

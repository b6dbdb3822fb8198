"""/v1/completions, the other routes, and errors as clients see them."""

from __future__ import annotations

import json

import openai
import pytest

PROMPT = {"model": "tiny", "prompt": "hello"}


def test_buffered_and_streamed_agree(served):
    served.answer("the answer é 👩")
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client:
        answer = client.completions.create(**PROMPT, max_tokens=50)
        chunks = list(client.completions.create(**PROMPT, max_tokens=50, stream=True))
    assert answer.id.startswith("cmpl-") and answer.object == "text_completion"
    assert "".join(chunk.choices[0].text for chunk in chunks) == answer.choices[0].text == "the answer é 👩"
    assert chunks[-1].choices[0].finish_reason == answer.choices[0].finish_reason == "stop"
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


@pytest.mark.parametrize("form", ["str", "[int]", "[str]", "[[int]]"])
def test_prompt_forms(served, form):
    served.answer("x")
    ids = served.engine.tokenizer.encode("hello")
    prompt = {"str": "hello", "[int]": ids, "[str]": ["hello"], "[[int]]": [ids]}[form]
    assert served.client.post("/v1/completions", json={"prompt": prompt}).status_code == 200
    assert served.engine.submitted[0].prompt == tuple(ids)
    assert served.engine.submitted[0].max_tokens == 16


def test_default_max_tokens_yields_to_the_context(served):
    served.answer("x")
    assert served.client.post("/v1/completions", json={"prompt": [5] * 505}).status_code == 200
    assert served.engine.submitted[0].max_tokens == 512 - 505


def test_logprobs_are_four_parallel_lists(served):
    served.answer("é!!")
    for wanted in (0, 2):
        shown = served.client.post("/v1/completions", json={**PROMPT, "logprobs": wanted}).json()["choices"][0][
            "logprobs"
        ]
        assert shown["tokens"] == ["bytes:\\xc3", "bytes:\\xa9", "!", "!"]
        assert shown["text_offset"] == [0, 0, 1, 2]
        assert shown["token_logprobs"] == [-0.5] * 4
        assert [len(top) for top in shown["top_logprobs"]] == [wanted + 1] * 4
        assert all(top[token] == -0.5 for top, token in zip(shown["top_logprobs"], shown["tokens"], strict=True))
    body = {**PROMPT, "logprobs": 2, "stream": True}
    lines = [line for line in served.client.post("/v1/completions", json=body).text.split("\n\n") if line][:-1]
    parts = [json.loads(line.removeprefix("data: "))["choices"][0]["logprobs"] for line in lines]
    for name in shown:
        assert [item for part in parts if part for item in part[name]] == shown[name]


REFUSED = [
    ("completions", {"prompt": ["a"] * 129}, "prompt", "invalid_value"),
    ("completions", {"prompt": ["a", ""]}, "prompt[1]", "invalid_value"),
    ("completions", {"prompt": [[5], [10**6]]}, "prompt[1]", "invalid_token"),
    ("completions", {"prompt": ["a"] * 16, "n": 65}, "n", "invalid_value"),
    ("completions", {"prompt": [1, "b"]}, "prompt", "invalid_value"),
    ("completions", {"prompt": []}, "prompt", "invalid_value"),
    ("completions", {"prompt": [[]]}, "prompt[0]", "invalid_value"),
    ("completions", {"prompt": ""}, "prompt", "invalid_value"),
    ("completions", {"prompt": [10**6]}, "prompt", "invalid_token"),
    ("completions", {"prompt": [-1]}, "prompt", "invalid_token"),
    ("completions", {"prompt": [5] * 512}, "prompt", "context_length_exceeded"),
    ("completions", {"prompt": "a", "max_tokens": 600}, "max_tokens", "context_length_exceeded"),
    ("completions", {"prompt": "a", "max_tokens": 0}, "max_tokens", "invalid_value"),
    ("completions", {"prompt": "a", "max_tokens": True}, "max_tokens", "invalid_value"),
    ("completions", {"prompt": {"a": 1}}, "prompt", "invalid_value"),
    ("completions", {}, "prompt", "invalid_value"),
    ("completions", {"prompt": "a", "logprobs": 21}, "logprobs", "invalid_value"),
    ("completions", {"prompt": "a", "logprobs": True}, "logprobs", "invalid_value"),
    ("completions", {"prompt": "a", "echo": 1}, "echo", "invalid_value"),
    ("completions", {"prompt": [[5] * 500] * 8, "echo": True, "logprobs": 20, "n": 128}, "logprobs", "invalid_value"),
    ("completions", {"prompt": "a", "suffix": "z"}, "suffix", "unsupported_value"),
    ("completions", {"prompt": "a", "best_of": 2}, "best_of", "unsupported_value"),
    ("completions", {"prompt": "a", "n": 2, "best_of": 3}, "best_of", "unsupported_value"),
    ("completions", {"prompt": "a", "n": 0}, "n", "invalid_value"),
    ("completions", {"prompt": "a", "n": 129}, "n", "invalid_value"),
    ("completions", {"prompt": "a", "n": True}, "n", "invalid_value"),
    ("completions", {"prompt": "a", "guided_regex": "a+"}, "guided_regex", "unsupported_value"),
    ("completions", {"prompt": "a", "stream_options": {}}, "stream_options", "invalid_value"),
    ("completions", {"prompt": "a", "temperature": 2.5}, "temperature", "invalid_value"),
    ("completions", {"prompt": "a", "temperature": "hot"}, "temperature", "invalid_value"),
    ("completions", {"prompt": "a", "stop": [""]}, "stop[0]", "invalid_value"),
    ("completions", {"prompt": "a", "stop": ["a"] * 17}, "stop", "invalid_value"),
    ("completions", {"prompt": "a", "stop": [1]}, "stop[0]", "invalid_value"),
    ("completions", {"prompt": "a", "logit_bias": {"x": 1}}, "logit_bias", "invalid_value"),
    ("completions", {"prompt": "a", "logit_bias": {"5": 101}}, "logit_bias", "invalid_value"),
    ("completions", {"prompt": "a", "logit_bias": {"5": "1"}}, "logit_bias", "invalid_value"),
    ("completions", {"prompt": "a", "logit_bias": {"5": 1, "05": 1}}, "logit_bias", "invalid_value"),
    ("completions", {"prompt": "a", "seed": 10**30}, "seed", "invalid_value"),
    ("completions", {"prompt": "a", "cache_salt": ""}, "cache_salt", "invalid_value"),
    ("chat/completions", {}, "messages", "invalid_value"),
    ("chat/completions", {"messages": []}, "messages", "invalid_value"),
    ("chat/completions", {"messages": [{"content": "a"}]}, "messages[0].role", "invalid_value"),
    ("chat/completions", {"messages": [{"role": "god", "content": "a"}]}, "messages[0].role", "invalid_value"),
    ("chat/completions", {"messages": [{"role": "user"}]}, "messages[0].content", "invalid_value"),
    ("chat/completions", {"messages": [{"role": "user", "content": 5}]}, "messages[0].content", "invalid_value"),
    (
        "chat/completions",
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
        "messages[0].content[0].type",
        "unsupported_value",
    ),
    (
        "chat/completions",
        {
            "messages": [
                {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{oops"}}]},
            ]
        },
        "messages[0].tool_calls[0].function.arguments",
        "invalid_value",
    ),
]
CHAT_ONLY = [
    {"tools": [{"type": "function", "function": {"name": "f"}}]},
    {"tool_choice": "auto"},
    {"response_format": {"type": "json_object"}},
    {"functions": [{"name": "f"}]},
    {"audio": {"voice": "x", "format": "wav"}},
    {"modalities": ["text", "audio"]},
    {"logit_processors": ["x"]},
    {"guided_json": {}},
    {"chat_template": "{{ messages }}"},
    {"top_logprobs": 2},
    {"logprobs": True, "top_logprobs": 21},
    {"max_completion_tokens": 600},
    {"chat_template_kwargs": {"messages": "x"}},
]


@pytest.mark.parametrize(("route", "body", "param", "code"), REFUSED)
def test_refusals_name_their_field(served, route, body, param, code):
    response = served.client.post(f"/v1/{route}", json=body)
    error = response.json()["error"]
    assert (response.status_code, error["param"], error["code"]) == (400, param, code), error
    assert error["type"] == "invalid_request_error" and error["message"]
    assert served.engine.submitted == []


@pytest.mark.parametrize("extra", CHAT_ONLY, ids=lambda extra: next(reversed(extra)))
def test_chat_fields_that_would_change_the_answer_are_refused(served, extra):
    body = {"messages": [{"role": "user", "content": "a"}], **extra}
    response = served.client.post("/v1/chat/completions", json=body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == next(reversed(extra))
    assert served.engine.submitted == []


def test_template_refusal_is_the_clients(served):
    """The template of the tests knows no role but four; names reach it only through messages of those."""
    served.answer("x")
    body = {"messages": [{"role": "system", "content": "a"}] * 3}
    assert served.client.post("/v1/chat/completions", json=body).status_code == 200


def test_unknown_model(served):
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client:
        with pytest.raises(openai.NotFoundError) as caught:
            client.completions.create(model="gpt-9", prompt="a")
        assert caught.value.code == "model_not_found"
        with pytest.raises(openai.NotFoundError):
            client.models.retrieve("org/unknown")


def test_models(served):
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none") as client:
        (card,) = client.models.list().data
        assert (card.id, card.object, card.owned_by) == ("tiny", "model", "poot") and card.created > 0
        assert client.models.retrieve("tiny") == card
    by_path = served.client.get("/v1/models//models/org/tiny.gguf")
    assert by_path.status_code == 200 and by_path.json()["id"] == "tiny"
    served.answer("x")
    body = {**PROMPT, "model": "/models/org/tiny.gguf"}
    assert served.client.post("/v1/completions", json=body).json()["model"] == "tiny"


def test_health(served):
    response = served.client.get("/health")
    assert response.status_code == 200
    plan = {key: response.json()[key] for key in ("status", "backend", "rows", "max_seq")}
    assert plan == {"status": "serving", "backend": "cpu", "rows": 4, "max_seq": 512}


def test_unknown_routes_and_methods(served):
    for method, path, status in [
        ("GET", "/nothing", 404), ("POST", "/v1/embeddings", 404), ("GET", "/", 404), ("GET", "/health/", 404),
        ("GET", "/v1/completions", 405), ("POST", "/health", 405), ("OPTIONS", "/v1/completions", 405),
        ("DELETE", "/v1/models/tiny", 405),
    ]:  # fmt: skip
        response = served.client.request(method, path)
        assert response.status_code == status, (method, path)
        assert response.json()["error"]["code"] == ("not_found" if status == 404 else "method_not_allowed")
        assert not any(name.startswith("access-control") for name in response.headers)
    assert served.client.get("/v1/completions").headers["allow"] == "POST"
    assert served.client.head("/health").status_code == 405


def test_request_id_is_echoed_or_made(served):
    given = served.client.get("/health", headers={"x-request-id": "abc-1"})
    assert given.headers["x-request-id"] == "abc-1"
    for odd in ("a" * 200, "two words"):
        made = served.client.get("/nothing", headers={"x-request-id": odd}).headers["x-request-id"]
        assert made.startswith("req_") and len(made) == 28


def test_metrics_in_both_forms(served):
    from prometheus_client.parser import text_string_to_metric_families

    served.answer("the answer")
    body = {**PROMPT, "stream": True}
    before = served.client.get("/metrics").json()
    served.client.post("/v1/completions", json=body)
    values = served.client.get("/metrics").json()
    assert values["poot_ttft_ms"]["count"] == before["poot_ttft_ms"]["count"] + 1
    assert values["poot_request_e2e_ms"]["count"] == before["poot_request_e2e_ms"]["count"] + 1
    steps = len(served.engine.script.steps)
    assert values["poot_itl_ms"]["count"] == before["poot_itl_ms"]["count"] + steps - 1
    assert values["poot_requests_total"] == 3 and values["poot_kv_cache_usage_ratio"] == 0.25
    assert values["poot_prefix_cache_hit_rate"] == 0.25 and values["poot_slot_capacity"] == 4
    assert values["poot_uptime_seconds"] > 0 and values["poot_mem_total_megabytes"] > 0
    response = served.client.get("/metrics/prometheus")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    families = {family.name: family for family in text_string_to_metric_families(response.text)}
    assert families["poot_requests"].samples[0].value == 3
    assert families["poot_ttft_ms"].type == "histogram"
    assert set(values) - {"poot_ttft_ms", "poot_itl_ms", "poot_request_e2e_ms"} <= {
        sample.name for family in families.values() for sample in family.samples
    }

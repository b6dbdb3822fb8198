"""/v1/chat/completions through a real listener, mostly with the official client."""

from __future__ import annotations

import asyncio
import json

import openai
import pytest

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
FAMILY = "a👨‍👩‍👧é ไทย 漢字"


@pytest.fixture
def client(served):
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def data_lines(text: str) -> list[str]:
    events = [event for event in text.split("\n\n") if event]
    assert text.endswith("\n\n")
    return [event.removeprefix("data: ") for event in events if not event.startswith(":")]


def test_buffered_answer_has_the_whole_shape(served, client):
    served.answer("the answer", cached=2)
    answer = client.chat.completions.create(**CHAT)
    assert answer.id.startswith("chatcmpl-") and answer.object == "chat.completion" and answer.model == "tiny"
    choice = answer.choices[0]
    assert (choice.index, choice.finish_reason, choice.logprobs) == (0, "stop", None)
    assert (choice.message.role, choice.message.content, choice.message.tool_calls) == ("assistant", "the answer", None)
    prompt = len(served.engine.submitted[0].prompt)
    assert answer.usage.prompt_tokens == prompt
    assert answer.usage.completion_tokens == len(served.engine.tokenizer.encode("the answer", add_special=False))
    assert answer.usage.total_tokens == prompt + answer.usage.completion_tokens
    assert answer.usage.prompt_tokens_details.cached_tokens == 2
    raw = served.client.post("/v1/chat/completions", json=CHAT).json()
    assert "tool_calls" not in raw["choices"][0]["message"]


def test_cached_tokens_is_a_number_on_a_miss(served):
    served.answer("x")
    usage = served.client.post("/v1/chat/completions", json=CHAT).json()["usage"]
    assert usage["prompt_tokens_details"] == {"cached_tokens": 0}


def test_stream_shape(served):
    served.answer("the answer")
    response = served.client.post("/v1/chat/completions", json={**CHAT, "stream": True})
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["x-request-id"].startswith("req_")
    lines = data_lines(response.text)
    assert lines[-1] == "[DONE]"
    chunks = [json.loads(line) for line in lines[:-1]]
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks}) == 1
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert [delta.get("role") for delta in deltas] == ["assistant"] + [None] * (len(deltas) - 1)
    assert "".join(delta.get("content", "") for delta in deltas) == "the answer"
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * (len(chunks) - 1) + ["stop"]
    assert deltas[-1] == {}
    assert all("usage" not in chunk for chunk in chunks)


@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}, {"include_usage": None}])
def test_no_usage_chunk_unless_asked(served, options):
    served.answer("x")
    body = {**CHAT, "stream": True, "stream_options": options}
    lines = data_lines(served.client.post("/v1/chat/completions", json=body).text)
    assert all(json.loads(line)["choices"] for line in lines[:-1])


def test_usage_chunk(served):
    served.answer("the answer", cached=3)
    body = {**CHAT, "stream": True, "stream_options": {"include_usage": True}}
    chunks = [json.loads(line) for line in data_lines(served.client.post("/v1/chat/completions", json=body).text)[:-1]]
    assert all(chunk["usage"] is None for chunk in chunks[:-1])
    assert chunks[-1]["choices"] == []
    usage = chunks[-1]["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == 3


def test_split_characters_arrive_whole(served, client):
    """Every byte of the text is a token of its own, as in a byte-level vocabulary without merges for them."""
    served.answer(FAMILY)
    assert any(len(step) == 1 for step in served.engine.script.steps)
    chunks = list(client.chat.completions.create(**CHAT, stream=True))
    parts = [chunk.choices[0].delta.content or "" for chunk in chunks]
    assert "".join(parts) == FAMILY
    assert not any("\ufffd" in part for part in parts)
    assert client.chat.completions.create(**CHAT).choices[0].message.content == FAMILY


def test_async_client(served):
    served.answer("hello world")

    async def ask() -> str:
        async with openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client:
            stream = await client.chat.completions.create(**CHAT, stream=True)
            streamed = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
            answer = await client.chat.completions.create(**CHAT)
            assert answer.choices[0].message.content == streamed
            return streamed

    assert asyncio.run(ask()) == "hello world"


def test_max_tokens_ends_with_length(served, client):
    served.answer("the answer is forty two")
    answer = client.chat.completions.create(**CHAT, max_tokens=9, max_completion_tokens=2)
    assert answer.choices[0].finish_reason == "length" and answer.usage.completion_tokens == 2
    assert served.engine.submitted[0].max_tokens == 2


def test_no_max_tokens_means_the_rest_of_the_context(served, client):
    served.answer("x")
    client.chat.completions.create(**CHAT)
    assert served.engine.submitted[0].max_tokens is None


def test_stop_string_over_token_borders(served, client):
    served.answer("forty two END of it")
    body = {**CHAT, "stop": ["o END o"]}
    assert client.chat.completions.create(**body).choices[0].message.content == "forty tw"
    chunks = list(client.chat.completions.create(**body, stream=True))
    parts = [chunk.choices[0].delta.content or "" for chunk in chunks]
    assert "".join(parts) == "forty tw" and chunks[-1].choices[0].finish_reason == "stop"


def test_a_beginning_of_a_stop_string_that_does_not_end_is_text(served, client):
    served.answer("forty two END")
    chunks = list(client.chat.completions.create(**CHAT, stop="END of", stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "forty two END"


def test_logprobs(served, client):
    served.answer("é!")
    answer = client.chat.completions.create(**CHAT, logprobs=True, top_logprobs=2)
    content = answer.choices[0].logprobs.content
    assert bytes(byte for entry in content for byte in entry.bytes) == "é!".encode()
    assert content[0].bytes == [0xC3] and content[0].token == "bytes:\\xc3"
    assert [len(entry.top_logprobs) for entry in content] == [2] * len(content)
    assert content[0].logprob == -0.5 and content[0].top_logprobs[0].logprob == -1.0
    chunks = list(client.chat.completions.create(**CHAT, logprobs=True, stream=True))
    shown = [entry for chunk in chunks if chunk.choices[0].logprobs for entry in chunk.choices[0].logprobs.content]
    assert [entry.bytes for entry in shown] == [entry.bytes for entry in content]
    assert all(entry.top_logprobs == [] for entry in shown)


def test_error_before_the_stream_has_its_status(served):
    served.answer(steps=[], finish="error", error_code="engine_dead")
    response = served.client.post("/v1/chat/completions", json={**CHAT, "stream": True})
    assert response.status_code == 503
    error = {"message": "the device failed", "type": "server_error", "param": None, "code": "engine_dead"}
    assert response.json() == {"error": error}


def test_error_in_the_stream_is_one_event_and_no_done(served, client):
    served.answer(steps=[[40], [41]], finish="error", error_code="non_finite_logits")
    lines = data_lines(served.client.post("/v1/chat/completions", json={**CHAT, "stream": True}).text)
    assert json.loads(lines[-1])["error"] == {
        "message": "the device failed",
        "type": "server_error",
        "param": None,
        "code": "non_finite_logits",
    }
    assert sum("error" in json.loads(line) for line in lines) == 1
    with pytest.raises(openai.APIError, match="the device failed"):
        list(client.chat.completions.create(**CHAT, stream=True))


def test_disconnect_cancels_a_stream(served, hold, eventually):
    served.answer(steps=[[40], hold])
    with served.client.stream("POST", "/v1/chat/completions", json={**CHAT, "stream": True}) as response:
        assert next(response.iter_lines()).startswith("data: ")
    assert served.engine.cancelled.wait(5)
    eventually(lambda: served.engine.running == 0)


def test_disconnect_cancels_a_buffered_answer(served, hold, eventually):
    served.answer(steps=[[40], hold])
    import httpx

    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{served.url}/v1/chat/completions", json=CHAT, timeout=0.3)
    assert served.engine.cancelled.wait(5)
    eventually(lambda: served.engine.running == 0)


def test_keep_alive_comments_while_nothing_comes(served, hold):
    served.answer(steps=[hold])
    with served.client.stream("POST", "/v1/chat/completions", json={**CHAT, "stream": True}) as response:
        assert response.status_code == 200
        lines = response.iter_lines()
        assert [next(lines) for _ in range(4)] == [": keep-alive", "", ": keep-alive", ""]


def test_a_served_request_that_is_cancelled_by_the_engine_ends_with_an_error(served):
    served.answer(steps=[[40]], finish="abort")
    lines = data_lines(served.client.post("/v1/chat/completions", json={**CHAT, "stream": True}).text)
    assert json.loads(lines[-1])["error"]["code"] == "unavailable"
    assert served.client.post("/v1/chat/completions", json=CHAT).status_code == 503


def test_conversation_forms_give_one_prompt(served, client):
    served.answer("x")
    forms = [
        [{"role": "system", "content": "be"}, {"role": "user", "content": "hi"}],
        [{"role": "developer", "content": "be"}, {"role": "user", "content": [{"type": "text", "text": "hi"}]}],
    ]
    for messages in forms:
        client.chat.completions.create(model="tiny", messages=messages)
    first, second = served.engine.submitted
    assert first.prompt == second.prompt


def test_history_with_tool_calls_and_reasoning(served, client):
    served.answer("x")
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    for name in ("reasoning", "reasoning_content"):
        messages = [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": None, "tool_calls": [call], name: "because"},
            {"role": "tool", "tool_call_id": "c1", "content": "2"},
        ]
        client.chat.completions.create(model="tiny", messages=messages)
    first, second = (served.engine.tokenizer.decode(r.prompt, skip_special=False) for r in served.engine.submitted)
    assert first == second and '[because]f({"a": 1})' in first


def test_control_tokens_in_content_stay_text(served, client):
    served.answer("x")
    client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "a<|im_end|>b"}])
    prompt = served.engine.submitted[0].prompt
    end = served.engine.tokenizer.encode("<|im_end|>", parse_special=True, add_special=False)[0]
    assert prompt.count(end) == 1
    assert "a<|im_end|>b" in served.engine.tokenizer.decode(prompt, skip_special=False)


def test_vllm_names_reach_the_engine(served):
    served.answer("x")
    body = {
        **CHAT, "temperature": 0, "top_p": 0.5, "top_k": 5, "min_p": 0.1, "repetition_penalty": 1.1,
        "presence_penalty": 0.5, "frequency_penalty": -0.5, "seed": 7, "logit_bias": {"5": -100}, "min_tokens": 1,
        "ignore_eos": True, "stop_token_ids": [9], "max_tokens": 3, "include_stop_str_in_output": True,
        "chat_template_kwargs": {"enable_thinking": False}, "cache_salt": "s",
        "user": "u", "metadata": {"a": "b"}, "store": False, "service_tier": "auto", "parallel_tool_calls": True,
        "n": 1, "tool_choice": "none", "tools": [], "response_format": {"type": "text"}, "made_up": {"x": [1]},
    }  # fmt: skip
    assert served.client.post("/v1/chat/completions", json=body).status_code == 200
    request = served.engine.submitted[0]
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0, 0.5, 5, 0.1)
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (0.5, -0.5)
    assert (sampling.repetition_penalty, sampling.seed, sampling.logit_bias) == (1.1, 7, ((5, -100.0),))
    assert (request.min_tokens, request.ignore_eos, request.stop_token_ids) == (1, True, (9,))
    assert request.include_stop and request.cache_salt == "s"
    assert "<no_think>" in served.engine.tokenizer.decode(request.prompt, skip_special=False)

"""Choices, prompts, echoes and tokens with the official openai client against the real server.

Expected texts and log-probabilities are those of transformers in float32 over the same weights
(benchmarks/reference.py).
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from typing import Any

import httpx
import openai
import pytest

QUESTION = "What is the capital of France? Answer in one word."
ANSWER, QUESTION_TOKENS, ANSWER_TOKENS = "The capital of France is Paris.", 42, 7
COUNT, COUNT_IDS = "1, 2, 3, 4, 5,", [33, 28, 216, 34, 28, 216, 35, 28, 216, 36, 28, 216, 37, 28]
COUNTED = " 6, 7, 8, 9, 10,"
COUNTED_LOGPROBS = [-0.114, -0.0507, -0.1269, -0.0526, -0.0438, -0.0455, -0.0369, -0.0082]
# In tokens: what a test's random requests may hold.
LONG = 400


def user(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


def test_greedy_choices_are_the_known_answer(client, served_model):
    made = client.chat.completions.create(
        model=served_model, messages=user(QUESTION), temperature=0, n=3, max_completion_tokens=20, max_tokens=2
    )
    assert [choice.index for choice in made.choices] == [0, 1, 2]
    assert [choice.message.content for choice in made.choices] == [ANSWER] * 3
    assert [choice.finish_reason for choice in made.choices] == ["stop"] * 3
    assert (made.usage.prompt_tokens, made.usage.completion_tokens) == (QUESTION_TOKENS, 3 * ANSWER_TOKENS)
    assert made.usage.prompt_tokens_details.cached_tokens <= QUESTION_TOKENS


def test_sampled_choices_differ_and_a_seed_fixes_them(client, served_model):
    def sample() -> list[str | None]:
        made = client.chat.completions.create(
            model=served_model, messages=user("Tell me a story."), temperature=1.2, max_tokens=12, n=6, seed=5
        )
        return [choice.message.content for choice in made.choices]

    first = sample()
    assert len(set(first)) > 3 and sample() == first


def test_each_streamed_choice_ends_by_itself(client, served_model):
    """More choices than the server has rows; temperature 0 and two lengths of end."""
    texts, ends = defaultdict(str), defaultdict(list)
    with client.chat.completions.create(
        model=served_model, messages=user(QUESTION), temperature=0, n=6, stream=True, max_tokens=16,
        stream_options={"include_usage": True},
    ) as stream:  # fmt: skip
        for chunk in stream:
            for choice in chunk.choices:
                assert not ends[choice.index]
                texts[choice.index] += choice.delta.content or ""
                ends[choice.index] += [choice.finish_reason] if choice.finish_reason else []
            usage = chunk.usage
    assert dict(texts) == dict.fromkeys(range(6), ANSWER)
    assert dict(ends) == {index: ["stop"] for index in range(6)}
    assert (usage.prompt_tokens, usage.completion_tokens) == (QUESTION_TOKENS, 6 * ANSWER_TOKENS)


def test_a_client_that_leaves_gives_back_the_rows_of_all_choices(client, served_model, server):
    before = server.idle()["poot_requests_cancelled_total"]
    stream = client.chat.completions.create(
        model=served_model, messages=user("Tell me a long story."), n=6, stream=True, extra_body={"ignore_eos": True}
    )
    next(iter(stream))
    stream.close()
    after = server.idle()
    assert after["poot_requests_cancelled_total"] == before + 6 and after["poot_kv_cache_blocks_used"] == 0


@pytest.mark.parametrize("prompts", [[COUNT, "The"], [COUNT_IDS, [504]]], ids=["texts", "ids"])
def test_completions_of_several_prompts(client, served_model, prompts):
    made = client.completions.create(model=served_model, prompt=prompts, temperature=0, n=2)
    assert [choice.index for choice in made.choices] == [0, 1, 2, 3]
    assert [choice.text for choice in made.choices[:2]] == [COUNTED] * 2
    assert made.choices[2].text == made.choices[3].text != COUNTED
    assert (made.usage.prompt_tokens, made.usage.completion_tokens) == (len(COUNT_IDS) + 1, 4 * 16)


@pytest.mark.parametrize("prompt", [COUNT, COUNT_IDS], ids=["text", "ids"])
def test_an_echo_goes_before_the_answer(client, served_model, prompt):
    made = client.completions.create(model=served_model, prompt=prompt, temperature=0, echo=True)
    assert made.choices[0].text == COUNT + COUNTED
    with client.completions.create(model=served_model, prompt=prompt, temperature=0, echo=True, stream=True) as stream:
        assert "".join(chunk.choices[0].text for chunk in stream) == COUNT + COUNTED
    alone = client.completions.create(model=served_model, prompt=prompt, echo=True, max_tokens=0)
    assert (alone.choices[0].text, alone.choices[0].finish_reason) == (COUNT, "length")
    assert (alone.usage.prompt_tokens, alone.usage.completion_tokens) == (len(COUNT_IDS), 0)


@pytest.mark.parametrize("most", [0, 1])
def test_prompt_log_probabilities_are_the_reference_s(client, served_model, most):
    """As an evaluation harness asks for them. The answer's known tokens, put into the prompt, have the values that they
    had as an answer."""
    whole = COUNT + COUNTED
    made = client.completions.create(
        model=served_model, prompt=whole, echo=True, logprobs=1, max_tokens=most, temperature=0
    )
    (choice,), found = made.choices, made.choices[0].logprobs
    begin, end = len(COUNT_IDS), len(COUNT_IDS) + len(COUNTED_LOGPROBS)
    assert found.token_logprobs[0] is None and found.top_logprobs[0] is None
    assert found.token_logprobs[begin:end] == pytest.approx(COUNTED_LOGPROBS, abs=0.01)
    assert all(
        value == max(found.top_logprobs[begin + at].values())
        for at, value in enumerate(found.token_logprobs[begin:end])
    )
    assert "".join(found.tokens) == choice.text and choice.text.startswith(whole)
    assert all(choice.text.startswith(token, at) for token, at in zip(found.tokens, found.text_offset, strict=True))
    assert found.text_offset[begin] == len(COUNT)
    assert made.usage.completion_tokens == most and len(found.tokens) == made.usage.prompt_tokens + most


def test_a_final_message_goes_on(chat):
    asked = [*user(QUESTION), {"role": "assistant", "content": "The capital of France is"}]
    (choice,) = chat(asked, continue_final_message=True, add_generation_prompt=False)["choices"]
    assert choice["message"]["content"] == " Paris."
    assert choice["finish_reason"] == "stop"


def test_tokenize_and_back(http, served_model):
    answer = http.post("/tokenize", json={"model": served_model, "prompt": COUNT}).json()
    assert (answer["tokens"], answer["count"]) == (COUNT_IDS, len(COUNT_IDS))
    assert http.post("/detokenize", json={"tokens": COUNT_IDS}).json() == {"prompt": COUNT}
    chat = http.post("/tokenize", json={"messages": user(QUESTION)}).json()
    assert chat["count"] == QUESTION_TOKENS and chat["max_model_len"] == 1024


def test_earlier_assistant_messages_are_taken(chat, http):
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    for said in ({"reasoning": "Paris."}, {"reasoning_content": "Paris."}, {"tool_calls": [call]}):
        history = [*user("Hello"), {"role": "assistant", "content": None, **said}, *user(QUESTION)]
        assert chat(history, max_tokens=2)["choices"][0]["message"]["content"]
    bad = {**call, "function": {"name": "f", "arguments": "{oops"}}
    body = {"messages": [*user("a"), {"role": "assistant", "content": None, "tool_calls": [bad]}, *user("b")]}
    refused = http.post("/v1/chat/completions", json=body)
    assert refused.status_code == 400 and refused.json()["error"]["param"].endswith("arguments")


@pytest.mark.parametrize(
    ("fields", "text", "finish", "tokens"),
    [
        ({"max_tokens": 9, "stop_token_ids": [COUNT_IDS[1]]}, " 6", "stop", 2),
        ({"max_tokens": 9, "stop": ","}, " 6", "stop", 3),
        ({"max_tokens": 9, "stop": ",", "include_stop_str_in_output": True}, " 6,", "stop", 3),
        ({"max_tokens": 9, "stop": ",", "min_tokens": 4}, " 6, 7", "stop", 6),
        ({"max_tokens": 4, "min_tokens": 4, "ignore_eos": True}, " 6, ", "length", 4),
    ],
)
def test_how_an_answer_ends(http, fields, text, finish, tokens):
    """COUNTED is " ", "6", ",", " ", "7", "," and so on, in tokens."""
    body = {"prompt": COUNT, "temperature": 0, **fields}
    answer = http.post("/v1/completions", json=body).json()
    assert (answer["choices"][0]["text"], answer["choices"][0]["finish_reason"]) == (text, finish)
    assert answer["usage"]["completion_tokens"] == tokens


def test_tokens_past_the_end_are_given_only_when_asked(chat):
    """Without its end tokens the answer goes on."""
    for fields in ({"ignore_eos": True}, {"min_tokens": 20}):
        made = chat(QUESTION, max_tokens=20, **fields)
        assert made["usage"]["completion_tokens"] == 20
        assert made["choices"][0]["message"]["content"].startswith(ANSWER)


def test_a_greedy_text_is_the_same_alone_and_in_a_busy_batch(server, http):
    body = {"prompt": COUNT, "temperature": 0, "seed": 11}
    assert http.post("/v1/completions", json=body).json()["choices"][0]["text"] == COUNTED

    async def busy() -> list[str]:
        async with httpx.AsyncClient(base_url=server.url, timeout=120) as client:
            others = [
                client.post("/v1/completions", json={"prompt": f"{index} bottles of", "seed": index, "max_tokens": 40})
                for index in range(12)
            ]
            mine = [client.post("/v1/completions", json=body) for _ in range(3)]
            answers = await asyncio.gather(*mine, *others)
        assert all(answer.status_code == 200 for answer in answers)
        return [answer.json()["choices"][0]["text"] for answer in answers[:3]]

    assert asyncio.run(busy()) == [COUNTED] * 3


def test_64_connections_half_of_them_cancelled_leave_nothing(server, served_model):
    chance = random.Random(3)
    server.idle()

    async def one(client: openai.AsyncOpenAI, index: int) -> bool:
        cancelled = index % 2 == 0
        stop_after = chance.randint(0, 6)
        stream = await client.completions.create(
            model=served_model, prompt=f"Story {index}: once upon a time", n=1 + index % 2, stream=True,
            max_tokens=LONG if cancelled else 8, extra_body={"ignore_eos": True},
        )  # fmt: skip
        async with stream:
            seen = 0
            async for chunk in stream:
                seen += len(chunk.choices)
                if cancelled and seen > stop_after:
                    return False
        return True

    async def main() -> list[bool]:
        limits = httpx.Limits(max_connections=64, max_keepalive_connections=0)
        async with (
            httpx.AsyncClient(limits=limits, timeout=200) as http,
            openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0, http_client=http) as client,
        ):
            return await asyncio.gather(*(one(client, index) for index in range(64)))

    assert asyncio.run(main()) == [index % 2 == 1 for index in range(64)]
    after = server.idle()
    assert after["poot_kv_cache_blocks_used"] == after["poot_inflight_requests"] == after["poot_queue_depth"] == 0


def test_a_prompt_seen_before_comes_from_the_cache(chat, http):
    """All full blocks of 16 tokens that leave a token to run; not for another salt."""
    before = http.get("/metrics").json()["poot_prefix_cache_hit_tokens_total"]

    def cached(salt: str) -> int:
        made = chat(QUESTION, cache_salt=salt)
        assert made["choices"][0]["message"]["content"] == ANSWER
        return made["usage"]["prompt_tokens_details"]["cached_tokens"]

    assert [cached("one"), cached("one"), cached("two"), cached("one")] == [0, 32, 0, 32]
    figures = http.get("/metrics").json()
    assert figures["poot_prefix_cache_hit_tokens_total"] == before + 64
    assert 0 < figures["poot_prefix_cache_hit_rate"] < 1


def test_flags_set_the_default_length_and_turn_the_cache_off(start):
    server = start("--default-max-tokens", "3", "--no-prefix-cache")
    body = {"messages": user(QUESTION), "temperature": 0}
    for _ in range(2):
        made = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=60).json()
        assert made["choices"][0]["finish_reason"] == "length" and made["usage"]["completion_tokens"] == 3
        assert made["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    made = httpx.post(f"{server.url}/v1/completions", json={"prompt": COUNT, "temperature": 0}, timeout=60).json()
    assert made["usage"]["completion_tokens"] == 16

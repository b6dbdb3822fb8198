"""The official openai client against the real server.

Expected texts are greedy answers of transformers in float32 over the same weights (benchmarks/reference.py). In all of
them the best two logits are at least 0.3 apart, far above what rounding can swap.
"""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest

QUESTION = "What is the capital of France? Answer in one word."
ANSWER, QUESTION_TOKENS, ANSWER_TOKENS = "The capital of France is Paris.", 42, 7
COUNT, COUNT_IDS = "1, 2, 3, 4, 5,", [33, 28, 216, 34, 28, 216, 35, 28, 216, 36, 28, 216, 37, 28]
COUNTED = " 6, 7, 8, 9, 10,"
COUNTED_LOGPROBS = [-0.114, -0.0507, -0.1269, -0.0526, -0.0438, -0.0455, -0.0369, -0.0082]


def user(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


def test_a_chat_gives_the_known_answer(client, served_model):
    made = client.chat.completions.create(model=served_model, messages=user(QUESTION), temperature=0)
    (choice,) = made.choices
    assert (choice.message.role, choice.message.content, choice.finish_reason) == ("assistant", ANSWER, "stop")
    assert (made.usage.prompt_tokens, made.usage.completion_tokens) == (QUESTION_TOKENS, ANSWER_TOKENS)
    assert made.model == served_model


def test_a_chat_stream_gives_the_known_answer_and_usage_when_asked(client, served_model):
    for options in ({}, {"stream_options": {"include_usage": True}}):
        with client.chat.completions.create(
            model=served_model, messages=user(QUESTION), temperature=0, stream=True, **options
        ) as stream:
            chunks = list(stream)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == ANSWER
        usages = [chunk.usage for chunk in chunks if chunk.usage is not None]
        assert len(usages) == len(options)
        for usage in usages:
            assert (usage.prompt_tokens, usage.completion_tokens) == (QUESTION_TOKENS, ANSWER_TOKENS)


def test_the_stream_helper_reads_a_whole_chat(client, served_model):
    with client.chat.completions.stream(model=served_model, messages=user(QUESTION), temperature=0) as stream:
        final = stream.get_final_completion()
    assert final.choices[0].message.content == ANSWER and final.choices[0].finish_reason == "stop"


def test_async_client_runs_chats_at_once(server, served_model):
    async def one(client: openai.AsyncOpenAI, streamed: bool) -> str:
        asked = {"model": served_model, "messages": user(QUESTION), "temperature": 0}
        if not streamed:
            return (await client.chat.completions.create(**asked)).choices[0].message.content
        async with await client.chat.completions.create(**asked, stream=True) as stream:
            return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    async def main() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0) as client:
            return await asyncio.gather(*(one(client, index % 2 == 1) for index in range(4)))

    assert asyncio.run(main()) == [ANSWER] * 4


@pytest.mark.parametrize("prompt", [COUNT, [COUNT], COUNT_IDS, [COUNT_IDS]], ids=["text", "texts", "ids", "lists"])
def test_a_completion_gives_the_known_answer(client, served_model, prompt):
    made = client.completions.create(model=served_model, prompt=prompt, temperature=0)
    assert (made.choices[0].text, made.choices[0].finish_reason) == (COUNTED, "length")
    assert (made.usage.prompt_tokens, made.usage.completion_tokens) == (len(COUNT_IDS), 16)


def test_a_completion_stream_gives_the_known_answer(client, served_model):
    with client.completions.create(model=served_model, prompt=COUNT, temperature=0, stream=True) as stream:
        choices = [chunk.choices[0] for chunk in stream]
    assert "".join(choice.text for choice in choices) == COUNTED
    assert [choice.finish_reason for choice in choices if choice.finish_reason] == ["length"]


def test_log_probabilities_are_the_reference_s(client, served_model):
    made = client.completions.create(model=served_model, prompt=COUNT, temperature=0, max_tokens=8, logprobs=2)
    found = made.choices[0].logprobs
    assert found.token_logprobs == pytest.approx(COUNTED_LOGPROBS, abs=0.01)
    assert "".join(found.tokens) == COUNTED[: len("".join(found.tokens))]


def test_chat_log_probabilities_spell_the_answer(client, served_model):
    made = client.chat.completions.create(
        model=served_model, messages=user(QUESTION), temperature=0, logprobs=True, top_logprobs=3
    )
    entries = made.choices[0].logprobs.content
    assert b"".join(bytes(entry.bytes) for entry in entries).decode() == ANSWER
    for entry in entries:
        assert len(entry.top_logprobs) == 3 and entry.top_logprobs[0].token == entry.token
        ordered = [alternative.logprob for alternative in entry.top_logprobs]
        assert ordered == sorted(ordered, reverse=True) and entry.logprob == ordered[0] <= 0


def test_max_tokens_ends_with_length_in_both_modes(client, served_model):
    asked = {"model": served_model, "messages": user(QUESTION), "temperature": 0}
    for limit in ({"max_tokens": 3}, {"max_completion_tokens": 3}, {"max_completion_tokens": 3, "max_tokens": 9}):
        made = client.chat.completions.create(**asked, **limit)
        assert (made.choices[0].finish_reason, made.usage.completion_tokens) == ("length", 3)
        assert made.choices[0].message.content == "The capital of"
    with client.chat.completions.create(**asked, max_tokens=3, stream=True) as stream:
        assert [chunk.choices[0].finish_reason for chunk in stream][-1] == "length"


def test_a_seed_fixes_a_sampled_text(client, served_model):
    def sample(**fields: Any) -> str:
        made = client.chat.completions.create(
            model=served_model, messages=user("Tell me a story."), temperature=1.2, max_tokens=12, **fields
        )
        return made.choices[0].message.content

    assert sample(seed=7) == sample(seed=7) != sample(seed=8)
    assert sample() != sample()


def test_models_are_listed_and_described(client, served_model, model):
    listed = client.models.list().data
    assert [(card.id, card.object, card.owned_by) for card in listed] == [(served_model, "model", "poot")]
    assert client.models.retrieve(served_model) == listed[0]
    assert client.models.retrieve(str(model)).id == served_model
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("no/such/model")


@pytest.mark.parametrize(
    ("fields", "error", "expected"),
    [
        ({"model": "gpt-4o"}, openai.NotFoundError, ("model_not_found", "model")),
        ({"temperature": "hot"}, openai.BadRequestError, ("invalid_value", "temperature")),
        ({"temperature": 2.5}, openai.BadRequestError, ("invalid_value", "temperature")),
        (
            {"messages": [{"role": "user", "content": 7}]},
            openai.BadRequestError,
            ("invalid_value", "messages[0].content"),
        ),
        ({"max_tokens": 5000}, openai.BadRequestError, ("context_length_exceeded", "max_tokens")),
        ({"messages": user("word " * 1100)}, openai.BadRequestError, ("context_length_exceeded", "messages")),
        ({"n": 129}, openai.BadRequestError, ("invalid_value", "n")),
        ({"n": 2, "extra_body": {"best_of": 4}}, openai.BadRequestError, ("unsupported_value", "best_of")),
        ({"extra_body": {"guided_regex": "a+"}}, openai.BadRequestError, ("unsupported_value", "guided_regex")),
    ],
    ids=lambda value: None if isinstance(value, type) else str(value)[:32],
)
def test_mistakes_are_typed_errors(client, served_model, fields, error, expected):
    with pytest.raises(error) as caught:
        client.chat.completions.create(**{"model": served_model, "messages": user("Hello"), **fields})
    assert (caught.value.code, caught.value.param) == expected
    assert caught.value.type == "invalid_request_error"


def test_unknown_fields_are_accepted(client, served_model):
    made = client.chat.completions.create(
        model=served_model, messages=user(QUESTION), temperature=0, max_tokens=2, extra_body={"no_such_field": [1]}
    )
    assert made.choices[0].message.content == "The capital"


def test_closing_a_stream_frees_its_row(client, served_model, server):
    before = server.idle()["poot_requests_cancelled_total"]
    stream = client.chat.completions.create(
        model=served_model, messages=user("Tell me a long story."), stream=True, extra_body={"ignore_eos": True}
    )
    next(iter(stream))
    running = server.metrics()
    assert running["poot_inflight_requests"] == 1 and running["poot_kv_cache_blocks_used"] > 0
    stream.close()
    after = server.idle()
    assert after["poot_requests_cancelled_total"] == before + 1 and after["poot_queue_depth"] == 0

"""The report on a request, of the real engine and read by the official client."""

from __future__ import annotations

import time

import httpx
import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator

ASKED = {"poot": {"report": True}}


def test_a_report_times_the_engine_and_names_what_was_ignored(client, served_model):
    began = time.perf_counter()
    made = client.chat.completions.create(
        model=served_model,
        messages=[{"role": "user", "content": "Name the planets, please, from the sun outwards, and nothing else."}],
        max_tokens=12,
        user="somebody",
        extra_body=ASKED,
    )
    took = (time.perf_counter() - began) * 1000
    report = made.model_extra["poot"]
    (told,) = report["choices"]
    assert report["ignored_fields"] == ["user"]
    assert (told["prompt_tokens"], told["completion_tokens"]) == (
        made.usage.prompt_tokens,
        made.usage.completion_tokens,
    )
    assert told["prefill_ms"] > 0 and told["decode_ms"] > 0 and told["queue_ms"] >= 0
    assert told["queue_ms"] + told["prefill_ms"] + told["decode_ms"] < took


def test_a_second_time_the_prompt_is_cached_and_the_reported_seed_gives_the_same_text(client, served_model):
    """Blocks have 16 tokens, and the last one of a prompt is always run. Texts are compared where both are cached: a
    prompt that is read whole is rounded in another way, and a draw may fall on the other side."""
    fields = {
        "model": served_model, "prompt": "Seven thousand and eleven is a number. " * 4, "max_tokens": 12,
        "temperature": 1.5, "extra_body": ASKED,
    }  # fmt: skip
    [fresh] = client.completions.create(**fields).model_extra["poot"]["choices"]
    assert (fresh["cached_tokens"], bool(fresh["cache_miss"])) == (0, True)
    first = client.completions.create(**fields)
    again = client.completions.create(**fields, seed=first.model_extra["poot"]["sampling"]["seed"])
    assert again.choices[0].text == first.choices[0].text
    for answer in (first, again):
        told = answer.model_extra["poot"]["choices"][0]
        assert told["cached_tokens"] == (told["prompt_tokens"] - 1) // 16 * 16 > 0
        assert told["cache_miss"] is None


@pytest.mark.parametrize("usage", [True, False])
def test_a_stream_s_report_is_in_its_last_chunk(client, served_model, usage):
    *before, last = client.chat.completions.create(
        model=served_model,
        messages=[{"role": "user", "content": "Hello"}],
        max_tokens=4,
        temperature=0,
        n=2,
        stream=True,
        stream_options={"include_usage": usage},
        extra_body=ASKED,
    )
    assert all("poot" not in (chunk.model_extra or {}) for chunk in before)
    assert last.choices == [] and (last.usage is not None) == usage
    assert [told["completion_tokens"] for told in last.model_extra["poot"]["choices"]] == [4, 4]


def test_the_document_of_a_real_server_is_valid(server):
    OpenAPIV31SpecValidator(httpx.get(f"{server.url}/openapi.json").json()).validate()

"""/tokenize and /detokenize, and where a chat's prompt ends."""

from __future__ import annotations

import pytest

USER = {"role": "user", "content": "hi"}


def prompt_text(served, **body):
    served.answer("x")
    response = served.client.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    return served.engine.tokenizer.decode(served.engine.submitted[-1].prompt, skip_special=False)


def test_tokens_of_a_prompt_are_those_of_a_completion(served):
    served.answer("x")
    served.client.post("/v1/completions", json={"prompt": "hello é"})
    answer = served.client.post("/tokenize", json={"model": "tiny", "prompt": "hello é"}).json()
    assert tuple(answer["tokens"]) == served.engine.submitted[0].prompt
    assert answer == {"count": len(answer["tokens"]), "max_model_len": 512, "tokens": answer["tokens"]}
    assert served.client.post("/detokenize", json={"tokens": answer["tokens"]}).json() == {"prompt": "hello é"}


@pytest.mark.parametrize(
    "fields", [{}, {"add_generation_prompt": False}, {"chat_template_kwargs": {"enable_thinking": False}}]
)
def test_tokens_of_messages_are_those_of_a_chat(served, fields):
    served.answer("x")
    body = {"messages": [USER], **fields}
    assert served.client.post("/v1/chat/completions", json=body).status_code == 200
    answer = served.client.post("/tokenize", json=body).json()
    assert tuple(answer["tokens"]) == served.engine.submitted[0].prompt


def test_control_tokens_are_detokenised_by_name(served):
    answer = served.client.post("/tokenize", json={"messages": [USER]}).json()
    text = served.client.post("/detokenize", json={"tokens": answer["tokens"]}).json()["prompt"]
    assert text == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


def test_what_no_row_could_hold_is_tokenised(served):
    answer = served.client.post("/tokenize", json={"prompt": "hello " * 1000}).json()
    assert answer["count"] > answer["max_model_len"] == 512


@pytest.mark.parametrize(
    ("path", "body", "param", "code"),
    [
        ("/tokenize", {}, "prompt", "invalid_value"),
        ("/tokenize", {"prompt": "a", "messages": [USER]}, "prompt", "invalid_value"),
        ("/tokenize", {"prompt": 5}, "prompt", "invalid_value"),
        ("/tokenize", {"prompt": "a" * 524_289}, "prompt", "invalid_value"),
        ("/tokenize", {"messages": []}, "messages", "invalid_value"),
        ("/tokenize", {"messages": [USER], "tools": [{}]}, "tools", "unsupported_value"),
        ("/tokenize", {"prompt": "a", "return_token_strs": True}, "return_token_strs", "unsupported_value"),
        ("/detokenize", {}, "tokens", "invalid_value"),
        ("/detokenize", {"tokens": "a"}, "tokens", "invalid_value"),
        ("/detokenize", {"tokens": [5] * 524_289}, "tokens", "invalid_value"),
        ("/detokenize", {"tokens": [-1]}, "tokens", "invalid_token"),
        ("/detokenize", {"tokens": [5, 10**9]}, "tokens", "invalid_token"),
    ],
)
def test_refusals(served, path, body, param, code):
    response = served.client.post(path, json=body)
    assert (response.status_code, response.json()["error"]["param"], response.json()["error"]["code"]) == (
        400,
        param,
        code,
    )


def test_as_much_as_is_taken(served):
    answer = served.client.post("/detokenize", json={"tokens": [40] * 524_288}, timeout=60)
    assert answer.json()["prompt"] == served.engine.tokenizer.decode([40]) * 524_288
    tokens = served.client.post("/tokenize", json={"prompt": "a" * 524_288}, timeout=60).json()["tokens"]
    assert served.engine.tokenizer.decode(tokens) == "a" * 524_288


def test_statuses_are_those_of_the_other_routes(served):
    for path in ("/tokenize", "/detokenize"):
        assert served.client.get(path).status_code == 405
        assert served.client.post(path, json={"model": "gpt-9", "prompt": "a", "tokens": []}).status_code == 404
        json_type = {"content-type": "application/json"}
        assert served.client.post(path, content=b"{", headers=json_type).json()["error"]["code"] == "invalid_json"
        assert served.client.post(path, content=b"{}").status_code == 415
        large = served.client.post(path, content=b" " * ((4 << 20) + 1), headers=json_type)
        assert large.status_code == 413
    assert served.client.post("/v1/tokenize", json={"prompt": "a"}).status_code == 404
    assert served.client.post("/detokenize", json={"tokens": []}).json() == {"prompt": ""}


def test_a_final_message_goes_on(served):
    last = {"role": "assistant", "content": "The <|im_end|> answer is "}
    expected = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nThe <|im_end|> answer is "
    for fields in ({"add_generation_prompt": False}, {}):
        assert prompt_text(served, messages=[USER, last], continue_final_message=True, **fields) == expected
    (end,) = served.engine.tokenizer.encode("<|im_end|>", add_special=False, parse_special=True)
    request = served.engine.submitted[-1]
    assert request.prompt.count(end) == 1 and request.continues


def test_no_generation_prompt(served):
    assert prompt_text(served, messages=[USER], add_generation_prompt=False) == "<|im_start|>user\nhi<|im_end|>\n"
    assert not served.engine.submitted[-1].continues


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": [USER], "continue_final_message": True}, "messages[0].role"),
        (
            {"messages": [USER, {"role": "assistant", "content": ""}], "continue_final_message": True},
            "messages[1].content",
        ),
        (
            {
                "messages": [USER, {"role": "assistant", "content": "a"}],
                "continue_final_message": True,
                "add_generation_prompt": True,
            },
            "continue_final_message",
        ),
        ({"messages": [USER], "add_generation_prompt": "no"}, "add_generation_prompt"),
    ],
)
def test_endings_that_are_refused(served, body, param):
    response = served.client.post("/v1/chat/completions", json=body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)
    assert served.engine.submitted == []

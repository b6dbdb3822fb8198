"""What clients send as messages and arguments, and what chat templates get of it."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import logging
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from poot_models.errors import TemplateRefusal, TemplateRenderError
from poot_models.text import ChatTemplate
from poot_models.text.encoders import GUARD
from poot_serve.errors import BadJsonError, FieldError, UnsupportedFieldError
from poot_serve.limits.host import Listener
from poot_serve.lower import unbuilt
from poot_serve.lower.conversation import rendered
from poot_serve.lower.decode import decode_body
from poot_serve.protocol.chat import ChatRequest
from poot_serve.service import INLINE_BYTES
from poot_serve.settings import Settings

ROOT = Path(__file__).parents[2]
TEMPLATES = sorted((ROOT / "tests" / "data" / "templates").glob("*.jinja"))
USER = {"role": "user", "content": "hi"}


@pytest.fixture(scope="module")
def templates():
    """benchmarks/templates.py, which the benchmark and these tests share."""
    spec = importlib.util.spec_from_file_location("benchmarks_templates", ROOT / "benchmarks" / "templates.py")
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "benchmarks")
        patch.setitem(sys.modules, spec.name, module)  # where dataclasses looks a module up
        spec.loader.exec_module(module)
        with module.stopped_clock():
            yield module


@pytest.fixture
def render(text):
    """(a template's source, messages, other fields) -> the prompt's text, guarded by the tests' tokenizer."""

    def run(source, messages, **fields):
        wire = decode_body(json.dumps({"messages": messages, **fields}).encode(), ChatRequest, unbuilt.CHAT)
        template = ChatTemplate(source, bos_token="<s>", eos_token="</s>")
        return rendered(wire, wire.messages, dataclasses.replace(text, chat_template=template))

    return run


def called(arguments, content=None):
    call = {"id": "call12345", "type": "function", "function": {"name": "find", "arguments": arguments}}
    return [USER, {"role": "assistant", "content": content, "tool_calls": [call]}]


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
def test_what_clients_send_renders_as_transformers_renders_it(path, templates):
    outcome = templates.check_sent(path.read_text("utf-8"))
    assert outcome.wrong == []
    assert outcome.equal + outcome.refused == 2 * len(templates.SENT)


# Templates that are given no tools here and need them, or that write no calls at all.
NO_CALLS = {
    *("CohereForAI-c4ai-command-r-plus-tool_use", "NousResearch-Hermes-3-Llama-3.1-8B-tool_use"),
    *("LFM2-8B-A1B", "LFM2.5-Instruct", "ibm-granite-granite-3.3-2B-Instruct", "llama-cpp-rwkv-world"),
    *("microsoft-Phi-3.5-mini-instruct", "google-gemma-2-2b-it"),
    "Kimi-K2-Instruct",  # changes a list, which the sandbox forbids, as does that of transformers
}


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
def test_calls_and_results_are_in_the_prompt(path, render):
    """Whatever form the template takes them in; equal texts alone would not show that nothing is lost."""
    results = [{"role": "tool", "tool_call_id": "call12345", "content": "it rains"}]
    source = path.read_text("utf-8")
    if path.stem in NO_CALLS:
        try:
            assert "Oslo" not in render(source, called('{"city": "Oslo"}') + results)
        except (TemplateRefusal, TemplateRenderError) as error:
            assert str(error)
        return
    prompt = render(source, called('{"city": "Oslo"}') + results)
    places = [prompt.find(word) for word in ("find", "city", "Oslo", "it rains")]
    assert -1 not in places and max(places[:3]) < places[3]
    assert '\\"city' not in prompt and "{'city" not in prompt
    assert prompt == render(source, called('{"city": "Oslo"}', content="") + results)


ARGUMENTS = "{% for m in messages %}{% for c in m.tool_calls or [] %}{{ FORM }}{% endfor %}{% endfor %}"


def test_arguments_are_an_object_or_their_text(render):
    given = '{"b":  [1, {"x": null}], "a": "é"}'
    objects = ARGUMENTS.replace("FORM", "c.function.name ~ c.function.arguments | tojson")
    texts = ARGUMENTS.replace("FORM", "c.function.name + c.function.arguments")
    assert render(objects, called(given)) == 'find{"b": [1, {"x": null}], "a": "é"}'
    assert render(texts, called(given)) == "find" + given
    assert (render(objects, called("")), render(texts, called(""))) == ("find{}", "find{}")


@pytest.mark.parametrize("form", ["c.function.arguments | tojson", "'' + c.function.arguments"])
@pytest.mark.parametrize(
    "arguments", ["{", "[1]", '"x"', "null", "1", "{'a': 1}", '{"a": 1} x', '{"a": NaN}', "[" * 99]
)
def test_arguments_that_are_no_json_object(render, form, arguments):
    messages = called("{}") + called(arguments)[1:]
    with pytest.raises(FieldError, match="JSON object in a string") as caught:
        render(ARGUMENTS.replace("FORM", form), messages)
    assert caught.value.param == "messages[2].tool_calls[0].function.arguments"


PLAIN = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
PARTS = (
    "{% for m in messages %}<{{ m.role }}>{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for p in m.content %}{{ p.text }}{% endfor %}{% endif %}{% endfor %}"
)
ONLY_PARTS = "{% for m in messages %}<{{ m.role }}>{% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}"


def parts(*texts):
    return [{"type": "text", "text": text} for text in texts]


def test_parts_go_to_templates_that_read_them(render):
    messages = [{"role": "user", "content": parts("a", "b")}]
    assert render(PLAIN, messages) == "<user>a\nb"
    assert render(PARTS, messages) == render(ONLY_PARTS, messages) == "<user>ab"
    for source in (PLAIN, PARTS, ONLY_PARTS):
        assert render(source, [{"role": "user", "content": parts("a")}]) == render(source, [{**USER, "content": "a"}])
        assert render(source, [USER]) == "<user>hi"
        assert render(source, [{"role": "user", "content": []}]) == "<user>"
        continued = [USER, {"role": "assistant", "content": parts("a", "b ")}]
        assert render(source, continued, continue_final_message=True).endswith("b ")


def test_parts_that_are_no_text(render):
    with pytest.raises(UnsupportedFieldError) as caught:
        render(PARTS, [{"role": "user", "content": [*parts("a"), {"type": "image_url", "image_url": {"url": "x"}}]}])
    assert caught.value.param == "messages[0].content[1].type"


def test_a_control_token_over_two_parts_is_guarded(render, text):
    for split in ([("<|im_", "end|>")], [("a<|im_end|>", "b", "<", "|im_end|>")]):
        prompt = render(PARTS, [{"role": "user", "content": parts(*split[0])}])
        assert prompt.replace(GUARD, "") == "<user>" + "".join(split[0])
        end = text.tokenizer.encode("<|im_end|>", parse_special=True, add_special=False)[0]
        ids = text.tokenizer.encode(prompt, parse_special=True, add_special=False)
        assert end not in ids
        assert text.tokenizer.decode(ids, skip_special=False) == "<user>" + "".join(split[0])
    spaced = render(PARTS.replace("p.text", "p.text | trim"), [{"role": "user", "content": parts("a ", " b")}])
    assert spaced == "<user>ab"


def test_the_developer_is_a_system_where_the_role_is_unknown(render):
    messages = [{"role": "developer", "content": "x"}]
    assert render(PLAIN, messages) == "<system>x"
    known = "{% for m in messages %}{% if m.role == 'developer' %}D{{ m.content }}{% endif %}{% endfor %}"
    assert render(known, messages) == "Dx"


@pytest.mark.parametrize("name", ["reasoning_content", "thinking", "reasoning"])
def test_reasoning_has_three_names(render, name):
    source = "{{ messages[1].reasoning_content }},{{ messages[1].thinking }},{{ messages[1].reasoning }}"
    messages = [USER, {"role": "assistant", "content": "a", name: "why"}]
    assert render(source, messages) == "why,why,why"
    assert render(source, [USER, {**messages[1], "reasoning_content": "first"}]) == "first,first,first"


@pytest.mark.parametrize("role", ["system", "developer", "user", "tool"])
def test_only_an_assistant_may_say_nothing(render, role):
    assert render(PLAIN, [USER, {"role": "assistant"}]) == "<user>hi<assistant>"
    with pytest.raises(FieldError, match="needs content") as caught:
        render(PLAIN, [{"role": role, "content": None}])
    assert caught.value.param == "messages[0].content"


KWARGS = (
    "{{ enable_thinking }}{{ style | tojson if style is defined }}{{ tools }}{{ documents }}{{ pad_token }}"
    "{{ strftime_now is defined }}{% for m in messages %}{% endfor %}"
)


def test_arguments_that_the_template_reads(render):
    for value in (True, None, 3, 2.5, "short", ["a", {"b": [None]}], {}):
        given = {"enable_thinking": False, "style": value}
        assert render(KWARGS, [USER], chat_template_kwargs=given) == f"False{json.dumps(value)}NoneNoneTrue"
    assert render(KWARGS, [USER], chat_template_kwargs={}) == render(KWARGS, [USER], chat_template_kwargs=None)
    assert render("{{ reasoning_effort }}", [USER], reasoning_effort="low") == "low"
    assert render("{{ reasoning_effort }}", [USER], chat_template_kwargs={"reasoning_effort": "high"}) == "high"
    assert render("no", [USER], reasoning_effort="low") == "no"


def test_texts_in_arguments_are_guarded(render):
    value = {"<|im_end|>": ["<|im_end|>"]}
    prompt = render("{{ style }}", [USER], chat_template_kwargs={"style": value})
    assert "<|im_end|>" not in prompt and prompt.replace(GUARD, "").replace("\\ufdd0", "") == str(value)


@pytest.mark.parametrize(
    "name",
    [
        *(
            "messages",
            "tools",
            "documents",
            "add_generation_prompt",
            "continue_final_message",
            "bos_token",
            "eos_token",
        ),
        *("pad_token", "strftime_now", "raise_exception", "namespace", "range", "dict", "self", "loop"),
        *(
            "m",
            "unread",
            "",
            "a b",
            "poot meter",
            "__class__",
            "enable_thinking ",
            "chat_template",
            "tokenize",
            "x" * 10_000,
        ),
    ],
)
def test_other_arguments_are_refused_and_those_taken_named(render, name):
    with pytest.raises(FieldError, match=r"template takes enable_thinking, style$") as caught:
        render(KWARGS, [USER], chat_template_kwargs={"enable_thinking": True, name: 1})
    assert caught.value.param == "chat_template_kwargs"
    assert len(str(caught.value)) < 200


def test_a_template_without_arguments_says_so(render):
    with pytest.raises(FieldError, match="takes no arguments"):
        render(PLAIN, [USER], chat_template_kwargs={"enable_thinking": True})
    many = "".join(f"{{{{ name{number} }}}}" for number in range(100))
    with pytest.raises(FieldError, match="and 76 more"):
        render(many, [USER], chat_template_kwargs={"other": True})


@pytest.mark.parametrize(
    "value",
    [
        "x" * 16_385,
        ["x" * 9_000] * 2,
        {"x" * 16_385: 1},
        [0] * 1024,
        [[0] * 40] * 30,
        dict.fromkeys(map(str, range(600))),
    ],
)
def test_large_arguments_are_refused(render, value):
    with pytest.raises(FieldError, match="more than") as caught:
        render(KWARGS, [USER], chat_template_kwargs={"style": value})
    assert caught.value.param == "chat_template_kwargs.style"


def test_deep_and_many_arguments_are_refused(render):
    deep = 1
    for _ in range(8):
        deep = [deep]
    assert render(KWARGS, [USER], chat_template_kwargs={"style": deep})
    with pytest.raises(FieldError, match="nests deeper"):
        render(KWARGS, [USER], chat_template_kwargs={"style": {"a": deep}})
    with pytest.raises(BadJsonError):
        render(KWARGS, [USER], chat_template_kwargs={"style": json.loads("[" * 70 + "]" * 70)})
    source = "".join(f"{{{{ name{number} }}}}" for number in range(17))
    with pytest.raises(FieldError, match="at most 16 members"):
        render(source, [USER], chat_template_kwargs={f"name{number}": 1 for number in range(17)})


def test_the_reason_of_a_refusing_template_is_the_answer(render):
    with pytest.raises(TemplateRefusal, match="users only"):
        render("{{ raise_exception('users only') }}", [USER])


def test_chats_of_an_unusable_template_say_why_and_completions_go_on(served, text):
    problem = "the chat template does not compile: \x1b[31mno\nfilter (line 1)"
    served.answer("x")
    served.service.text = dataclasses.replace(text, chat_template=None, template_problem=problem)
    try:
        for path, body in (("/v1/chat/completions", {"messages": [USER]}), ("/tokenize", {"messages": [USER]})):
            response = served.client.post(path, json=body)
            error = response.json()["error"]
            assert (response.status_code, error["param"]) == (400, "messages")
            assert "does not compile:  [31mno filter (line 1)" in error["message"]
            assert "--chat-template-file" in error["message"] and "/v1/completions" in error["message"]
        assert served.client.post("/v1/completions", json={"prompt": "a"}).status_code == 200
    finally:
        served.service.text = text


def test_a_template_that_takes_long_delays_nothing_but_chats(serving, text, eventually):
    entered, gate = threading.Semaphore(0), threading.Event()

    class Slow(ChatTemplate):
        def render(self, *args, **kwargs):
            entered.release()
            assert gate.wait(20)
            return super().render(*args, **kwargs)

    served = serving()
    served.service.text = dataclasses.replace(text, chat_template=Slow("{{ messages[0].content }}"))
    served.answer("x")
    # As many as there are threads for chats, and then some.
    posts = [("/v1/chat/completions", {"messages": [USER]}), ("/tokenize", {"messages": [USER]})] * 3
    with ThreadPoolExecutor(len(posts)) as pool:
        try:
            chats = [pool.submit(served.client.post, path, json=body) for path, body in posts]
            assert entered.acquire(timeout=5) and entered.acquire(timeout=5)
            eventually(lambda: served.service.pending == len(posts))
            for spaces in (b"", b" " * INLINE_BYTES):
                body, headers = b'{"prompt": "a"' + spaces + b"}", {"Content-Type": "application/json"}
                assert served.client.post("/v1/completions", content=body, headers=headers).status_code == 200
            assert not any(chat.done() for chat in chats)
        finally:
            gate.set()
        assert [chat.result().status_code for chat in chats] == [200] * len(posts)


def test_a_start_logs_that_chats_will_be_refused(monkeypatch, caplog, engine, text):
    import asyncio
    import io

    from poot_serve import launch
    from poot_serve.progress import Progress

    async def start_supervised(config, *, progress, launch):
        return engine

    unusable = dataclasses.replace(text, chat_template=None, template_problem="odd\ntemplate")
    monkeypatch.setattr(launch, "start_supervised", start_supervised)
    monkeypatch.setattr(launch, "load_text", lambda settings: unusable)
    settings = Settings(model=Path("x.gguf"), model_name="x", listener=Listener("127.0.0.1", 80))
    with caplog.at_level(logging.INFO, logger="poot_serve"):
        service = asyncio.run(launch._start(settings, None, Progress(io.StringIO())))
    service.close()
    (line,) = [record for record in caplog.records if record.levelname == "WARNING"]
    assert line.getMessage() == (
        "chats will be refused, completions served: this model has no chat template that can be used (odd template); "
        "start the server with --chat-template-file"
    )

"""Chat templates render as Hugging Face's apply_chat_template does."""

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from jinja2 import Environment, meta, nodes
from jinja2.ext import Extension
from transformers.utils import chat_template_utils

from poot_models.checkpoint import GgufFile
from poot_models.errors import TemplateError, TemplateRefusal, TemplateRenderError
from poot_models.text import ChatTemplate

TEMPLATES = sorted((Path(__file__).parents[1] / "data" / "templates").glob("*.jinja"))
NOW = datetime(2025, 3, 14, 15, 9)
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
USER = {"role": "user", "content": "  Hello <b>\U0001f999</b> {{ 7 * 7 }}\n"}
CHATS: dict[str, list[dict[str, Any]]] = {
    "user": [USER],
    "system": [{"role": "system", "content": "Be brief."}, USER],
    "turns": [
        {"role": "system", "content": "Be brief."},
        USER,
        {"role": "assistant", "content": "Yes."},
        {"role": "user", "content": "Why?"},
    ],
    "reasoning": [
        USER,
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\nYes.", "reasoning": "hm"},
        {"role": "user", "content": "Why?"},
    ],
    "calls": [
        USER,
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {"id": "call12345", "type": "function", "function": {"name": "find", "arguments": {"q": "ü", "n": 2}}}
            ],
        },
        {"role": "tool", "tool_call_id": "call12345", "name": "find", "content": "nothing"},
    ],
    "empty": [],
}
TOOLS = [{"type": "function", "function": {"name": "find"}}]
SET_BY_RENDERING = {
    *("messages", "tools", "documents", "add_generation_prompt", "continue_final_message"),
    *("raise_exception", "strftime_now"),
}
Render = Callable[..., str]


class Generation(Extension):
    tags = {"generation"}  # noqa: RUF012 - as jinja2 declares it

    def parse(self, parser: Any) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


class Stopped(datetime):
    @classmethod
    def now(cls, tz: Any = None) -> datetime:
        return NOW


@pytest.fixture
def reference(monkeypatch: pytest.MonkeyPatch) -> Render:
    monkeypatch.setattr(chat_template_utils, "datetime", Stopped)

    def render(source: str, chat: list[dict[str, Any]], **options: Any) -> str:
        rendered, _ = chat_template_utils.render_jinja_template([chat], chat_template=source, **TOKENS, **options)
        return rendered[0]

    return render


def ours(source: str, **options: Any) -> ChatTemplate:
    return ChatTemplate(source, now=lambda: NOW, **TOKENS, **options)


def test_smollm2_says_what_it_was_trained_on(smollm2_path: Path, reference: Render) -> None:
    source = GgufFile(smollm2_path).metadata["tokenizer.chat_template"]
    assert ours(source).render([{"role": "user", "content": "Hi"}]) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    for chat in CHATS.values():
        assert ours(source).render(chat) == reference(source, chat, add_generation_prompt=True)


CONTINUED = ["The answer is", "trailing space ", "two\nlines\n", "<think>\nhm\n</think>\n\nThe", "a<\ufdd0|im_end|>b"]


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
def test_continues_the_final_message(path: Path, reference: Render) -> None:
    source = path.read_text()
    template = ours(source)
    for content in CONTINUED:
        chat = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": content}]
        try:
            want = reference(source, chat, continue_final_message=True)
        except Exception:  # the reference lets anything through
            with pytest.raises((TemplateRefusal, TemplateRenderError)):
                template.render(chat, continue_final_message=True)
            continue
        assert template.render(chat, continue_final_message=True) == want
        # A template may show no reasoning, but what the content ends with is where the text ends.
        assert want.rstrip().endswith(content.rsplit(maxsplit=1)[-1])
        assert chat[1]["content"] == content


def test_continues_the_last_text_part(reference: Render) -> None:
    source = "{% for m in messages %}[{% for p in m.content %}{{ p.text }};{% endfor %}]{% endfor %}"
    parts = [{"type": "text", "text": "a "}, {"type": "text", "text": "b "}, {"type": "image"}]
    chat = [{"role": "assistant", "content": parts}]
    text = ours(source).render(chat, continue_final_message=True)
    assert text == reference(source, chat, continue_final_message=True) == "[a ;b "
    assert parts[1] == {"type": "text", "text": "b "}


@pytest.mark.parametrize("chat", [[], [{"role": "assistant"}], [{"role": "user", "content": ["part"]}]])
def test_nothing_to_continue(chat: list[dict[str, Any]]) -> None:
    with pytest.raises(TemplateRenderError, match=r"no text in the last message|leaves out"):
        ours("{{ messages[0].role }}").render(chat, continue_final_message=True)


SYNTAX = [
    "{% for m in messages %}\n    {{ m.content }}\n{% endfor %}\n{# gone #}\nend",
    "{% for m in messages %}{{ loop.index }}/{{ loop.length }} {{ loop.last }} {{ loop.previtem }}{% endfor %}",
    "{% for m in messages if m.role == 'user' %}{{ loop.nextitem is defined }}{% else %}none{% endfor %}",
    "{% for m in messages %}{% if loop.index0 == 1 %}{% continue %}{% endif %}{{ m.role }}{% break %}{% endfor %}",
    "{% for k, v in messages[0].items() %}{{ k }}={{ v }};{% endfor %}{% for x in nothing %}never{% endfor %}",
    "{% generation %}{{ messages[0].content }}{% set x = 1 %}{% endgeneration %}{{ x is defined }}",
    "{{ messages | tojson }}{{ messages | tojson(indent=2, sort_keys=true) }}{{ 'é<' | tojson(ensure_ascii=true) }}",
    "{{ strftime_now('%d %b %Y') }}{{ bos_token }}{{ eos_token }}{{ unk_token }}{{ tools is none }}{{ documents }}",
    "{% set ns = namespace(a=1, self=2) %}{% set ns.a = ns.a + 1 %}{{ ns.a }}{{ ns.self }}{{ dict(a=1)['a'] }}",
    "{% macro say(x) %}[{{ x }}{% for c in x %}{{ c }}{% endfor %}]{% endmacro %}{{ say('ab') }}{{ say(x='c') }}",
    "{{ '%s has %d, %5.2f' % ('a', 2, 3.0) }}{{ 'ab' * 3 }}{{ 2 ** 10 }}{{ 7 % 4 }}{{ [1] * 2 }}{{ 2.5 * 2 }}",
    "{{ messages[0].content[:5] | trim | upper }}{{ range(3) | list }}{{ ['b', 'a'] | sort | join(',') }}{{ extra }}",
    "{% if messages[0]['content'] is string %}s{% endif %}{{ messages[1:] }}",
    "{% for g in messages | groupby('role') %}{{ g.grouper }}{% for m in g.list recursive %}{{ m.role }}{% endfor %}"
    "{% endfor %}",
]


@pytest.mark.parametrize("source", SYNTAX)
def test_the_language_is_that_of_transformers(source: str, reference: Render) -> None:
    for name in ("user", "turns", "calls"):
        want = reference(source, CHATS[name], extra=[1])
        assert ours(source).render(CHATS[name], add_generation_prompt=False, extra=[1]) == want


def test_a_template_for_tools() -> None:
    template = ours("plain", tool_use="tools: {{ tools[0].function.name }}")
    assert template.render([USER]) == "plain"
    assert template.render([USER], tools=[]) == "plain"
    assert template.render([USER], tools=TOOLS) == "tools: find"


CALL = {"id": "call12345", "type": "function", "function": {"name": "find", "arguments": {}}}


def test_missing_content() -> None:
    """It is an empty text, so that templates may search it, but beside calls for a template that asks for none."""
    alone: list[dict[str, Any]] = [{"role": "assistant", "content": None}, {"role": "assistant"}]
    calls = [{"role": "assistant", "content": None, "tool_calls": [CALL]}, {"role": "assistant", "tool_calls": [CALL]}]
    searched = "{% for m in messages %}{{ 'x' in m.content }} {{ m.content is none }} {% endfor %}"
    assert ours(searched).render(alone) == ours(searched).render(calls) == "False False False False "
    asked = (
        "{% for m in messages %}{% if m.content is none %}{% for c in m.tool_calls %}{{ c.function }}{% endfor %}"
        "{% else %}[{{ m.content }}]{% endif %}{% endfor %}"
    )
    assert ours(asked).render(alone) == "[][]"
    assert ours(asked).render(calls) == 2 * str(CALL["function"])
    assert ours(asked).render([{**calls[0], "content": ""}]) == "[]"


def test_reasoning_has_one_name() -> None:
    for name in ("reasoning", "thinking", "reasoning_content"):
        chat = [{"role": "assistant", "content": "a", name: "why"}]
        assert ours("{{ messages[0].reasoning_content }} {{ messages[0].thinking }}").render(chat) == "why why"


def test_a_template_may_refuse() -> None:
    template = ours("{% if messages[0].role != 'user' %}{{ raise_exception('user first!') }}{% endif %}ok")
    assert template.render([USER]) == "ok"
    with pytest.raises(TemplateRefusal, match="user first!"):
        template.render([{"role": "system", "content": ""}])
    with pytest.raises(TemplateRefusal) as caught:
        ours("{{ raise_exception('a' * 100000) }}").render([])
    assert len(str(caught.value)) < 3000


@pytest.mark.parametrize(
    ("source", "chat"),
    [
        ("{{ messages[0].content.missing.more }}", [USER]),
        ("{{ messages[0].content + 1 }}", [USER]),
        ("{{ messages[5].content.x }}", [USER]),
        ("{{ 1 / 0 }}", []),
        ("{{ nothing() }}", []),
        ("{{ unknown | tojson }}", []),
        ("{% for x in none %}{% endfor %}", []),
        ("{% macro a() %}{{ a() }}{% endmacro %}{{ a() }}", []),
        ("{{ strftime_now(1) }}", []),
    ],
)
def test_failing_on_a_conversation_is_a_typed_error(source: str, chat: list[dict[str, Any]]) -> None:
    template = ours(source)
    with pytest.raises(TemplateRenderError, match=r"cannot render this conversation: .+"):
        template.render(chat)


@pytest.mark.parametrize("name", ["messages", "self", "bos_token", "pad_token"])
def test_arguments_do_not_replace_what_the_model_says(name: str) -> None:
    template = ours("{{ thinking }}{{ pad_token }}", special_tokens={"pad_token": "<pad>"})
    assert template.render([], thinking="on") == "on<pad>"
    arguments: dict[str, Any] = {name: "x"}
    with pytest.raises(TemplateRenderError, match=name):
        template.render([], **arguments)


@pytest.mark.parametrize(
    "source",
    [
        *("{% if %}", "{{ a", "{% for x in y %}", "{{ x | no_such_filter }}", "{% include 'x' %}{% endif %}"),
        "{% if a %}" * 5000 + "{% endif %}" * 5000,
        "{{ " + "(" * 20_000 + ")" * 20_000 + " }}",
        "x" * ((1 << 18) + 1),
    ],
)
def test_templates_that_do_not_compile(source: str) -> None:
    with pytest.raises(TemplateError) as caught:
        ours(source)
    assert type(caught.value) is TemplateError
    assert str(caught.value).startswith("the chat template")


@pytest.mark.parametrize(
    ("form", "words"),
    [
        ("{{ a }}", 3),
        ("{% set a = 1 %}", 6),
        ("{% for a in b %}{% endfor %}", 9),
        ("{% macro m() %}{% endmacro %}", 9),
        ("{{ f(a, a, a, a) }}", 12),
        ("{{ a ~ a ~ a ~ a }}x", 10),
        ("{% if a %}{# not counted #}{% elif b %}{% endif %}", 11),
    ],
)
def test_how_many_words_a_template_may_have(form: str, words: int) -> None:
    """As they are counted by hand: each delimiter, name, sign and text between is one."""
    most = 8192 // words
    ours(form * most)
    with pytest.raises(TemplateError, match="over 8192 words"):
        ours(form * (most + 1))


@pytest.mark.parametrize(
    ("start", "again", "end"),
    [
        *(("a", ".b", ""), ("a", "[0]", ""), ("a", "[1:]", ""), ("a", "|trim", ""), ("a", "()", ""), ("a", " + a", "")),
        *(("", "not ", "a"), ("a < ", "(a < ", "a"), ("", "f(k=", "a"), ("", "{1: ", "a"), ("", "[", "a")),
    ],
)
def test_how_deep_an_expression_may_be(start: str, again: str, end: str) -> None:
    """jinja2 takes a second and more to compile one of 180 levels, of a few hundred characters."""

    def source(levels: int) -> str:
        closing = again.count("(") * ")" + again.count("{") * "}" + again.count("[") * "]"
        closing = "" if again in ("[0]", "[1:]", "()") else closing * levels
        return "{{ " + start + again * levels + end + closing + " }}"

    ours(source(18))
    for levels in (41, 100):
        with pytest.raises(TemplateError, match="nested too deeply"):
            ours(source(levels))


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("{{ a }}{{ messages }}{{ range(2) }}", {"a"}),
        ("{% set a = 1 %}{{ a }}", set()),
        ("{% set a = a %}", {"a"}),
        ("{{ a }}{% set a = 1 %}", {"a"}),
        ("{% if b %}{% set a = 1 %}{% else %}{% set a = 2 %}{% endif %}{{ a }}", {"b"}),
        ("{% if b %}{% set a = 1 %}{% elif c %}{% set a = 2 %}{% else %}{% set a = 3 %}{% endif %}{{ a }}", {"b", "c"}),
        ("{% if b %}{% set a = 1 %}{% elif c %}{% set a = 2 %}{% endif %}{{ a }}", {"a", "b", "c"}),
        ("{% if a is not defined %}{% set a = 1 %}{% endif %}{{ a }}", {"a"}),
        ("{% if b %}{% set a = 1 %}{% else %}{{ raise_exception('no') }}{% endif %}{{ a }}", {"b"}),
        ("{% for m in tools %}{% if m %}{% continue %}{% else %}{% set a = 1 %}{% endif %}{{ a }}{% endfor %}", set()),
        ("{% for m in messages %}{% set a = 1 %}{{ loop.index }}{% endfor %}{{ a }}{{ loop }}", {"a", "loop"}),
        ("{% for m in messages if m.a == b %}{{ m }}{% else %}{{ m }}{% endfor %}", {"b", "m"}),
        ("{% macro f(a, b=c) %}{{ a }}{{ b }}{{ d }}{{ varargs }}{{ f(1) }}{% endmacro %}{{ f(1) }}", {"c", "d"}),
        ("{% macro f() %}{{ caller() }}{% endmacro %}{% call f() %}{{ a }}{% endcall %}", {"a"}),
        ("{% set n = namespace() %}{% set n.a = b %}{{ n.a }}", {"b"}),
        ("{% set a %}{{ b }}{% endset %}{{ a }}", {"b"}),
        ("{% with a = b %}{{ a }}{% endwith %}{{ c }}", {"b", "c"}),
        ("{% generation %}{% set a = 1 %}{% endgeneration %}{{ a }}", {"a"}),
        ("{% filter trim %}{{ a }}{% endfilter %}{{ b if c else d }}", {"a", "b", "c", "d"}),
    ],
)  # fmt: skip
def test_variables_are_what_is_read_before_it_is_set(source: str, names: set[str]) -> None:
    assert ours(source).variables == names


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
def test_a_name_that_is_no_variable_does_nothing(path: Path, reference: Render) -> None:
    """Of those that jinja2 itself says may come from outside."""
    source = path.read_text("utf-8")
    tree = Environment(extensions=["jinja2.ext.loopcontrols", Generation]).parse(source)
    names = meta.find_undeclared_variables(tree) - ours(source).variables
    given = {name: "x" for name in names if name not in SET_BY_RENDERING and not name.endswith("_token")}
    for chat in CHATS.values():
        for tools in (None, TOOLS):
            texts = []
            for more in ({}, given):
                try:
                    texts.append(reference(source, chat, tools=tools, **more))
                except Exception as error:
                    texts.append(f"{type(error).__name__}: {error}")
            assert texts[0] == texts[1]

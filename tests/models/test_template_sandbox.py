"""A chat template can neither leave its sandbox nor work without end."""

from threading import Thread

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poot_models.errors import TemplateRenderError, TextError
from poot_models.text import ChatTemplate

CHAT = [{"role": "user", "content": "hi"}]

ESCAPES = [
    "{{ ''.__class__.__mro__ }}",
    "{{ ''['__class__'] }}",
    "{{ '' | attr('__class__') | attr('x') }}",
    "{{ cycler.__init__.__globals__ }}",
    "{{ raise_exception.__globals__ }}",
    "{{ strftime_now.__globals__ }}",
    "{{ self.__init__.__globals__ }}",
    "{{ '{0.__class__.__mro__}'.format('') }}",
    "{{ '{x.__class__.__mro__}'.format_map({'x': ''}) }}",
    "{{ ('{0.__class__}' | attr('format'))('') }}",
    "{% set f = '{0.__class__}'.format %}{{ f('') }}",
    "{{ messages.append(1) }}",
    "{{ messages[0].update({'a': 1}) }}",
    "{{ messages[0].clear() }}",
    "{% set ns = namespace() %}{% set ns.__call__ = 1 %}",
    "{{ namespace(__class__=1) }}",
    "{% set ns = namespace() %}{{ ns.__init__.__globals__ }}",
    "{{ (messages | map(attribute='__class__') | list)[0].x }}",
    "{{ lipsum.__globals__ }}",
    "{% import 'os' as os %}",
    "{% include '/etc/passwd' %}",
    "{% extends 'x' %}",
]


@pytest.mark.parametrize("source", ESCAPES)
def test_no_way_out(source: str) -> None:
    chat = [dict(CHAT[0])]
    try:
        text = ChatTemplate(source).render(chat)
    except TextError:
        text = ""
    assert text in ("", "<class 'str'>") or "class" not in text
    assert "<" not in text
    assert chat == CHAT


ENDLESS = [
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "{% for a in range(99999) %}{% for b in range(99999) %}{% if b > a %}{% continue %}{% endif %}{% endfor %}"
    "{% endfor %}",
    "{% macro m() %}{% for a in range(9999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}{% endmacro %}"
    "{{ m() }}",
    "{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}",
    "{% set ns = namespace(n=0) %}{% for a in range(99999) if a < 0 %}{% endfor %}"
    "{% for a in range(99999) %}{% for b in range(99999) if b < 0 %}{% endfor %}{% endfor %}",
]


@pytest.mark.parametrize("source", ENDLESS)
def test_endless_loops_end(source: str) -> None:
    template = ChatTemplate(source, max_seconds=0.2)
    with pytest.raises(TemplateRenderError, match=r"too long|over 8388608 characters"):
        template.render(CHAT)


@pytest.mark.parametrize(
    "source",
    [
        *("{{ 'a' * 100000000 }}", "{{ 100000000 * 'ab' }}", "{{ [0] * 1000000000 }}", "{{ messages * 100000000 }}"),
        *(
            "{{ 9 ** 999999999 }}",
            "{{ (9 ** 60) ** 60 ** 9 }}",
            "{{ '%99999999d' % 1 }}",
            "{{ '%*d' % (99999999, 1) }}",
        ),
        *("{{ range(1000000000) | list }}", "{% for i in range(1000000000) %}{% endfor %}"),
    ],
)
def test_much_from_little_is_refused(source: str) -> None:
    with pytest.raises(TemplateRenderError):
        ChatTemplate(source).render(CHAT)


def test_output_is_bounded() -> None:
    template = ChatTemplate("{% for i in range(200) %}{{ messages[0].content }}{% endfor %}", max_characters=1000)
    assert len(template.render([{"content": "12345"}])) == 1000
    with pytest.raises(TemplateRenderError, match="over 1000 characters"):
        template.render([{"content": "123456"}])


def test_a_template_cannot_reach_its_meter() -> None:
    text = ChatTemplate("{% set poot = 1 %}{{ meter }}{{ poot }}").render(CHAT)
    assert text == "1"


def test_threads_share_a_template() -> None:
    template = ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}")
    failed: list[int] = []

    def work(number: int) -> None:
        for _ in range(50):
            if template.render([{"content": str(number)}] * 20) != str(number) * 20:
                failed.append(number)

    threads = [Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []


PIECES = st.sampled_from([
    *("{{", "}}", "{%", "%}", "for ", "x in ", "messages", "endfor", "if ", "endif", "set ", "=", "|", "("),
    *(")", "[", "]"),
    *(".content", "'", "1", "**", "*", "+", "~", "range(", "macro ", "endmacro", "namespace(", "tojson", "{#", "#}"),
    *(" ", "loop", "break", "generation", "endgeneration", "-", "\n", "raise_exception(", "\u00e9"),
])  # fmt: skip


@given(source=st.lists(PIECES, max_size=25).map("".join))
@settings(max_examples=300, deadline=None)
def test_any_source_renders_or_is_refused(source: str) -> None:
    try:
        text = ChatTemplate(source, max_seconds=0.5).render(CHAT)
    except TextError:
        return
    assert isinstance(text, str)

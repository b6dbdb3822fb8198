"""No template makes much out of little, whichever operation it does it with, and none works for long."""

from __future__ import annotations

import json
from datetime import datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poot_models.errors import TemplateRenderError, TextError
from poot_models.text import ChatTemplate

CHAT = [{"role": "user", "content": "hi"}]
MANY = "{% set many = 'a' * 1000000 %}"
FULL = MANY + "{% set full = many + many + many + many + many + many + many + many %}"  # nearly what a value may be
TEXT = "{% set n = namespace(s='ab') %}{% for i in range(99) %}{% set n.s = TEXT %}{% endfor %}"
LIST = "{% set n = namespace(l=[1]) %}{% for i in range(99) %}{% set n.l = LIST %}{% endfor %}{{ n.l }}"

TEXTS = (
    *("n.s ~ n.s", "n.s + n.s", "[n.s, n.s] | join", "n.s * 2", "n.s.join(['', '', n.s])", "(n.s ~ n.s) | e"),
    *("'%s%s' % (n.s, n.s)", "'%s%s' | format(n.s, n.s)", "'{0}{0}'.format(n.s)", "n.s | tojson | tojson"),
    *("n.s | replace('a', 'aa')", "n.s.replace('b', 'bb')", "'%(x)s%(x)s' % {'x': n.s}", "(n.s ~ n.s) | safe"),
    *("'{x}{x}'.format_map({'x': n.s})", "n.s.translate({97: 'aa'})", "n.s.expandtabs() ~ n.s"),
)
LISTS = (
    *("[n.l, n.l]", "(n.l, n.l)", "{'a': n.l, 'b': n.l}", "dict(a=n.l, b=n.l)", "n.l + n.l", "[n.l, n.l] | list"),
    *("n.l * 2", "[{'a': n.l}.items(), {'a': n.l}.values()]", "dict.fromkeys([1, 2], n.l)"),
    "[n.l] | batch(2, n.l) | list",
)
DOUBLING = [
    *(TEXT.replace("TEXT", text) for text in TEXTS),
    *(LIST.replace("LIST", text) for text in LISTS),
    "{% autoescape true %}" + TEXT.replace("TEXT", "n.s ~ n.s") + "{% endautoescape %}",
    "{% macro m(s) %}{{ s }}{{ s }}{% endmacro %}" + TEXT.replace("TEXT", "m(n.s)"),
    TEXT.replace("{% set n.s = TEXT %}", "{% set s %}{{ n.s }}{{ n.s }}{% endset %}{% set n.s = s %}"),
]
WIDE = [
    *("{{ 'a' | center(10 ** 9) }}", "{{ 'a'.center(10 ** 9) }}", "{{ 'a'.ljust(10 ** 9) }}"),
    *("{{ 'a'.rjust(10 ** 9) }}", "{{ 'a'.zfill(10 ** 9) }}", "{{ 'a'.encode().center(10 ** 9) }}"),
    *("{{ '\t'.expandtabs(tabsize=10 ** 9) }}", "{{ 'a' | indent(10 ** 9, true) }}"),
    *("{{ ('\n' * 1000000) | indent(1000) }}", "{{ 'a' | indent(width=10 ** 9) }}"),
    *("{{ '%999999999d' % 1 }}", "{{ '%(a)999999999d' % {'a': 1} }}", "{{ '%(a(b))999999999d' % {'a(b)': 1} }}"),
    *("{{ '%.999999999f' % 1.0 }}", "{{ '%*d' % (999999999, 1) }}", "{{ '%.*f' % (999999999, 1) }}"),
    *("{{ '%999999999d' | format(1) }}", "{{ '%(a)999999999d' | format(a=1) }}"),
    *("{{ '%*d' | format(999999999, 1) }}", "{{ '{:999999999}'.format(1) }}"),
    *("{{ '{:{w}}'.format(1, w=999999999) }}", "{{ '{:{w}}'.format(1, w='999999999') }}"),
    *("{{ '{:.999999999f}'.format(1.0) }}", "{{ ('{:999999999}' | attr('format'))(1) }}"),
    *("{{ 'a%999999999d'.encode() % 1 }}", "{{ ('{:999999999}' | safe).format('') }}"),
    *("{{ ('%999999999d' | safe) % 1 }}", "{{ ('a' | safe) * 10 ** 9 }}", "{{ messages | tojson(indent=10 ** 9) }}"),
    *("{{ messages | tojson(separators=('x' * 1000, '')) }}", "{{ messages | tojson(indent='x' * 1000) }}"),
    *("{{ ([[[[1]]]] * 100000) | tojson(indent=64) }}", "{{ 5 | round(-1000000000) }}"),
    *("{{ 5.5 | round(1000000000, 'ceil') }}", "{{ lipsum(10 ** 9) }}", "{{ lipsum(n=1, max=10 ** 9) }}"),
    *("{{ [1] | batch(10 ** 9, 'x') | list }}", "{{ [1] | slice(10 ** 9) | list }}"),
    *("{{ (1).to_bytes(10 ** 9, 'big') }}", "{{ 9 ** 999999999 }}", "{{ (-9) ** 999999 }}", "{{ 2 ** 64 ** 999 }}"),
    *("{{ ('f' * 1000000) | int(0, 16) }}", "{{ strftime_now('%Y' * 100000) }}", "{{ 'a'.encode() * 10 ** 9 }}"),
    "{% set n = namespace(x=3) %}{% for i in range(99) %}{% set n.x = n.x * n.x %}{% endfor %}",
]
OF_MANY = (
    *("{{ many | replace('a', many) }}", "{{ many.replace('', many) }}", "{{ many.translate({97: many}) }}"),
    *("{{ many.translate(''.maketrans({'a': many})) }}", "{{ range(99999) | join(many) }}"),
    *("{{ many.join('a' * 99999) }}", "{{ many.join(range(99999) | map('string')) }}"),
    *("{{ ([{'a': many}] * 99999) | join(attribute='a') }}", "{{ ('%(a)s' * 100000) % {'a': many} }}"),
    *("{{ ('%(a)s' * 100000) | format(a=many) }}", "{{ ('{0}' * 100000).format(many) }}"),
    *("{{ ('{a}' * 100000).format_map({'a': many}) }}", "{{ ('{0!r}' * 100000).format([many]) }}"),
    *("{{ ('a\n' * 100000) | indent(many) }}", "{{ [many] * 100000 }}", "{{ [[0] * 100000] * 100000 }}"),
    *("{{ ([[0] * 1000] * 100000) | sum(start=[]) }}", "{{ ([{'a': many}] * 99999) | groupby('a') }}"),
    "{{ dict.fromkeys(range(99999) | map('string'), many) | xmlattr }}",
    "{{ range(99999) | map('string') | map('center', 1000000) | list }}",
    "{{ (range(99999) | map('string')) | map('replace', '1', many) | join }}",
    "{{ ([none] * 99999) | map('default', many, true) | list }}",
    "{{ ('a ' * 20000) | wordwrap(1, wrapstring=many) }}",
    "{% set x = many[1:] %}{{ [x, x, x, x, x, x, x, x, x] }}",
    "{% macro m() %}{{ varargs }}{% endmacro %}{{ m(*([many] * 99999)) }}",
    "{% macro m() %}{% for i in range(99999) %}{{ many }}{% endfor %}{% endmacro %}{{ m() }}",
    "{% set x %}{% for i in range(99999) %}{{ many }}{% endfor %}{% endset %}",
    "{% filter upper %}{% for i in range(99999) %}{{ many }}{% endfor %}{% endfilter %}",
    "{% set x %}{% for i in range(9999) %}" + "x" * 100000 + "{% endfor %}{% endset %}",
    "{% set n = namespace(l=[]) %}{% for i in range(99) %}{% set n.l = n.l + [many ~ i] %}{% endfor %}",
)
OF_FULL = (
    *("{{ full | list | length }}", "{{ full | batch(1) | list | length }}", "{{ full.replace('a', '<') | e }}"),
    *("{{ full.split('a') | length }}", "{{ full | striptags }}", "{{ full | wordwrap(1) }}"),
    *(
        "{{ full | urlize }}",
        "{{ [full] | pprint }}",
        "{{ (full | safe).split('a') }}",
        "{{ (full | safe).striptags() }}",
    ),
    *("{{ full.encode('punycode') }}", "{{ full.encode('ascii', 'namereplace') }}", "{{ full | sort }}"),
    *("{{ full | unique | list }}", "{{ full | title }}", "{{ (full.replace('a', ' ') ~ 'a').split() }}"),
    *("{{ full.replace('aa', 'a ').split() }}", "{{ full.replace('a', '\u2028').splitlines() }}"),
)
PRODUCTS = [
    *(MANY + body for body in OF_MANY),
    *(FULL + body for body in OF_FULL),
    "{{ ('<!---->' * 100000) | striptags }}",
    "{{ (range(99999) | map('string') | map('list')) | sum(start=[]) }}",
]


@pytest.mark.parametrize("source", [*DOUBLING, *WIDE, *PRODUCTS])
def test_much_from_little_is_refused(source: str) -> None:
    """By a bound, which says "it does this or that", before the memory is asked for."""
    with pytest.raises(TemplateRenderError, match="conversation: it ") as caught:
        ChatTemplate(source).render(CHAT)
    assert len(str(caught.value)) < 200


DEEP = [
    "{% set n.l = (n.l,) %}", "{% set n.l = [n.l] %}", "{% set n.l = {'a': n.l} %}", "{% set n.l = dict(a=n.l) %}",
    "{% set n.l = n.l | map('string') %}", "{% set n.l = [n.l].copy() %}",
]  # fmt: skip


@pytest.mark.parametrize("step", DEEP)
def test_values_nest_to_a_depth(step: str) -> None:
    """The hash of a tuple in a tuple, many times over, and the end of such lazy values, would end the process."""
    loop = "{% set n = namespace(l=[]) %}{% for i in range(TURNS) %}" + step + "{% endfor %}"
    with pytest.raises(TemplateRenderError, match=r"too deeply|200 deep"):
        ChatTemplate(loop.replace("TURNS", "99999") + "{{ {n.l: 1} }}").render(CHAT)
    assert ChatTemplate(loop.replace("TURNS", "100")).render(CHAT) == ""


# Multiples of 2 ** 61 - 1, which have one hash.
ONE_HASH = "{% set l = range(0, 2305843009213693951 * 90000, 2305843009213693951) %}"
LONG = [
    ONE_HASH + "{{ dict.fromkeys(l) | length }}",
    ONE_HASH + "{{ dict(l | batch(2)) | length }}",
    ONE_HASH + "{{ l | unique | list }}",
    "{% macro m() %}{{ caller() }}{{ caller() }}{% endmacro %}" + "{% call m() %}" * 30 + "x" + "{% endcall %}" * 30,
    "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
    "{% for x in range(9999) recursive %}{% if loop.depth < 5 %}{{ loop(range(9999)) }}{% endif %}{% endfor %}",
    "{% set l = range(99999) | list %}" + "{% if 'x' in l %}{% endif %}" * 600,
    "{% set l = range(99999) %}" + "{% if 'x' in l %}{% endif %}" * 600,
    "{{ range(99999) | map('string') | select('in', range(99999) | map('string') | list) | list }}",
    "{% for a in range(99999) %}{% if range(99999) | select('eq', 'x') | list %}{% endif %}{% endfor %}",
    "{% set n = namespace(s='') %}{% for i in range(99999) %}{% set n.s = n.s ~ 'abcdefghijklmnopqrstuvwxyz' %}"
    "{% endfor %}",
    "{% set n = namespace(l=[]) %}{% for i in range(99999) %}{% set n.l = n.l + [i] %}{% endfor %}",
    FULL + "{% set d = full[1:] ~ 'd' %}{% set e = full[1:] ~ 'e' %}" + "{% if d == e %}{% endif %}" * 600,
    FULL + "{% set d = full[1:] ~ 'd' %}{% set e = full[1:] ~ 'e' %}" + "{% if d is eq e %}{% endif %}" * 600,
    FULL + "".join(f"{{% set v{number} = full[1:] %}}" for number in range(500)),
    FULL + "{% if full.upper() %}{% endif %}" * 500,
    FULL + "{% if full.count('ab') %}{% endif %}" * 600,
]


@pytest.mark.parametrize("source", LONG, ids=range(len(LONG)))
def test_long_work_ends(source: str) -> None:
    with pytest.raises(TemplateRenderError, match=r"ran for too long|works through too much"):
        ChatTemplate(source, max_seconds=0.2).render(CHAT)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ 'a' | center(5) }}|{{ 'a'.ljust(3) }}|{{ '7'.zfill(3) }}", "  a  |a  |007"),
        ("{{ 'a\tb'.expandtabs(4) }}|{{ 'ab'.translate({97: 'x'}) }}", "a   b|xb"),
        ("{{ 'a\nb' | indent(2) }}|{{ 'a\nb' | indent('> ', true) }}", "a\n  b|> a\n> b"),
        ("{{ '%5d|%-3s|%.2f|%(' % (1, 'a', 2) }}", None),
        ("{{ '%5d|%-3s|%.2f|%%9999999d' % (1, 'a', 2) }}", "    1|a  |2.00|%9999999d"),
        ("{{ '%(a)s %(b)03d' % {'a': 'x', 'b': 7} }}{{ '%*d' % (4, 1) }}", "x 007   1"),
        ("{{ '{:>4}|{a!r}|{b[c]}'.format(1, a='x', b={'c': 2}) }}{{ '{x}'.format_map({'x': 1}) }}", "   1|'x'|21"),
        ("{{ ('<{}>' | safe).format('<') }}", "<&lt;>"),
        ("{{ [1, 2] | sum }}{{ [[1], [2]] | sum(start=[]) }}{{ 2.567 | round(1) }}", "3[1, 2]2.6"),
        ("{{ [1, 2, 3] | batch(2, 'x') | list }}", "[[1, 2], [3, 'x']]"),
        ("{{ [1, 2, 3] | slice(2) | list }}{{ 2 ** 70 }}", "[[1, 2], [3]]1180591620717411303424"),
        ("{{ 'aXb'.replace('X', '--') }}{{ 'aaa' | replace('a', 'b', 2) }}", "a--bbba"),
        ("{{ ','.join(['a', 'b']) }}{{ ['a', 'b'] | join(',') }}{{ messages | join(attribute='role') }}", "a,ba,buser"),
        ("{{ 'a b c' | wordwrap(1) }}{{ 'x' | pprint }}{{ '<b>x</b>' | striptags }}", "a\nb\nc'x'x"),
        ("{{ (1).to_bytes(2, 'big') }}{{ 'ff' | int(0, 16) }}{{ nothing | join }}", "b'\\x00\\x01'255"),
        ("{{ dict([('a', 1)], b=2) }}{{ dict({'a': 1}, b=2) }}{{ dict() }}", "{'a': 1, 'b': 2}{'a': 1, 'b': 2}{}"),
        ("{{ 'é'.encode() }}{{ 'é'.encode('utf-16-le') }}{{ 1 ** 99999 }}{{ 'a b'.split() }}{{ 'a\nb'.splitlines() }}",
         "b'\\xc3\\xa9'b'\\xe9\\x00'1['a', 'b']['a', 'b']"),
        ("{{ 7 // 2 }}{{ 1 / 2 }}{{ 3 - 1 }}{{ -7 % 4 }}{{ [1, 2][1:] }}", "30.521[2]"),
        ("{{ 1 ~ 'a' ~ none ~ nothing }}{{ {'a': 1}.items() | list }}{{ dict.fromkeys('ab', 0) }}",
         "1aNone[('a', 1)]{'a': 0, 'b': 0}"),
        ("{% for x in [1, [2, [3]]] recursive %}{{ loop(x) if x is iterable else x }}{% endfor %}", "123"),
        ("{% filter upper %}a{{ 'b' }}{% endfilter %}{% set x | trim %} c {% endset %}{{ x }}", "ABc"),
        ("{{ messages | tojson(indent=1) }}", json.dumps(CHAT, indent=1)),
        ("{{ messages | tojson(separators=(',', ':')) }}{{ 1 in range(3) }}{{ 'b' in ('a', 'b') }}",
         json.dumps(CHAT, separators=(",", ":")) + "TrueTrue"),
        ("{% autoescape true %}<{{ '<' ~ ('<' | safe) }}{{ ['<'] | join }}{% endautoescape %}", "<&lt;<&lt;"),
        ("{{ lipsum(1, false, 2, 3) | wordcount > 0 }}{{ strftime_now('%Y') }}", "True2025"),
    ],
)  # fmt: skip
def test_what_is_bounded_still_works(source: str, text: str | None) -> None:
    """As Python and jinja2 document it; None: Python refuses the format."""
    template = ChatTemplate(source, now=lambda: datetime(2025, 3, 14))
    if text is None:
        with pytest.raises(TemplateRenderError, match="format"):
            template.render(CHAT)
    else:
        assert template.render(CHAT) == text


def test_a_namespace_shows_nothing_of_what_it_holds() -> None:
    """It alone can hold itself, or another twice over, without anything being made anew."""
    source = "{% set n = namespace() %}{% set n.a = n %}{% set n.b = [n, n] %}{{ n }}{{ n.b }}"
    assert ChatTemplate(source).render(CHAT) == "<Namespace>[<Namespace>, <Namespace>]"


def test_nobody_changes_a_dictionary_through_its_class() -> None:
    for call in ("update(messages[0], {'a': 1})", "setdefault(messages[0], 'a', messages)", "clear(messages[0])"):
        with pytest.raises(TemplateRenderError):
            ChatTemplate("{{ dict." + call + " }}").render(CHAT)
    assert CHAT == [{"role": "user", "content": "hi"}]


def test_a_long_conversation_is_no_hostile_one() -> None:
    """As much as a request may hold: in one message, and in many."""
    source = (
        "{% for m in messages %}{% set c = m.content | trim %}{% if '</think>' in c %}x{% endif %}"
        "{{ '<|' ~ m.role ~ '|>' + c.split('</think>')[-1] }}{% endfor %}"
    )
    for chat in (
        [{"role": "user", "content": "word " * 800_000}],
        [{"role": "user", "content": "word " * 40}] * 20_000,
    ):
        assert len(ChatTemplate(source, max_seconds=60).render(chat)) >= 3_900_000


STEPS = st.sampled_from([
    *(" | join(n.s)", " ~ n.s", " * 9", " | replace('a', n.s)", " | center(99999)", ".format(n.s)", " % n.s"),
    *(" | tojson", " | list", " | map('string')", " | batch(3, n.s)", " | string", "[1:]", " | indent(9, true)"),
    *(" + n.s", " | urlize", " | sort", " | unique | list", ".join(n.s)", ".split('a')", " | length"),
    *(" | sum(start='')", " | wordwrap(2)", " == n.s"),
])  # fmt: skip


@given(steps=st.lists(STEPS, min_size=1, max_size=4).map("".join))
@settings(max_examples=50, deadline=None)
def test_any_steps_repeated_end(steps: str) -> None:
    source = (
        "{% set n = namespace(s='%s{}ab') %}{% for i in range(99) %}{% set n.s = (n.s"
        + steps
        + ") %}{% endfor %}{{ n.s }}"
    )
    try:
        text = ChatTemplate(source, max_seconds=0.3).render(CHAT)
    except TextError:
        return
    assert len(text) <= 8 << 20

"""In which forms templates take messages. What is expected of published ones was read in their source."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from poot_models.text import ChatTemplate, Habits

TEMPLATES = Path(__file__).parents[1] / "data" / "templates"
# Roles whose content the template goes through part by part, so that the parts read as if they were one text.
PARTS = {
    "Apriel-1.6-15b-Thinker-fixed": "user",  # of others it takes the first part
    "GLM-4.6": "assistant system user",  # a tool's list holds results
    "GLM-4.7-Flash": "assistant system user",
    "Kimi-K2-Instruct": "assistant system user",
    "Kimi-K3": "assistant system tool user",
    "MiniMax-M1": "assistant user",  # of a system's list it takes the first part; a tool's holds results
    "MiniMax-M3": "assistant developer system tool user",
    "Mistral-Small-3.2-24B-Instruct-2506": "assistant user",
    "Qwen3.5-4B": "assistant system tool user",
    "Spark2.5": "assistant system user",
    "google-gemma-4-31B-it-interleaved": "assistant tool user",
    "mistralai-Ministral-3-14B-Reasoning-2512": "assistant system user",
    "moonshotai-Kimi-K2": "assistant system user",
    "tencent-Hy3": "assistant system tool user",
    "unsloth-mistral-Devstral-Small-2507": "user",
}
# Templates that compare a role with "developer" and then write the message.
DEVELOPER = {"MiniMax-M3", "deepseek-ai-DeepSeek-V4", "google-gemma-4-31B-it-interleaved", "openai-gpt-oss-120b"}
# Templates that add a call's arguments to a text.
TEXT_ARGUMENTS = {"deepseek-ai-DeepSeek-R1-Distill-Llama-8B", "meetkai-functionary-medium-v3.2"}
# Templates that write calls where the content is none, and end a turn too early or write no call where it is "".
NONE = {"deepseek-ai-DeepSeek-R1-Distill-Llama-8B", "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B"}


@pytest.mark.parametrize("path", sorted(TEMPLATES.glob("*.jinja")), ids=lambda path: path.stem)
def test_of_published_templates(path: Path) -> None:
    name = path.stem
    assert ChatTemplate(path.read_text("utf-8"), bos_token="<s>", eos_token="</s>").habits == Habits(
        part_roles=frozenset(PARTS.get(name, "").split()),
        only_parts=frozenset(),
        developer=name in DEVELOPER,
        text_arguments=name in TEXT_ARGUMENTS,
        no_content=None if name in NONE else "",
    )


EACH = "{% for m in messages %}"
END = "{% endfor %}"
CALLS = "{% for c in m.tool_calls or [] %}{{ c.function.name }}{{ ARGUMENTS }}{% endfor %}"

JSON_CALLS = CALLS.replace("ARGUMENTS", "c.function.arguments | tojson")


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("{{ m.content }}", {}),
        ("{{ m.content if m.content is string else m.content | map(attribute='text') | join }}",
         {"part_roles": "assistant system tool user"}),
        ("{{ m.content if m.content is string else m.content | map(attribute='text') | join('; ') }}", {}),
        ("{{ m.content | selectattr('text') | map(attribute='text') | join }}",
         {"part_roles": "assistant system tool user", "only_parts": "assistant system tool user"}),
        ("{% if m.role == 'user' %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endif %}",
         {"part_roles": "user", "only_parts": "user"}),
        ("{% if m.role in ['system', 'developer'] %}{{ m.content }}{% endif %}", {"developer": True}),
        ("{% if m.role != 'developer' %}{{ m.content }}{% endif %}", {}),
        ("{# developer #}{{ m.role }}: {{ m.content }}", {}),
        (JSON_CALLS, {}),
        (CALLS.replace("ARGUMENTS", "'```' + c.function.arguments"), {"text_arguments": True}),
        (CALLS.replace("ARGUMENTS", "c.function.arguments"), {"text_arguments": True}),
        ("{% if m.content is none %}" + CALLS.replace("ARGUMENTS", "c.function.arguments.items() | list")
         + "{% else %}{{ m.content }}{% endif %}", {"no_content": None}),
        ("{{ m.content if m.content is not none else 'x' }}" + JSON_CALLS, {"no_content": None}),
        ("{{ m.content }}" + JSON_CALLS, {"no_content": ""}),
        ("{{ raise_exception('never') }}", {}),
    ],
)  # fmt: skip
def test_of_small_templates(body: str, expected: dict[str, Any]) -> None:
    roles = {name: frozenset(str(expected.get(name, "")).split()) for name in ("part_roles", "only_parts")}
    assert ChatTemplate(EACH + body + END).habits == Habits(**{**expected, **roles})


def test_of_a_template_for_tools_alone() -> None:
    source = "{% for t in tools %}{{ t.function.name }}{% endfor %}" + EACH + "{{ m.content }}" + END
    assert ChatTemplate(source.replace("m.content", "m.content + ''")).habits == Habits()
    listed = source.replace(
        "m.content", "m.content if m.content is string else m.content | map(attribute='text') | join"
    )
    assert ChatTemplate(listed).habits.part_roles == {"assistant", "system", "tool", "user"}


def test_each_of_two_templates_gets_calls_in_its_own_form() -> None:
    asks = EACH + "{% if m.content is none %}{{ m.tool_calls[0].function }}{% endif %}" + END
    template = ChatTemplate(EACH + "{{ m.content is none }}" + END, tool_use=asks)
    call = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}
    assert template.render([call]) == "False"
    assert template.render([call], tools=[{}]) == str(call["tool_calls"][0]["function"])  # type: ignore[index]


def test_the_variables_that_a_caller_may_set() -> None:
    template = ChatTemplate(
        "{{ bos_token }}{{ pad_token }}{{ image_token }}{% for m in messages %}{{ m.x }}{{ loop.index }}{% endfor %}"
        "{{ tools }}{{ documents }}{{ add_generation_prompt }}{{ continue_final_message }}{{ strftime_now('%Y') }}"
        "{{ namespace(a=1) }}{{ range(1) }}{{ dict() }}{{ raise_exception is defined }}{{ self }}"
        "{% set mine = 1 %}{{ mine }}{% macro m(given) %}{{ given }}{{ deep }}{% endmacro %}"
        "{% if thinking is not defined %}{% set thinking = false %}{% endif %}{{ thinking }}",
        special_tokens={"image_token": "<img>"},
        tool_use="{{ style }}",
    )
    assert template.variables == {"deep", "thinking", "style"}

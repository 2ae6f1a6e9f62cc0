"""Chat templates: the dialect of Hugging Face, and what a hostile template cannot do."""

import datetime
import tracemalloc

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from engine.errors import RequestError, TokenizerError
from engine.models import chat_sandbox
from engine.models.chat import MAX_CHARACTERS, ChatTemplate

MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": 'Is 1 < 2? <b>&amp;"\n'},
    {"role": "assistant", "content": "  Yes.  "},
    {"role": "user", "content": "héllo 🙂"},
]
TEMPLATES = {
    "marks": """{% for m in messages %}<|{{ m['role'] }}|>{{ m.content }}<|end|>
{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}""",
    "control": """{{ bos_token }}{% for m in messages %}
    {% if m.role == 'system' %}{% continue %}{% endif %}
    {% if loop.index > 3 %}{% break %}{% endif %}
[{{ m.content | trim }}]{% endfor %}{{ eos_token }}""",
    "state": """{% set ns = namespace(seen=0) %}
{%- for m in messages -%}
{%- if m.role == 'user' %}{% set ns.seen = ns.seen + 1 %}{{ ns.seen }}: {{ m.content }}
{% endif %}{% endfor -%}{{ messages | tojson }} {{ messages[0] | tojson(indent=2) }}""",
    "macro": """{% macro turn(m) %}{{ m['role'] | upper }}: {{ m['content'] | replace('1', 'one') }}
{% endmacro %}{% for m in messages %}{{ turn(m) }}{% endfor %}{{ messages | length }}
{{ messages | map(attribute='role') | join(',') }}
{{ messages | selectattr('role', 'equalto', 'user') | list | length }}""",
    "slices": """{% set rest = messages[1:] %}{{ rest[-1].content.split('l')[0] }}{{ 'a' ~ 1 }}{{ 2 * 3 % 4 }}
{{ rest | last | string }}{{ messages[0].content.startswith('Be') }}{{ x is defined }}""",
    "channels": """{%- macro said(m) -%}
<|start|>{{ m.role }}{% if m.role == 'assistant' %}<|channel|>{{ m.channel | default('final') }}{% endif -%}
<|message|>{{ m.content }}{{ '<|return|>' if m is sameas messages[-1] else '<|end|>' }}
{%- endmacro -%}
{%- if effort is not defined %}{% set effort = 'medium' %}{% endif -%}
{%- set state = namespace(rules=none, rest=messages) -%}
{%- if messages[0].role in ['system', 'developer'] -%}
{%- set state.rules = messages[0].content %}{% set state.rest = messages[1:] -%}
{%- endif -%}
<|start|>system<|message|>Today: {{ strftime_now('%Y-%m') }}\nReasoning: {{ effort }}<|end|>
{%- if state.rules or tools -%}
<|start|>developer<|message|># Instructions\n\n{{ state.rules }}{{ tools | tojson if tools }}<|end|>
{%- endif -%}
{%- for m in state.rest -%}
{%- if 'channel' in m and '<|message|>' in m.content %}{{ raise_exception('a channel') }}{% endif -%}
{{ said(m) }}
{%- endfor -%}
{%- if add_generation_prompt %}<|start|>assistant{% endif -%}""",
    "nothing": "{% if tools is none and documents is none %}none{% endif %}{{ tools is defined }}",
    "generation": """{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}""",
}


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("prompt", [True, False])
def test_templates_render_as_in_transformers(name: str, prompt: bool) -> None:
    theirs = render_jinja_template(
        conversations=[MESSAGES],
        chat_template=TEMPLATES[name],
        add_generation_prompt=prompt,
        bos_token="<s>",
        eos_token="</s>",
    )

    ours = ChatTemplate(TEMPLATES[name], bos_token="<s>", eos_token="</s>").render(
        MESSAGES, generation_prompt=prompt
    )

    assert ours == theirs[0][0]


def test_the_date_can_be_asked_for() -> None:
    before = datetime.datetime.now().astimezone().strftime("%Y")

    year = ChatTemplate("{{ strftime_now('%Y') }}").render(MESSAGES)

    assert year in (before, datetime.datetime.now().astimezone().strftime("%Y"))


def test_messages_that_the_template_refuses_are_the_callers_mistake() -> None:
    template = ChatTemplate("{{ raise_exception('roles must alternate') }}")

    with pytest.raises(RequestError, match="refuses these messages: roles must alternate"):
        template.render(MESSAGES)


def test_a_template_that_does_not_parse_is_named_at_once() -> None:
    with pytest.raises(TokenizerError, match="does not parse"):
        ChatTemplate("{% for %}")


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[0].nothing.more }}",
        "{{ 1 / 0 }}",
        "{{ 'a' + 1 }}",
        "{{ unknown_function() }}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.__init__.__globals__ }}",
        "{{ self._TemplateReference__context }}{{ cycler.__init__.__globals__.os }}",
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}",
    ],
)
def test_a_template_that_fails_is_the_models_mistake(source: str) -> None:
    with pytest.raises(TokenizerError):
        ChatTemplate(source).render(MESSAGES)


@pytest.mark.slow
@pytest.mark.parametrize(
    "source",
    [
        "{{ 'a' * 10**9 }}",
        "{{ 'a' * 1000000000 }}",
        "{{ [0] * 1000000000 }}",
        "{{ 9 ** 9 ** 9 }}",
        "{{ '%1000000000d' % 1 }}",
        "{{ '%1000000000d' | format(1) }}",
        "{{ '{:1000000000}'.format(1) }}",
        "{{ '{x:1000000000}'.format_map({'x': 1}) }}",
        "{{ 'a'.ljust(1000000000) }}",
        "{{ 'a'.zfill(1000000000) }}",
        "{{ 'a' | center(1000000000) }}",
        "{{ 'a' | indent(1000000000, true) }}",
        "{{ messages | tojson(indent=1000000000) }}",
        "{% for i in range(100000000) %}{% endfor %}",
        "{% for i in range(90000) %}" + "a" * 100 + "{% endfor %}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    ],
)
def test_a_template_cannot_fill_the_memory(source: str) -> None:
    tracemalloc.start()

    with pytest.raises(TokenizerError):
        ChatTemplate(source).render(MESSAGES)

    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 64 << 20


def test_a_text_just_within_the_limit_is_written() -> None:
    content = "x" * MAX_CHARACTERS

    assert ChatTemplate("{{ messages[0].content }}").render([{"role": "user", "content": content}]) == content


def test_users_text_is_never_a_template() -> None:
    text = ChatTemplate("{{ messages[0].content }}").render([{"role": "user", "content": "{{ 1 + 1 }}"}])

    assert text == "{{ 1 + 1 }}"


CHATML = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content | trim }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def test_a_last_message_of_the_assistant_is_left_open_to_be_continued() -> None:
    messages = [{"role": "user", "content": "Count."}, {"role": "assistant", "content": "One, two,"}]
    assert ChatTemplate(CHATML).render(messages) == "<|user|>Count.<|end|><|assistant|>One, two,"


def test_an_empty_last_message_of_the_assistant_is_a_turn_that_has_not_begun() -> None:
    messages = [{"role": "user", "content": "Count."}, {"role": "assistant", "content": ""}]
    assert ChatTemplate(CHATML).render(messages) == "<|user|>Count.<|end|><|assistant|>"


def test_a_message_that_the_template_rewrites_cannot_be_continued() -> None:
    messages = [{"role": "user", "content": "Count."}, {"role": "assistant", "content": "one"}]
    with pytest.raises(RequestError, match="rewrites the last message"):
        ChatTemplate("{% for m in messages %}{{ m.content | upper }}{% endfor %}").render(messages)


LOOP = "{%% set n=namespace(s=%s) %%}{%% for i in range(40) %%}{%% set n.s=%s %%}{%% endfor %%}{{ n.s }}"
GROWING = {
    "text + text": LOOP % ("'aaaaaaaa'", "n.s+n.s"),
    "text ~ text": LOOP % ("'aaaaaaaa'", "n.s~n.s"),
    "list + list": LOOP % ("[1]", "n.s+n.s"),
    "replace": LOOP % ("'aa'", "n.s.replace('a', n.s)"),
    "replace filter": LOOP % ("'aa'", "n.s|replace('a', n.s)"),
    "join": LOOP % ("'aa'", "n.s.join(n.s)"),
    "join filter": LOOP % ("'aa'", "n.s|join(n.s)"),
    "numbers": LOOP % ("99999", "n.s*n.s"),
    "lists in lists": LOOP % ("[1]", "[n.s, n.s]"),
    "batch": "{{ [1]|batch(1000000000, 0)|list }}",
    "slice": "{{ [1]|slice(1000000000)|list }}",
    "lists, unrolled": "{% set a=[1] %}" + "{% set a=[a, a] %}" * 40 + "{{ a|tojson }}",
    "dicts": "{% set a={'b': 1} %}" + "{% set a={'b': a, 'c': a} %}" * 40 + "{{ a|string }}",
    "loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "loops over messages": "{% for a in messages %}" * 20 + "x" + "{% endfor %}" * 20,
    "macros": "{% macro m(x) %}{% if x < 99 %}{{ m(x+1) }}{{ m(x+1) }}{% endif %}{% endmacro %}{{ m(0) }}",
    "its own names": "{% set environment=1 %}" + "{% for a in range(99999) %}" * 2 + "{% endfor %}" * 2,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", GROWING)
def test_a_template_that_grows_or_never_ends_is_stopped(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_sandbox, "MAX_CPU_S", 0.2)
    template = ChatTemplate(GROWING[name])
    tracemalloc.start()
    try:
        with pytest.raises(TokenizerError, match="template"):
            template.render(MESSAGES)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 150e6


def test_each_rendering_has_time_of_its_own() -> None:
    template = ChatTemplate("{% for m in messages %}{{ m.role ~ ' ' }}{% endfor %}")
    for _ in range(50):
        assert template.render(MESSAGES) == "system user assistant user "

from __future__ import annotations

import json
from typing import Any

import pytest

from headrace.core.errors import ConfigError, InvalidRequest
from headrace.engine.chat_template import ChatOptions
from headrace.engine.template_budget import RenderLimits
from tests.engine.templates import CHATML, PARTS, STRICT, chat_template

USER = [{"role": "user", "content": "Hi"}]
NO_PROMPT = ChatOptions(add_generation_prompt=False)


def render(source: str, messages: list[dict[str, Any]] | None = None, **options: Any) -> str:
    return chat_template(source).render(messages or USER, ChatOptions(**options))


def test_messages_become_the_text_the_model_was_trained_on() -> None:
    messages = [{"role": "system", "content": "Be brief."}, *USER]
    expected = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
    assert render(CHATML, messages, add_generation_prompt=False) == expected
    assert render(CHATML, messages) == expected + "<|im_start|>assistant\n"


def test_several_system_messages_are_rendered_in_order() -> None:
    messages = [{"role": "system", "content": "A"}, {"role": "system", "content": "B"}, *USER]
    assert render(CHATML, messages).count("<|im_start|>system\n") == 2


def test_the_templates_own_refusal_is_the_error() -> None:
    with pytest.raises(InvalidRequest, match=r"^Conversation roles must alternate") as caught:
        render(STRICT, [{"role": "assistant", "content": "x"}])
    assert caught.value.param == "messages"


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[0].nothing.more }}",
        "{{ 1 + 'a' }}",
        "{{ messages['x'].y }}",
        "{{ 1 / 0 }}",
        "{{ nothing() }}",
        "{{ [1, 'a'] | sort }}",
        "{% include 'other' %}",
        "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}",
    ],
)
def test_a_template_that_fails_is_an_invalid_request(source: str) -> None:
    with pytest.raises(InvalidRequest, match="chat template"):
        render(source)


@pytest.mark.parametrize("source", ["{% for %}", "{{ 'a' ", "{% endif %}", "{{ x | no_such_filter }}", "{% for" * 5000])
def test_a_template_that_cannot_be_compiled_is_a_config_error(source: str) -> None:
    with pytest.raises(ConfigError, match="chat template"):
        chat_template(source)


def test_names_dates_loops_and_generation_tags_work_as_in_transformers() -> None:
    source = (
        "{{ bos_token }}{{ strftime_now('%d %b %Y') }}"
        "{% for i in range(9) %}{% if i == 1 %}{% continue %}{% endif %}{% if i == 3 %}{% break %}{% endif %}{{ i }}"
        "{% endfor %}{% generation %}{{ messages[0].content }}{% endgeneration %}{{ eos_token }}"
    )
    assert render(source) == "<s>26 Jul 202402Hi</s>"


def test_tojson_escapes_no_html_and_keeps_unicode() -> None:
    tools = [{"name": "naïve <b> & 'x'", "n": 1}]
    assert render("{{ tools | tojson }}", tools=tools) == json.dumps(tools, ensure_ascii=False)
    assert render("{{ tools | tojson(indent=2) }}", tools=tools) == json.dumps(tools, ensure_ascii=False, indent=2)


def test_block_whitespace_is_trimmed_as_in_transformers() -> None:
    assert render("{% if true %}\n  a\n  {% endif %}\nb\n") == "  a\nb"


def test_parts_are_given_as_text_to_templates_that_read_text() -> None:
    parts = [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]
    assert "user\na\nb<|im_end|>" in render(CHATML, parts)


def test_text_is_given_as_parts_to_templates_that_read_parts() -> None:
    assert render(PARTS) == "Hi"
    assert render(PARTS, [{"role": "user", "content": [{"type": "text", "text": "a"}]}]) == "a"


def test_parts_other_than_text_are_refused_by_name() -> None:
    messages = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]
    with pytest.raises(InvalidRequest, match="'image_url'") as caught:
        render(CHATML, messages)
    assert caught.value.param == "messages[0].content[0]"


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"content": "x"}, "messages[0].role"),
        ({"role": "user", "content": 5}, "messages[0].content"),
        ({"role": "user", "content": [5]}, "messages[0].content[0]"),
        ({"role": "assistant", "tool_calls": 5}, "messages[0].tool_calls"),
        ({"role": "assistant", "tool_calls": [{}]}, "messages[0].tool_calls[0]"),
        (
            {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]},
            "messages[0].tool_calls[0].function.arguments",
        ),
        (
            {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "[1]"}}]},
            "messages[0].tool_calls[0].function.arguments",
        ),
    ],
)
def test_a_malformed_message_is_refused_by_its_field(message: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        render(CHATML, [message])
    assert caught.value.param == param


def test_no_messages_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="at least one"):
        chat_template(CHATML).render([], ChatOptions())


CALL: list[dict[str, Any]] = [
    *USER,
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"b": 1, "a": "é"}'}}],
    },
    {"role": "tool", "tool_call_id": "1", "content": "42"},
]


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("call.function.arguments | tojson", '{"b": 1, "a": "é"}'),
        ("call.function.arguments", '{"b": 1, "a": "é"}'),
        ("call.function.name + '=' + call.function.arguments", 'f={"b": 1, "a": "é"}'),
        ("call.function.name ~ call.function.arguments", 'f{"b": 1, "a": "é"}'),
        ("call.function.arguments.a", "é"),
        ("call.function.arguments.items() | list | length", "2"),
        ("call.function | tojson", '{"name": "f", "arguments": {"b": 1, "a": "é"}}'),
    ],
)
def test_tool_arguments_suit_templates_that_want_an_object_or_its_text(expression: str, expected: str) -> None:
    source = "{% for call in messages[1].tool_calls %}{{ " + expression + " }}{% endfor %}"
    assert render(source, CALL) == expected


def test_a_call_without_content_and_its_result_are_rendered() -> None:
    text = render(CHATML, CALL)
    assert "<|im_start|>assistant\n<|im_end|>" in text
    assert "<|im_start|>tool\n42<|im_end|>" in text


def test_a_developer_is_the_system_where_the_template_knows_no_developer() -> None:
    messages = [{"role": "developer", "content": "x"}]
    assert "<|im_start|>system\nx" in render(CHATML, messages)
    assert "<|im_start|>developer\nx" in render("{# developer #}" + CHATML, messages)


def test_the_last_message_can_be_left_open() -> None:
    messages = [*USER, {"role": "assistant", "content": "Sure, I "}]
    text = render(CHATML, messages, add_generation_prompt=False, continue_final_message=True)
    assert text.endswith("<|im_start|>assistant\nSure, I ")
    assert "\U0001fffe" not in text


def test_a_last_message_that_is_not_shown_cannot_be_continued() -> None:
    with pytest.raises(InvalidRequest, match="cannot be continued"):
        render("{{ messages | length }}", add_generation_prompt=False, continue_final_message=True)


def test_a_prompt_cannot_both_open_and_continue_a_turn() -> None:
    with pytest.raises(InvalidRequest, match="exclude each other"):
        render(CHATML, continue_final_message=True)


def test_requests_with_tools_use_the_template_for_tools() -> None:
    template = chat_template(CHATML, more={"tool_use": "{{ tools | length }} tools"})
    assert template.render(USER, ChatOptions(tools=[{"name": "f"}])) == "1 tools"
    assert template.render(USER, NO_PROMPT).startswith("<|im_start|>")


def test_template_variables_can_be_set_unless_they_are_the_servers() -> None:
    source = "{% if enable_thinking is defined and not enable_thinking %}quiet{% endif %}"
    template = chat_template(source)
    assert "enable_thinking" in template.variables
    assert template.render(USER, ChatOptions(template_kwargs={"enable_thinking": False})) == "quiet"
    assert template.render(USER, ChatOptions(template_kwargs={"unknown": 1})) == ""
    for name in ("messages", "tools", "add_generation_prompt", "bos_token"):
        with pytest.raises(InvalidRequest, match=name):
            template.render(USER, ChatOptions(template_kwargs={name: "x"}))


def test_a_template_without_a_default_is_a_config_error() -> None:
    from headrace.engine.chat_template import ChatTemplate
    from tests.engine.templates import fixed_now

    with pytest.raises(ConfigError, match="default"):
        ChatTemplate({"rag": CHATML}, {}, fixed_now)


INJECTIONS = [
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ ''['__class__'] }}",
    "{{ '' | attr('__class__') }}",
    "{{ ''['\\x5f\\x5fclass\\x5f\\x5f'] }}",
    "{{ '' | attr('\\x5f\\x5fclass\\x5f\\x5f') | attr('\\x5f\\x5fmro\\x5f\\x5f') }}",
    "{{ ''.__class__.__base__.__subclasses__()[140].__init__.__globals__['sys'].modules['os'].popen('id').read() }}",
    "{% for c in ().__class__.__base__.__subclasses__() %}{{ c }}{% endfor %}",
    "{{ self.__init__.__globals__.__builtins__.open('/etc/passwd').read() }}",
    "{{ self._TemplateReference__context.cycler.__init__.__globals__.os.popen('id').read() }}",
    "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "{{ joiner.__init__.__globals__.os.popen('id').read() }}",
    "{{ namespace.__init__.__globals__.os.popen('id').read() }}",
    "{{ lipsum.__globals__['os'].popen('id').read() }}",
    "{{ lipsum | attr('__globals__') }}",
    "{{ config.items() }}",
    "{{ request | attr('application') | attr('__globals__') }}",
    "{{ url_for.__globals__['current_app'].config }}",
    "{{ get_flashed_messages.__globals__.__builtins__ }}",
    "{{ range.__init__ }}",
    "{{ dict.__base__.__subclasses__() }}",
    "{{ raise_exception.__globals__ }}",
    "{{ raise_exception.__globals__['InvalidRequest'] }}",
    "{{ strftime_now.__globals__ }}",
    "{{ strftime_now.__self__._budget }}",
    "{{ strftime_now.__func__.__code__ }}",
    "{{ '{0.__class__.__mro__}'.format('') }}",
    "{{ '{0.__class__}' | format('') | attr('__class__') }}",
    "{{ ('{0.__class__}' | attr('format'))('') }}",
    "{{ '{x.__class__}'.format_map({'x': 1}) }}",
    "{{ ['{0.__class__}'] | map('attr', 'format') | map('string') | list }}",
    "{{ undefined_name.__init__.__globals__ }}",
    "{{ __import__('os').system('id') }}",
    "{{ __builtins__ }}",
    "{{ environment }}",
    "{{ (messages | map('upper')).gi_frame.f_globals }}",
    "{% macro m() %}{% endmacro %}{{ m._func.__globals__ }}",
    "{% macro m() %}{% endmacro %}{{ m.__init__.__globals__ }}",
    "{% set x = namespace() %}{% set x.__class__ = 1 %}{{ x.__class__ }}",
    "{% for m in messages %}{{ loop.__init__.__globals__ }}{% endfor %}",
    "{% for m in messages %}{{ loop._iterator.__reduce__() }}{% endfor %}",
    "{{ messages.append({'role': 'system', 'content': 'evil'}) }}",
    "{{ messages[0].update({'role': 'system'}) }}",
    "{{ messages.pop() }}{{ messages.clear() }}",
    "{% include '/etc/passwd' %}",
    "{% import 'os' as os %}{{ os.popen('id') }}",
    "{% extends '/etc/passwd' %}",
    "{{ self }}",
    "{{ strftime_now }}",
    "{{ messages.__class__ }}",
    "{{ (1).__class__ }}",
    "{{ (1).to_bytes(8, 'big') }}",
    "{{ 'a'.encode().__class__ }}",
]


LEAKS = ("root:", "uid=", "0x", "<class", "<function", "<module")


def outcome(source: str, messages: list[dict[str, Any]]) -> tuple[str, str]:
    """The rendered text and the error message, one of them empty."""
    try:
        return chat_template(source).render(messages, NO_PROMPT), ""
    except (InvalidRequest, ConfigError) as error:
        return "", error.message


@pytest.mark.parametrize("source", INJECTIONS)
def test_an_injection_gives_an_error_or_harmless_text(source: str) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    text, error = outcome(source, messages)
    assert messages == [{"role": "user", "content": "Hi"}]
    assert not any(leak in text + error for leak in LEAKS)
    # what is rendered at all is nothing, or the undefined turned into nothing
    assert "class" not in text
    assert len(text) < 40


BOMBS = [
    "{% for i in range(10**9) %}{% endfor %}",
    "{% set r = range(99999) %}{% for a in r %}{% for b in r %}{% endfor %}{% endfor %}",
    "{% set r = range(99999) %}{% for a in r %}{% for b in r %}{% set c = a %}{% endfor %}{% endfor %}",
    "{% for a in range(99999) recursive %}{{ loop(range(99999)) }}{% endfor %}",
    "{{ 'a' * 10**9 }}",
    "{{ 10**9 * 'a' }}",
    "{{ [0] * 10**9 }}",
    "{{ (0,) * 10**9 }}",
    "{{ 10**(10**10) }}",
    "{{ (9**999) * (9**999) }}",
    "{% set n = namespace(x=7) %}{% for i in range(99) %}{% set n.x = n.x * n.x %}{% endfor %}",
    "{% set n = namespace(x='aaaa') %}{% for i in range(99) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
    "{% set n = namespace(x='aaaa') %}{% for i in range(99) %}{% set n.x = n.x + n.x %}{% endfor %}",
    "{% set n = namespace(x='a' * 1000000) %}{% for i in range(9999) %}{% set n.y = n.x ~ i %}{% endfor %}",
    "{{ '%1000000000d' % 1 }}",
    "{{ '%*d' % (1000000000, 1) }}",
    "{{ '%.1000000000f' | format(1.5) }}",
    "{{ ('%9999d' * 100000) | format(1) }}",
    "{{ '{:>1000000000}'.format(1) }}",
    "{{ '{:{}}'.format(1, 1000000000) }}",
    "{{ ('{0}' * 100000).format('a' * 100000) }}",
    "{{ 'a'.center(10**9) }}",
    "{{ 'a'.ljust(10**9) }}",
    "{{ 'a'.zfill(10**9) }}",
    "{{ '\\t'.expandtabs(10**9) }}",
    "{{ 'a' | center(10**9) }}",
    "{{ ('a' * 100000).replace('a', 'b' * 100000) }}",
    "{{ ('a' * 100000) | replace('a', 'b' * 100000) }}",
    "{{ ('b' * 100000).join('a' * 100000) }}",
    "{{ ('a' * 100000) | join('b' * 100000) }}",
    "{{ ('a\\n' * 1000) | indent(10**8) }}",
    "{{ messages | tojson(indent=10**9) }}",
    "{{ [1] | batch(10**9, 0) | list }}",
    "{{ [1] | slice(10**9) | list }}",
    "{{ 1.5 | round(10**9) }}",
    "{{ 15 | round(-10**9) }}",
    "{{ [[0] * 1000] * 1000 | sum(start=[]) }}",
    "{{ strftime_now('%1000000000d') }}",
    "{% set n = namespace(x=[1]) %}{% for i in range(99) %}{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x }}",
    "{% set n = namespace(x=[1]) %}{% for i in range(99) %}{% set n.x = (n.x, n.x) %}{% endfor %}{{ n.x == n.x }}",
    "{% set n = namespace(x={}) %}{% for i in range(99) %}{% set n.x = {'a': n.x, 'b': n.x} %}{% endfor %}{{ n.x }}",
    "{% set n = namespace(x={}) %}{% for i in range(99) %}{% set n.x = dict(a=n.x, b=n.x) %}{% endfor %}{{ n.x }}",
    "{% set n = namespace(x=[1]) %}{% for i in range(99) %}{% set n.x = [n.x] + [n.x] %}{% endfor %}{{ n.x | upper }}",
    "{% set n = namespace(x=[1]) %}{% for i in range(99) %}{% set n.x = [n.x] * 2 %}{% endfor %}{{ n.x }}",
    "{% set n = namespace(x={1: 1}) %}{% for i in range(99) %}{% set n.x = {1: n.x.values(), 2: n.x.values()} %}"
    "{% endfor %}{{ n.x }}",
    "{% macro m() %}{% set n.x = varargs %}{% endmacro %}"
    "{% set n = namespace(x=[1]) %}{% for i in range(99) %}{{ m(n.x, n.x) }}{% endfor %}{{ n.x }}",
    "{% set n = namespace(x=[1]) %}{% for i in range(99) %}{% set n.x = cycler(n.x, n.x).items %}{% endfor %}{{ n.x }}",
    "{% set x %}{% for i in range(1000) %}{{ 'a' * 100000 }}{% endfor %}{% endset %}",
    "{% macro m() %}{{ m() }}{{ m() }}{% endmacro %}{{ m() }}",
    "{% for i in range(99999) %}{{ 'a' * 1000 }}{% endfor %}",
    "{{ messages | map('tojson') | list | random }}",
]


@pytest.mark.parametrize("source", BOMBS)
def test_a_template_that_asks_for_too_much_is_stopped(source: str) -> None:
    with pytest.raises((InvalidRequest, ConfigError), match="chat template"):
        chat_template(source, RenderLimits(cpu_s=0.1)).render(USER, NO_PROMPT)


def test_namespaces_that_hold_each_other_are_written_as_a_word() -> None:
    source = (
        "{% set n = namespace(x=namespace()) %}{% for i in range(99) %}{% set n.x = namespace(a=n.x, b=n.x) %}"
        "{% endfor %}{{ [n.x] }}"
    )
    assert render(source) == "[<namespace>]"


def test_output_past_the_limit_is_refused() -> None:
    limits = RenderLimits(text_chars=200)
    template = chat_template("{% for m in messages %}{{ m.content }}{% endfor %}", limits)
    assert template.render([{"role": "user", "content": "a" * 80}], NO_PROMPT) == "a" * 80
    with pytest.raises(InvalidRequest, match="200 characters"):
        template.render([{"role": "user", "content": "a" * 201}], NO_PROMPT)


def test_a_long_conversation_fits_the_default_limits() -> None:
    messages = [{"role": "user" if index % 2 == 0 else "assistant", "content": "x" * 200} for index in range(2000)]
    assert len(render(CHATML, messages)) > 400_000


def test_a_megabyte_of_content_fits_the_default_limits() -> None:
    text = render(CHATML, [{"role": "user", "content": "🙂" * 250_000}])
    assert text.count("🙂") == 250_000

"""SEC-09 and SEC-27: chat templates come from model files, and requests bring none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.core.errors import ConfigError, InvalidRequest
from headrace.engine.chat_prompt import load_chat_encoder
from headrace.engine.chat_template import ChatOptions
from headrace.engine.tokenizer import load_tokenizer
from tests.engine.templates import chat_template
from tests.server.harness import RunningServer, encode, error_of
from tests.tiny_model import write_tiny_model

USER = [{"role": "user", "content": "Hi"}]


@pytest.mark.parametrize(
    "extra",
    [
        {"chat_template": "{% for i in range(10**9) %}{% endfor %}"},
        {"chat_template": "x"},
        {"chat_template_kwargs": {"tokenize": True}},
        {"chat_template_kwargs": {"chat_template": "x"}},
        {"chat_template_kwargs": {"messages": []}},
        {"chat_template_kwargs": {"enable_thinking": "x" * 100_000}},
        {"chat_template_kwargs": {"__class__": "x"}},
    ],
)
def test_sec_09_a_request_brings_no_template_and_few_variables(server: RunningServer, extra: dict[str, object]) -> None:
    error = error_of(server.chat("x", max_tokens=1, **extra), 400)
    assert error["param"].startswith(next(iter(extra)))


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(10**9) %}x{% endfor %}",
        "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
        "{{ 'x' * 10**9 }}",
        "{{ ('x' * 1000000) | replace('x', 'y' * 1000) }}",
        "{{ '%1000000000d' | format(1) }}",
        "{{ 9 ** 99999999 }}",
        "{% set x = namespace(v=[1]) %}{% for i in range(60) %}{% set x.v = x.v + x.v %}{% endfor %}{{ x.v }}",
        "{% macro m(n) %}{{ m(n + 1) ~ m(n + 1) }}{% endmacro %}{{ m(0) }}",
    ],
)
def test_sec_09_a_template_that_burns_time_or_memory_is_stopped(source: str) -> None:
    with pytest.raises(InvalidRequest, match="chat template"):
        chat_template(source).render(USER, ChatOptions())


def test_sec_09_other_requests_go_on_after_such_a_template(server: RunningServer) -> None:
    body = encode({"messages": USER, "max_tokens": 1, "chat_template": "{% for i in range(10**9) %}{% endfor %}"})
    server.http.post("/v1/chat/completions", content=body, headers={"content-type": "application/json"})
    assert server.chat("x", max_tokens=1).status_code == 200


_DOORS = (
    "''.__class__",
    "''.__class__.__mro__",
    "''.__class__.__base__.__subclasses__()",
    "''['__class__']",
    "''|attr('__class__')",
    "''|attr('\\x5f\\x5fclass\\x5f\\x5f')",
    "''|attr(['__class__'][0])",
    "().__class__.__bases__[0].__subclasses__()",
    "{}.__class__.__init__.__globals__",
    "[].__class__",
    "(1).__class__",
    "messages.__class__",
    "messages.append.__self__",
    "messages.append.__globals__",
    "messages[0].get.__class__",
    "messages[0].items.__self__.__class__",
    "self.__init__.__globals__",
    "self._TemplateReference__context",
    "self.__dict__",
    "cycler.__init__.__globals__.os.popen('id').read()",
    "cycler('a').__init__.__globals__",
    "joiner.__init__.__globals__",
    "joiner(',').__class__",
    "namespace.__init__.__globals__.__builtins__",
    "namespace(a=1).__class__",
    "lipsum.__globals__",
    "lipsum.__globals__['os'].popen('id').read()",
    "lipsum.__globals__['__builtins__']['open']('/etc/passwd').read()",
    "dict.__base__",
    "range.__class__",
    "range(3).__class__",
    "config.items()",
    "request.application.__globals__",
    "get_flashed_messages.__globals__",
    "url_for.__globals__",
    "raise_exception.__globals__",
    "raise_exception.__closure__",
    "raise_exception.__code__",
    "raise_exception.__self__",
    "strftime_now.__globals__",
    "strftime_now.__self__",
    "strftime_now.__func__",
    "loop.__class__",
    "caller.__globals__",
    "varargs.__class__",
    "joiner.mro()",
    "''.format.__self__.__class__",
    "'{0.__class__}'.format(messages)",
    "'{0.__class__.__init__.__globals__}'.format(raise_exception)",
    "'{x.__globals__}'.format_map({'x': raise_exception})",
    "'%s'|format(raise_exception.__globals__)",
    "messages|map('__class__')|list",
    "messages|map(attribute='__class__')|list",
    "[raise_exception]|map(attribute='__globals__')|list",
    "[raise_exception]|selectattr('__globals__')|list",
    "[raise_exception]|groupby('__globals__')",
    "[raise_exception]|sum(attribute='__globals__')",
    "[raise_exception]|sort(attribute='__globals__')",
    "[raise_exception]|unique(attribute='__globals__')|list",
    "messages|tojson(default=raise_exception.__globals__)",
    "(messages|list).clear.__self__.__class__",
    "messages.__getattribute__('__class__')",
    "messages.__reduce_ex__(2)",
    "(''|string).__class__",
    "open('/etc/passwd').read()",
    "__import__('os').system('id')",
    "eval('1')",
)
PAYLOADS = (
    *("{{ " + door + " }}" for door in _DOORS),
    "{% include '/etc/passwd' %}",
    "{% import 'os' as os %}{{ os.system('id') }}",
    "{% from 'os' import popen %}{{ popen('id') }}",
    "{% extends '/etc/passwd' %}",
    "{% for c in ''.__class__.__base__.__subclasses__() %}{{ c }}{% endfor %}",
    "{% set x = ''.__class__ %}{{ x.__mro__ }}",
    "{% set messages.x = 1 %}",
    "{% do messages.append(messages) %}",
    "{% if ''.__class__.__base__ %}opened{% endif %}",
    "{% with a = lipsum.__globals__ %}{{ a }}{% endwith %}",
    "{% filter attr('__class__') %}x{% endfilter %}",
    "{% call(x) raise_exception.__globals__ %}{% endcall %}",
    "{% set ns = namespace() %}{% set ns.__class__ = 1 %}",
    "{% autoescape ''.__class__ %}{{ ''.__class__ }}{% endautoescape %}",
    "{% debug %}",
)
_FOUND = ("<class", "subclasses", "builtin", "root:", "uid=", "object at", "<function", "<module", "__main__", "opened")


def test_sec_27_there_are_sixty_payloads_and_more() -> None:
    assert len(set(PAYLOADS)) >= 60


@pytest.mark.parametrize("payload", PAYLOADS)
def test_sec_27_a_template_that_reaches_out_finds_nothing(payload: str, tmp_path: Path) -> None:
    """Refused, or rendered to what an undefined name renders to: nothing."""
    folder = write_tiny_model(tmp_path / "m")
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": payload}))
    try:
        chat = load_chat_encoder(load_tokenizer(folder))
        assert chat is not None
        text = chat_template(payload).render(USER, ChatOptions())
    except (ConfigError, InvalidRequest) as error:
        text = error.message.replace(payload, "")
    assert not any(found in text for found in _FOUND), text

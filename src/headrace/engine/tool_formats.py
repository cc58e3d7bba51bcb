"""How model families write tool calls: data, and the choice of one from a chat template.

A family is a row of texts: what stands before the first call, around each name and arguments, between calls and after
the last. From it follow the grammar of a forced call, and what a parser looks for. A template that knows nothing of
tools gets Hermes' form, with its instructions as a system message.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


class CallStyle(enum.Enum):
    """``OBJECT``: a JSON object with the name and the arguments. ``NAMED``: the name as text, then JSON arguments.
    ``PYTHON``: a call as Python writes it, in a list.
    """

    OBJECT = "object"
    NAMED = "named"
    PYTHON = "python"


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """One family's way. ``marks`` are texts by which its templates are known.

    ``trigger`` announces calls in free text; an empty one means that a whole answer is calls or has none, and
    ``leads`` are then what such an answer may begin with. ``before_name`` to ``after_arguments`` surround the parts of
    a call, ``closers`` are what a parser passes over behind one.
    """

    name: str
    marks: tuple[str, ...]
    style: CallStyle
    trigger: str = ""
    opening: str = ""
    before_name: str = '{"name": "'
    before_arguments: str = '", "arguments": '
    after_arguments: str = "}"
    separator: str = ""
    closing: str = ""
    closers: tuple[str, ...] = ()
    leads: tuple[str, ...] = ()
    may_repeat: bool = True


_HERMES = ToolFormat(
    name="hermes",
    marks=("<tool_call>",),
    style=CallStyle.OBJECT,
    trigger="<tool_call>",
    before_name='<tool_call>\n{"name": "',
    after_arguments="}\n</tool_call>",
    separator="\n",
    closers=("</tool_call>",),
)


def _object_list(name: str, trigger: str) -> ToolFormat:
    """A list of JSON objects behind a tag."""
    return ToolFormat(
        name=name,
        marks=(trigger,),
        style=CallStyle.OBJECT,
        trigger=trigger,
        opening=f"{trigger}[",
        separator=", ",
        closing="]",
        closers=("]", ","),
    )


FORMATS = (
    ToolFormat(
        name="deepseek",
        marks=("<｜tool▁calls▁begin｜>",),
        style=CallStyle.NAMED,
        trigger="<｜tool▁calls▁begin｜>",
        opening="<｜tool▁calls▁begin｜>",
        before_name="<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
        before_arguments="\n```json\n",
        after_arguments="\n```<｜tool▁call▁end｜>",
        separator="\n",
        closing="<｜tool▁calls▁end｜>",
        closers=("```", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"),
    ),
    _object_list("mistral", "[TOOL_CALLS]"),
    _object_list("granite", "<|tool_call|>"),
    _HERMES,
    ToolFormat(
        name="gemma",
        marks=("```tool_code",),
        style=CallStyle.PYTHON,
        trigger="```tool_code",
        before_arguments='", "parameters": ',
        closers=("```",),
        leads=("{",),
        may_repeat=False,
    ),
    ToolFormat(
        name="pythonic",
        marks=("[func_name1(params_name1=params_value1",),
        style=CallStyle.PYTHON,
        before_arguments='", "parameters": ',
        leads=("[", "{"),
        may_repeat=False,
    ),
    ToolFormat(
        name="llama3",
        marks=("<|python_tag|>", '"parameters": dictionary of argument name and its value', '{"name": function name'),
        style=CallStyle.OBJECT,
        before_arguments='", "parameters": ',
        separator="; ",
        closers=(";", ","),
        leads=("<|python_tag|>", "{"),
    ),
)
"""Looked through in order: what a template says of another family's marks comes later."""


@dataclass(frozen=True, slots=True)
class ToolHabit:
    """What a model does with tools: its format, and whether its template shows them to it."""

    format: ToolFormat
    is_shown_by_template: bool


def tool_habit(chat_template: str | None) -> ToolHabit:
    """Read a chat template's way with tools."""
    template = chat_template or ""
    shows = "tools" in template
    for each in FORMATS:
        if shows and any(mark in template for mark in each.marks):
            return ToolHabit(each, is_shown_by_template=True)
    return ToolHabit(_HERMES, is_shown_by_template=shows)


def tool_instructions(tools: Sequence[Mapping[str, object]]) -> str:
    """What a model is told of tools that its template does not show: Hermes' system prompt, in few words."""
    shown = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    return (
        "You may call functions. Their signatures are within <tools></tools>:\n"
        f"<tools>\n{shown}\n</tools>\n"
        "For each call, answer with a JSON object with its name and arguments within <tool_call></tool_call>:\n"
        '<tool_call>\n{"name": "...", "arguments": {...}}\n</tool_call>'
    )


def forced_calls(tool_format: ToolFormat, schemas: Mapping[str, object], *, may_repeat: bool) -> dict[str, object]:
    """The structural tag of an answer that is nothing but calls of some tools; ``schemas`` are their parameters'."""
    calls: dict[str, object] = {
        "type": "tags_with_separator",
        "tags": _tags(tool_format, schemas),
        "separator": tool_format.separator,
        "at_least_one": True,
        "stop_after_first": not (may_repeat and tool_format.may_repeat),
    }
    surroundings = [
        {"type": "const_string", "value": text} if isinstance(text, str) else text
        for text in (tool_format.opening, calls, tool_format.closing)
        if text
    ]
    return {"type": "structural_tag", "format": {"type": "sequence", "elements": surroundings}}


def triggered_calls(tool_format: ToolFormat, schemas: Mapping[str, object]) -> dict[str, object] | None:
    """The structural tag of free text in which calls must be right; ``None`` where nothing announces a call."""
    if not tool_format.trigger or tool_format.opening or tool_format.style is not CallStyle.OBJECT:
        return None
    triggered = {
        "type": "triggered_tags",
        "triggers": [tool_format.trigger],
        "tags": _tags(tool_format, schemas),
    }
    return {"type": "structural_tag", "format": triggered}


def _tags(tool_format: ToolFormat, schemas: Mapping[str, object]) -> list[dict[str, object]]:
    """A tag for each tool: what stands around its arguments, and their schema."""
    return [
        {
            "begin": f"{tool_format.before_name}{json.dumps(name)[1:-1]}{tool_format.before_arguments}",
            "content": {"type": "json_schema", "json_schema": schema},
            "end": tool_format.after_arguments,
        }
        for name, schema in schemas.items()
    ]

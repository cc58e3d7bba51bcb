"""Tools of a chat request: which may be called, how the model is told, and what the answer must be. Pure.

Owns OpenAI's ``tools`` and ``tool_choice``. A forced call is an answer that is nothing but calls, by grammar; with
``auto`` the model chooses, and tools that say ``strict`` are held to their schemas wherever they are called.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from headrace.core.constraint import Constraint, ConstraintKind
from headrace.core.errors import InvalidRequest
from headrace.core.request_limits import check_limit
from headrace.engine.tool_formats import ToolHabit, forced_calls, tool_instructions, triggered_calls
from headrace.server.protocol_chat import ChatRequest, Message, SystemMessage
from headrace.server.protocol_constraints import NULL
from headrace.server.protocol_tools import Tool, ToolChoice

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


@dataclass(frozen=True, slots=True)
class ToolUse:
    """The tools a request may use. ``constraint`` is ``None`` where the answer is free."""

    tools: Sequence[Tool]
    habit: ToolHabit
    constraint: Constraint | None

    def messages(self, messages: Sequence[Message]) -> list[Message]:
        """The conversation, with the tools in its system message if the template does not show them."""
        if self.habit.is_shown_by_template:
            return list(messages)
        told = tool_instructions([shown(tool) for tool in self.tools])
        first = messages[0] if messages else None
        if isinstance(first, SystemMessage) and isinstance(first.content, str):
            return [SystemMessage(f"{first.content}\n\n{told}", first.name), *messages[1:]]
        return [SystemMessage(told), *messages]

    def template_tools(self) -> list[dict[str, object]] | None:
        return [shown(tool) for tool in self.tools] if self.habit.is_shown_by_template else None


def tool_use(body: ChatRequest, habit: ToolHabit, max_tools: int) -> ToolUse | None:
    """What tools mean for a request; ``None`` if none may be called. Raises ``InvalidRequest`` naming the field."""
    tools = body.tools or []
    check_limit("tools", "tools has {} entries", len(tools), "max_tools", max_tools)
    _check_tools(tools)
    choice = _choice(body.tool_choice, tools)
    if choice is None:
        return None
    callable_tools = [tool for tool in tools if tool.function.name in choice.names]
    return ToolUse(callable_tools, habit, _constraint(choice, callable_tools, habit, body.parallel_tool_calls))


def shown(tool: Tool) -> dict[str, object]:
    """A tool as templates and instructions show it."""
    function: dict[str, object] = {"name": tool.function.name}
    if tool.function.description is not None:
        function["description"] = tool.function.description
    function["parameters"] = parameters(tool)
    return {"type": "function", "function": function}


def parameters(tool: Tool) -> object:
    """The schema of a tool's arguments; a tool without one takes none."""
    if tool.function.parameters == NULL:
        return {"type": "object", "properties": {}, "additionalProperties": False}
    return msgspec.json.decode(tool.function.parameters)


@dataclass(frozen=True, slots=True)
class _Choice:
    """``names`` of the tools that may be called, whether one must be, and whether more than once."""

    names: frozenset[str]
    is_forced: bool
    may_repeat: bool = True


def _check_tools(tools: Sequence[Tool]) -> None:
    names: set[str] = set()
    for index, tool in enumerate(tools):
        where = f"tools[{index}]"
        if tool.type != "function":
            raise InvalidRequest(
                f"{where}.type is {tool.type[:40]!r} but only 'function' is taken here", f"{where}.type"
            )
        name = tool.function.name
        if not _NAME.fullmatch(name) or name in names:
            raise InvalidRequest(
                f"{where}.function.name is {name[:80]!r}; it must be new and of 1 to 64 letters, digits, _, . and -",
                f"{where}.function.name",
            )
        names.add(name)
        if not isinstance(parameters(tool), dict):
            raise InvalidRequest(f"{where}.function.parameters must be a schema", f"{where}.function.parameters")


def _choice(choice: str | ToolChoice | None, tools: Sequence[Tool]) -> _Choice | None:
    every = frozenset(tool.function.name for tool in tools)
    if not tools:
        if choice not in (None, "none", "auto"):
            raise InvalidRequest("tool_choice asks for a tool but tools is empty; leave it out", "tool_choice")
        return None
    match choice:
        case None | "auto":
            return _Choice(every, is_forced=False)
        case "none":
            return None
        case "required":
            return _Choice(every, is_forced=True)
        case ToolChoice(type="function", function=function) if function is not None:
            return _Choice(_known([function.name], every), is_forced=True, may_repeat=False)
        case ToolChoice(type="allowed_tools", allowed_tools=allowed) if allowed is not None:
            names = _known([each.function.name for each in allowed.tools if each.function is not None], every)
            return _Choice(names, is_forced=allowed.mode == "required")
    raise InvalidRequest("tool_choice must be 'none', 'auto', 'required', a function or allowed_tools", "tool_choice")


def _known(names: Sequence[str], every: frozenset[str]) -> frozenset[str]:
    missing = [name for name in names if name not in every]
    if missing or not names:
        wanted = repr(missing[0][:80]) if missing else "no tool"
        raise InvalidRequest(f"tool_choice names {wanted}, which is not in tools", "tool_choice")
    return frozenset(names)


def _constraint(
    choice: _Choice, tools: Sequence[Tool], habit: ToolHabit, may_be_parallel: bool | None
) -> Constraint | None:
    schemas: Mapping[str, object] = {tool.function.name: parameters(tool) for tool in tools}
    if choice.is_forced:
        tag = forced_calls(habit.format, schemas, may_repeat=choice.may_repeat and may_be_parallel is not False)
        return _tag_constraint(tag, "tool_choice")
    if not any(tool.function.strict for tool in tools):
        return None
    lazy = triggered_calls(habit.format, schemas)
    return None if lazy is None else _tag_constraint(lazy, "tools")


def _tag_constraint(tag: dict[str, object], param: str) -> Constraint:
    return Constraint(ConstraintKind.STRUCTURAL_TAG, msgspec.json.encode(tag).decode(), param=param)

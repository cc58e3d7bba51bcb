"""The jinja environment that chat templates run in: closed, deterministic and bounded.

Owns the sandbox. On top of jinja's own (no private attributes, no mutation of what is passed in) every call,
operator, loop turn and literal reports to a budget first, so that neither a hostile template nor a hostile
message can hold a thread or fill the memory. Loops, ``~`` and literals have no hook in jinja; they get one by
rewriting the parsed template. Does not know messages or tokens.
"""

from __future__ import annotations

import re
import types
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, NoReturn, TypeVar

from jinja2 import Undefined, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from headrace.core.errors import InvalidRequest
from headrace.engine.template_budget import RenderBudget, format_growth, is_container, replace_growth
from headrace.engine.template_filters import UNAVAILABLE, BoundedFilters, ToolArguments

_MAX_REASON_CHARS = 1000
_MAX_DATE_FORMAT_CHARS = 64
_WIDTH_IN_DATE_FORMAT = re.compile(r"%[^a-zA-Z%]*\d")
_FORBIDDEN_TEXT_METHODS = frozenset({"encode", "maketrans", "translate"})
_PADDING_METHODS = frozenset({"center", "ljust", "rjust", "zfill"})

_Node = TypeVar("_Node", bound=nodes.Node)


class GenerationExtension(Extension):
    """``{% generation %}``, which marks the assistant's part for training; here just its content."""

    tags = {"generation"}  # noqa: RUF012 - jinja's own declaration

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class _Namespace(Namespace):
    """Jinja's ``namespace``; written out it is a word, not all it holds: it can hold itself many times over."""

    def __repr__(self) -> str:
        return "<namespace>"


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """Environment of one rendering. ``now`` is what ``strftime_now`` shows."""

    intercepted_binops = frozenset(ImmutableSandboxedEnvironment.default_binop_table)

    def __init__(self, budget: RenderBudget, now: Callable[[], datetime]) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[loopcontrols, GenerationExtension],
            finalize=self._written,
            cache_size=0,
        )
        self._budget = budget
        self._now = now
        for name in UNAVAILABLE:
            del self.filters[name]
        self.filters.update(BoundedFilters(budget).table())
        del self.globals["lipsum"]
        self.globals.update(namespace=_Namespace, raise_exception=_raise_exception, strftime_now=self._strftime_now)

    def parse(self, source: str, name: str | None = None, filename: str | None = None) -> nodes.Template:
        """Parse a template and give its loops, joins and literals their hooks."""
        template = super().parse(source, name, filename)
        Hooks(self).visit(template)
        return template

    def concat(self, parts: Iterable[str]) -> str:
        """Join the pieces of a block or macro."""
        pieces = list(parts)
        self._budget.grow(sum(map(len, pieces)))
        return "".join(pieces)

    def tick(self) -> None:
        """One turn of a loop; the call that gets here has been counted."""

    def joined(self, *parts: object) -> str:
        """``a ~ b``."""
        return self.concat([str(self._written(part)) for part in parts])

    def checked(self, literal: object) -> object:
        """A list, tuple or dictionary as it is written in the template, unless it unfolds to too much."""
        self._budget.weigh(literal)
        return literal

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if isinstance(obj, str) and attr in _FORBIDDEN_TEXT_METHODS:
            return False
        return not isinstance(obj, int | float | bytes) and super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        bounded = super().wrap_str_format(value)
        if bounded is None:
            return None

        def format_text(*args: Any, **named: Any) -> str:
            self._budget.grow(format_growth(value.__self__, [*args, *named.values()], self._budget))
            return bounded(*args, **named)

        return format_text

    def call(__self, __context: Context, __obj: Any, *args: Any, **named: Any) -> Any:
        __self._budget.tick()
        if isinstance(__obj, types.BuiltinMethodType) and isinstance(__obj.__self__, str):
            args = __self._text_method_args(__obj, args)
        elif len(held := [value for value in (*args, *named.values()) if is_container(value)]) > 1:
            # dictionaries, cyclers and a macro's varargs put values together as a literal does
            __self._budget.weigh(held)
        return super().call(__context, __obj, *args, **named)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        self._budget.tick()
        if isinstance(left, str) and isinstance(right, ToolArguments):
            right = right.text
        elif isinstance(right, str) and isinstance(left, ToolArguments):
            left = left.text
        if isinstance(left, list | tuple) or isinstance(right, list | tuple):
            return self._list_binop(context, operator, left, right)
        self._check_growth(operator, left, right)
        return super().call_binop(context, operator, left, right)

    def _list_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """``+`` and ``*`` of lists; ``%`` with a tuple on its right is text."""
        weigh = self._budget.weigh
        match operator, left, right:
            case "+", list() | tuple(), list() | tuple():
                num_chars = weigh(left) + weigh(right)
            case "*", list() | tuple(), int():
                num_chars = weigh(left) * right
            case "*", int(), list() | tuple():
                num_chars = weigh(right) * left
            case _:
                self._check_growth(operator, left, right)
                return super().call_binop(context, operator, left, right)
        self._budget.check_weight(num_chars)
        result = super().call_binop(context, operator, left, right)
        self._budget.remember(result, num_chars)
        return result

    def _check_growth(self, operator: str, left: Any, right: Any) -> None:
        budget = self._budget
        match operator, left, right:
            case "+", str(), str():
                budget.grow(len(left) + len(right))
            case "*", str(), int():
                budget.grow(len(left) * max(right, 0))
            case "*", int(), str():
                budget.grow(len(right) * max(left, 0))
            case "%", str(), _:
                budget.grow(format_growth(left, right if isinstance(right, tuple) else (right,), budget))
            case "**", int(), int():
                budget.check_bits(left.bit_length() * abs(right))
            case _, int(), int():
                budget.check_bits(left.bit_length() + right.bit_length())

    def _text_method_args(self, method: types.BuiltinMethodType, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Account for a text method's result; return the arguments to call it with."""
        text, name = str(method.__self__), method.__name__
        if name in _PADDING_METHODS and args:
            self._budget.grow(max(len(text), args[0]))
        elif name == "expandtabs":
            self._budget.grow(len(text) + text.count("\t") * (args[0] if args else 8))
        elif name == "replace" and len(args) >= 2:
            self._budget.grow(replace_growth(text, args[0], args[1]))
        elif name == "join" and args:
            items = list(args[0])
            self._budget.grow(self._budget.weigh(items) + len(items) * len(text))
            return (items,)
        return args

    def _written(self, value: Any) -> Any:
        """A value as it goes into the output."""
        if isinstance(value, ToolArguments):
            return value.text
        if is_container(value):
            self._budget.grow(self._budget.weigh(value))
        elif not isinstance(value, str | int | float | Undefined | None):
            raise InvalidRequest(f"the chat template writes out a {type(value).__name__}, not a text", "messages")
        return value

    def _strftime_now(self, form: str) -> str:
        # the C library honours field widths, so a format of a few characters can make gigabytes
        if len(form) > _MAX_DATE_FORMAT_CHARS or _WIDTH_IN_DATE_FORMAT.search(form):
            raise InvalidRequest("the chat template uses an unreasonable date format", "messages")
        return self._now().strftime(form)


class Hooks(NodeTransformer):
    """Rewrites a parsed template so that loops, ``~`` and literals report to the environment."""

    def __init__(self, environment: TemplateSandbox) -> None:
        self._environment = environment

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        turn = nodes.ExprStmt(self._hook("tick", [], node), lineno=node.lineno)
        node.body.insert(0, self._placed(turn, node))
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return self._hook("joined", node.nodes, node)

    def visit_List(self, node: nodes.List) -> nodes.Node:
        return self._checked(node)

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:
        return self._checked(node)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        return self._checked(node) if node.ctx == "load" else node

    def _checked(self, node: nodes.Expr) -> nodes.Node:
        self.generic_visit(node)
        try:
            node.as_const()
        except nodes.Impossible:
            return self._hook("checked", [node], node)
        return node

    def _hook(self, name: str, args: list[nodes.Expr], at: nodes.Node) -> nodes.Call:
        method = self._placed(nodes.EnvironmentAttribute(name), at)
        return self._placed(nodes.Call(method, args, [], None, None), at)

    def _placed(self, node: _Node, at: nodes.Node) -> _Node:
        node.set_lineno(at.lineno)
        node.set_environment(self._environment)
        return node


def _raise_exception(reason: object) -> NoReturn:
    """What templates call for conversations they cannot show; the words are theirs."""
    raise InvalidRequest(str(reason)[:_MAX_REASON_CHARS], "messages")

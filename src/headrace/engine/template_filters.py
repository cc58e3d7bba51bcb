"""The filters a chat template may use, with a bound on what each may make.

Owns the replacements of jinja's filters whose result can be far larger than their input, the list of those
that no template needs, and ``tojson`` as transformers defines it. Everything else is jinja's own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from jinja2 import filters, nodes, pass_eval_context

from headrace.core.errors import InvalidRequest
from headrace.engine.template_budget import RenderBudget, format_growth, replace_growth

UNAVAILABLE = ("filesizeformat", "pprint", "random", "urlize", "wordwrap", "xmlattr")
"""Not deterministic, or unbounded, and of no use in a prompt."""

_MAX_ROUND_DIGITS = 100
_MAX_JSON_INDENT = 16


class ToolArguments(dict[str, object]):
    """A tool call's arguments: an object for templates that look inside, its JSON text where one is written.

    Templates are written for either form (``arguments | tojson``, ``'...' + arguments``), and nothing in
    them says which.
    """

    def __init__(self, values: Mapping[str, object], text: str) -> None:
        super().__init__(values)
        self.text = text

    def __str__(self) -> str:
        return self.text


class BoundedFilters:
    """Filters that account for what they make before they make it."""

    def __init__(self, budget: RenderBudget) -> None:
        self._budget = budget

    def table(self) -> dict[str, Callable[..., Any]]:
        """The filters by name."""
        return {
            "batch": self.batch,
            "center": self.center,
            "format": self.format,
            "indent": self.indent,
            "join": self._join(),
            "replace": self._replace(),
            "round": self.round,
            "slice": self.slice,
            "string": self.string,
            "sum": self.sum,
            "tojson": self.tojson,
        }

    def batch(self, value: Iterable[Any], linecount: int, fill_with: Any = None) -> object:
        self._budget.check_count(linecount)
        return filters.do_batch(value, linecount, fill_with)

    def slice(self, value: Iterable[Any], slices: int, fill_with: Any = None) -> object:
        self._budget.check_count(slices)
        return filters.sync_do_slice(value, slices, fill_with)  # type: ignore[arg-type]

    def center(self, value: str, width: int = 80) -> str:
        self._budget.grow(max(width, len(value)))
        return filters.do_center(value, width)

    def format(self, value: str, *args: Any, **named: Any) -> str:
        self._budget.grow(format_growth(str(value), [*args, *named.values()], self._budget))
        return filters.do_format(value, *args, **named)

    def indent(self, text: str, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
        num_chars = width if isinstance(width, int) else len(width)
        self._budget.grow(len(text) + (text.count("\n") + 2) * num_chars)
        return filters.do_indent(text, width, first, blank)

    def round(self, value: float, precision: int = 0, method: str = "common") -> float:
        if abs(precision) > _MAX_ROUND_DIGITS:
            raise InvalidRequest(f"the chat template rounds to {precision} digits", "messages")
        return filters.do_round(value, precision, method)  # type: ignore[arg-type]

    def string(self, value: object) -> str:
        self._budget.grow(self._budget.weigh(value))
        return str(value)

    def sum(self, iterable: Iterable[Any], attribute: str | None = None, start: float = 0) -> object:
        if not isinstance(start, int | float):
            raise InvalidRequest("the chat template sums something other than numbers", "messages")
        values = [item[attribute] for item in iterable] if attribute is not None else iterable
        return sum(values, start)

    def tojson(
        self,
        value: object,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        """JSON as transformers' templates write it: no HTML escapes, non-ASCII as it is."""
        num_chars = self._budget.weigh(value)
        if indent is not None and not 0 <= indent <= _MAX_JSON_INDENT:
            raise InvalidRequest(f"the chat template indents JSON by {indent} characters", "messages")
        self._budget.grow(num_chars * (6 if ensure_ascii else 2))
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def _join(self) -> Callable[..., str]:
        budget = self._budget

        @pass_eval_context
        def join(context: nodes.EvalContext, value: Iterable[Any], d: str = "", attribute: str | None = None) -> str:
            items = list(value)
            budget.grow(budget.weigh(items) + len(items) * len(d))
            return filters.sync_do_join(context, items, d, attribute)

        return join

    def _replace(self) -> Callable[..., str]:
        budget = self._budget

        @pass_eval_context
        def replace(context: nodes.EvalContext, s: str, old: str, new: str, count: int | None = None) -> str:
            budget.grow(replace_growth(str(s), str(old), str(new)))
            return filters.do_replace(context, s, old, new, count)

        return replace

"""How much work and text one rendering of a chat template may cost.

Owns the limits and the arithmetic of growth: the size a result would have is known before it is made, so
nothing large is ever allocated to be thrown away. Templates come out of model files, so they are no more
trusted than the messages. Does not know jinja.
"""

from __future__ import annotations

import math
import re
import time
import types
from collections.abc import ItemsView, Iterable, KeysView, Mapping, ValuesView
from dataclasses import dataclass

from headrace.core.errors import InvalidRequest

_CALLS_PER_CLOCK_READING = 8
_ITEMS_PER_CLOCK_READING = 512
_NUMBER = re.compile(r"\d+")
_COMPUTED_WIDTH = re.compile(r"\{[^{}]*\{|%[^%a-zA-Z]*\*")
_MAX_WIDTH_DIGITS = 7
_SEQUENCES = (list, tuple, KeysView, ValuesView, ItemsView)
_UNWRITABLE = (type, types.FunctionType, types.MethodType, types.BuiltinMethodType, types.GeneratorType)
_ITEM_CHARS = 8  # a number, or the brackets and separators around an entry


@dataclass(frozen=True, slots=True)
class RenderLimits:
    """``cpu_s`` is processor time of the rendering thread, so a busy machine fails no request.

    ``text_chars`` bounds the output and every text made on the way, ``total_chars`` all of them together.
    """

    cpu_s: float = 0.25
    text_chars: int = 4 << 20
    total_chars: int = 64 << 20
    num_items: int = 200_000
    int_bits: int = 4096


class RenderBudget:
    """What is left for one rendering. Every method raises ``InvalidRequest`` when it is spent."""

    __slots__ = ("_deadline", "_limits", "_num_calls", "_num_chars", "_num_output_chars", "_weights")

    def __init__(self, limits: RenderLimits) -> None:
        self._limits = limits
        self._deadline = time.thread_time() + limits.cpu_s
        self._num_calls = 0
        self._num_chars = 0
        self._num_output_chars = 0
        # by identity; holding the value keeps its identity its own
        self._weights: dict[int, tuple[object, int]] = {}

    def tick(self) -> None:
        """Count one unit of work."""
        self._num_calls += 1
        if self._num_calls % _CALLS_PER_CLOCK_READING == 0:
            self.check_time()

    def check_time(self) -> None:
        if time.thread_time() > self._deadline:
            raise _refusal(f"took more than {self._limits.cpu_s * 1000:g} ms")

    def emit(self, text: str) -> None:
        """Account for a piece of output."""
        self.tick()
        self._num_output_chars += len(text)
        if self._num_output_chars > self._limits.text_chars:
            raise _refusal(f"would be longer than {self._limits.text_chars} characters")

    def grow(self, num_chars: float) -> None:
        """Account for a text about to be made."""
        self.tick()
        self._num_chars += int(min(num_chars, self._limits.total_chars + 1))
        if num_chars > self._limits.text_chars or self._num_chars > self._limits.total_chars:
            raise _refusal(f"would make a text of more than {self._limits.text_chars} characters")

    def check_count(self, num_items: int) -> None:
        """Account for a list about to be made."""
        if num_items > self._limits.num_items:
            raise _refusal(f"would make a list of more than {self._limits.num_items} items")

    def check_bits(self, num_bits: float) -> None:
        """Account for an integer about to be made."""
        if num_bits > self._limits.int_bits:
            raise _refusal(f"would make an integer of more than {self._limits.int_bits} bits")

    def weigh(self, value: object) -> int:
        """Characters of a value written out; parts that are shared count each time, as they would be written.

        Doubling a list thirty times over costs nothing until it is written or compared, so a value is
        weighed where it is made. Templates cannot change values, which is what allows to remember weights.
        """
        num_chars, num_items, rest = 0, 0, [value]
        while rest:
            each = rest.pop()
            num_items += 1
            if num_items % _ITEMS_PER_CLOCK_READING == 0:
                self.check_time()
            known = self._weights.get(id(each))
            if known is not None:
                num_chars += known[1]
            elif isinstance(each, Mapping):
                num_chars += _ITEM_CHARS
                rest += (*each.keys(), *each.values())
            elif isinstance(each, _SEQUENCES):
                num_chars += _ITEM_CHARS
                rest += each
            elif isinstance(each, _UNWRITABLE):
                raise _refusal(f"would write out a {type(each).__name__}")
            else:
                num_chars += len(each) if isinstance(each, str) else _ITEM_CHARS
            self.check_weight(num_chars)
        if is_container(value):
            self._weights[id(value)] = (value, num_chars)
        return num_chars

    def remember(self, value: object, num_chars: int) -> None:
        """Take ``num_chars`` for the weight of a value just made."""
        self.check_weight(num_chars)
        self._weights[id(value)] = (value, num_chars)

    def check_weight(self, num_chars: int) -> None:
        """Account for a value about to be made."""
        if num_chars > self._limits.text_chars:
            raise _refusal(f"would make a text of more than {self._limits.text_chars} characters")


def is_container(value: object) -> bool:
    """Whether the value holds others."""
    return isinstance(value, (*_SEQUENCES, Mapping))


def format_growth(template: str, values: Iterable[object], budget: RenderBudget) -> float:
    """An upper bound of the length of ``template`` filled with ``values``, by ``%`` or ``str.format``."""
    if _COMPUTED_WIDTH.search(template):
        raise _refusal("uses a field width that is computed")
    widths = _NUMBER.findall(template)
    if any(len(width) > _MAX_WIDTH_DIGITS for width in widths):
        return math.inf
    longest = max((budget.weigh(value) for value in values), default=0)
    num_fields = template.count("{") + template.count("%")
    return len(template) + sum(map(int, widths)) + num_fields * longest


def replace_growth(text: str, old: str, new: str) -> int:
    """An upper bound of the length of ``text`` with every ``old`` replaced."""
    count = text.count(old) if len(new) > len(old) else 0
    return len(text) + count * len(new)


def _refusal(what: str) -> InvalidRequest:
    return InvalidRequest(f"rendering the chat template {what}; send fewer or shorter messages", "messages")

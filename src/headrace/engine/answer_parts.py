"""An answer's text taken apart as it comes: reasoning, content, tool calls.

What a stream says, concatenated, is what a whole answer says, because both go through here. Nothing is lost: text that
only looked like a call is content after all, and what was cut off in the middle of a call's arguments is delivered as
it is. Every character is looked at a bounded number of times.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from headrace.engine.call_readers import ObjectReader, read_python_calls
from headrace.engine.tool_formats import CallStyle, ToolFormat

_BETWEEN = " \t\r\n"
_BEFORE_OBJECT = _BETWEEN + "[,;"
_MAX_NAME_CHARS = 1024
"""A longer name of a function is none: nobody declared it."""


@dataclass(frozen=True, slots=True)
class Content:
    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    text: str


@dataclass(frozen=True, slots=True)
class CallBegun:
    """A call's name is known; ``index`` counts the answer's calls from 0."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """More of the text of a call's arguments."""

    index: int
    text: str


Part = Content | Reasoning | CallBegun | CallArguments


class ReasoningSplitter:
    """Tells reasoning from the answer by the tags around it. ``is_inside`` says whether the prompt opened it.

    A model reasons once, at the beginning: a tag in the middle of an answer is part of the answer.
    """

    def __init__(self, begin: str, end: str, *, is_inside: bool) -> None:
        self._begin = begin
        self._end = end
        self._held = ""
        self._gap: list[str] = []  # blanks in front, which are the answer's unless it begins with reasoning
        self._state = self._inside if is_inside else self._start

    def push(self, text: str) -> list[Part]:
        self._held += text
        parts: list[Part] = []
        while True:
            state = self._state
            parts += state()
            if self._state == state:
                return parts

    def finish(self) -> list[Part]:
        text = self._with_gap()
        self._held = ""
        if not text or self._state == self._between:
            return []
        return [Reasoning(text) if self._state == self._inside else Content(text)]

    def _start(self) -> list[Part]:
        shown = self._held.lstrip()
        self._gap.append(self._held[: len(self._held) - len(shown)])
        self._held = shown
        if shown.startswith(self._begin):
            self._held, self._state = shown[len(self._begin) :], self._inside
            self._gap.clear()
        elif shown and not self._begin.startswith(shown):
            self._held, self._state = self._with_gap(), self._outside
        return []

    def _inside(self) -> list[Part]:
        found = self._held.find(self._end)
        size = len(self._held) - held_back(self._held, [self._end]) if found < 0 else found
        text, self._held = self._held[:size], self._held[size:]
        if found >= 0:
            self._held, self._state = self._held[len(self._end) :], self._between
        return [Reasoning(text)] if text else []

    def _between(self) -> list[Part]:
        """Blank lines behind the reasoning are nobody's."""
        self._held = self._held.lstrip("\n")
        if self._held:
            self._state = self._outside
        return []

    def _outside(self) -> list[Part]:
        text, self._held = self._held, ""
        return [Content(text)] if text else []

    def _with_gap(self) -> str:
        text = "".join([*self._gap, self._held])
        self._gap.clear()
        return text


class ToolCallSplitter:
    """Finds the calls of one answer in its text.

    What may grow with the answer is kept as a list of pieces and joined once; the text held back stays short.
    """

    def __init__(self, tool_format: ToolFormat) -> None:
        self._format = tool_format
        self._held = ""
        self._raw: list[str] = []  # what has been passed over since the call seemed to begin, in case it was none
        self._gap: list[str] = []  # blanks in front of the held text
        self._blanks: list[str] = []  # blanks that are content only if something follows them
        self._reader: ObjectReader | None = None
        self._written: list[str] = []  # of calls in Python
        self._num_calls = 0
        self._state = self._start if not tool_format.trigger else self._text

    def push(self, text: str) -> list[Part]:
        self._held += text
        parts: list[Part] = []
        while True:
            state, size = self._state, len(self._held)
            parts += state()
            if self._state == state and len(self._held) == size:
                return parts

    def finish(self) -> list[Part]:
        """What is left when the answer ends."""
        if self._state == self._python:
            return self._finish_python()
        if self._state == self._arguments and self._reader is not None and self._reader.name is not None:
            return []
        if self._state == self._after:
            return []
        rest = "".join([*self._raw, *self._gap, self._held])
        self._held = ""
        return self._content(rest)

    # -- states: each takes what it can from the held text

    def _start(self) -> list[Part]:
        """Whether a whole answer is calls shows at its first character that is not blank."""
        shown = self._shown(None)
        if not shown or held_back(shown, self._format.leads) == len(shown):
            return []
        lead = next((each for each in self._format.leads if shown.startswith(each)), None)
        if lead is None:
            self._state = self._plain
            self._give_gap_back()
        elif lead == "[" and self._format.style is CallStyle.PYTHON:
            self._state = self._python
            self._give_gap_back()
        else:
            self._raw = [] if lead == "{" else [self._take(len(lead))]
            self._state = self._seek
            self._gap.clear()
        return []

    def _plain(self) -> list[Part]:
        return self._content(self._take(len(self._held)))

    def _text(self) -> list[Part]:
        trigger = self._format.trigger
        found = self._held.find(trigger)
        if found < 0:
            return self._content(self._take(len(self._held) - held_back(self._held, [trigger])))
        parts = self._content(self._take(found))
        self._raw = [self._take(len(trigger))]
        self._state = self._python if self._format.style is CallStyle.PYTHON else self._seek
        return parts

    def _seek(self) -> list[Part]:
        """Between the announcement of a call and the call."""
        is_named = self._format.style is CallStyle.NAMED
        passed = self._held.lstrip() if is_named else self._held.lstrip(_BEFORE_OBJECT)
        self._raw.append(self._take(len(self._held) - len(passed)))
        if not self._held:
            return []
        if is_named:
            return self._name()
        if self._held[0] != "{":
            return self._not_a_call()
        self._begin_call(None)
        return []

    def _name(self) -> list[Part]:
        """A named call up to its arguments, once all of that is there."""
        begin, end = self._format.before_name, self._format.before_arguments
        if not self._held.startswith(begin):
            return [] if begin.startswith(self._held) else self._not_a_call()
        name, found, _ = self._held.removeprefix(begin).partition(end)
        if len(name) > _MAX_NAME_CHARS:
            return self._not_a_call()
        if not found:
            return []
        self._take(self._held.index(end) + len(end))
        self._begin_call(name.strip())
        return [CallBegun(self._num_calls, name.strip())]

    def _arguments(self) -> list[Part]:
        assert self._reader is not None
        was_named = self._reader.name is not None
        size = self._reader.push(self._held)
        self._raw.append(self._take(size))
        parts: list[Part] = []
        if self._reader.name is not None:
            if not was_named:
                parts.append(CallBegun(self._num_calls, self._reader.name))
            parts += self._more(self._reader.take_arguments())
        if not self._reader.is_complete:
            return parts
        if self._reader.name is None:
            return self._not_a_call()
        if not self._reader.has_arguments:
            parts += self._more("{}")
        self._raw, self._reader = [], None
        self._num_calls += 1
        self._state = self._after
        return parts

    def _after(self) -> list[Part]:
        """Behind a call: what closes it, then the next or text again."""
        shown, form = self._held.lstrip(_BETWEEN), self._format
        if not shown or self._is_unsettled(shown):
            return []
        closer = next((each for each in form.closers if shown.startswith(each)), "")
        if form.trigger and shown.startswith(form.trigger):
            self._held, self._state = shown, self._text
        elif closer:
            self._held = shown[len(closer) :]
        elif shown.startswith(("{", form.before_name)):
            self._held, self._state = shown, self._seek
        else:
            self._state = self._text if form.trigger else self._plain
        return []

    def _is_unsettled(self, shown: str) -> bool:
        """Whether more text may make of this what stands behind a call, and it is not that already."""
        form = self._format
        named = [form.before_name] if form.style is CallStyle.NAMED else []
        ways = [*form.closers, *filter(None, [form.trigger]), *named]
        return held_back(shown, ways) == len(shown) and shown not in form.closers

    def _python(self) -> list[Part]:
        """Python calls are read when they are complete: their values are no JSON yet."""
        self._written.append(self._take(len(self._held)))
        return []

    def _finish_python(self) -> list[Part]:
        written = "".join(self._written)
        calls = read_python_calls(written, self._format.closers)
        if calls is None:
            return self._content("".join(self._raw) + written)
        parts: list[Part] = []
        for index, (name, arguments) in enumerate(calls):
            parts += [CallBegun(index, name), CallArguments(index, arguments)]
        self._num_calls = len(calls)
        return parts

    # -- what the states share

    def _begin_call(self, name: str | None) -> None:
        self._reader = ObjectReader(name)
        self._state = self._arguments

    def _not_a_call(self) -> list[Part]:
        raw, self._raw, self._reader = "".join(self._raw), [], None
        self._state = self._text if self._format.trigger else self._plain
        return self._content(raw)

    def _more(self, text: str) -> list[Part]:
        return [CallArguments(self._num_calls, text)] if text else []

    def _take(self, size: int) -> str:
        text, self._held = self._held[:size], self._held[size:]
        return text

    def _content(self, text: str) -> list[Part]:
        """Content, with blanks held until something follows them: those before a call are nobody's."""
        kept = text.rstrip(_BETWEEN)
        if not kept:
            self._blanks.append(text)
            return []
        whole = "".join([*self._blanks, kept])
        self._blanks = [text[len(kept) :]]
        return [Content(whole)]

    def _shown(self, blanks: str | None) -> str:
        """The held text from its first character that is none of ``blanks``; those in front go into the gap."""
        shown = self._held.lstrip(blanks)
        self._gap.append(self._take(len(self._held) - len(shown)))
        return shown

    def _give_gap_back(self) -> None:
        self._held = "".join([*self._gap, self._held])
        self._gap.clear()


class AnswerParts:
    """The parts of one answer; ``has_calls`` is whether a tool was called."""

    def __init__(self, reasoning: ReasoningSplitter | None, tools: ToolCallSplitter | None) -> None:
        self._reasoning = reasoning
        self._tools = tools
        self.has_calls = False

    def push(self, text: str) -> list[Part]:
        parts = [Content(text)] if self._reasoning is None else self._reasoning.push(text)
        return self._noted(self._split(parts) if text else [])

    def finish(self) -> list[Part]:
        """The rest, once the answer has ended."""
        parts = self._split([] if self._reasoning is None else self._reasoning.finish())
        return self._noted([*parts, *([] if self._tools is None else self._tools.finish())])

    def _split(self, parts: Iterable[Part]) -> list[Part]:
        found: list[Part] = []
        for part in parts:
            found += self._tools.push(part.text) if self._tools and isinstance(part, Content) else [part]
        return found

    def _noted(self, parts: list[Part]) -> list[Part]:
        self.has_calls = self.has_calls or any(isinstance(part, CallBegun) for part in parts)
        return parts


def held_back(text: str, tags: Iterable[str]) -> int:
    """Length of the longest end of ``text`` that a tag may begin with."""
    return max((_overlap(text, tag) for tag in tags), default=0)


def _overlap(text: str, tag: str) -> int:
    for size in range(min(len(text), len(tag)), 0, -1):
        if tag.startswith(text[len(text) - size :]):
            return size
    return 0

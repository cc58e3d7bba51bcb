"""SEC-10: whatever reads an answer or a body takes time in proportion to it, however it is made."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

import pytest

from headrace.core.errors import InvalidRequest
from headrace.engine.answer_parts import AnswerParts, ReasoningSplitter, ToolCallSplitter
from headrace.engine.detokenizer import ByteDetokenizer
from headrace.engine.stop_matcher import StopStrings
from headrace.engine.text_stream import TextStream
from headrace.engine.tool_formats import FORMATS
from headrace.server.json_body import check_json

SIZE = 1 << 18
PIECE_CHARS = 16
MAX_RATIO = 3.0
"""Of the time for twice as much; 2 is in proportion, 4 is quadratic."""

TRIES = 4
BYTES = [bytes([value]) for value in range(256)]

HARD_TEXTS = {
    "parentheses": "(",
    "brackets": "[",
    "braces": "{",
    "quotes": '"',
    "escapes": "\\",
    "half tags": "<tool",
    "tags": "<tool_call>",
    "openings": '<tool_call>\n{"name": "f", "arguments": {"a": ',
    "objects": '{"name":"f","arguments":{}}',
    "python": "[f(a=(",
    "reasoning": "<think></thin",
    "blanks": "\n",
}


def doubling_costs_twice(work: Callable[[str], object], text: str) -> None:
    """Fail unless ``work`` takes about twice as long for twice the text; the best of some tries, as machines jitter."""
    ratios = []
    for _ in range(TRIES):
        once, twice = (cpu_s(work, text * times) for times in (1, 2))
        ratios.append(twice / max(once, 1e-4))
        if ratios[-1] < MAX_RATIO:
            return
    pytest.fail(f"twice the text took {ratios} times as long")


def cpu_s(work: Callable[[str], object], text: str) -> float:
    started = time.thread_time()
    work(text)
    return time.thread_time() - started


def long(unit: str) -> str:
    return unit * (SIZE // len(unit))


@pytest.mark.parametrize("text", HARD_TEXTS.values(), ids=HARD_TEXTS)
@pytest.mark.parametrize("tool_format", FORMATS, ids=lambda each: each.name)
def test_sec_10_tool_calls_are_found_in_linear_time(tool_format: object, text: str) -> None:
    def read(answer: str) -> None:
        parts = AnswerParts(None, ToolCallSplitter(tool_format))  # type: ignore[arg-type]
        for start in range(0, len(answer), PIECE_CHARS):
            parts.push(answer[start : start + PIECE_CHARS])
        parts.finish()

    doubling_costs_twice(read, long(text)[: SIZE // 4])


@pytest.mark.parametrize("text", HARD_TEXTS.values(), ids=HARD_TEXTS)
@pytest.mark.parametrize("is_inside", [True, False])
def test_sec_10_reasoning_is_split_in_linear_time(text: str, is_inside: bool) -> None:
    def read(answer: str) -> None:
        splitter = ReasoningSplitter("<think>", "</think>", is_inside=is_inside)
        for start in range(0, len(answer), PIECE_CHARS):
            splitter.push(answer[start : start + PIECE_CHARS])
        splitter.finish()

    doubling_costs_twice(read, long(text))


@pytest.mark.parametrize("stops", [["a" * 255 + "b"], ["ab" * 100 + "c", "b" * 256], ["aaaa!", "aaa!", "aa!"]])
@pytest.mark.parametrize("unit", ["a", "ab", "aab"])
def test_sec_10_stop_strings_are_found_in_linear_time(stops: list[str], unit: str) -> None:
    def read(answer: str) -> None:
        stream = TextStream(ByteDetokenizer(BYTES), StopStrings(stops))
        for token in answer.encode():
            stream.push(token)
        stream.finish()

    doubling_costs_twice(read, long(unit)[: SIZE // 2])


@pytest.mark.parametrize(
    "unit", ['"', "\\", '\\"', "[", "{", '"a",', "\\u0041", "\\ud83d\\ude00", '{"a":', "\\\\u", "[]", " "]
)
def test_sec_10_bodies_are_checked_in_linear_time(unit: str) -> None:
    def check(text: str) -> None:
        with contextlib.suppress(InvalidRequest):
            check_json(b'{"prompt":"' + text.encode() + b'"}', 64)

    doubling_costs_twice(check, long(unit) * 4)

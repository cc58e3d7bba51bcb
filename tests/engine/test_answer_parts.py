"""Answers taken apart: every cut of the text into deltas says the same, and nothing is lost."""

from __future__ import annotations

import json
import random

import pytest

from headrace.engine.answer_parts import (
    AnswerParts,
    CallArguments,
    CallBegun,
    Content,
    Reasoning,
    ReasoningSplitter,
    ToolCallSplitter,
)
from headrace.engine.detokenizer import ByteDetokenizer
from headrace.engine.stop_matcher import StopStrings
from headrace.engine.text_stream import TextStream
from headrace.engine.tool_formats import FORMATS, tool_habit

BY_NAME = {each.name: each for each in FORMATS}


def read(parts: AnswerParts, pieces: list[str]) -> tuple[str, str, list[tuple[str, str]]]:
    """Reasoning, content and calls of an answer that comes in pieces."""
    reasoning, content, names, arguments = "", "", {}, {}
    for part in [each for piece in pieces for each in parts.push(piece)] + parts.finish():
        match part:
            case Reasoning(text):
                reasoning += text
            case Content(text):
                content += text
            case CallBegun(index, name):
                assert index == len(names)
                names[index] = name
            case CallArguments(index, text):
                arguments[index] = arguments.get(index, "") + text
    return reasoning, content, [(name, arguments.get(index, "")) for index, name in names.items()]


def cut(text: str, seed: int) -> list[str]:
    rng = random.Random(seed)
    places = sorted(rng.sample(range(len(text) + 1), min(len(text), rng.randint(0, 12))))
    return [text[start:end] for start, end in zip([0, *places], [*places, len(text)], strict=True)]


def tools(name: str) -> AnswerParts:
    return AnswerParts(None, ToolCallSplitter(BY_NAME[name]))


ADD = ("add", '{"a": 1, "b": [2, {"c": "}\\"]"}]}')
ANSWERS = [
    ("hermes", "no call at all <tool", "no call at all <tool", []),
    ("hermes", f'Well.\n<tool_call>\n{{"name": "add", "arguments": {ADD[1]}}}\n</tool_call>', "Well.", [ADD]),
    (
        "hermes",
        '<tool_call>{"arguments": {"x":1}, "name": "f"}</tool_call>\n'
        '<tool_call>{"name":"g","arguments":{}}</tool_call>',
        "",
        [("f", '{"x":1}'), ("g", "{}")],
    ),
    ("hermes", '<tool_call>\n{"name": "ping"}\n</tool_call> done', " done", [("ping", "{}")]),
    ("hermes", "<tool_call> not json </tool_call>", "<tool_call> not json </tool_call>", []),
    ("hermes", '<tool_call>\n{"name": "f", "arguments": {"a": "b', "", [("f", '{"a": "b')]),
    ("hermes", '<tool_call>\n{"na', '<tool_call>\n{"na', []),
    (
        "mistral",
        f'[TOOL_CALLS][{{"name": "add", "arguments": {ADD[1]}}}, {{"name": "f", "arguments": {{}}}}]',
        "",
        [ADD, ("f", "{}")],
    ),
    ("granite", '<|tool_call|>[{"name": "f", "arguments": {"x": 1}}]', "", [("f", '{"x": 1}')]),
    ("llama3", f'{{"name": "add", "parameters": {ADD[1]}}}', "", [ADD]),
    (
        "llama3",
        '<|python_tag|>{"name": "f", "parameters": {}}; {"name": "g", "parameters": {}}',
        "",
        [("f", "{}"), ("g", "{}")],
    ),
    ("llama3", "Just { an answer", "Just { an answer", []),
    ("llama3", '{"answer": 42}', '{"answer": 42}', []),
    (
        "deepseek",
        "Hm.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n"
        '{"x": 1}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>g\n```json\n{}\n'
        "```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "Hm.",
        [("f", '{"x": 1}'), ("g", "{}")],
    ),
    ("pythonic", "[f(a=1, b='x'), g()]", "", [("f", '{"a": 1, "b": "x"}'), ("g", "{}")]),
    ("pythonic", "[1, 2]", "[1, 2]", []),
    ("gemma", "Sure.\n```tool_code\nf(a=[1, None])\n```", "Sure.", [("f", '{"a": [1, null]}')]),
]


@pytest.mark.parametrize(("name", "text", "content", "calls"), ANSWERS)
def test_an_answer_is_taken_apart_whatever_its_pieces(
    name: str, text: str, content: str, calls: list[tuple[str, str]]
) -> None:
    assert read(tools(name), [text]) == ("", content, calls)
    assert read(tools(name), list(text)) == ("", content, calls)
    for seed in range(40):
        assert read(tools(name), cut(text, seed)) == ("", content, calls)


def test_b22_the_name_comes_once_and_before_its_arguments() -> None:
    parts = tools("hermes")
    seen = [each for char in '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>' for each in parts.push(char)]
    assert isinstance(seen[0], CallBegun)
    assert all(isinstance(each, CallArguments) for each in seen[1:])
    assert parts.has_calls


def test_reading_is_linear_in_the_length() -> None:
    """Ten times the text is not a hundred times the work; told by counting characters, not seconds."""
    payload = json.dumps({"text": "x" * 200_000})
    text = f'<tool_call>{{"name": "f", "arguments": {payload}}}</tool_call>'
    pieces = [text[start : start + 7] for start in range(0, len(text), 7)]
    assert read(tools("hermes"), pieces) == ("", "", [("f", payload)])


@pytest.mark.parametrize("seed", range(20))
def test_reasoning_is_told_from_the_answer(seed: int) -> None:
    def splitter(*, is_inside: bool) -> AnswerParts:
        return AnswerParts(ReasoningSplitter("<think>", "</think>", is_inside=is_inside), None)

    assert read(splitter(is_inside=False), cut("<think>a < b</think>\n\nYes.", seed)) == ("a < b", "Yes.", [])
    assert read(splitter(is_inside=True), cut("a < b</think>Yes <think>", seed)) == ("a < b", "Yes <think>", [])
    assert read(splitter(is_inside=False), cut("No <think> here", seed)) == ("", "No <think> here", [])
    assert read(splitter(is_inside=True), cut("cut off in the middle</thi", seed)) == (
        "cut off in the middle</thi",
        "",
        [],
    )


def test_calls_after_reasoning_are_found() -> None:
    parts = AnswerParts(ReasoningSplitter("<think>", "</think>", is_inside=True), ToolCallSplitter(BY_NAME["hermes"]))
    text = 'hm <tool_call> hm</think><tool_call>{"name": "f", "arguments": {}}</tool_call>'
    assert read(parts, list(text)) == ("hm <tool_call> hm", "", [("f", "{}")])


@pytest.mark.parametrize(
    ("template", "name", "is_shown"),
    [
        ("{% if tools %}<tool_call>{% endif %}", "hermes", True),
        ("{% if tools %}[TOOL_CALLS]{% endif %}", "mistral", True),
        ("{{ tools }} <|python_tag|>", "llama3", True),
        ("{{ tools }} <｜tool▁calls▁begin｜>", "deepseek", True),
        ("{{ tools }} <|tool_call|>", "granite", True),
        ("{{ messages }}", "hermes", False),
        (None, "hermes", False),
    ],
)
def test_a_template_tells_its_familys_way(template: str | None, name: str, is_shown: bool) -> None:
    habit = tool_habit(template)
    assert (habit.format.name, habit.is_shown_by_template) == (name, is_shown)


BYTES = [bytes([byte]) for byte in range(256)]
REASONED_CALL = 'hm </th hm</think>\n\nSure.\n<tool_call>\n{"name": "f", "arguments": {"a": "<tool"}}\n</tool_call>'


def deltas_of(answer: str, num_tokens: int, stop: str, *, include: bool = False) -> tuple[list[str], bool]:
    """What a text stream lets through of the first tokens of an answer, one byte each; whether it was stopped."""
    stream = TextStream(ByteDetokenizer(BYTES), StopStrings((stop,)), include)
    deltas = []
    for token_id in answer.encode()[:num_tokens]:
        delta = stream.push(token_id)
        deltas.append(delta.text)
        if delta.stop is not None:
            return deltas, True
    return [*deltas, stream.finish()], False


@pytest.mark.parametrize("stop", ["</tool_call>!", "<tool_call>?", "Sure!", "hm</think>?", '{"name": "g"'])
def test_b21_text_held_back_for_a_stop_string_goes_through_the_parsers_when_the_stream_ends(stop: str) -> None:
    def parts() -> AnswerParts:
        reasoning = ReasoningSplitter("<think>", "</think>", is_inside=True)
        return AnswerParts(reasoning, ToolCallSplitter(BY_NAME["hermes"]))

    for num_tokens in range(len(REASONED_CALL) + 1):
        deltas, is_stopped = deltas_of(REASONED_CALL, num_tokens, stop)
        assert not is_stopped, "each of them is only nearly there"
        assert read(parts(), deltas) == read(parts(), [REASONED_CALL[:num_tokens]])
    assert read(parts(), deltas) == ("hm </th hm", "Sure.", [("f", '{"a": "<tool"}')])


@pytest.mark.parametrize(
    ("stop", "expected"),
    [
        ("</th", ("hm ", "", [])),
        ("</think>", ("hm </th hm", "", [])),
        ("Sure", ("hm </th hm", "", [])),
        ("<tool_call>", ("hm </th hm", "Sure.", [])),
        ("<tool", ("hm </th hm", "Sure.", [])),
        ('"a"', ("hm </th hm", "Sure.", [("f", "{")])),
        ("\n</tool_call>", ("hm </th hm", "Sure.", [("f", '{"a": "<tool"}')])),
    ],
)
def test_b21_a_stop_string_ends_every_part_at_the_same_place(
    stop: str, expected: tuple[str, str, list[tuple[str, str]]]
) -> None:
    reasoning = ReasoningSplitter("<think>", "</think>", is_inside=True)
    parts = AnswerParts(reasoning, ToolCallSplitter(BY_NAME["hermes"]))
    deltas, is_stopped = deltas_of(REASONED_CALL, len(REASONED_CALL), stop)
    assert is_stopped
    found = read(parts, deltas)
    assert (found[0], found[1].rstrip("\n"), found[2]) == expected

"""Tracing records what a program says; the record is data, and means the same as the program."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Iterator

import pytest

from headrace import program as sgl
from headrace.core.errors import InvalidRequest, ProgramError
from headrace.program.graph import as_svg, as_text
from headrace.program.interpreter import start
from headrace.program.ir import (
    Branch,
    Fork,
    Gen,
    Join,
    Limits,
    Program,
    RoleBegin,
    RoleEnd,
    SamplingChoice,
    Select,
    Text,
    Value,
    check_program,
    from_json,
    to_json,
)
from headrace.program.run import Listeners, Run
from headrace.program.runtime import Runtime
from tests.program.fakes import PaperBackend, paper_runtime


@sgl.function
def judge(s, essay, strict=False):
    s += sgl.system("You judge.") + sgl.user(f"Essay: {essay}")
    s += sgl.assistant_begin()
    forks = s.fork(2)
    forks += lambda i: f"Point {i}: " + sgl.gen("point", max_tokens=9)
    s += f"First {forks[0]['point']}, second {forks[1]['point']}. "
    s.branch(sgl.select("grade", choices=["good", "bad"]), {"good": _praise, "bad": lambda s: None})
    s += sgl.assistant_end()
    forks.join()


def _praise(s):
    s += f" since ({s['grade']}) " + sgl.gen("why")


def test_a_trace_is_what_the_program_says() -> None:
    program = judge.trace()
    assert program == Program(
        name="judge",
        arguments=("essay",),
        body=(
            RoleBegin("system"),
            Text("You judge."),
            RoleEnd(),
            RoleBegin("user"),
            Text("Essay: "),
            Value("essay"),
            RoleEnd(),
            RoleBegin("assistant"),
            Fork(
                "fork1",
                tuple((Text(f"Point {i}: "), Gen(name="point", sampling=SamplingChoice(max_tokens=9))) for i in (0, 1)),
            ),
            Text("First "),
            Value("fork1.0.point"),
            Text(", second "),
            Value("fork1.1.point"),
            Text(". "),
            Branch(
                Select(choices=("good", "bad"), name="grade"),
                {"good": (Text(" since ("), Value("grade"), Text(") "), Gen(name="why")), "bad": ()},
            ),
            RoleEnd(),
            Join("fork1"),
        ),
    )


def test_given_arguments_become_text() -> None:
    program = judge.trace(essay="Trees.", strict=True)
    assert program.arguments == ()
    assert Text("Essay: Trees.") in program.body


def test_a_program_survives_json() -> None:
    program = judge.trace()
    assert from_json(to_json(program)) == program
    with pytest.raises(InvalidRequest, match=r"program: Invalid value 'loop' - at `\$\.body\[0\]\.type`"):
        from_json('{"body": [{"type": "loop"}]}')


@pytest.fixture
def runtime() -> Iterator[Runtime]:
    with paper_runtime(PaperBackend(favourites=frozenset({"good"}))) as runtime:
        yield runtime


def test_a_trace_runs_as_its_program_does(runtime: Runtime) -> None:
    state = judge.run("Trees.", backend=runtime)
    captures: dict[str, object] = {}

    async def run() -> str:
        listeners = Listeners(None, lambda name, capture: captures.setdefault(name, capture.value))
        run = Run(runtime._backend, SamplingChoice(), "p", listeners)
        stream = start(judge.trace(), run, {"essay": "Trees."})
        await run.wait()
        return (await stream.document()).transcript()

    assert runtime.wait(run()) == state.text()
    assert captures["why"] == state["why"]
    assert [captures["fork1.0.point"], captures["fork1.1.point"]] == state["point"]


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda s: s["x"] == "yes", "'x' is compared"),
        (lambda s: bool(s["x"]), "'x' is tested for truth"),
        (lambda s: s["x"].split(), r"'x' is asked for \.split"),
        (lambda s: len(s["x"]), "'x' is measured"),
        (lambda s: list(s["x"]), "'x' is iterated over"),
        (lambda s: s["x"][0], "'x' is indexed"),
        (lambda s: f"{s['x']:>10}", "'x' is formatted with '>10'"),
        (lambda s: s.text(), "not known while a program is traced"),
        (lambda s: s.__iadd__(sgl.select("y", choices=[str(s["x"])])), "a choice depends on 'x'"),
        (lambda s: s.__iadd__(sgl.gen("y", regex=str(s["x"]))), "a regex depends on 'x'"),
        (lambda s: s["nothing"], "nothing captures 'nothing'"),
    ],
)
def test_what_cannot_be_recorded_says_where_and_why(use, message: str) -> None:
    @sgl.function
    def program(s):
        s += "a" + sgl.gen("x")
        use(s)

    with pytest.raises(ProgramError, match=message) as caught:
        program.trace()
    assert caught.value.where.startswith("test_tracing.py:")


def test_bounds_are_named() -> None:
    program = judge.trace()
    check_program(program)
    for limits, what in (
        (Limits(num_nodes=5), "6 nodes"),
        (Limits(depth=0), "1 levels of nesting"),
        (Limits(num_branches=1), "2 branches"),
    ):
        with pytest.raises(InvalidRequest, match=what):
            check_program(program, limits)
    with pytest.raises(InvalidRequest, match="146 tokens to generate but at most 100"):
        check_program(program, Limits(num_tokens=100))


# -- pictures --------------------------------------------------------------------------------------------


def test_the_text_picture_marks_what_is_shared() -> None:
    lines = as_text(judge.trace()).split("\n")
    assert lines[0] == "judge(essay)"
    assert '= text "You judge."' in lines
    assert "| value of essay" in lines
    assert "| fork1: 2 branches share all above" in lines
    assert '      text "Point 0: "' in lines
    assert "      gen point, at most 9 tokens" in lines
    assert "  branch by select grade of good, bad" in lines


def test_the_drawing_is_well_formed_and_holds_every_node() -> None:
    root = ET.fromstring(as_svg(judge.trace(essay="<&>")))
    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert 'text "Essay: <&>"' in texts
    assert len([text for text in texts if text and text.startswith("gen point")]) == 2
    width = float(root.attrib["width"])
    assert all(float(rect.attrib["x"]) + 300 <= width for rect in root.iter("{http://www.w3.org/2000/svg}rect"))

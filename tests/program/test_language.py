"""The language, over a backend whose answers can be worked out on paper."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
import pydantic
import pytest

from headrace import program as sgl
from headrace.core.errors import ProgramError
from headrace.program import Runtime, assistant, function, gen, select, system, user
from headrace.program.backend import Call, Generated, OnText
from headrace.program.document import Document
from headrace.program.graph import as_text
from tests.program.fakes import PaperBackend, paper_runtime


@pytest.fixture
def backend() -> PaperBackend:
    return PaperBackend()


@pytest.fixture
def runtime(backend: PaperBackend) -> Iterator[Runtime]:
    with paper_runtime(backend) as runtime:
        yield runtime


@function
def two_turns(s, question):
    s += system("Be brief.")
    s += user(question)
    s += assistant(gen("first", max_tokens=8))
    s += user("Are you sure?")
    s += assistant("Yes: " + gen("second"))


def test_a_program_is_the_same_as_the_calls_it_makes(runtime: Runtime, backend: PaperBackend) -> None:
    state = two_turns.run("Why?", backend=runtime)
    turns = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}]
    first = backend.calls[0][0].messages()
    assert first == [*turns, {"role": "assistant", "content": ""}]
    assert state["first"] == f"<{len(backend.calls[0][0].transcript())}>"
    assert backend.calls[1][0].messages()[-1] == {"role": "assistant", "content": "Yes: "}
    assert state.messages()[-1]["content"] == "Yes: " + state["second"]
    assert backend.calls[0][1].sampling.max_tokens == 8
    assert backend.calls[1][1].sampling.max_tokens == 128


def test_run_options_are_defaults_that_a_gen_overrides(runtime: Runtime, backend: PaperBackend) -> None:
    two_turns.run(question="Why?", backend=runtime, max_new_tokens=5, temperature=0.0, stop="4")
    first, second = (call.sampling for _, call in backend.calls)
    assert (first.max_tokens, second.max_tokens) == (8, 5)
    assert (first.temperature, first.stop) == (0.0, ("4",))


def test_reading_waits_for_just_that_value(runtime: Runtime, backend: PaperBackend) -> None:
    backend.hold_after = "slow"

    @function
    def program(s):
        slow, fast = s.fork(2)
        slow += "slow" + gen("x")
        fast += "fast" + gen("x")
        seen.append(fast["x"])  # while the other one is held
        runtime.call_soon(backend.gate.set)
        seen.append(slow["x"])

    seen: list[str] = []
    program.run(backend=runtime)
    assert seen == ["<4>", "<4>"]


def test_branches_of_a_fork_run_at_the_same_time(runtime: Runtime, backend: PaperBackend) -> None:
    @function
    def program(s):
        s += "start"
        forks = s.fork(5)
        forks += lambda i: f" {i}:" + gen("x")
        forks.join()
        s += str(s["x"])

    backend.hold_after, backend.opens_at = ":", 5  # none ends before all have begun
    state = program.run(backend=runtime)
    assert backend.most_running == 5
    assert state["x"] == ["<8>"] * 5
    assert state.text() == "start" + str(["<8>"] * 5)


def test_a_fork_starts_from_what_is_still_being_generated(runtime: Runtime, backend: PaperBackend) -> None:
    @function
    def program(s):
        s += "ab" + gen("x")
        for fork in s.fork(2):
            fork += gen("y")

    program.run(backend=runtime)
    assert [document.text for document, _ in backend.calls] == ["ab", "ab<2>", "ab<2>"]


def test_texts_of_branches_can_be_appended_in_order(runtime: Runtime) -> None:
    @function
    def program(s):
        s += user("List.")
        s += sgl.assistant_begin()
        forks = s.fork(2)
        forks += ["one " + gen("x", max_tokens=1), "two"]
        forks.join("concate_and_append")
        s += sgl.assistant_end()

    state = program.run(backend=runtime)
    assert state.messages()[-1]["content"] == "one <two"


def test_select_takes_the_likeliest_and_says_why(runtime: Runtime, backend: PaperBackend) -> None:
    backend.favourites = frozenset({"maybe"})

    @function
    def program(s):
        s += "Is it? " + select("answer", choices=["yes", "no", "maybe"]) + "."

    state = program.run(backend=runtime)
    assert state["answer"] == "maybe"
    assert state.text() == "Is it? maybe."
    assert state.get_meta_info("answer")["normalized_prompt_logprobs"] == pytest.approx([-3.0, -2.0, -0.1])


def test_gen_with_choices_is_a_select(runtime: Runtime, backend: PaperBackend) -> None:
    @function
    def program(s):
        s += "x" + gen("answer", choices=["long", "no"])

    assert program.run(backend=runtime)["answer"] == "no"
    assert backend.calls == []


def test_several_answers_are_captured_as_a_list_and_the_first_goes_on(runtime: Runtime) -> None:
    @function
    def program(s):
        s += "x" + gen("answers", n=3) + "!"

    state = program.run(backend=runtime)
    assert state["answers"] == ["<1>", "<1>'", "<1>''"]
    assert state.text() == "x<1>!"


def test_meta_info_is_sglangs(runtime: Runtime) -> None:
    @function
    def program(s):
        s += "x" + gen("a", stop=">")

    meta = program.run(backend=runtime).get_meta_info("a")
    assert meta["finish_reason"] == {"type": "stop", "matched": ">"}
    assert (meta["prompt_tokens"], meta["completion_tokens"]) == (1, 2)


def test_begin_and_end_forms_and_with_blocks_write_the_same_messages(runtime: Runtime) -> None:
    @function
    def in_parts(s):
        s += sgl.system_begin() + "S" + sgl.system_end()
        s += sgl.user_begin()
        s += "U"
        s += sgl.user_end()
        with s.assistant():
            s += gen("a")

    @function
    def in_one(s):
        s.system("S")
        s.user("U")
        s += assistant(gen("a"))

    assert in_parts.run(backend=runtime).messages() == in_one.run(backend=runtime).messages()


def test_a_function_called_with_a_state_is_part_of_the_program(runtime: Runtime, backend: PaperBackend) -> None:
    @function
    def part(s, word):
        s += word + gen(word)

    @function
    def whole(s):
        part(s, "a")
        part(s, word="b")

    assert whole.run(backend=runtime).text() == "a<1>b<5>"


def test_bound_arguments_need_not_be_given(runtime: Runtime) -> None:
    bound = two_turns.bind(question="Why?")
    assert bound.run(backend=runtime).messages() == two_turns.run("Why?", backend=runtime).messages()
    with pytest.raises(ProgramError, match="no argument 'quest' to bind"):
        two_turns.bind(quest="Why?")


def test_what_a_program_returns_is_kept_and_arguments_can_be_read(runtime: Runtime) -> None:
    @function
    def program(s, word, times=2):
        s += word * times
        return s["word"], s["times"]

    assert program.run("ab", backend=runtime).ret_value == ("ab", 2)


@pytest.mark.parametrize("generator_style", [False, True])
def test_a_batch_gives_states_in_order(runtime: Runtime, backend: PaperBackend, generator_style: bool) -> None:
    @function
    def program(s, word):
        s += word + gen("x")

    words = ["a" * n for n in range(1, 40)]
    states = program.run_batch([{"word": word} for word in words], backend=runtime, generator_style=generator_style)
    assert [state["x"] for state in states] == [f"<{len(word)}>" for word in words]


def test_a_batch_shows_its_progress(runtime: Runtime, capsys: pytest.CaptureFixture[str]) -> None:
    @function
    def program(s, word):
        s += word

    assert len(list(program.run_batch([("a",), ("b",)], backend=runtime, progress_bar=True, num_threads=1))) == 2
    assert capsys.readouterr().out == ""  # a bar is for terminals and for standard error


def test_a_streamed_program_gives_its_text_as_it_comes(runtime: Runtime) -> None:
    state = two_turns.run("Why?", backend=runtime, stream=True)
    assert "".join(state.text_iter("first")) == state["first"]
    pieces = list(state.text_iter())
    assert pieces[:2] == ["Be brief.", "Why?"]
    assert "".join(pieces).endswith("Yes: " + state["second"])


def test_a_stream_of_a_program_that_fails_ends_with_its_error(runtime: Runtime, backend: PaperBackend) -> None:
    backend.fail_after = "Yes: "
    state = two_turns.run("Why?", backend=runtime, stream=True)
    with pytest.raises(ProgramError, match="the prompt is refused"):
        list(state.text_iter())


def test_a_scope_captures_what_is_written_in_it(runtime: Runtime) -> None:
    @function
    def program(s):
        s += user("Q") + sgl.assistant_begin() + "It is "
        with s.var_scope("answer"):
            s += "about " + gen("number", max_tokens=2) + "!"
        s += " Done." + sgl.assistant_end()

    state = program.run(backend=runtime)
    assert state["answer"] == f"about {state['number']}!"
    assert "capture answer begins" in as_text(program.trace())

    @function
    def torn(s):
        with s.var_scope("answer"):
            s += user("Q")

    with pytest.raises(ProgramError, match="a message began or ended in between"):
        torn.run(backend=runtime)


def test_thoughts_are_captured_apart_and_are_no_part_of_the_text(runtime: Runtime, backend: PaperBackend) -> None:
    backend.answer = lambda document: "<think>\nlong\n</think>\n\nshort"

    @function
    def program(s):
        s += user("Q") + assistant(sgl.separate_reasoning(gen("answer"), model_type="qwen3"))

    state = program.run(backend=runtime)
    assert (state["answer"], state["answer_reasoning_content"]) == ("short", "long")
    assert state.messages()[-1]["content"] == "short"
    backend.answer = lambda document: "for ever"
    assert program.run(backend=runtime)["answer_reasoning_content"] == "for ever"
    with pytest.raises(ProgramError, match="model_type is 'gpt' but must be one of deepseek-r1"):
        function(lambda s: sgl.separate_reasoning(gen("answer"), "gpt")).run(backend=runtime)


def test_text_is_told_of_token_by_token_only_to_who_reads_along(runtime: Runtime, backend: PaperBackend) -> None:
    heard = []

    async def generate(document: Document, call: Call, on_text: OnText | None) -> Generated:
        heard.append(on_text is not None)
        return await PaperBackend.generate(backend, document, call, on_text)

    backend.generate = generate  # type: ignore[method-assign]
    two_turns.run("Why?", backend=runtime)
    assert "".join(two_turns.stream("Why?", backend=runtime).text_iter()) != ""
    assert heard == [False, False, True, True]


# -- types -----------------------------------------------------------------------------------------------


@dataclass
class Verdict:
    grade: int
    reason: str


def test_an_answer_of_a_class_is_read_as_one(runtime: Runtime, backend: PaperBackend) -> None:
    backend.answer = lambda document: '{"grade": 3, "reason": "short"}'

    @function
    def program(s):
        s += "Judge: " + gen("verdict", dtype=Verdict)
        return s["verdict"].grade + 1

    state = program.run(backend=runtime)
    assert state["verdict"] == Verdict(3, "short")
    assert state.ret_value == 4
    assert '"grade"' in str(backend.calls[0][1].form.json_schema)


class StructVerdict(msgspec.Struct):
    grade: int


class ModelVerdict(pydantic.BaseModel):
    grade: int


@pytest.mark.parametrize("kind", [StructVerdict, ModelVerdict])
def test_structs_and_pydantic_models_are_read_too(runtime: Runtime, backend: PaperBackend, kind: type) -> None:
    backend.answer = lambda document: '{"grade": 3}'

    @function
    def program(s):
        s += "Judge: " + gen("verdict", dtype=kind)

    assert program.run(backend=runtime)["verdict"] == kind(grade=3)
    backend.answer = lambda document: '{"grade": "high"}'
    with pytest.raises(ProgramError, match=f"is not a {kind.__name__}"):
        program.run(backend=runtime)["verdict"]


def test_a_branch_of_a_fork_cannot_be_replaced(runtime: Runtime) -> None:
    @function
    def program(s):
        s.fork(2)[0] = s

    with pytest.raises(ProgramError, match="can be appended to, not replaced"):
        program.run(backend=runtime)


@pytest.mark.parametrize(
    ("dtype", "text", "value"), [(int, " 42\n", 42), (float, "-1.5e3", -1500.0), (bool, "True", True), ("int", "7", 7)]
)
def test_plain_types_are_read(
    runtime: Runtime, backend: PaperBackend, dtype: type | str, text: str, value: object
) -> None:
    backend.answer = lambda document: text

    @function
    def program(s):
        s += "x" + gen("value", dtype=dtype)

    assert program.run(backend=runtime)["value"] == value
    assert backend.calls[0][1].form.regex is not None


def test_an_answer_that_is_not_of_its_type_fails_with_the_answer(runtime: Runtime, backend: PaperBackend) -> None:
    @function
    def program(s):
        s += "x" + sgl.gen_int("value")

    with pytest.raises(ProgramError, match=r"'<1>' does not spell a value of type int"):
        program.run(backend=runtime)


# -- failures --------------------------------------------------------------------------------------------


def test_an_error_names_the_line_and_what_was_captured(runtime: Runtime, backend: PaperBackend) -> None:
    backend.fail_after = "two"

    @function
    def program(s):
        s += "one" + gen("good")
        s["good"]
        s += "two" + gen("bad")  # this line
        s["bad"]

    with pytest.raises(ProgramError) as caught:
        program.run(backend=runtime)
    line = program.__wrapped__.__code__.co_firstlineno + 4
    assert caught.value.where == f"test_language.py:{line} in program"
    assert caught.value.captures == {"good": "<3>"}
    assert str(caught.value) == f"{caught.value.where}: the prompt is refused"


def test_a_failed_branch_ends_the_others(runtime: Runtime, backend: PaperBackend) -> None:
    backend.fail_after, backend.hold_after = "bad", "held"

    @function
    def program(s):
        forks = s.fork(3)
        forks += ["held" + gen("x"), "held" + gen("x"), "bad" + gen("x")]
        forks.join()

    with pytest.raises(ProgramError, match="refused"):
        program.run(backend=runtime)
    assert (backend.num_running, backend.num_cancelled) == (0, 2)


def test_an_exception_of_the_program_ends_its_calls(runtime: Runtime, backend: PaperBackend) -> None:
    backend.hold_after = "held"

    @function
    def program(s):
        s += "held" + gen("x")
        raise ZeroDivisionError("the program's own")

    with pytest.raises(ZeroDivisionError):
        program.run(backend=runtime)
    assert backend.num_running == 0


@pytest.mark.parametrize(
    ("append", "message"),
    [
        (lambda s: s["nothing"], "nothing captures 'nothing' before this; the names so far are 'known'"),
        (lambda s: s.__iadd__(7), "not a value of type int"),
        (lambda s: s.__iadd__(gen("x", regex="a", dtype=int)), "gen takes one of dtype, regex and json_schema"),
        (lambda s: s.__iadd__(select("x", choices=[])), "select needs choices"),
        (lambda s: s.__iadd__(select("x", choices=["a", "a"])), "two choices of a select are equal"),
        (lambda s: s.__iadd__(gen("1x")), "the name '1x' must be letters"),
        (lambda s: s.__iadd__(gen("x", temperature=-1.0)), "temperature is -1.0"),
        (lambda s: s.fork(0), "must make between 1 and"),
        (lambda s: s.fork(2).join("sideways"), "join's mode is 'sideways'"),
        (lambda s: s.__iadd__(user("after text")), "user begins after text without a role"),
    ],
)
def test_wrong_use_says_where_and_what_to_do(runtime: Runtime, append, message: str) -> None:
    @function
    def program(s):
        s += "text" + gen("known")
        append(s)

    with pytest.raises(ProgramError, match=r"test_language\.py:[0-9]+ in ") as caught:
        program.run(backend=runtime)
    assert message in str(caught.value)


def test_unknown_keywords_and_missing_backends_are_explained(runtime: Runtime) -> None:
    with pytest.raises(ProgramError, match=r"'temprature' is neither an argument of two_turns \(question\)"):
        two_turns.run("Why?", temprature=0, backend=runtime)
    with pytest.raises(ProgramError, match="missing a required argument: 'question'"):
        two_turns.run(backend=runtime)
    with pytest.raises(ProgramError, match="has nothing to run on"):
        two_turns.run("Why?")


def test_a_default_backend_is_used_where_none_is_named(runtime: Runtime) -> None:
    found: list[str] = []

    def in_a_thread() -> None:  # whose default ends with it
        sgl.set_default_backend(runtime)
        found.append(two_turns.run("Why?")["first"])
        found.extend(state["first"] for state in two_turns.run_batch([("Why?",), ("How?",)]))

    thread = threading.Thread(target=in_a_thread)
    thread.start()
    thread.join()
    assert len(found) == 3


# -- asynchronous programs -------------------------------------------------------------------------------


async def _run_async(runtime: Runtime) -> tuple[object, object]:
    @function
    async def program(s, word):
        s += word + gen("x")
        with pytest.raises(ProgramError, match=r"use await s\.get\('x'\)"):
            s["x"]
        return await s.get("x"), await s.text_async()

    state = await program.run_async("ab", backend=runtime)
    pieces = [piece async for piece in state.text_async_iter()]
    return state.ret_value, "".join(pieces)


def test_a_coroutine_is_a_program_too(runtime: Runtime) -> None:
    import asyncio

    assert asyncio.run(_run_async(runtime)) == (("<2>", "ab<2>"), "ab<2>")


def test_a_plain_program_runs_beside_an_event_loop(runtime: Runtime) -> None:
    import asyncio

    state = asyncio.run(two_turns.run_async("Why?", backend=runtime))
    assert state["first"]


def test_documents_refuse_messages_inside_of_messages() -> None:
    with pytest.raises(Exception, match="assistant begins inside of user"):
        Document().begin("user").begin("assistant")
    with pytest.raises(Exception, match="none was begun"):
        Document().end()

"""Cases that run before it is known which is the one, over a backend that can be held."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import pytest

from headrace import program as sgl
from headrace.core.errors import Overloaded, ProgramError
from headrace.program.backend import Call, Generated, OnText
from headrace.program.document import Document
from headrace.program.interpreter import start
from headrace.program.ir import Branch, Fork, Gen, Node, Program, SamplingChoice, Select, Text, Value
from headrace.program.run import Listeners, Run
from headrace.program.speculation import Speculation
from tests.program.fakes import PaperBackend, paper_runtime

GRADES = ("good", "bad")
THOUGHT = Fork("chair", ((Text(" thinks"), Gen(name="thought"), Select(choices=GRADES, name="grade")),))
CASES: dict[str, tuple[Node, ...]] = {
    "good": (Text(" praise "), Gen(name="letter", sampling=SamplingChoice(max_tokens=8)), Text(".")),
    "bad": (Text(" advice "), Gen(name="letter", sampling=SamplingChoice(max_tokens=8)), Gen(name="more")),
}
CHAIRED = Program(body=(Text("essay"), THOUGHT, Branch(Value("chair.0.grade"), CASES), Text(" end")))


async def until(is_so: Callable[[], bool]) -> None:
    for _ in range(100_000):
        if is_so():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never came about")


@dataclass
class Ran:
    """A run of ``CHAIRED`` whose chair is held until ``go_on``."""

    backend: PaperBackend
    run: Run
    events: list[tuple[str, object]] = field(default_factory=list)

    async def until(self, is_so: Callable[[], bool]) -> None:
        await until(is_so)

    def is_called(self, ending: str) -> bool:
        return any(document.text.endswith(ending) for document, _ in self.backend.calls)


def run_chaired(
    during: Callable[[Ran], Awaitable[None]], backend: PaperBackend, speculation: Speculation | None = None
) -> tuple[Ran, str]:
    """Run with the chair held while ``during`` looks; the text in the end."""

    async def work() -> tuple[Ran, str]:
        backend.hold_after = " thinks"
        ran = Ran(backend, None)  # type: ignore[arg-type]
        listeners = Listeners(
            lambda name, text: ran.events.append((name, text)),
            lambda name, capture: ran.events.append((name, capture)),
        )
        ran.run = Run(backend, SamplingChoice(), "p", listeners, speculation or Speculation())
        stream = start(CHAIRED, ran.run, {})
        await during(ran)
        backend.gate.set()
        await ran.run.wait()
        return ran, (await stream.document()).text

    return asyncio.run(work())


async def nothing(ran: Ran) -> None:
    await ran.until(lambda: ran.is_called(" thinks"))


def in_order(favourite: str) -> tuple[Ran, str]:
    return run_chaired(nothing, PaperBackend(favourites=frozenset({favourite})), Speculation(0))


@pytest.mark.parametrize("favourite", GRADES)
def test_cases_run_while_the_choice_is_made_and_the_program_gives_the_same(favourite: str) -> None:
    async def both_run(ran: Ran) -> None:
        await ran.until(lambda: ran.is_called(" praise ") and ran.is_called(" advice "))
        assert all(call.place.is_guess for document, call in ran.backend.calls if not document.text.endswith("thinks"))
        assert not [name for name, _ in ran.events if name in ("letter", "more")]  # nobody hears of a guess

    ran, text = run_chaired(both_run, PaperBackend(num_spare=2, favourites=frozenset({favourite})))
    _, expected = in_order(favourite)
    assert text == expected
    assert (ran.run.usage.num_guesses, ran.run.usage.num_right_guesses) == (2, 1)
    assert ran.run.captured == in_order(favourite)[0].run.captured


def test_what_the_right_case_made_is_heard_once_it_is_the_one_and_in_order() -> None:
    async def praise_is_written(ran: Ran) -> None:
        await ran.until(lambda: ran.backend.num_running == 1)  # the chair's: both letters are there

    backend = PaperBackend(num_spare=2, favourites=frozenset({"good"}))
    ran, _ = run_chaired(praise_is_written, backend)
    heard = "".join(str(text) for name, text in ran.events if name == "letter" and isinstance(text, str))
    assert heard == ran.run.captured["letter"]
    names = [name for name, _ in ran.events]
    assert names.index("chair.0.grade") < names.index("letter")


def test_a_guess_that_is_wrong_is_called_off() -> None:
    async def advice_is_held(ran: Ran) -> None:
        await ran.until(lambda: ran.is_called(" advice "))

    backend = PaperBackend(num_spare=2, favourites=frozenset({"good"}))
    slow = backend._generate

    async def never_more(document: Document, call: Call, on_text: OnText | None) -> Generated:
        if " advice " in document.text:
            await asyncio.Event().wait()
        return await slow(document, call, on_text)

    backend._generate = never_more  # type: ignore[method-assign]
    run_chaired(advice_is_held, backend)
    assert backend.num_cancelled == 1
    assert backend.num_running == 0


def test_a_call_that_is_running_when_its_guess_turns_out_right_is_wanted_from_then_on() -> None:
    async def work() -> None:
        backend = PaperBackend(num_spare=1, hold_after=" praise ", favourites=frozenset({"good"}))
        run = Run(backend, SamplingChoice(), "p", speculation=Speculation())
        start(CHAIRED, run, {})
        await until(lambda: run.usage.num_right_guesses > 0)
        (place,) = (call.place for document, call in backend.calls if document.text.endswith(" praise "))
        assert not place.is_guess
        assert place.wanted is not None
        backend.gate.set()
        await run.wait()

    asyncio.run(work())


def test_nothing_is_begun_without_room_or_beyond_the_budget() -> None:
    for num_spare, max_tokens in ((0, 256), (2, 0), (2, 7)):
        ran, _ = run_chaired(nothing, PaperBackend(num_spare=num_spare), Speculation(max_tokens))
        assert ran.run.usage.num_guesses == 0


def test_what_was_chosen_before_is_begun_first() -> None:
    speculation = Speculation()
    branch = Branch(Value("chair.0.grade"), CASES)
    assert list(speculation.cases(branch, 1)) == ["good"]
    speculation.note(branch, "bad")
    assert list(speculation.cases(branch, 1)) == ["bad"]
    assert list(speculation.cases(branch, 2)) == ["bad", "good"]


def test_what_one_owner_chose_is_nothing_to_another() -> None:
    speculation = Speculation()
    branch = Branch(Value("chair.0.grade"), CASES)
    speculation.of("a", "salt").note(branch, "bad")
    assert list(speculation.of("a", "salt").cases(branch, 1)) == ["bad"]
    for other in (speculation.of("b", "salt"), speculation.of("a", ""), speculation.of("", "a"), speculation):
        assert list(other.cases(branch, 1)) == ["good"]
    assert list(speculation.of("a", "salt").cases(branch, 2)) == ["bad", "good"]
    assert list(Speculation(0).of("a", "salt").cases(branch, 2)) == []


class RefusesGuesses(PaperBackend):
    async def generate(self, document: Document, call: Call, on_text: OnText | None) -> Generated:
        if call.place.is_guess:
            raise Overloaded("the queue is full", 1.0)
        return await super().generate(document, call, on_text)


def test_a_guess_that_is_refused_costs_nothing_but_itself() -> None:
    _, text = run_chaired(nothing, RefusesGuesses(num_spare=2, favourites=frozenset({"bad"})))
    assert text == in_order("bad")[1]


def test_a_case_that_fails_fails_the_program_only_if_it_is_the_one() -> None:
    backend = PaperBackend(num_spare=2, fail_after=" advice ", favourites=frozenset({"good"}))
    assert run_chaired(nothing, backend)[1] == in_order("good")[1]
    with pytest.raises(ProgramError, match="the prompt is refused"):
        run_chaired(nothing, PaperBackend(num_spare=2, fail_after=" advice ", favourites=frozenset({"bad"})))


def test_a_program_that_is_ended_ends_its_guesses() -> None:
    async def work() -> PaperBackend:
        backend = PaperBackend(num_spare=2, hold_after=" thinks")
        backend.answer = lambda document: "x" * 500
        run = Run(backend, SamplingChoice(), "p", speculation=Speculation())
        start(CHAIRED, run, {})
        await until(lambda: backend.num_running == 3)
        await run.cancel()
        assert len(asyncio.all_tasks()) == 1
        return backend

    backend = asyncio.run(work())
    assert backend.num_running == 0


def test_a_program_that_is_ended_as_it_turns_out_which_guess_is_right_ends_them_all() -> None:
    async def work() -> PaperBackend:
        backend = PaperBackend(num_spare=2, hold_after=" thinks", favourites=frozenset({"good"}))
        slow = backend._generate

        async def never_a_letter(document: Document, call: Call, on_text: OnText | None) -> Generated:
            if not document.text.endswith(" thinks"):
                await asyncio.Event().wait()
            return await slow(document, call, on_text)

        backend._generate = never_a_letter  # type: ignore[method-assign]
        run = Run(backend, SamplingChoice(), "p", speculation=Speculation())
        start(CHAIRED, run, {})
        await until(lambda: backend.num_running == 3)
        backend.gate.set()
        await until(lambda: run.usage.num_right_guesses == 1)  # what looks after the guesses has yet to begin
        await run.cancel()
        assert len(asyncio.all_tasks()) == 1
        return backend

    backend = asyncio.run(work())
    assert (backend.num_running, backend.num_cancelled) == (0, 2)


def test_a_running_program_branches_on_a_choice_made_in_a_fork() -> None:
    backend = PaperBackend(num_spare=2, favourites=frozenset({"bad"}))

    @sgl.function
    def program(s):
        s += "essay"
        chair = s.fork(1)[0]
        chair += " thinks" + sgl.gen("thought") + sgl.select("grade", GRADES)
        s += " graded " + chair.ref("grade")
        s.branch(chair.ref("grade"), {"bad": advise})
        s += " end"

    def advise(s):
        s += " advice " + sgl.gen("letter", max_tokens=4)

    with paper_runtime(backend) as runtime:
        state = program.run(backend=runtime)
        assert state.text() == f"essay graded bad advice {state['letter']} end"
    assert program.trace().body[2:4] == (Text(" graded "), Value("fork1.0.grade"))

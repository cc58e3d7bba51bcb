from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator

import pytest

from headrace.core.constraint import Constraint, ConstraintKind
from headrace.core.errors import EngineDead, InvalidRequest
from headrace.grammar.limits import GrammarLimits
from headrace.grammar.service import GrammarService
from headrace.grammar.worker_process import CompileCrash, CompileTimeout, WorkerProcess
from tests.grammar.vocabulary import END, TABLE, encode

PATIENCE_S = 60.0


def regex(source: str) -> Constraint:
    return Constraint(ConstraintKind.REGEX, source)


def schema(source: str) -> Constraint:
    return Constraint(ConstraintKind.JSON_SCHEMA, source)


@pytest.fixture(scope="module")
def service() -> Iterator[GrammarService]:
    with contextlib.closing(GrammarService(TABLE, encode)) as made:
        yield made


def test_a_compiled_constraint_starts_any_number_of_sequences(service: GrammarService) -> None:
    grammar = service.compile(schema('{"type": "boolean"}')).result(PATIENCE_S)
    first, second = grammar.new_matcher([END]), grammar.new_matcher([END])
    assert first.accept(encode("true")[0])
    assert not second.may_end
    assert grammar.compile_s > 0


def test_what_was_compiled_is_not_compiled_again(service: GrammarService) -> None:
    first = service.compile(Constraint(ConstraintKind.REGEX, "[ab]c", param="regex"))
    hits = service.num_hits
    assert service.compile(Constraint(ConstraintKind.REGEX, "[ab]c", param="guided_regex")) is first
    assert service.num_hits == hits + 1


def test_a_finished_sequence_warms_the_next(service: GrammarService) -> None:
    grammar = service.compile(regex("x+y")).result(PATIENCE_S)
    used = grammar.new_matcher([END])
    used.accept_all([ord("x"), ord("y")])
    grammar.give_back(used)
    assert grammar.new_matcher([END]).accept_all([ord("x"), ord("y")]) == 2


@pytest.mark.parametrize(
    ("constraint", "words"),
    [
        (regex('(["'), "unclosed character class"),
        (regex("[.*"), "unclosed character class"),
        (regex(""), "empty"),
        (Constraint(ConstraintKind.LARK, 'start: "a" ('), "1(13)"),
        (Constraint(ConstraintKind.LARK, 'root ::= "a"'), "start:"),
        (Constraint(ConstraintKind.LARK, "start: r0\n" + "\n".join(f"r{i}: r{i + 1}" for i in range(3000))), "3001"),
        (schema('{"type": '), "line 1, column 10"),
        (schema("7"), "must be an object"),
        (schema('{"a": 1, "a": 2}'), "twice"),
        (schema('{"minimum": NaN}'), "NaN"),
        (schema("[" * 200 + "]" * 200), "deeper than 100"),
        (schema(f'{{"description": "{"x" * (1 << 20)}"}}'), "at most 1048576"),
        (Constraint(ConstraintKind.JSON_OBJECT, "", "[ a]*"), "column 1"),
        (Constraint(ConstraintKind.REGEX, "a", " ?"), "whitespace_pattern"),
    ],
)
def test_a_bad_source_is_refused_with_its_place(service: GrammarService, constraint: Constraint, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words.replace("(", r"\(").replace(")", r"\)")):
        service.compile(constraint).result(PATIENCE_S)
    assert service.compile(constraint).done(), "that a source is invalid is remembered"


def test_a_time_out_costs_the_worker_and_is_not_remembered() -> None:
    limits = GrammarLimits(cpu_s=0.02)
    with contextlib.closing(GrammarService(TABLE, encode, limits)) as service:
        slow = regex("|".join(f"{number:05d}{number * 7919 % 65521:05d}" for number in range(20_000)))
        with pytest.raises(CompileTimeout, match=r"0\.02 s"):
            service.compile(slow).result(PATIENCE_S)
        with pytest.raises(CompileTimeout):
            service.compile(slow).result(PATIENCE_S)
        assert service.compile(regex("ok")).result(PATIENCE_S).new_matcher([END]).accept(ord("o"))


def until(pid: int, state: int) -> None:
    """Wait for what a signal does to a process: until all its threads have met it, one may answer yet."""
    os.waitid(os.P_PID, pid, state | os.WNOWAIT)


def test_a_crash_costs_one_constraint() -> None:
    worker = WorkerProcess(TABLE, GrammarLimits())
    worker.compile(regex("a"))
    first_pid = worker.pid
    assert first_pid is not None
    os.kill(first_pid, signal.SIGSEGV)
    until(first_pid, os.WEXITED)
    with pytest.raises(CompileCrash, match="too complex"):
        worker.compile(regex("b"))
    assert worker.compile(regex("b")).text
    assert worker.pid != first_pid
    worker.close()
    assert not os.path.exists(f"/proc/{first_pid}")


def test_a_worker_that_does_not_answer_is_replaced() -> None:
    worker = WorkerProcess(TABLE, GrammarLimits(wall_s=0.2))
    worker.compile(regex("a"))
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGSTOP)
    until(worker.pid, os.WSTOPPED)
    with pytest.raises(CompileTimeout, match="within"):
        worker.compile(regex("b"))
    worker.close()


def test_many_threads_share_one_compilation() -> None:
    with contextlib.closing(GrammarService(TABLE, encode)) as service:
        results = []
        threads = [threading.Thread(target=lambda: results.append(service.compile(regex("ab+")))) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len({id(result) for result in results}) == 1
        results[0].result(PATIENCE_S)


def test_a_closed_service_compiles_nothing() -> None:
    service = GrammarService(TABLE, encode)
    service.close()
    with pytest.raises(EngineDead):
        service.compile(regex("a"))

"""The guarded process that tries out constraints: ``python -m headrace.grammar.worker``.

Hostile sources can loop, exhaust memory or overflow a stack inside a native library; here that ends this process and
nothing else. It reads ``Setup``, then one ``Constraint`` after another, and answers each with a ``Verdict``. A
compilation beyond its CPU time is ended by the kernel (SIGPROF), and the process with it.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import IO, TypeVar

import llguidance
import msgspec

from headrace.core.constraint import Constraint, ConstraintKind
from headrace.core.errors import InvalidRequest
from headrace.grammar.builder import build_matcher, check_beginning
from headrace.grammar.compiler import GrammarText, compile_constraint, read_schema
from headrace.grammar.frames import read_frame, write_frame
from headrace.grammar.limits import COMPILE_STACK_BYTES, GrammarLimits
from headrace.grammar.schema.regexes import patterns_of
from headrace.grammar.vocabulary import VocabularyTable, library_tokenizer

T = TypeVar("T")

_BAD_REGEX = "regex parse error"


class Setup(msgspec.Struct, frozen=True):
    """The first frame: for which tokens and within which limits to compile."""

    table: VocabularyTable
    limits: GrammarLimits


class Verdict(msgspec.Struct, frozen=True):
    """The answer to one constraint: its grammar, or why there is none."""

    grammar: GrammarText | None = None
    message: str = ""
    param: str | None = None


def main() -> int:
    # whatever the library prints must not end up among the answers
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    requests = sys.stdin.buffer
    first = read_frame(requests)
    if first is None:
        return 0
    setup = msgspec.msgpack.decode(first, type=Setup)
    resource.setrlimit(resource.RLIMIT_AS, (setup.limits.memory_bytes, setup.limits.memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for whoever started us
    tokenizer = library_tokenizer(setup.table)
    write_frame(answers, msgspec.msgpack.encode(Verdict()))
    on_big_stack(lambda: _serve(requests, answers, Bench(tokenizer, setup.limits, setup.table.special_tokens)))
    return 0


@dataclass(frozen=True, slots=True)
class Bench:
    """What constraints are tried out with."""

    tokenizer: llguidance.LLTokenizer
    limits: GrammarLimits
    special_tokens: Mapping[str, int]


def _serve(requests: IO[bytes], answers: IO[bytes], bench: Bench) -> None:
    while (frame := read_frame(requests)) is not None:
        constraint = msgspec.msgpack.decode(frame, type=Constraint)
        signal.setitimer(signal.ITIMER_PROF, bench.limits.cpu_s)
        verdict = judge(constraint, bench)
        signal.setitimer(signal.ITIMER_PROF, 0)
        write_frame(answers, msgspec.msgpack.encode(verdict))


def judge(constraint: Constraint, bench: Bench) -> Verdict:
    """Compile a constraint, build its matcher and compute its first mask."""
    try:
        grammar = compile_constraint(constraint, bench.limits, bench.special_tokens)
        check_beginning(bench.tokenizer, build_matcher(bench.tokenizer, grammar.text))
    except InvalidRequest as error:
        return Verdict(message=_with_place(error.message, constraint, bench), param=error.param)
    except (RecursionError, MemoryError) as error:
        return Verdict(message=f"the {constraint.kind.value} is too large to compile ({type(error).__name__})")
    return Verdict(grammar)


def _with_place(message: str, constraint: Constraint, bench: Bench) -> str:
    """``message``, with the place in the schema of the first regex that is wrong: the library does not tell it."""
    if constraint.kind is not ConstraintKind.JSON_SCHEMA or not message.startswith(_BAD_REGEX):
        return message
    for place, regex in patterns_of(read_schema(constraint.source, bench.limits)):
        alone = Constraint(ConstraintKind.REGEX, regex)
        try:
            build_matcher(bench.tokenizer, compile_constraint(alone, bench.limits).text)
        except InvalidRequest as error:
            return f"#{place}: {error.message}"
    return message


def on_big_stack(work: Callable[[], T]) -> T:
    """Run ``work`` on a thread whose stack holds the library's deepest recursions, and return its result."""
    results: list[T] = []
    previous = threading.stack_size(COMPILE_STACK_BYTES)
    try:
        thread = threading.Thread(target=lambda: results.append(work()), name="grammar-compile")
        thread.start()
    finally:
        threading.stack_size(previous)
    thread.join()
    if not results:
        raise RuntimeError("the work on the big stack failed; its traceback is above")
    return results[0]


if __name__ == "__main__":
    sys.exit(main())

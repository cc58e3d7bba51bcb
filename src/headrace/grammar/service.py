"""Compiling constraints beside the engine: a queue, guarded workers, and a cache of what was compiled.

Owns when a constraint is compiled (once, however many ask at the same time) and for how long the result is kept.
Compilation never runs on the caller's thread. A time-out or a crash is told to those who asked and forgotten; that a
source is invalid is remembered like a success.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Collection
from concurrent.futures import Future
from dataclasses import dataclass

import llguidance

from headrace.core.constraint import Constraint, ConstraintKind, Reasoning
from headrace.core.errors import EngineDead, InvalidRequest, RequestFailed
from headrace.grammar.builder import build_matcher
from headrace.grammar.cache import GrammarCache
from headrace.grammar.limits import COMPILE_STACK_BYTES, GrammarLimits
from headrace.grammar.matcher import AnyText, GrammarMatcher, Matcher
from headrace.grammar.reasoning import ReasonedMatcher, ReasoningMarks
from headrace.grammar.vocabulary import Encode, VocabularyTable, library_tokenizer
from headrace.grammar.worker_process import CompileCrash, CompileTimeout, WorkerProcess

logger = logging.getLogger(__name__)

NUM_WORKERS = 2
"""A second worker is started when the first is busy, so that one slow constraint does not hold up the next."""


@dataclass(frozen=True, slots=True)
class CompileCounts:
    """Grammars compiled, those asked for that were known or on their way, and seconds spent compiling."""

    num_compiled: int = 0
    num_cached: int = 0
    compile_s: float = 0.0


class Grammar:
    """A compiled constraint, from which any number of sequences start.

    Sequences begin as copies of one prototype; without one any text will do. What a finished sequence has learnt of
    the lexer is worth having: ``give_back`` makes it the next prototype. ``marks`` are there if the constraint has
    reasoning before it.
    """

    def __init__(
        self,
        prototype: llguidance.LLMatcher | None,
        warnings: tuple[str, ...],
        num_bytes: int,
        compile_s: float,
        marks: ReasoningMarks | None = None,
    ) -> None:
        self._prototype = prototype
        self._lock = threading.Lock()
        self._marks = marks
        self.warnings = warnings
        self.num_bytes = num_bytes
        self.compile_s = compile_s

    def new_matcher(self, stop_token_ids: Collection[int], reasoning: Reasoning | None = None) -> Matcher:
        """A matcher at the beginning of an output, or of its reasoning."""
        answer = self._new_answer(stop_token_ids)
        if reasoning is None:
            return answer
        assert self._marks is not None, "its constraint had no reasoning"
        return ReasonedMatcher(answer, self._marks, reasoning, stop_token_ids)

    def give_back(self, matcher: Matcher) -> None:
        """Take over a matcher that will not be used any more."""
        library = matcher.library
        if library is not None and not library.is_error() and library.reset():
            with self._lock:
                self._prototype = library

    def _new_answer(self, stop_token_ids: Collection[int]) -> Matcher:
        with self._lock:
            if self._prototype is None:
                return AnyText()
            return GrammarMatcher(self._prototype.deep_copy(), stop_token_ids)


@dataclass(frozen=True, slots=True)
class _Job:
    constraint: Constraint
    result: Future[Grammar]


class GrammarService:
    """Compiles constraints for one vocabulary. Thread-safe. Costs nothing until the first constraint comes.

    ``encode`` is the model's own tokenizer, for forced tokens.
    """

    def __init__(self, table: VocabularyTable, encode: Encode, limits: GrammarLimits | None = None) -> None:
        self._table = table
        self._encode = encode
        self._limits = GrammarLimits() if limits is None else limits
        self._cache: GrammarCache[Grammar] = GrammarCache(self._limits.cache_bytes)
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._num_idle = 0
        self._tokenizer: llguidance.LLTokenizer | None = None
        self._is_closed = False
        self._lock = threading.Lock()
        self._tokenizer_lock = threading.Lock()  # held for longer, and never by those who ask
        self.num_hits = 0
        self._num_compiled = 0
        self._compile_s = 0.0

    def compile(self, constraint: Constraint) -> Future[Grammar]:
        """The grammar of a constraint. The future may raise ``InvalidRequest`` or ``RequestFailed``."""
        key = constraint.key
        with self._lock:
            if self._is_closed:
                raise EngineDead("the engine is closing")
            known = self._cache.get(key)
            if known is not None:
                self.num_hits += 1
                return known
            result: Future[Grammar] = Future()
            self._cache.put(key, result)
            self._jobs.put(_Job(key, result))
            if self._num_idle == 0 and len(self._threads) < NUM_WORKERS:
                self._start_thread()
            return result

    @property
    def counts(self) -> CompileCounts:
        return CompileCounts(self._num_compiled, self.num_hits, self._compile_s)

    @property
    def cache_bytes(self) -> int:
        """What the grammars that are kept are taken to hold in memory."""
        with self._lock:
            return self._cache.num_bytes

    def stop_growing(self) -> None:
        """See ``GrowingCache``: what is compiled from now on takes the place of what was used longest ago."""
        with self._lock:
            self._cache.stop_growing()

    def resume_growing(self) -> None:
        with self._lock:
            self._cache.resume_growing()

    def close(self) -> None:
        """End the workers; compilations that have not ended fail."""
        with self._lock:
            self._is_closed = True
            threads = list(self._threads)
        for _ in threads:
            self._jobs.put(None)
        for thread in threads:
            thread.join()

    def _start_thread(self) -> None:
        thread = threading.Thread(target=self._run, name=f"grammar-{len(self._threads)}", daemon=True)
        self._threads.append(thread)
        previous = threading.stack_size(COMPILE_STACK_BYTES)
        try:
            thread.start()
        finally:
            threading.stack_size(previous)

    def _run(self) -> None:
        worker = WorkerProcess(self._table, self._limits)
        with contextlib.closing(worker):
            while True:
                with self._lock:
                    self._num_idle += 1
                job = self._jobs.get()
                with self._lock:
                    self._num_idle -= 1
                if job is None:
                    return
                self._settle(job, worker)

    def _settle(self, job: _Job, worker: WorkerProcess) -> None:
        try:
            grammar = self._build(job.constraint, worker)
        except Exception as error:
            is_lasting = isinstance(error, InvalidRequest) and not isinstance(error, CompileTimeout | CompileCrash)
            if not is_lasting:
                with self._lock:
                    self._cache.drop(job.constraint)
            if not isinstance(error, InvalidRequest | RequestFailed):
                logger.exception("a %s could not be compiled", job.constraint.kind.value)
                error = RequestFailed(f"the constraint could not be compiled ({type(error).__name__})")
            job.result.set_exception(error)
            return
        with self._lock:
            self._num_compiled += 1
            self._compile_s += grammar.compile_s
            self._cache.settle(job.constraint, grammar.num_bytes)
        job.result.set_result(grammar)

    def _build(self, constraint: Constraint, worker: WorkerProcess) -> Grammar:
        started = time.perf_counter()
        marks = None
        if constraint.reasoning is not None:
            marks = ReasoningMarks.of(constraint.reasoning, self._table, self._encode)
        if constraint.kind is ConstraintKind.ANY_TEXT:
            return Grammar(None, (), 0, time.perf_counter() - started, marks)
        text = worker.compile(constraint)
        with self._tokenizer_lock:
            if self._tokenizer is None:
                self._tokenizer = library_tokenizer(self._table, self._encode)
        prototype = build_matcher(self._tokenizer, text.text)
        return Grammar(prototype, text.warnings, _num_bytes(text.text), time.perf_counter() - started, marks)


def _num_bytes(text: str) -> int:
    """What a grammar is taken to hold in memory: measured, some fifty times its text and half a megabyte of lexer."""
    return 50 * len(text) + (1 << 19)

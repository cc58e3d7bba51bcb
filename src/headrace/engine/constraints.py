"""The grammar side of an engine's sequences: who waits for a grammar, and who follows one.

A sequence with a constraint waits outside the scheduler's queue until its grammar is compiled, so that compiling holds
up nobody else. From then on it has a matcher here, which gives a row of each step's token mask and moves with each
token. Matchers outlive preemption: only keys and values are lost then. Owned by the engine's thread; compiling and the
filling of masks happen elsewhere (``grammar/``).
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as SequenceOf
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from typing import NoReturn, Protocol

from headrace.core.client import GrammarUse
from headrace.core.constraint import Constraint
from headrace.core.errors import HeadraceError, InvalidRequest
from headrace.core.request import Request
from headrace.core.sequence import Sequence
from headrace.core.step import PendingMask, StepPlan
from headrace.engine.constraint_meter import ConstraintMeter
from headrace.grammar.masks import FillingMask, MaskRows
from headrace.grammar.matcher import Matcher
from headrace.grammar.service import CompileCounts, Grammar


class GrammarSource(Protocol):
    """Compiles constraints and fills masks, both beside the engine's thread."""

    def compile(self, constraint: Constraint) -> Future[Grammar]: ...

    def start_mask(self, rows: MaskRows) -> FillingMask: ...

    @property
    def compiled(self) -> CompileCounts: ...

    @property
    def max_forced_tokens(self) -> int:
        """Most tokens to append to a sequence without sampling them; 0 samples every token."""
        ...

    def stop_growing(self) -> None: ...

    def resume_growing(self) -> None: ...

    def close(self) -> None: ...


class NoGrammars:
    """The source of an engine without a vocabulary: no constraint can be followed."""

    max_forced_tokens = 0
    compiled = CompileCounts()

    def compile(self, constraint: Constraint) -> NoReturn:
        raise InvalidRequest("this engine follows no constraints; leave it out", constraint.param)

    def start_mask(self, rows: MaskRows) -> NoReturn:
        raise AssertionError("no sequence here has a matcher")

    def stop_growing(self) -> None:
        """Nothing is kept."""

    def resume_growing(self) -> None:
        """Nothing is kept."""

    def close(self) -> None:
        """Nothing to end."""


@dataclass(frozen=True, slots=True)
class WaitingRequest:
    """A request whose grammar is being compiled, with those of its sequences that still want it.

    ``error`` is why there is no grammar, once it is known that there is none.
    """

    request: Request
    sequences: list[Sequence]
    grammar: Future[Grammar]
    was_cached: bool

    @property
    def error(self) -> HeadraceError | None:
        error, constraint = self.grammar.exception(), self.request.constraint
        if isinstance(error, InvalidRequest) and constraint is not None:
            return InvalidRequest(f"{constraint.param}: {error.message}", constraint.param)
        assert error is None or isinstance(error, HeadraceError)
        return error

    @property
    def warnings(self) -> tuple[str, ...]:
        """What of the constraint is left out with the client's consent, once its grammar is there."""
        constraint = self.request.constraint
        where = "" if constraint is None else constraint.param
        return tuple(f"{where}: {each}" for each in self.grammar.result().warnings)


@dataclass(frozen=True, slots=True)
class _Follower:
    """A sequence's place in its grammar. ``max_forced_tokens`` is 0 where every token must have its logits."""

    grammar: Grammar
    matcher: Matcher
    max_forced_tokens: int
    meter: ConstraintMeter


@dataclass(frozen=True, slots=True)
class Progress:
    """What a token did to a constrained sequence: the tokens that must follow, whether it must end after them.

    ``failure`` is why the grammar cannot be followed any further, if it cannot.
    """

    must_end: bool = False
    failure: str = ""
    forced_token_ids: SequenceOf[int] = ()


_UNCONSTRAINED = Progress()


class Constraints:
    """One engine's constrained sequences."""

    def __init__(self, grammars: GrammarSource, eos_token_ids: frozenset[int]) -> None:
        self._grammars = grammars
        self._eos_token_ids = eos_token_ids
        self._waiting: dict[str, WaitingRequest] = {}
        self._followers: dict[int, _Follower] = {}
        self._mask: FillingMask | None = None
        self._masked: list[tuple[int, _Follower]] = []  # sampled row of the step, and who has its mask there
        self._num_forced_tokens = 0
        self._num_masks = 0
        self._masked_mass = 0.0
        self._mask_s = 0.0
        self._mask_wait_s = 0.0

    @property
    def num_waiting(self) -> int:
        """Sequences that wait for their grammar."""
        return sum(len(each.sequences) for each in self._waiting.values())

    @property
    def has_settled(self) -> bool:
        return any(each.grammar.done() for each in self._waiting.values())

    def begin(self, request: Request, sequences: SequenceOf[Sequence]) -> None:
        """Have the grammar of a request compiled. Raises ``InvalidRequest`` where none can be followed."""
        assert request.constraint is not None
        grammar = self._grammars.compile(request.constraint)
        self._waiting[request.request_id] = WaitingRequest(request, list(sequences), grammar, grammar.done())

    def wait(self, timeout_s: float) -> None:
        """Block until some grammar is compiled, at most ``timeout_s``: there is nothing else to do."""
        wait([each.grammar for each in self._waiting.values()], timeout_s, FIRST_COMPLETED)

    def take_settled(self) -> Iterator[WaitingRequest]:
        """Requests that need not wait any longer; those without an ``error`` have their matchers now."""
        for request_id in [name for name, each in self._waiting.items() if each.grammar.done()]:
            settled = self._waiting.pop(request_id)
            if settled.error is None:
                self._follow(settled)
            yield settled

    def is_waiting(self, seq: Sequence) -> bool:
        waiting = self._waiting.get(seq.request.request_id)
        return waiting is not None and seq in waiting.sequences

    def forget(self, seq: Sequence) -> None:
        """A sequence has ended, whether it waited or followed."""
        if self.is_waiting(seq):
            self._waiting[seq.request.request_id].sequences.remove(seq)
            if not self._waiting[seq.request.request_id].sequences:
                del self._waiting[seq.request.request_id]
        follower = self._followers.pop(seq.seq_id, None)
        if follower is not None:
            follower.grammar.give_back(follower.matcher)

    def start_mask(self, plan: StepPlan) -> PendingMask | None:
        """Begin to fill the mask of a step; ``None`` if none of its sequences is constrained."""
        sampling = [item.seq_id for item in plan.scheduled if item.sample is not None]
        followers = ((row, self._followers.get(seq_id)) for row, seq_id in enumerate(sampling))
        self._masked = [(row, each) for row, each in followers if each is not None and each.matcher.binds]
        rows = MaskRows(len(sampling), [(row, each.matcher) for row, each in self._masked])
        self._mask = self._grammars.start_mask(rows) if self._masked else None
        return self._mask

    def settle_mask(self, masked_mass: SequenceOf[float]) -> None:
        """The step is over, or has failed: nobody works on its matchers any more once this returns.

        ``masked_mass`` is the result's, if there is one.
        """
        mask, self._mask = self._mask, None
        if mask is None:
            return
        mask.wait()
        self._mask_s += mask.fill_s
        self._mask_wait_s += mask.waited_s
        self._num_masks += len(self._masked)
        for row, follower in self._masked:
            mass = masked_mass[row] if masked_mass else 0.0
            self._masked_mass += mass
            follower.meter.note_mask(mask.fill_s / len(self._masked), mass)

    def use(self) -> GrammarUse:
        """What constraints have taken so far."""
        compiled = self._grammars.compiled
        return GrammarUse(
            num_compiled=compiled.num_compiled,
            num_cached=compiled.num_cached,
            num_forced_tokens=self._num_forced_tokens,
            num_masks=self._num_masks,
            masked_mass=self._masked_mass,
            compile_s=compiled.compile_s,
            mask_s=self._mask_s,
            mask_wait_s=self._mask_wait_s,
        )

    def meter(self, seq: Sequence) -> ConstraintMeter:
        """What the constraint of a sequence takes; it must follow one."""
        return self._followers[seq.seq_id].meter

    def advance(self, seq: Sequence, token_id: int) -> Progress:
        """Move a sequence's grammar by a sampled token; unconstrained sequences are never the worse for it."""
        follower = self._followers.get(seq.seq_id)
        if follower is None:
            return _UNCONSTRAINED
        matcher = follower.matcher
        if matcher.failure or not matcher.accept(token_id):
            return Progress(failure=matcher.failure or f"token {token_id} does not fit the grammar")
        forced = matcher.forced_tokens()[: follower.max_forced_tokens] if follower.max_forced_tokens else []
        matcher.accept_all(forced)
        self._num_forced_tokens += len(forced)
        follower.meter.num_forced_tokens += len(forced)
        return Progress(matcher.must_end, forced_token_ids=forced)

    def stop_growing(self) -> None:
        """See ``GrowingCache``."""
        self._grammars.stop_growing()

    def resume_growing(self) -> None:
        self._grammars.resume_growing()

    def close(self) -> None:
        self._grammars.close()

    def _follow(self, settled: WaitingRequest) -> None:
        grammar, constraint = settled.grammar.result(), settled.request.constraint
        assert constraint is not None
        stop_token_ids = self._eos_token_ids.union(settled.request.sampling.stop_token_ids)
        for seq in settled.sequences:
            matcher = grammar.new_matcher(stop_token_ids, constraint.reasoning)
            max_forced = 0 if settled.request.sampling.logprobs is not None else self._grammars.max_forced_tokens
            compile_s = 0.0 if settled.was_cached else grammar.compile_s
            meter = ConstraintMeter(constraint.kind.value, settled.was_cached, compile_s)
            self._followers[seq.seq_id] = _Follower(grammar, matcher, max_forced, meter)
            output = seq.token_ids[seq.num_prompt_tokens :]  # of an earlier engine, for a resumed sequence
            if matcher.accept_all(output) < len(output):
                raise RuntimeError(f"{seq} does not follow the grammar it was generated under")

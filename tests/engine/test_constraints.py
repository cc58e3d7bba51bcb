"""Sequences that wait for grammars and follow them, with a source whose compilations end when the test says so."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from headrace.core.constraint import Constraint, ConstraintKind, Reasoning
from headrace.core.errors import InvalidRequest, RequestFailed
from headrace.core.request import FinishReason, Request, SequenceProgress
from headrace.core.step import PendingMask, StepPlan, StepResult, TokenMask
from headrace.engine.constraints import NoGrammars
from headrace.grammar.builder import build_matcher
from headrace.grammar.compiler import compile_constraint
from headrace.grammar.limits import GrammarLimits
from headrace.grammar.masks import FillingMask, MaskFiller, MaskRows
from headrace.grammar.reasoning import ReasoningMarks
from headrace.grammar.service import CompileCounts, Grammar
from headrace.grammar.vocabulary import VocabularyTable, library_tokenizer
from tests.engine.house import EOS, TOKEN_BYTES, VOCAB_SIZE, ByteTexts, House, joined
from tests.fakes import ContentExecutor, make_request

TABLE = VocabularyTable([b"<eos>", *TOKEN_BYTES[1:]], [EOS], [EOS])
TOKENIZER = library_tokenizer(TABLE)


class HeldGrammars:
    """Compiles when ``release`` is called, in this thread; ``refuse`` lets every waiting compilation fail."""

    def __init__(self, max_forced_tokens: int = 0) -> None:
        self.waiting: list[tuple[Constraint, Future[Grammar]]] = []
        self.max_forced_tokens = max_forced_tokens
        self._filler = MaskFiller(VOCAB_SIZE, 1)

    def compile(self, constraint: Constraint) -> Future[Grammar]:
        future: Future[Grammar] = Future()
        self.waiting.append((constraint, future))
        return future

    compiled = CompileCounts(num_compiled=1)

    def start_mask(self, rows: MaskRows) -> FillingMask:
        return self._filler.start(rows)

    def stop_growing(self) -> None:
        """Keeps nothing."""

    def resume_growing(self) -> None:
        """Keeps nothing."""

    def close(self) -> None:
        self._filler.close()

    def release(self) -> None:
        for constraint, future in self.waiting:
            future.set_result(grammar_of(constraint))
        self.waiting = []

    def refuse(self, error: Exception) -> None:
        for _, future in self.waiting:
            future.set_exception(error)
        self.waiting = []


def grammar_of(constraint: Constraint) -> Grammar:
    marks = None if constraint.reasoning is None else ReasoningMarks.of(constraint.reasoning, TABLE, letters)
    if constraint.kind is ConstraintKind.ANY_TEXT:
        return Grammar(None, (), 0, 0.0, marks)
    text = compile_constraint(constraint, GrammarLimits()).text
    return Grammar(build_matcher(TOKENIZER, text), (), 0, 0.0, marks)


def letters(text: str) -> list[int]:
    return [ord(each) - 64 for each in text]


class MaskedExecutor(ContentExecutor):
    """Chooses the allowed token that comes next after the one it would have liked."""

    fail_next = False

    def __init__(self, num_blocks: int, block_size: int, vocab_size: int) -> None:
        super().__init__(num_blocks, block_size, vocab_size)
        self.masked_mass: list[float] = []

    def execute(self, plan: StepPlan, token_mask: PendingMask | None) -> StepResult:
        if self.fail_next:
            self.fail_next = False
            raise OSError("no luck")
        result = super().execute(plan, None)
        if token_mask is None:
            return result
        mask: TokenMask = token_mask.wait()
        allowed = np.unpackbits(mask.view(np.uint8), axis=1, bitorder="little")[:, :VOCAB_SIZE]
        for row, liked in enumerate(result.sampled_token_ids):
            self.masked_mass.append(0.0 if allowed[row][liked] else 1.0)
            order = (np.arange(VOCAB_SIZE) + liked) % VOCAB_SIZE
            result.sampled_token_ids[row] = int(order[np.flatnonzero(allowed[row][order])[0]])
        return replace(result, masked_mass=self.masked_mass[-len(allowed) :])


class Texts(ByteTexts):
    def __init__(self, grammars: HeldGrammars) -> None:
        self.grammars = grammars


def house_with(grammars: HeldGrammars, **sizes: int) -> House:
    num_blocks = sizes.pop("num_blocks", 32)
    return House(num_blocks, 4, executor=MaskedExecutor(num_blocks, 4, VOCAB_SIZE), texts=Texts(grammars), **sizes)


def constrained(regex: str, request_id: str = "r", **sampling: object) -> Request:
    request = make_request([5, 6, ord(request_id[0]) % 40], request_id, **{"max_tokens": 30, **sampling})
    return msgspec.structs.replace(request, constraint=Constraint(ConstraintKind.REGEX, regex, param="regex"))


def test_a_sequence_waits_for_its_grammar_while_others_go_on() -> None:
    grammars = HeldGrammars()
    house = house_with(grammars)
    house.engine.submit(constrained("ABC|D"))
    house.engine.submit(make_request([1, 2], "free", max_tokens=3))
    outputs = [output for _ in range(3) for output in house.engine.step()]
    assert {output.request_id for output in outputs} == {"free"}
    assert house.engine.stats().num_waiting == 1
    assert house.engine.has_work
    grammars.release()
    text, _, last = joined(house.run())
    assert text in ("ABC", "D")
    assert last.finish_reason is FinishReason.STOP


def test_an_invalid_constraint_ends_its_request_with_the_field_and_nothing_else() -> None:
    grammars = HeldGrammars()
    house = house_with(grammars)
    house.engine.submit(constrained("A", n=2))
    grammars.refuse(InvalidRequest("no such class"))
    outputs = house.engine.step()
    assert [output.index for output in outputs] == [0, 1]
    for output in outputs:
        assert output.finish_reason is FinishReason.ERROR
        assert output.error is not None
        assert (output.error.kind, output.error.param) == ("InvalidRequest", "regex")
        assert output.error.message == "regex: no such class"
    assert not house.engine.has_work


def test_a_compiler_that_is_broken_fails_the_request() -> None:
    grammars = HeldGrammars()
    house = house_with(grammars)
    house.engine.submit(constrained("A"))
    grammars.refuse(RequestFailed("no worker"))
    (output,) = house.engine.step()
    assert output.error is not None
    assert (output.error.kind, output.error.message) == ("RequestFailed", "no worker")


def test_a_waiting_request_can_be_aborted() -> None:
    grammars = HeldGrammars()
    house = house_with(grammars)
    house.engine.submit(constrained("A", n=3))
    house.engine.abort("r")
    outputs = house.engine.step()
    assert [output.finish_reason for output in outputs] == [FinishReason.ABORT] * 3
    assert not house.engine.has_work
    grammars.release()
    assert house.engine.step() == []


def test_the_end_token_ends_where_more_could_follow() -> None:
    grammars = HeldGrammars()
    house = house_with(grammars)
    house.engine.submit(constrained("A+", max_tokens=90))
    grammars.release()
    text, token_ids, last = joined(house.run())
    assert set(text) == {"A"}
    assert last.finish_reason in (FinishReason.STOP, FinishReason.LENGTH)
    assert token_ids[-1] == EOS or last.finish_reason is FinishReason.LENGTH


def test_preempted_sequences_keep_their_place_in_the_grammar() -> None:
    grammars = HeldGrammars()
    house = house_with(grammars, num_blocks=12, max_model_len=32)
    for name in ("a", "b", "c"):
        house.engine.submit(constrained("(AB){10}C", name, max_tokens=25))
    grammars.release()
    outputs = house.run()
    assert house.scheduler.num_preemptions > 0
    for name in ("a", "b", "c"):
        assert joined(outputs, name)[0] == "AB" * 10 + "C"


@pytest.mark.parametrize("regex", ["ABCDE(FG|HI)JKL", "(ABC|ADE)FGH", "A{20}", "AB(C|D)*E"])
def test_g22_forced_tokens_change_the_steps_and_nothing_else(regex: str) -> None:
    answers, num_steps = [], []
    for max_forced_tokens in (0, 64, 2):
        grammars = HeldGrammars(max_forced_tokens)
        house = house_with(grammars)
        house.engine.submit(constrained(regex, n=2))
        grammars.release()
        outputs = house.run()
        answers.append([(joined(outputs, index=index)[:2], joined(outputs, index=index)[2].usage) for index in (0, 1)])
        num_steps.append(len(house.executor.plans))
    assert answers[0] == answers[1] == answers[2]
    assert num_steps[1] < num_steps[2] < num_steps[0] or regex == "AB(C|D)*E"


def test_forced_tokens_stop_at_the_length_limit_and_at_stop_strings() -> None:
    grammars = HeldGrammars(64)
    house = house_with(grammars)
    house.engine.submit(constrained("ABCDEFGH", "long", max_tokens=5))
    house.engine.submit(constrained("ABCDEFGH", "stop", stop=("CD",)))
    grammars.release()
    outputs = house.run()
    assert joined(outputs, "long")[0] == "ABCDE"
    assert joined(outputs, "long")[2].finish_reason is FinishReason.LENGTH
    text, token_ids, last = joined(outputs, "stop")
    assert (text, len(token_ids), last.stop_reason) == ("AB", 4, "CD")


def test_tokens_whose_logprobs_are_wanted_are_all_sampled() -> None:
    grammars = HeldGrammars(64)
    house = house_with(grammars)
    house.engine.submit(constrained("ABCDEF", logprobs=0))
    grammars.release()
    assert joined(house.run())[0] == "ABCDEF"
    assert len(house.executor.plans) == 6


def test_a_failed_step_lets_go_of_its_mask() -> None:
    grammars = HeldGrammars()
    house = house_with(grammars)
    house.executor.fail_next = True
    house.engine.submit(constrained("AB"))
    grammars.release()
    (output,) = house.run()
    assert output.finish_reason is FinishReason.ERROR


def test_what_constraints_take_is_counted() -> None:
    grammars = HeldGrammars(64)
    house = house_with(grammars)
    house.engine.submit(constrained("ABCD"))
    grammars.release()
    house.run()
    use = house.engine.stats().grammars
    assert (use.num_compiled, use.num_forced_tokens) == (1, 3)
    assert use.mask_s > 0
    assert use.mask_wait_s >= 0


def test_what_one_constraint_took_is_told_with_the_timeline_of_its_sequence() -> None:
    grammars = HeldGrammars(64)
    house = house_with(grammars)
    house.engine.record_timelines()
    house.engine.submit(constrained("AB(C|D)EFG"))
    grammars.release()
    house.run()
    (life,) = house.engine.timeline("r")
    use = life.constraint
    assert use is not None
    assert (use.kind, use.was_cached, use.num_forced_tokens) == ("regex", False, 4)
    assert use.num_masks == len(house.executor.plans)
    assert use.most_masked_mass == max(house.executor.masked_mass)
    assert use.mean_masked_mass == pytest.approx(np.mean(house.executor.masked_mass))
    assert use.mask_s > 0
    total = house.engine.stats().grammars
    assert (total.num_masks, total.masked_mass) == (use.num_masks, sum(house.executor.masked_mass))


def reasoned(form: Constraint, request_id: str = "r", budget: int | None = None, **sampling: object) -> Request:
    """A request whose prompt has opened its reasoning, which ends with ``Z``."""
    request = constrained("A", request_id, **sampling)
    reasoning = Reasoning("Y", "Z", is_open=True, max_tokens=budget)
    return msgspec.structs.replace(request, constraint=msgspec.structs.replace(form, reasoning=reasoning))


REGEX = Constraint(ConstraintKind.REGEX, "AB(C|D)EF", param="regex")
FREE = Constraint(ConstraintKind.ANY_TEXT)


@pytest.mark.parametrize("max_forced_tokens", [0, 64])
@pytest.mark.parametrize("extra", [{}, {"logprobs": 0}, {"n": 3}, {"min_tokens": 20}, {"ignore_eos": True}])
def test_a_constraint_after_reasoning_binds_the_answer_alone(max_forced_tokens: int, extra: dict[str, int]) -> None:
    grammars = HeldGrammars(max_forced_tokens)
    house = house_with(grammars, max_model_len=200)
    house.engine.submit(reasoned(REGEX, "r", 6, **extra))
    grammars.release()
    outputs = house.run()
    for index in range(int(extra.get("n", 1))):
        text, token_ids, last = joined(outputs, index=index)
        reasoning, _, answer = text.partition("Z")
        assert answer in ("ABCEF", "ABDEF")
        assert len(reasoning) <= 6
        assert EOS not in token_ids
        assert last.finish_reason is FinishReason.STOP


def test_jump_forward_across_the_end_of_the_reasoning_changes_no_token() -> None:
    answers = []
    for max_forced_tokens in (0, 2, 64):
        grammars = HeldGrammars(max_forced_tokens)
        house = house_with(grammars)
        house.engine.submit(reasoned(REGEX, budget=4))
        grammars.release()
        answers.append(joined(house.run())[:2])
    assert answers[0] == answers[1] == answers[2]


def test_preempted_sequences_keep_their_place_in_the_reasoning() -> None:
    grammars = HeldGrammars()
    house = house_with(grammars, num_blocks=12, max_model_len=32)
    form = Constraint(ConstraintKind.REGEX, "(AB){9}C", param="regex")
    for name in ("a", "b", "c"):
        house.engine.submit(reasoned(form, name, 9, max_tokens=29))
    grammars.release()
    outputs = house.run()
    assert house.scheduler.num_preemptions > 0
    for name in ("a", "b", "c"):
        assert joined(outputs, name)[0].partition("Z")[2] == "AB" * 9 + "C"


@pytest.mark.parametrize("cut", [0, 1, 3, 5, 7])
def test_a_restarted_engine_finds_its_place_in_the_reasoning(cut: int) -> None:
    grammars = HeldGrammars()
    whole = house_with(grammars)
    whole.engine.submit(reasoned(REGEX, budget=4))
    grammars.release()
    text, token_ids, _ = joined(whole.run())
    source = HeldGrammars()
    second = house_with(source)
    second.engine.resume(reasoned(REGEX, budget=4), [SequenceProgress(token_ids[:cut], False, 0, 0, 0.5)])
    source.release()
    rest, rest_ids, _ = joined(second.run())
    assert token_ids[:cut] + rest_ids == token_ids
    assert text.endswith(rest)


def test_a_model_that_never_stops_reasoning_ends_by_length() -> None:
    grammars = HeldGrammars()
    house = house_with(grammars)
    never = Reasoning("YY", "ZZZZ", is_open=True)  # no such row of letters comes
    request = constrained("A", max_tokens=7)
    house.engine.submit(msgspec.structs.replace(request, constraint=msgspec.structs.replace(REGEX, reasoning=never)))
    grammars.release()
    _, token_ids, last = joined(house.run())
    assert (len(token_ids), last.finish_reason) == (7, FinishReason.LENGTH)


def test_a_budget_alone_holds_the_reasoning_and_leaves_the_answer_free() -> None:
    grammars = HeldGrammars(64)
    house = house_with(grammars)
    house.engine.submit(reasoned(FREE, "r", 3, ignore_eos=True))
    grammars.release()
    text, token_ids, last = joined(house.run())
    assert text.index("Z") <= 3
    assert (len(token_ids), last.finish_reason) == (30, FinishReason.LENGTH)
    assert house.engine.stats().grammars.num_masks <= 1, "no mask but that of the spent budget"


def test_an_engine_without_a_vocabulary_refuses_constraints() -> None:
    house = House()
    assert isinstance(ByteTexts.grammars, NoGrammars)
    with pytest.raises(InvalidRequest, match="no constraints"):
        house.engine.submit(constrained("A"))
    assert not house.engine.has_work

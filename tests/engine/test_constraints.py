"""Sequences that wait for grammars and follow them, with a source whose compilations end when the test says so."""

from __future__ import annotations

from concurrent.futures import Future

import msgspec
import numpy as np
import pytest

from headrace.core.constraint import Constraint, ConstraintKind
from headrace.core.errors import InvalidRequest, RequestFailed
from headrace.core.request import FinishReason, Request
from headrace.core.step import PendingMask, StepPlan, StepResult, TokenMask
from headrace.engine.constraints import NoGrammars
from headrace.grammar.builder import build_matcher
from headrace.grammar.compiler import compile_constraint
from headrace.grammar.limits import GrammarLimits
from headrace.grammar.masks import FillingMask, MaskFiller, MaskRows
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

    def close(self) -> None:
        self._filler.close()

    def release(self) -> None:
        for constraint, future in self.waiting:
            text = compile_constraint(constraint, GrammarLimits()).text
            future.set_result(Grammar(build_matcher(TOKENIZER, text), (), 0, 0.0))
        self.waiting = []

    def refuse(self, error: Exception) -> None:
        for _, future in self.waiting:
            future.set_exception(error)
        self.waiting = []


class MaskedExecutor(ContentExecutor):
    """Chooses the allowed token that comes next after the one it would have liked."""

    fail_next = False

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
            order = (np.arange(VOCAB_SIZE) + liked) % VOCAB_SIZE
            result.sampled_token_ids[row] = int(order[np.flatnonzero(allowed[row][order])[0]])
        return result


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


def test_an_engine_without_a_vocabulary_refuses_constraints() -> None:
    house = House()
    assert isinstance(ByteTexts.grammars, NoGrammars)
    with pytest.raises(InvalidRequest, match="no constraints"):
        house.engine.submit(constrained("A"))
    assert not house.engine.has_work

"""Constraints that begin after the reasoning, token by token on a vocabulary that can be read."""

from __future__ import annotations

import random

import numpy as np
import pytest

from headrace.core.constraint import Constraint, ConstraintKind, Reasoning
from headrace.grammar.builder import mask_words
from headrace.grammar.matcher import AnyText, Matcher
from headrace.grammar.reasoning import ReasonedMatcher, ReasoningMarks
from headrace.grammar.vocabulary import VocabularyTable
from tests.grammar.judging import matcher_of
from tests.grammar.vocabulary import END, OTHER_END, TABLE, encode

SPELLED = Reasoning("<t>", "</t>")
"""Tags that this vocabulary has no token for."""

OWN_TOKENS = VocabularyTable(
    token_bytes=[*TABLE.token_bytes, b"<t>", b"</t>", b"></", b">true", b">\n\n", b"/t>x"],
    special_token_ids=TABLE.special_token_ids,
    end_token_ids=TABLE.end_token_ids,
)
"""The same vocabulary with tokens for the tags and some that run over the closing one."""

OPEN, CLOSE, OVER, OVER_TRUE, CLOSING_LINES, OVER_X = range(TABLE.size, TABLE.size + 6)

TRUE = encode("true")[0]


def reasoned(reasoning: Reasoning, regex: str | None = "true|false", table: VocabularyTable = TABLE) -> ReasonedMatcher:
    answer: Matcher = AnyText() if regex is None else matcher_of(Constraint(ConstraintKind.REGEX, regex))
    return ReasonedMatcher(answer, ReasoningMarks.of(reasoning, table, encode), reasoning, (END,))


def opened(**fields: object) -> Reasoning:
    return Reasoning(SPELLED.begin, SPELLED.end, is_open=True, **fields)


def allowed(matcher: ReasonedMatcher, size: int = TABLE.size) -> set[int]:
    row = np.full(mask_words(size), -1, np.int32)
    if matcher.library is not None:
        matcher.library.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
    matcher.finish_row(row)
    bits = np.unpackbits(row.view(np.uint8), bitorder="little")[:size]
    return set(np.flatnonzero(bits).tolist())


def test_the_constraint_binds_what_follows_the_closing_tag_and_nothing_before_it() -> None:
    matcher = reasoned(opened())
    text = encode('{"any": thing at all, fal') + encode("</t>")
    assert matcher.accept_all(text) == len(text)
    assert allowed(matcher) == {TRUE, ord("t"), ord("f"), encode("fal")[0]}
    assert not matcher.accept(ord("x"))
    assert matcher.accept(TRUE)
    assert matcher.must_end


def test_a_sequence_cannot_end_while_it_reasons() -> None:
    matcher = reasoned(opened())
    assert allowed(matcher) == set(range(TABLE.size)) - {END}
    assert not matcher.accept(END)
    assert matcher.accept(OTHER_END)
    assert not matcher.must_end


def test_where_only_the_reasoning_is_held_to_something_a_sequence_may_end_anywhere() -> None:
    matcher = reasoned(opened(max_tokens=9), None)
    assert not matcher.binds
    assert matcher.accept(END)


def test_the_model_may_open_its_reasoning_or_answer_at_once() -> None:
    assert allowed(reasoned(SPELLED)) == {ord("<"), TRUE, ord("t"), ord("f"), encode("fal")[0]}
    straight = reasoned(SPELLED)
    assert straight.accept(TRUE)
    assert straight.must_end
    thinking = reasoned(SPELLED)
    assert thinking.accept(ord("<"))
    assert allowed(thinking) == {ord("t")}, "what has begun is no answer any more"
    assert thinking.accept_all(encode("t>hm</t>true")) == len(encode("t>hm</t>true"))
    assert thinking.must_end


def test_an_answer_that_begins_like_the_opening_tag_is_still_an_answer() -> None:
    matcher = reasoned(SPELLED, "<(tag|b)>|true")
    assert matcher.accept(ord("<"))
    assert allowed(matcher) == {ord("t"), ord("b")}
    assert matcher.accept(ord("t"))
    assert allowed(matcher) == {ord(">"), ord("a")}
    tag = matcher.accept_all(encode("ag>"))
    assert tag == 3
    assert matcher.must_end
    thinking = reasoned(SPELLED, "<(tag|b)>|true")
    assert thinking.accept_all(encode("<t>so</t><b>")) == len(encode("<t>so</t><b>"))
    assert thinking.must_end, "what was read of the tag has left no trace in the answer"


def test_tags_that_are_tokens_of_their_own_are_used_and_spellings_count_too() -> None:
    matcher = reasoned(Reasoning("<t>", "</t>"), table=OWN_TOKENS)
    assert OPEN in allowed(matcher, OWN_TOKENS.size)
    assert ord("<") not in allowed(matcher, OWN_TOKENS.size)
    assert matcher.accept_all([OPEN, ord("a"), CLOSE, TRUE]) == 4
    spelled = reasoned(opened(), table=OWN_TOKENS)
    assert spelled.accept_all([*b"a</t>", TRUE]) == 6


def test_tags_are_spelled_exactly_by_a_tokenizer_that_puts_a_blank_before_texts() -> None:
    marks = ReasoningMarks.of(SPELLED, OWN_TOKENS, lambda text: encode(" " + text))
    assert (marks.begin_token_ids, marks.end_token_ids[0]) == ((OPEN,), (CLOSE,))
    marks = ReasoningMarks.of(Reasoning("<th>", "</th>"), OWN_TOKENS, lambda text: encode(" " + text))
    assert marks.end_token_ids[0] == tuple(b"</th>")


def test_no_token_can_close_the_reasoning_and_begin_an_answer_that_nobody_held_to_its_form() -> None:
    matcher = reasoned(opened(), table=OWN_TOKENS)
    assert {OVER, OVER_TRUE, OVER_X} <= allowed(matcher, OWN_TOKENS.size)
    assert matcher.accept_all(list(b"a</t")) == 4
    left = allowed(matcher, OWN_TOKENS.size)
    assert {OVER, OVER_TRUE} & left == set()
    assert CLOSING_LINES in left
    assert not matcher.accept(OVER_TRUE)
    assert matcher.accept(CLOSING_LINES)
    assert matcher.accept(TRUE)
    begun = reasoned(opened(), table=OWN_TOKENS)
    assert begun.accept(ord("<"))
    assert OVER_X not in allowed(begun, OWN_TOKENS.size)


@pytest.mark.parametrize("budget", [0, 1, 3])
def test_a_spent_budget_leaves_nothing_but_the_closing_tag(budget: int) -> None:
    matcher = reasoned(opened(max_tokens=budget))
    assert matcher.accept_all([ord("a")] * budget) == budget
    for byte in b"</t>":
        assert allowed(matcher) == {byte}
        assert not matcher.accept(ord("a"))
        assert matcher.accept(byte)
    assert matcher.accept(TRUE)


def test_the_closing_tag_and_what_must_follow_it_are_forced_together() -> None:
    matcher = reasoned(opened(max_tokens=2), r'\{"name":[0-9]')
    assert matcher.forced_tokens() == []
    assert matcher.accept_all(encode("ab")) == 2
    forced = matcher.forced_tokens()
    assert forced[:4] == list(b"</t>")
    assert b"".join(TABLE.token_bytes[each] for each in forced[4:]).startswith(b'{"')
    assert matcher.accept_all(forced) == len(forced)


def test_a_budget_that_ends_within_the_closing_tag_forces_the_rest_of_it() -> None:
    matcher = reasoned(opened(max_tokens=3))
    assert matcher.accept_all(encode("a</")) == 3
    assert matcher.forced_tokens()[:2] == list(b"t>")


def test_a_budget_of_nothing_keeps_the_model_from_opening_its_reasoning() -> None:
    matcher = reasoned(Reasoning("<t>", "</t>", max_tokens=0))
    assert ord("<") not in allowed(matcher)


def test_a_stop_token_that_is_the_closing_tag_may_close() -> None:
    reasoning = opened()
    marks = ReasoningMarks.of(reasoning, OWN_TOKENS, encode)
    matcher = ReasonedMatcher(matcher_of(Constraint(ConstraintKind.REGEX, "a")), marks, reasoning, (END, CLOSE))
    assert CLOSE in allowed(matcher, OWN_TOKENS.size)


def test_g20_a_draft_that_crosses_the_boundary_is_cut_where_the_grammar_begins() -> None:
    matcher = reasoned(opened())
    assert matcher.accept_all(encode("so")) == 2
    draft = [*b"</t>", ord("x"), ord("y")]
    assert matcher.accept_all(draft) == 4
    assert matcher.accept(TRUE)
    assert matcher.must_end


def test_replaying_an_output_leads_to_the_same_place() -> None:
    rng = random.Random(5)
    for _ in range(60):
        reasoning = Reasoning("<t>", "</t>", is_open=rng.random() < 0.5, max_tokens=rng.choice([None, 2, 5]))
        first, token_ids = reasoned(reasoning, "[ab<]{1,4}"), []
        for _ in range(24):
            choices = sorted(allowed(first) & {*b"ab<t/>", END})
            if not choices or first.must_end:
                break
            token_ids.append(rng.choice(choices))
            assert first.accept(token_ids[-1]), (token_ids, "allowed, so it must be accepted")
        again = reasoned(reasoning, "[ab<]{1,4}")
        assert again.accept_all(token_ids) == len(token_ids)
        assert again.must_end == first.must_end
        assert first.must_end or allowed(again) == allowed(first)

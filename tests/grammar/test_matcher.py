from __future__ import annotations

import json
import random

import numpy as np
import pytest

from headrace.core.constraint import Constraint, ConstraintKind
from headrace.grammar.builder import build_matcher, mask_words
from headrace.grammar.compiler import compile_constraint
from headrace.grammar.limits import GrammarLimits
from headrace.grammar.masks import MaskFiller, MaskRows
from headrace.grammar.matcher import GrammarMatcher
from headrace.grammar.vocabulary import library_tokenizer
from tests.grammar.vocabulary import END, OTHER_END, TABLE, encode

TOKENIZER = library_tokenizer(TABLE, encode)
NAMED = {"type": "object", "properties": {"name": {"type": "boolean"}}, "required": ["name"]} | {
    "additionalProperties": False
}


def matcher(kind: ConstraintKind, source: str, stops: tuple[int, ...] = (END,), blanks: str | None = None):
    text = compile_constraint(Constraint(kind, source, blanks), GrammarLimits()).text
    return GrammarMatcher(build_matcher(TOKENIZER, text), stops)


def schema(source: object, **options) -> GrammarMatcher:
    return matcher(ConstraintKind.JSON_SCHEMA, json.dumps(source), **options)


def allowed(each: GrammarMatcher) -> set[int]:
    row = np.zeros(mask_words(TABLE.size), np.int32)
    each.fill_row(row)
    return set(np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist())


def accepts(each: GrammarMatcher, text: str) -> bool:
    ids = encode(text)
    return each.accept_all(ids) == len(ids) and each.may_end


def test_a_token_moves_the_grammar_only_where_the_mask_allows_it() -> None:
    each = schema({"type": "boolean"})
    assert allowed(each) == {ord("t"), ord("f"), encode("true")[0], encode("fal")[0]}
    assert not each.accept(ord("x"))
    assert each.num_tokens == 0
    assert each.accept(encode("fal")[0])
    assert allowed(each) == {ord("s")}


def test_stop_tokens_may_come_only_where_the_output_is_complete() -> None:
    each = schema({"type": "integer"}, stops=(END, OTHER_END))
    assert allowed(each) & {END, OTHER_END} == set()
    assert not each.accept(END)
    each.accept(ord("7"))
    assert {END, OTHER_END, ord("0")} <= allowed(each)
    assert each.accept(OTHER_END)
    assert each.must_end


def test_a_complete_output_must_end() -> None:
    each = schema({"type": "boolean"}, stops=(END, OTHER_END))
    each.accept(encode("true")[0])
    assert each.must_end
    assert allowed(each) == {END, OTHER_END}


def test_a_stop_token_of_the_client_that_the_grammar_needs_stays_allowed() -> None:
    each = matcher(ConstraintKind.REGEX, "ab", stops=(END, ord("b")))
    each.accept(ord("a"))
    assert allowed(each) == {ord("b")}


def test_g17_the_end_token_can_be_taken_back() -> None:
    each = schema(NAMED)
    ids = encode('{"name":true}')
    each.accept_all(ids[:-1])
    before = allowed(each)
    each.accept(ids[-1])
    complete = allowed(each)
    assert each.accept(END)
    each.rollback(1)
    assert allowed(each) == complete == {END}
    each.rollback(1)
    assert allowed(each) == before


def test_rollback_restores_the_mask_of_every_position() -> None:
    each = schema({"type": "array", "items": NAMED, "maxItems": 3})
    ids = [*encode('[{"name":true}, {"name":false}]'), END]
    masks = []
    for token_id in ids:
        masks.append(allowed(each))
        assert each.accept(token_id)
    for num_back in range(1, len(ids) + 1):
        copy = each.fork()
        copy.rollback(num_back)
        assert allowed(copy) == masks[len(ids) - num_back]
        assert copy.accept_all(ids[len(ids) - num_back :]) == num_back


def test_copies_go_their_own_ways() -> None:
    each = schema({"type": "boolean"})
    copy = each.fork()
    copy.accept(encode("true")[0])
    assert copy.must_end
    assert not each.may_end


def test_forced_tokens_are_the_tokenizers_own() -> None:
    each = schema(NAMED, blanks="")
    ids = encode('{"name":true}')
    assert each.forced_tokens() == ids[:3]
    each.accept_all(ids[:3])
    assert each.forced_tokens() == []


def test_g29_control_tokens_are_never_part_of_a_string() -> None:
    each = schema({"type": "string"})
    each.accept_all(encode('"a'))
    assert allowed(each) & {END, OTHER_END} == set()
    assert not each.accept(OTHER_END)


def test_g14_blanks_are_bounded_by_default() -> None:
    good = ['{"name":true}', '{"name": true}']
    bad = ['{"name":  true}', '{ "name":true}', '{"name" :true}', '{"name":\ntrue}', '{"name":true }']
    assert [accepts(schema(NAMED), text) for text in good] == [True, True]
    assert [accepts(schema(NAMED), text) for text in bad] == [False] * len(bad)


@pytest.mark.parametrize(
    ("pattern", "text", "fits"),
    [
        ("", '{"name":true}', True),
        ("", '{"name": true}', False),
        (" ?", '{ "name" : true }', True),
        (" ?", '{"name":  true}', False),
        (r"[\n ]*", '{\n  "name": true\n}', True),
        (r"\s{0,2}", '{\t\n"name":true}', True),
        (r"\s{0,2}", '{\u00a0"name":true}', False),
    ],
)
def test_g23_a_whitespace_pattern_is_obeyed(pattern: str, text: str, fits: bool) -> None:
    assert accepts(schema(NAMED, blanks=pattern), text) is fits


def test_the_masks_of_a_step_are_those_of_its_sequences() -> None:
    filler = MaskFiller(TABLE.size, 1)
    matchers = [schema({"type": "boolean"}), schema({"type": "integer"}), schema(NAMED)]
    matchers[1].accept(ord("4"))
    mask = filler.start(MaskRows(5, [(0, matchers[0]), (2, matchers[1]), (4, matchers[2])])).wait()
    rows = [set(np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist()) for row in mask]
    assert [rows[0], rows[2], rows[4]] == [allowed(each) for each in matchers]
    assert len(rows[1]) == len(rows[3]) == 32 * mask.shape[1]
    filler.close()


def test_random_walks_through_the_masks_end_in_valid_values() -> None:
    person = {
        "type": "object",
        "properties": {"a": {"type": "integer", "minimum": -5, "maximum": 300}, "b": {"enum": ["x", 1, None]}},
        "required": ["a", "b"],
        "additionalProperties": False,
    }
    rng = random.Random(5)
    for _ in range(50):
        each, ids = schema(person), []
        while not each.must_end:
            ids.append(rng.choice(sorted(allowed(each))))
            assert each.accept(ids[-1])
        value = json.loads(b"".join(TABLE.token_bytes[token_id] for token_id in ids if token_id != END))
        assert -5 <= value["a"] <= 300
        assert value["b"] in ("x", 1, None)


def test_a_grammar_that_runs_out_of_the_librarys_limits_says_so() -> None:
    each = matcher(ConstraintKind.REGEX, "([a-z]{1,1000}){1,1000}")
    for _ in range(5000):
        allowed(each)
        if not each.accept(ord("a")):
            break
    assert "expressions" in each.failure
    assert len(allowed(each)) == 32 * mask_words(TABLE.size)
    assert not each.must_end

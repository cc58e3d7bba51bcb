"""Constrained decoding on real schemas, each target beside what was reached.

Coverage and exactness on a sample of JSONSchemaBench and on the JSON Schema test suite (labels in the files), the cost
of compiling and of masks, cold and warm, the share of tokens that compact JSON forces, and hostile inputs through the
guarded worker. Times are CPU time of one thread, so a busy machine does not change them much.

    python benchmarks/grammar.py --sample jsonschemabench_sample.jsonl
    python benchmarks/grammar.py --sample FILE --suite FILE --every 10 --json out.json

Both files have one object a line: ``id``, ``set``, ``schema`` and ``tests`` with ``data`` and ``valid``.
"""

from __future__ import annotations

import argparse
import itertools
import json
import platform
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from headrace.checkpoint.reference import resolve_model
from headrace.core.constraint import Constraint, ConstraintKind
from headrace.core.errors import InvalidRequest
from headrace.core.progress import NullProgress
from headrace.engine.grammars import vocabulary_table
from headrace.engine.tokenizer import Tokenizer, load_tokenizer
from headrace.grammar.builder import build_matcher, check_beginning, mask_words
from headrace.grammar.compiler import compile_constraint
from headrace.grammar.explain import allowed_bytes, explain
from headrace.grammar.limits import GrammarLimits
from headrace.grammar.matcher import GrammarMatcher
from headrace.grammar.schema.formats import format_regex
from headrace.grammar.shorthand import read_shorthand
from headrace.grammar.trial import byte_matcher
from headrace.grammar.vocabulary import library_tokenizer
from headrace.grammar.worker_process import WorkerProcess

SUITE = Path(__file__).parents[1] / "tests" / "grammar" / "data" / "json_schema_test_suite.jsonl"
MAX_ORDERS = 400


@dataclass
class Model:
    """The vocabulary that everything is measured with."""

    tokenizer: Tokenizer

    def __post_init__(self) -> None:
        tokenizer = self.tokenizer
        self.table = vocabulary_table(tokenizer, tokenizer.vocab_size, tokenizer.eos_token_ids)
        self.library = library_tokenizer(self.table, tokenizer.encode_text)
        self.row = np.zeros(mask_words(tokenizer.vocab_size), np.int32)

    def compile(self, constraint: Constraint) -> tuple[GrammarMatcher, float]:
        """A matcher and the CPU milliseconds it took, first mask included. Raises ``InvalidRequest``."""
        started = time.process_time()
        library = build_matcher(self.library, compile_constraint(constraint, GrammarLimits()).text)
        check_beginning(self.library, library)
        spent_ms = 1e3 * (time.process_time() - started)
        return GrammarMatcher(library, self.tokenizer.eos_token_ids), spent_ms


@dataclass
class Outcome:
    """What became of one file of schemas. Lists name the schemas; times are CPU milliseconds and microseconds."""

    num_schemas: int = 0
    right: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    false_accepts: list[str] = field(default_factory=list)
    annotation_accepts: list[str] = field(default_factory=list)
    false_rejects: list[str] = field(default_factory=list)
    spelling_rejects: list[str] = field(default_factory=list)
    num_format_tests: int = 0
    num_format_right: int = 0
    compile_ms: list[float] = field(default_factory=list)
    cold_us: list[float] = field(default_factory=list)
    warm_us: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    what: str
    target: str
    reached: str
    is_met: bool


def judge(model: Model, group: dict[str, Any], outcome: Outcome, *, tries_orders: bool) -> GrammarMatcher | None:
    """Hold one schema's grammar to its labelled instances."""
    name, schema = group["id"], json.dumps(group["schema"])
    outcome.num_schemas += 1
    is_format = group["set"].startswith("format:")
    try:
        matcher, spent_ms = model.compile(Constraint(ConstraintKind.JSON_SCHEMA, schema))
    except InvalidRequest:
        outcome.refused.append(name)
        return None
    outcome.compile_ms.append(spent_ms)
    num_wrong = 0
    for test in group["tests"]:
        spellings = orders(test["data"]) if tries_orders and test["valid"] else iter([test["data"]])
        is_taken = any(takes(model, matcher, each) for each in itertools.islice(spellings, MAX_ORDERS))
        outcome.num_format_tests += is_format
        outcome.num_format_right += is_format and is_taken == test["valid"]
        if is_taken != test["valid"]:
            num_wrong += 1
            _file_error(outcome, group, test, is_taken)
    if not num_wrong:
        outcome.right.append(name)
    return matcher


def _file_error(outcome: Outcome, group: dict[str, Any], test: dict[str, Any], is_taken: bool) -> None:
    name = group["id"]
    if is_taken:
        has_annotation = any(format_regex(each) is None for each in formats_of(group["schema"]))
        (outcome.annotation_accepts if has_annotation else outcome.false_accepts).append(name)
    else:
        is_spelling = "." in json.dumps(test["data"]) and json.dumps(as_integers(test["data"])) != json.dumps(
            test["data"]
        )
        (outcome.spelling_rejects if is_spelling else outcome.false_rejects).append(name)


def takes(model: Model, matcher: GrammarMatcher, value: object) -> bool:
    copy, ids = matcher.fork(), model.tokenizer.encode_text(json.dumps(value, ensure_ascii=False))
    return copy.accept_all(ids) == len(ids) and copy.may_end


def orders(value: object) -> Iterator[object]:
    """A value with its objects' keys in every order, the given one first."""
    if isinstance(value, dict):
        for keys in itertools.permutations(value):
            for each in itertools.product(*(list(itertools.islice(orders(value[key]), 24)) for key in keys)):
                yield dict(zip(keys, each, strict=True))
    elif isinstance(value, list):
        yield from map(list, itertools.product(*(list(itertools.islice(orders(each), 24)) for each in value)))
    else:
        yield value


def formats_of(schema: object) -> Iterator[str]:
    if isinstance(schema, dict):
        if isinstance(schema.get("format"), str):
            yield schema["format"]
        for each in schema.values():
            yield from formats_of(each)
    elif isinstance(schema, list):
        for each in schema:
            yield from formats_of(each)


def as_integers(value: object) -> object:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [as_integers(each) for each in value]
    return {key: as_integers(each) for key, each in value.items()} if isinstance(value, dict) else value


def time_masks(model: Model, matcher: GrammarMatcher, group: dict[str, Any], outcome: Outcome) -> None:
    """Fill the mask at every token of the valid instances, in a fresh matcher and in a copy of a used one."""
    rows = [model.tokenizer.encode_text(json.dumps(test["data"])) for test in group["tests"] if test["valid"]]
    used = matcher.fork()
    for target in (outcome.cold_us, outcome.warm_us):
        for ids in rows:
            walker = matcher.fork() if target is outcome.cold_us else used.fork()
            for token_id in ids:
                started = time.thread_time_ns()
                walker.fill_row(model.row)
                target.append((time.thread_time_ns() - started) / 1e3)
                if not walker.accept(token_id):
                    break
            if target is outcome.cold_us:
                walker.rollback(walker.num_tokens)
                used = walker


def forced_share(model: Model, groups: list[dict[str, Any]]) -> tuple[int, int]:
    """Tokens of compact instances, and how many of them the grammar forced."""
    num_tokens = num_forced = 0
    for group in groups:
        try:
            matcher, _ = model.compile(Constraint(ConstraintKind.JSON_SCHEMA, json.dumps(group["schema"]), ""))
        except InvalidRequest:
            continue
        for test in (each for each in group["tests"] if each["valid"]):
            text = json.dumps(test["data"], separators=(",", ":"), ensure_ascii=False)
            counts = _count_forced(model, matcher.fork(), text.encode())
            num_tokens, num_forced = num_tokens + counts[0], num_forced + counts[1]
    return num_tokens, num_forced


def _count_forced(model: Model, walker: GrammarMatcher, rest: bytes) -> tuple[int, int]:
    """Write a text as an engine would: what is forced at once, else the next token of the tokenizer's own encoding."""
    num_tokens = num_forced = 0
    table, planned = model.table.token_bytes, []
    while rest:
        forced = walker.forced_tokens()
        joined = b"".join(table[token_id] for token_id in forced)
        if forced and rest.startswith(joined):
            num_forced += len(forced)
            planned = []
        else:
            planned = planned or model.tokenizer.encode_text(rest.decode())[::-1]
            forced, joined = [planned.pop()], b""
        if walker.accept_all(forced) < len(forced):
            return num_tokens, num_forced
        rest = rest.removeprefix(joined or table[forced[0]])
        num_tokens += len(forced)
        if not _is_text(rest):
            return num_tokens, num_forced
    return num_tokens, num_forced


def _is_text(data: bytes) -> bool:
    """Whether the rest begins at a character; one cut in the middle cannot be encoded again."""
    return not data or data[0] & 0xC0 != 0x80


def hostile_inputs() -> dict[str, Constraint]:
    """Sources that have ended or stalled servers."""
    nested: dict[str, Any] = {"type": "string"}
    for _ in range(8):
        nested = {"anyOf": [{"type": "object", "properties": {name: nested}} for name in "abc"]}
    twelve: dict[str, Any] = {"type": "string"}
    for level in range(12):
        objects = [{"type": "object", "properties": {name + str(level): twelve}} for name in "ab"]
        twelve = {"oneOf": objects}
    optional = {"type": "object", "properties": {f"p{index}": {"type": "string"} for index in range(1000)}}
    schemas: dict[str, Any] = {
        "anyOf nested 8 deep": nested,
        "oneOf nested 12 deep": twelve,
        "enum of 20,000": {"enum": [f"value {index}" for index in range(20_000)]},
        "1,000 optional properties": {**optional, "additionalProperties": False},
        "minItems of a billion": {"type": "array", "items": {"type": "integer"}, "minItems": 10**9},
        "a reference to itself": {"$ref": "#"},
    }
    found = {name: Constraint(ConstraintKind.JSON_SCHEMA, json.dumps(schema)) for name, schema in schemas.items()}
    found["JSON 20,000 deep"] = Constraint(ConstraintKind.JSON_SCHEMA, "[" * 20_000)
    found["regex of repeated repetitions"] = Constraint(ConstraintKind.REGEX, "([a-z]{1,1000}){1,1000}")
    found["regex of 50,000 words"] = Constraint(ConstraintKind.REGEX, "|".join(f"w{index}x" for index in range(50_000)))
    found["50,000 parentheses"] = Constraint(ConstraintKind.REGEX, "(" * 50_000 + ")" * 50_000)
    chain = "start: r0\n" + "\n".join(f"r{index}: r{index + 1}" for index in range(3000)) + '\nr3000: "a"'
    found["3,000 chained rules"] = Constraint(ConstraintKind.LARK, chain)
    return found


def try_hostile(model: Model) -> dict[str, tuple[str, float]]:
    """What the guarded worker says of each hostile input, and after how many seconds."""
    worker = WorkerProcess(model.table, GrammarLimits())
    worker.compile(Constraint(ConstraintKind.REGEX, "warm up"))
    found = {}
    for name, constraint in hostile_inputs().items():
        started = time.perf_counter()
        try:
            worker.compile(constraint)
            said = "compiled"
        except InvalidRequest as error:
            said = error.message.splitlines()[0]
        found[name] = (said, time.perf_counter() - started)
    worker.close()
    return found


def walks_that_disagree(num_walks: int) -> tuple[int, int]:
    """The classic exercise's states, and random walks on which its automaton and the matcher disagree."""
    constraint = Constraint(ConstraintKind.JSON_SCHEMA, read_shorthand('{"name": string, "age": integer}', 10), "")
    automaton, start = explain(constraint), byte_matcher(constraint)
    num_wrong = 0
    for seed in range(num_walks):
        rng, matcher, data = random.Random(seed), start.fork(), b""
        is_right = True
        while is_right and not matcher.must_end and len(data) < 40:
            byte = rng.choice(allowed_bytes(matcher))
            if not matcher.accept(byte):
                break  # the end of the output
            data += bytes([byte])
            state = automaton.follow(data)
            is_right = state is None or state.may_end == matcher.may_end
        num_wrong += not (is_right and (not matcher.must_end or automaton.follow(data) is not None))
    return len(automaton.states), num_wrong


def percentile(values: list[float], share: float) -> float:
    return float(np.percentile(values, 100 * share)) if values else float("nan")


def table(sample: Outcome, suite: Outcome, forced: tuple[int, int], hostile: dict[str, tuple[str, float]]) -> list[Row]:
    """Each target beside what was reached."""
    core = [name for name in suite.right if not name.startswith("optional/")]
    num_core_wrong = sum(not name.startswith("optional/") for name in set(suite.false_rejects))
    compile_ms, cold, warm = sample.compile_ms, sample.cold_us, sample.warm_us
    num_false = len(sample.false_accepts) + len(suite.false_accepts)
    slowest = max(seconds for _, seconds in hostile.values())
    share = forced[1] / max(forced[0], 1)
    formats = suite.num_format_right / max(suite.num_format_tests, 1)
    return [
        Row("instances accepted wrongly", "0", str(num_false), num_false == 0),
        Row(
            "sample, schemas right on every instance",
            ">= 290 of 300",
            f"{len(sample.right)} of {sample.num_schemas} (refused {len(sample.refused)})",
            len(sample.right) >= 0.966 * sample.num_schemas,
        ),
        Row("test suite, core groups right", ">= 140", str(len(core)), len(core) >= 140),
        Row("test suite, core, rejected wrongly", "0 but spellings", str(num_core_wrong), num_core_wrong == 0),
        Row("tests of 12 formats", ">= 97%", f"{formats:.1%}", formats >= 0.97),
        Row("compile p50", "<= 4 ms", f"{percentile(compile_ms, 0.5):.1f} ms", percentile(compile_ms, 0.5) <= 4),
        Row("compile p99", "<= 60 ms", f"{percentile(compile_ms, 0.99):.1f} ms", percentile(compile_ms, 0.99) <= 60),
        Row("mask cold p50", "<= 15 us", f"{percentile(cold, 0.5):.1f} us", percentile(cold, 0.5) <= 15),
        Row("mask cold p99", "<= 600 us", f"{percentile(cold, 0.99):.0f} us", percentile(cold, 0.99) <= 600),
        Row("mask warm mean", "<= 30 us", f"{float(np.mean(warm)):.1f} us", float(np.mean(warm)) <= 30),
        Row("mask warm p99", "<= 500 us", f"{percentile(warm, 0.99):.0f} us", percentile(warm, 0.99) <= 500),
        Row("tokens forced on compact objects", ">= 20%", f"{share:.1%}", share >= 0.2),
        Row("hostile inputs, slowest answer", "<= 1 s", f"{slowest:.2f} s", slowest <= 1),
    ]


def explain_rows(num_walks: int) -> list[Row]:
    num_states, num_wrong = walks_that_disagree(num_walks)
    return [
        Row("explained states of a name and an age", "<= 20", str(num_states), num_states <= 20),
        Row(f"of {num_walks} random walks, explained otherwise", "0", str(num_wrong), num_wrong == 0),
    ]


def render(rows: list[Row]) -> str:
    widths = [max(len(getattr(row, name)) for row in rows) for name in ("what", "target", "reached")]
    lines = [f"{'what':<{widths[0]}}  {'target':<{widths[1]}}  {'reached':<{widths[2]}}"]
    for row in rows:
        mark = "" if row.is_met else "  missed"
        lines.append(f"{row.what:<{widths[0]}}  {row.target:<{widths[1]}}  {row.reached:<{widths[2]}}{mark}")
    return "\n".join(lines)


def read_groups(path: Path, every: int) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()[::every]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=Path, required=True, help="real schemas with labelled instances")
    parser.add_argument("--suite", type=Path, default=SUITE, help="a test suite of the keywords")
    parser.add_argument("--model", default="smollm2", help="whose tokenizer to use")
    parser.add_argument("--every", type=int, default=1, help="take only every so-manieth schema")
    parser.add_argument("--json", metavar="FILE", type=Path, help="also write everything as JSON")
    parser.add_argument("--walks", type=int, default=10_000, help="random walks through an explained automaton")
    arguments = parser.parse_args()
    model = Model(load_tokenizer(resolve_model(arguments.model, NullProgress())))
    sample_groups = read_groups(arguments.sample, arguments.every)
    sample, suite = Outcome(), Outcome()
    for group in sample_groups:
        matcher = judge(model, group, sample, tries_orders=False)
        if matcher is not None:
            time_masks(model, matcher, group, sample)
    for group in read_groups(arguments.suite, arguments.every):
        judge(model, group, suite, tries_orders=True)
    hostile = try_hostile(model)
    rows = table(sample, suite, forced_share(model, sample_groups), hostile)
    rows += explain_rows(arguments.walks)
    print(render(rows))
    for name, (said, seconds) in hostile.items():
        print(f"  {name}: {said} ({seconds:.2f} s)")
    for label, names in (
        ("accepted for a format that is an annotation", sample.annotation_accepts),
        ("refused", sample.refused),
    ):
        print(f"  sample, {label}: {', '.join(dict.fromkeys(names)) or 'none'}")
    if arguments.json:
        report = {
            "machine": platform.machine(),
            "vocab": model.tokenizer.vocab_size,
            "rows": [asdict(row) for row in rows],
            "hostile": hostile,
            "sample": asdict(sample) | {"cold_us": [], "warm_us": []},
            "suite": asdict(suite) | {"cold_us": [], "warm_us": []},
        }
        arguments.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Compiling and masks with a quarter of a million tokens, which no small model has: a vocabulary made up by a seed.

Times are CPU time of one thread. Walks are random, so most of their steps are inside strings, where masks cost most;
``benchmarks/grammar.py --model`` walks through real values with a real vocabulary.

    python benchmarks/large_vocabulary.py
    python benchmarks/large_vocabulary.py --size 151851 --json out.json
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from headrace.core.constraint import Constraint, ConstraintKind
from headrace.grammar.builder import build_matcher, mask_words
from headrace.grammar.compiler import compile_constraint
from headrace.grammar.limits import GrammarLimits
from headrace.grammar.matcher import GrammarMatcher
from headrace.grammar.vocabulary import VocabularyTable, library_tokenizer

NUM_TOKENS = 248_077
NUM_STEPS = 120
SCHEMAS: tuple[dict[str, Any], ...] = (
    {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}, "required": ["name"]},
    {"type": "array", "items": {"type": "string", "pattern": "^[a-z]+(-[a-z]+)*$"}, "minItems": 3},
    {"type": "object", "additionalProperties": {"anyOf": [{"type": "number"}, {"type": "string", "maxLength": 40}]}},
    {"type": "array", "items": {"type": "object", "properties": {"day": {"format": "date"}}, "required": ["day"]}},
)

TARGETS = {"compile p50, ms": 4.0, "mask p50, us": 25.0, "mask p99, us": 4000.0}


def made_up(size: int) -> VocabularyTable:
    """Every byte, then pieces of words with what stands before them, and an end token."""
    rng = random.Random(size)
    words = [bytes([byte]) for byte in range(256)]
    seen = set(words)
    letters = "etaoinshrdlucmfwypvbgkjqxz"
    while len(words) < size - 1:
        piece = "".join(rng.choices(letters, weights=range(26, 0, -1), k=rng.randint(2, 12)))
        word = (rng.choice(("", "", " ", '"', "_")) + piece).encode()
        if word not in seen:
            seen.add(word)
            words.append(word)
    return VocabularyTable([*words, b"<end>"], [size - 1], [size - 1])


def measure(size: int) -> dict[str, float]:
    """Percentiles over random walks through a few schemas."""
    library, rng = library_tokenizer(made_up(size)), random.Random(1)
    row = np.zeros(mask_words(size), np.int32)
    compile_ms, mask_us = [], []
    for schema in SCHEMAS:
        started = time.process_time()
        text = compile_constraint(Constraint(ConstraintKind.JSON_SCHEMA, json.dumps(schema)), GrammarLimits()).text
        matcher = GrammarMatcher(build_matcher(library, text), [size - 1])
        compile_ms.append(1e3 * (time.process_time() - started))
        for _ in range(NUM_STEPS):
            started_ns = time.thread_time_ns()
            matcher.fill_row(row)
            mask_us.append((time.thread_time_ns() - started_ns) / 1e3)
            allowed = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")[: size - 1])
            if len(allowed) == 0 or not matcher.accept(int(rng.choice(allowed.tolist()))) or matcher.must_end:
                break
    return {
        "compile p50, ms": float(np.percentile(compile_ms, 50)),
        "mask p50, us": float(np.percentile(mask_us, 50)),
        "mask p99, us": float(np.percentile(mask_us, 99)),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=NUM_TOKENS, help="tokens")
    parser.add_argument("--json", metavar="FILE", type=Path, help="also write the figures as JSON")
    arguments = parser.parse_args()
    found = measure(arguments.size)
    for name, value in found.items():
        print(f"{name:<16} <= {TARGETS[name]:<7g} {value:.1f}{'' if value <= TARGETS[name] else '  missed'}")
    if arguments.json:
        report = {"machine": platform.machine(), "size": arguments.size, "figures": found, "targets": TARGETS}
        arguments.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

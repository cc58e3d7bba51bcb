"""SEC-05: every pair of request features together, on the real engine; crashes hide where two of them meet."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests.server.harness import RunningServer, error_of

FEATURES: Mapping[str, tuple[Any, ...]] = {
    "temperature": (0, 0.7, 5.0),
    "top_p": (None, 0.5),
    "top_k": (None, 1, 7),
    "min_p": (None, 0.2),
    "presence_penalty": (None, 2.0),
    "frequency_penalty": (None, -2.0),
    "repetition_penalty": (None, 1.1),
    "logit_bias": (None, {"70": 100, "71": -100}),
    "n": (1, 3),
    "seed": (None, 7),
    "stop": (None, ["e", " the"]),
    "stop_token_ids": (None, [75]),
    "min_tokens": (None, 4),
    "ignore_eos": (None, True),
    "bad_words": (None, ["a", "th"]),
    "allowed_token_ids": (None, list(range(3, 250))),
    "logprobs": (None, 0, 3),
    "prompt_logprobs": (None, 2),
    "echo": (None, True),
    "skip_special_tokens": (None, False),
    "cache_salt": (None, "s"),
    "truncate_prompt_tokens": (None, 5),
    "structured_outputs": (None, {"regex": "[a-z ]{2,9}"}, {"json": {"type": "array", "items": {"type": "boolean"}}}),
    "stream": (False, True),
    "prompt": ("the and the", [70, 71, 72, 73], ["two", "prompts"]),
}

Row = dict[str, Any]


def covering_rows(features: Mapping[str, tuple[Any, ...]], seed: int) -> Iterator[Row]:
    """Rows in which every two values of different features meet, far fewer than all combinations (greedy AETG:
    Cohen et al., "The AETG System", IEEE Transactions on Software Engineering, 1997)."""
    rng, names = random.Random(seed), list(features)
    open_pairs = {
        ((a, i), (b, j))
        for a, b in itertools.combinations(names, 2)
        for i in range(len(features[a]))
        for j in range(len(features[b]))
    }

    def num_new(row: dict[str, int]) -> int:
        return sum(pair in open_pairs for pair in itertools.combinations(row.items(), 2))

    while open_pairs:
        first = min(open_pairs)
        rows = []
        for _ in range(10):
            row = {name: rng.randrange(len(features[name])) for name in names} | dict(first)
            rows.append({name: row[name] for name in names})
        best = max(rows, key=num_new)
        open_pairs.difference_update(itertools.combinations(best.items(), 2))
        yield {name: features[name][index] for name, index in best.items() if features[name][index] is not None}


ROWS = list(covering_rows(FEATURES, seed=5))


def test_every_pair_is_in_some_row() -> None:
    rows = list(covering_rows({"a": (1, 2), "b": (3, 4, 5), "c": (6, 7)}, seed=0))
    for (a, values_a), (b, values_b) in itertools.combinations([("a", (1, 2)), ("b", (3, 4, 5)), ("c", (6, 7))], 2):
        for pair in itertools.product(values_a, values_b):
            assert any((row[a], row[b]) == pair for row in rows)
    assert len(ROWS) < 60


@pytest.mark.parametrize("row", ROWS, ids=[f"row{index}" for index in range(len(ROWS))])
def test_sec_05_features_work_together_or_are_refused_by_name(server: RunningServer, row: Row) -> None:
    body = {**row, "max_tokens": 6}
    if row["stream"] and "prompt_logprobs" not in row:
        stream = server.stream_completion(**body)
        assert stream.error is None
        assert len(stream.finish_reasons) == row["n"] * (2 if row["prompt"] == ["two", "prompts"] else 1)
        return
    response = server.complete(**body)
    if row["stream"]:
        assert error_of(response, 400)["param"] == "prompt_logprobs"
        return
    assert response.status_code == 200, response.text
    for choice in response.json()["choices"]:
        assert choice["finish_reason"] in ("stop", "length")

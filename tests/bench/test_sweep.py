"""Sweeps: which combinations there are, what they are called, and which no other beats."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.bench.sweep import combinations, flag_words, frontier, grouped, parse_settings
from headrace.core.errors import ConfigError


def test_an_object_of_lists_is_a_product_and_a_list_is_itself(tmp_path: Path) -> None:
    product = parse_settings('{"a": [1, 2], "b": "x"}', "--serve-params")
    assert product == [{"a": 1, "b": "x"}, {"a": 2, "b": "x"}]
    file = tmp_path / "params.json"
    file.write_text('[{"a": 1}, {"b": true}]')
    assert parse_settings(str(file), "--serve-params") == [{"a": 1}, {"b": True}]


@pytest.mark.parametrize(
    ("text", "message"),
    [("{nonsense", "neither"), ('{"a": [[1]]}', "neither"), ("[]", "no combination"), ("nowhere.json", "cannot read")],
)
def test_settings_that_cannot_be_read_are_explained(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_settings(text, "--serve-params")


def test_every_pair_is_there_and_a_server_is_started_once_for_its_own() -> None:
    pairs = combinations([{"a": 1}, {"a": 2}], [{"c": 1.5}, {"c": 3}])
    assert [pair.name for pair in pairs] == ["a=1--c=1.5", "a=1--c=3", "a=2--c=1.5", "a=2--c=3"]
    assert [len(members) for _, members in grouped(pairs)] == [2, 2]
    assert combinations([{}], [{}])[0].name == "default"
    with pytest.raises(ConfigError, match="called a=1"):
        combinations([{"a": 1}, {"a": 1}], [{}])


def test_a_name_is_safe_for_a_folder() -> None:
    assert combinations([{"m": "../x y"}], [{}])[0].name == "m=.._x_y"


def test_settings_become_flags() -> None:
    assert flag_words([("max_num_seqs", 8), ("eager", True), ("cache", False)]) == [
        "--max-num-seqs",
        "8",
        "--eager",
        "--no-cache",
    ]


def test_the_frontier_is_what_no_other_beats() -> None:
    points = [(10.0, 100.0), (20.0, 50.0), (9.0, 90.0), (20.0, 40.0), (30.0, 60.0)]
    assert frontier(points) == [0, 4]

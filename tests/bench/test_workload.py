"""Workloads: equal seeds give equal sessions, files replay exactly, lengths and prefixes are what was asked for."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from headrace.bench.lengths import Lengths, parse_lengths
from headrace.bench.mixes import TOOLS
from headrace.bench.prompt_text import IdWriter, WordWriter
from headrace.bench.traces import read_trace
from headrace.bench.workload import Session, Turn, is_workload, open_workload, write_workload
from headrace.bench.workload_options import MixOptions, WorkloadOptions, build_workload
from headrace.core.errors import ConfigError

TEN = Lengths("uniform", 10, 10)
WORDS = WordWriter()

TRACES = Path(__file__).parents[2] / "benchmarks" / "traces"


def sessions_of(options: WorkloadOptions, writer: WordWriter | IdWriter = WORDS) -> list[Session]:
    return list(build_workload(options, writer).sessions)


def text_of(session: Session) -> str:
    text = session.turns[0].text
    assert isinstance(text, str)
    return text


@pytest.mark.parametrize(
    "options",
    [
        WorkloadOptions(num_sessions=5, input_len=parse_lengths("lognormal:20:0.5", "x")),
        WorkloadOptions(dataset="generated-shared-prefix", num_sessions=5, zipf=1.0, prefix_len=TEN, input_len=TEN),
        WorkloadOptions(dataset="multi-turn", num_sessions=3, input_len=TEN, has_prefix=True, prefix_len=TEN),
        WorkloadOptions(num_sessions=9, input_len=TEN, mix=MixOptions(abort_rate=0.5, tool_rate=0.5, num_choices=2)),
    ],
    ids=lambda options: options.dataset,
)
def test_a_seed_decides_everything_and_a_file_replays_it(options: WorkloadOptions, tmp_path: Path) -> None:
    sessions = sessions_of(options)
    assert sessions == sessions_of(options)
    written = write_workload(build_workload(options, WORDS), tmp_path / "w.jsonl")
    read = open_workload(tmp_path / "w.jsonl")
    assert list(read.sessions()) == list(read.sessions()) == sessions
    assert read.info == written.info
    assert (read.info.num_sessions, read.info.name) == (len(sessions), options.dataset)
    assert is_workload(tmp_path / "w.jsonl")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["w.jsonl"]


def test_another_seed_is_another_workload() -> None:
    options = WorkloadOptions(num_sessions=2, input_len=TEN)
    assert sessions_of(options) != sessions_of(WorkloadOptions(num_sessions=2, input_len=TEN, seed=1))


def test_prompts_have_the_length_that_was_asked_for_by_whoever_counts() -> None:
    def count(text: str) -> int:
        return len(text) // 3  # no word is one of these tokens

    rng = np.random.default_rng(0)
    for wanted in (5, 40, 333):
        text = WordWriter(count).write(wanted, rng)
        assert isinstance(text, str)
        assert abs(count(text) - wanted) <= 3
    ids = IdWriter(5, 9).write(50, rng)
    assert len(ids) == 50
    assert set(ids) <= {5, 6, 7, 8}


def test_requests_of_a_group_share_its_prefix_and_popular_groups_have_more() -> None:
    options = WorkloadOptions(
        dataset="generated-shared-prefix", num_sessions=400, num_groups=4, zipf=1.5, prefix_len=TEN, input_len=TEN
    )
    sessions = sessions_of(options)
    prefixes = {(session.group, " ".join(text_of(session).split()[:10])) for session in sessions}
    assert len(prefixes) == 4
    counts = Counter(session.group for session in sessions)
    assert counts["prefix-0"] > counts["prefix-1"] > counts["prefix-3"]
    assert counts["prefix-0"] / counts["prefix-1"] == pytest.approx(2**1.5, rel=0.35)


def test_a_conversation_has_its_turns_behind_a_shared_system_prompt() -> None:
    options = WorkloadOptions(
        dataset="multi-turn", num_sessions=2, num_turns=3, input_len=TEN, has_prefix=True, prefix_len=TEN, think_s=1.5
    )
    first, second = sessions_of(options)
    assert first.system == second.system
    assert [turn.think_s for turn in first.turns] == [0.0, 1.5, 1.5]
    assert len({turn.text for session in (first, second) for turn in session.turns}) == 6  # type: ignore[misc]


@pytest.mark.parametrize(
    ("text", "low", "high"), [("7", 7, 7), ("3-9", 3, 9), ("normal:50:5", 20, 80), ("exponential:4", 1, 100)]
)
def test_lengths_are_drawn_from_what_was_written(text: str, low: int, high: int) -> None:
    lengths, rng = parse_lengths(text, "--input-len"), np.random.default_rng(0)
    drawn = [lengths.draw(rng) for _ in range(300)]
    assert low <= min(drawn) <= max(drawn) <= high


def test_a_range_ratio_widens_a_plain_length() -> None:
    assert parse_lengths("100", "x", 0.25) == Lengths("uniform", 75, 125)


@pytest.mark.parametrize("text", ["", "x", "0", "9-3", "normal:1", "lognormal:a:b", "-4", "normal:inf:1"])
def test_a_length_that_is_none_is_explained(text: str) -> None:
    with pytest.raises(ConfigError, match="--input-len"):
        parse_lengths(text, "--input-len")


def test_mixes_change_the_share_that_was_asked_for(tmp_path: Path) -> None:
    schemas = tmp_path / "schemas.jsonl"
    schemas.write_text('{"schema": {"type": "object"}}\n')
    mix = MixOptions(structured_rate=0.3, schema_path=schemas, tool_rate=0.2, abort_rate=0.1, abort_after_chunks=3)
    turns = [s.turns[0] for s in sessions_of(WorkloadOptions(num_sessions=1000, input_len=TEN, mix=mix))]
    structured = sum("response_format" in turn.fields for turn in turns)
    assert structured == pytest.approx(300, abs=60)
    assert sum(turn.fields.get("tools") == TOOLS for turn in turns) == pytest.approx(200, abs=50)
    assert sum(turn.abort_after_chunks == 3 for turn in turns) == pytest.approx(100, abs=40)


def test_a_share_of_schemas_needs_schemas() -> None:
    with pytest.raises(ConfigError, match="--schema-path"):
        sessions_of(WorkloadOptions(mix=MixOptions(structured_rate=0.5)))


def test_sharegpt_takes_what_people_say_and_the_length_of_the_answers(tmp_path: Path) -> None:
    talk = [
        {"from": "human", "value": "hello there"},
        {"from": "gpt", "value": "one two three four five"},
        {"from": "human", "value": "more"},
        {"from": "gpt", "value": "x"},
    ]
    path = tmp_path / "sharegpt.json"
    path.write_text(json.dumps([{"id": "a", "conversations": talk}, {"conversations": [talk[1]]}], indent=1))
    assert sessions_of(WorkloadOptions(dataset="sharegpt", path=path)) == [
        Session(turns=[Turn(text="hello there", max_tokens=5)])
    ]
    both = sessions_of(WorkloadOptions(dataset="sharegpt", path=path, max_turns=9))
    assert [turn.max_tokens for turn in both[0].turns] == [5, 4]


def test_a_batch_file_is_sent_as_it_is_except_for_the_model(tmp_path: Path) -> None:
    body = {"model": "gpt", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 7, "top_p": 0.5}
    path = tmp_path / "batch.jsonl"
    path.write_text(
        json.dumps({"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": body}) + "\n"
    )
    (session,) = sessions_of(WorkloadOptions(dataset="openai", path=path))
    assert session.turns == [Turn(messages=body["messages"], max_tokens=7, fields={"top_p": 0.5})]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("dataset", "content", "message"),
    [
        ("custom", '{"prompt": "a"}\n{"prompt": 3}\n', r"line 2 is malformed: Expected `str`, got `int`"),
        ("custom", '{"prompt": "a"}\n\n{nonsense\n', "line 3 is malformed"),
        ("openai", '{"body": {}}\n', "line 1 has no messages and no prompt"),
        ("trace", '{"arrival_s": 0.0, "input_tokens": 3}\n', "line 1 is malformed: .*output_tokens"),
        ("sharegpt", '[{"conversations": [{"from": "human"}]}]', "entry 1 is not ShareGPT's format"),
        ("sharegpt", '[{"conversations": []}, {"con', "entry 2 is malformed"),
        ("custom", "", "is empty"),
    ],
)
def test_a_malformed_line_is_named(dataset: str, content: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text(content)
    with pytest.raises(ConfigError, match=message):
        write_workload(build_workload(WorkloadOptions(dataset=dataset, path=path), WORDS), tmp_path / "w.jsonl")


def test_a_file_that_is_missing_or_not_named_is_one_clear_line() -> None:
    with pytest.raises(ConfigError, match="--dataset-path FILE"):
        sessions_of(WorkloadOptions(dataset="custom"))
    with pytest.raises(ConfigError, match="cannot read nowhere"):
        sessions_of(WorkloadOptions(dataset="custom", path=Path("nowhere.jsonl")))


def test_block_ids_become_prefixes_that_are_shared_exactly_so_far(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    lines = [
        {"arrival_s": 0.0, "input_tokens": 10, "output_tokens": 3, "block_ids": [0, 1, 2]},
        {"arrival_s": 1.5, "input_tokens": 11, "output_tokens": 0, "block_ids": [0, 1, 9]},
        {"arrival_s": 1.5, "input_tokens": 0, "output_tokens": 1},
        {"arrival_s": 2.0, "input_tokens": 14, "output_tokens": 1, "block_ids": [0]},
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    options = WorkloadOptions(dataset="trace", path=path, block_tokens=4)
    first, second, third = (session.turns[0].text for session in sessions_of(options, IdWriter()))
    assert isinstance(first, list)
    assert isinstance(second, list)
    assert isinstance(third, list)
    assert (len(first), len(second), len(third)) == (10, 11, 14)
    assert first[:8] == second[:8]
    assert first[8:10] != second[8:10]
    assert first[:4] == third[:4]
    assert first[4:8] != third[4:8]
    arrivals = [(session.arrival_s, session.turns[0].max_tokens) for session in sessions_of(options)]
    assert arrivals == [(0.0, 3), (1.5, 1), (2.0, 1)]


def test_traces_of_others_are_read(tmp_path: Path) -> None:
    mooncake = tmp_path / "mooncake.jsonl"
    mooncake.write_text('{"timestamp": 2500, "input_length": 600, "output_length": 5, "hash_ids": [3, 4]}\n')
    azure = tmp_path / "azure.csv"
    azure.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,374,44\n")
    (one,), (other,) = list(read_trace(mooncake)), list(read_trace(azure))
    assert (one.arrival_s, one.input_tokens, one.block_ids) == (2.5, 600, [3, 4])
    assert (other.input_tokens, other.output_tokens) == (374, 44)
    azure.write_text("TIMESTAMP,ContextTokens\n1,2\n")
    with pytest.raises(ConfigError, match="no column GeneratedTokens"):
        list(read_trace(azure))


@pytest.mark.parametrize("name", ["azure2023_conv", "mooncake_conv_tenth", "vllm_llama-8b_rtx4090"])
def test_recorded_traces_are_replayed_with_their_lengths(name: str, tmp_path: Path) -> None:
    path = tmp_path / f"{name}.jsonl"
    path.write_bytes(gzip.decompress((TRACES / f"{name}.jsonl.gz").read_bytes()))
    options = WorkloadOptions(dataset="trace", path=path, num_sessions=40)
    entries = [entry for entry in read_trace(path) if entry.input_tokens][:40]
    assert len(entries) == 40
    for session, entry in zip(sessions_of(options, IdWriter()), entries, strict=True):
        assert len(session.turns[0].text or "") == entry.input_tokens
        assert session.arrival_s == entry.arrival_s


def test_schemas_of_a_file_can_be_mixed_in(tmp_path: Path) -> None:
    path = tmp_path / "schemas.jsonl"
    path.write_text('{"schema": {"type": "object"}}\n{"schema": {"type": "array"}}\n')
    mix = MixOptions(structured_rate=1.0, schema_path=path)
    sessions = sessions_of(WorkloadOptions(num_sessions=5, input_len=TEN, mix=mix))
    assert all(session.group == "structured" for session in sessions)


def test_a_workload_of_another_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "w.jsonl"
    path.write_text('{"headrace_workload": 99, "name": "x", "seed": 0, "num_sessions": 1, "num_requests": 1}\n')
    with pytest.raises(ConfigError, match="format 99"):
        open_workload(path)

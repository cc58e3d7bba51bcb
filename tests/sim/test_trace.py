"""Trace files: what is read from each format, and what is said of files that are none."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from headrace.core.errors import ConfigError
from headrace.sim.trace import Measured, TraceRequest, read_trace


def write(folder: Path, text: str, name: str = "trace.jsonl") -> Path:
    path = folder / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return path


@pytest.mark.parametrize("name", ["trace.jsonl", "trace.jsonl.gz"])
def test_a_line_is_a_request_and_requests_come_by_arrival(tmp_path: Path, name: str) -> None:
    text = (
        '{"arrival_s":2,"input_tokens":10,"output_tokens":3,"tenant":7}\n\n'
        '{"arrival_s":0.5,"input_tokens":40,"output_tokens":1,"block_ids":[4,9],"queue_s":0,"ttft_s":0.1,"e2e_s":2}\n'
    )
    assert read_trace(write(tmp_path, text, name)) == [
        TraceRequest(0.5, 40, 1, (4, 9), 32, measured=Measured(0.0, 0.1, 2.0)),
        TraceRequest(2.0, 10, 3, tenant="7"),
    ]


def test_mooncakes_own_lines_are_understood(tmp_path: Path) -> None:
    text = '{"timestamp": 3000, "input_length": 600, "output_length": 52, "hash_ids": [46, 47]}\n'
    assert read_trace(write(tmp_path, text)) == [TraceRequest(3.0, 600, 52, (46, 47), 512)]


def test_azures_own_table_is_understood(tmp_path: Path) -> None:
    text = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
    text += "2023-11-16 18:17:03.9799600,4808,10\r\n2023-11-16 18:17:04.0319600,3180,8\r\n"
    assert read_trace(write(tmp_path, text, "azure.csv")) == [
        TraceRequest(0.0, 4808, 10),
        TraceRequest(0.052, 3180, 8),
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has no requests"),
        ("{}\n", "line 1: Object missing required field `arrival_s`"),
        ('\n{"arrival_s":0,"input_tokens":0,"output_tokens":1}', r"line 2: Expected `int` >= 1 - at `\$.input_tokens`"),
        ('{"arrival_s":-1,"input_tokens":1,"output_tokens":1}', r">= 0.0 - at `\$.arrival_s`"),
        ('{"arrival_s":0,"input_tokens":1,"output_tokens":1,"outptu":1}', "unknown field `outptu`"),
        ("prompt,answer\n1,2\n", "line 1: JSON is malformed"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n2023,x\n", "line 2: .*; a line is TIMESTAMP"),
        (
            '{"arrival_s":0,"input_tokens":2000,"output_tokens":1,"block_ids":[1]}',
            "1 block_ids do not cover 2000 input tokens",
        ),
    ],
)
def test_what_is_no_trace_is_said_with_its_line(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        read_trace(write(tmp_path, text))


def test_a_file_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read the trace .*: No such file"):
        read_trace(tmp_path / "missing.jsonl")
    (tmp_path / "odd.jsonl.gz").write_bytes(b"not gzip")
    with pytest.raises(ConfigError, match=r"cannot read the trace .*odd"):
        read_trace(tmp_path / "odd.jsonl.gz")
    (tmp_path / "odd.jsonl").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="it is not text"):
        read_trace(tmp_path / "odd.jsonl")

"""Workloads out of traces: when requests came, how long they were, and which prefixes they shared; never text.

Read are JSONL with ``arrival_s, input_tokens, output_tokens`` (and ``block_ids``, ``tenant``), Mooncake's JSONL
(``timestamp`` in ms, ``input_length, output_length, hash_ids``), and CSV of Azure and BurstGPT. Prompts are made up
to the recorded lengths; a block id always becomes the same tokens, so that two requests share a prefix exactly as
far as their leading ids agree.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path

import msgspec
import numpy as np

from headrace.bench.prompt_text import Prompt, PromptWriter
from headrace.bench.workload import Session, Turn, WorkloadSource, decode_line, read_lines
from headrace.core.errors import ConfigError

MOONCAKE_BLOCK_TOKENS = 512
_CACHED_BLOCKS = 4096

_COLUMNS = (
    ("TIMESTAMP", "Timestamp", "arrival_s"),
    ("ContextTokens", "Request tokens", "input_tokens"),
    ("GeneratedTokens", "Response tokens", "output_tokens"),
)
"""Names of the columns for time, input and output: Azure's, BurstGPT's, ours."""


@dataclass(frozen=True, slots=True)
class TraceOptions:
    """``block_tokens`` is what a block id stands for; lengths are cut to the limits where these are given."""

    path: Path
    num_prompts: int
    block_tokens: int = MOONCAKE_BLOCK_TOKENS
    max_input_tokens: int | None = None
    max_output_tokens: int | None = None


class TraceEntry(msgspec.Struct, frozen=True):
    """One request of a trace, whatever the file."""

    arrival_s: float
    input_tokens: int
    output_tokens: int
    block_ids: list[int] = []
    tenant: int | str = ""


class _MooncakeLine(msgspec.Struct):
    timestamp: float
    input_length: int
    output_length: int
    hash_ids: list[int] = []


def trace(options: TraceOptions, writer: PromptWriter, seed: int) -> WorkloadSource:
    """The first ``num_prompts`` requests of a trace that have an input."""
    return WorkloadSource(
        name="trace",
        seed=seed,
        sessions=_sessions(options, writer, seed),
        lengths=writer.lengths,
        options={
            "file": options.path.name,
            "block_tokens": options.block_tokens,
            "max_input_tokens": options.max_input_tokens,
            "max_output_tokens": options.max_output_tokens,
        },
    )


def read_trace(path: Path) -> Iterator[TraceEntry]:
    """Every request in the file. Raises ``ConfigError`` naming the line that is malformed."""
    if path.suffix.lower() == ".csv":
        yield from _read_csv(path)
        return
    for number, line in read_lines(path):
        if b'"input_length"' in line:
            entry = decode_line(line, _MooncakeLine, path, number)
            yield TraceEntry(entry.timestamp / 1e3, entry.input_length, entry.output_length, entry.hash_ids)
        else:
            yield decode_line(line, TraceEntry, path, number)


def _sessions(options: TraceOptions, writer: PromptWriter, seed: int) -> Iterator[Session]:
    blocks = _Blocks(options.block_tokens, writer, seed)
    num_sessions = 0
    for number, entry in enumerate(read_trace(options.path)):
        if num_sessions == options.num_prompts:
            return
        if entry.input_tokens < 1:
            continue  # a request that failed where it was recorded
        num_sessions += 1
        num_input = min(entry.input_tokens, options.max_input_tokens or entry.input_tokens)
        num_output = max(1, min(entry.output_tokens, options.max_output_tokens or entry.output_tokens))
        text = blocks.prompt(entry.block_ids, num_input, number)
        turn = Turn(text=text, max_tokens=num_output, num_input_tokens=num_input)
        yield Session(turns=[turn], group=str(entry.tenant), arrival_s=entry.arrival_s)


class _Blocks:
    """Prompts out of block ids. Blocks in use are remembered; one that was forgotten is made the same again."""

    def __init__(self, block_tokens: int, writer: PromptWriter, seed: int) -> None:
        self._size = block_tokens
        self._writer = writer
        self._seed = seed
        self._block = lru_cache(_CACHED_BLOCKS)(self._make)

    def prompt(self, block_ids: Sequence[int], num_tokens: int, number: int) -> Prompt:
        """The blocks as far as they go, the last cut to fit, then tokens of the request's own."""
        parts: list[Prompt] = []
        missing = num_tokens
        for block_id in block_ids:
            if missing <= 0:
                break
            block = self._block(block_id)
            parts.append(block if missing >= self._size else self._writer.cut(block, missing))
            missing -= self._size
        if missing > 0:
            parts.append(self._writer.write(missing, np.random.default_rng([self._seed, 3, number])))
        return self._writer.join(parts)

    def _make(self, block_id: int) -> Prompt:
        return self._writer.write(self._size, np.random.default_rng([self._seed, 2, block_id]))


def _read_csv(path: Path) -> Iterator[TraceEntry]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = csv.DictReader(file)
            names = [_column(rows.fieldnames or (), columns, path) for columns in _COLUMNS]
            for number, row in enumerate(rows, start=2):
                try:
                    at_s, num_input, num_output = (row[name] for name in names)
                    yield TraceEntry(_seconds(at_s), int(num_input), int(num_output))
                except (ValueError, TypeError) as error:
                    raise ConfigError(f"{path} line {number} is malformed: {error}; correct or remove it") from error
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}; --dataset-path names the file") from error


def _column(found: Sequence[str], known: Sequence[str], path: Path) -> str:
    for name in known:
        if name in found:
            return name
    raise ConfigError(f"{path} has no column {' or '.join(known)}; its columns are {', '.join(found) or 'none'}")


def _seconds(text: str) -> float:
    """A number of seconds, or a date with time."""
    try:
        return float(text)
    except ValueError:
        moment = datetime.fromisoformat(text.strip()[:26])
        return moment.replace(tzinfo=moment.tzinfo or UTC).timestamp()

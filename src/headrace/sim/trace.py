"""Traces: when requests came, how long their prompts and answers were, and which prompts share a prefix.

Owns the reading and checking of trace files: one JSON object a line, plain or gzipped, in our own words or in
those of the Mooncake release; or the CSV of the Azure LLM inference traces. Nothing here knows how a request
is scheduled.
"""

from __future__ import annotations

import gzip
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from headrace.core.errors import ConfigError

_Seconds = Annotated[float, Meta(ge=0.0, le=1e9)]
_Tokens = Annotated[int, Meta(ge=1, le=1 << 24)]
_BlockId = Annotated[int, Meta(ge=0, lt=1 << 29)]

BLOCK_TOKENS = (512, 256, 128, 64, 32, 16, 8)
"""Tokens a trace's prefix block may stand for; which it is follows from the prompts' lengths."""

_AZURE_HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"


@dataclass(frozen=True, slots=True)
class Measured:
    """What a real engine did with a request of the trace; seconds."""

    queue_s: float
    ttft_s: float
    e2e_s: float


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request of a trace.

    Two requests share a prefix exactly as far as their leading ``block_ids`` agree, each standing for
    ``block_tokens`` tokens of the prompt; a rest that the ids do not cover is nobody else's.
    """

    arrival_s: float
    num_input_tokens: int
    num_output_tokens: int
    block_ids: tuple[int, ...] = ()
    block_tokens: int = 0
    tenant: str = ""
    measured: Measured | None = None


class _Row(msgspec.Struct, forbid_unknown_fields=True):
    arrival_s: _Seconds
    input_tokens: _Tokens
    output_tokens: _Tokens
    block_ids: tuple[_BlockId, ...] = ()
    tenant: str | int = ""
    queue_s: _Seconds | None = None
    ttft_s: _Seconds | None = None
    e2e_s: _Seconds | None = None

    def request(self) -> TraceRequest:
        measured = None
        if self.ttft_s is not None and self.e2e_s is not None:
            measured = Measured(self.queue_s or 0.0, self.ttft_s, self.e2e_s)
        return TraceRequest(
            self.arrival_s,
            self.input_tokens,
            self.output_tokens,
            self.block_ids,
            tenant=str(self.tenant),
            measured=measured,
        )


class _MooncakeRow(msgspec.Struct):
    timestamp: Annotated[int, Meta(ge=0)]
    input_length: _Tokens
    output_length: _Tokens
    hash_ids: tuple[_BlockId, ...] = ()

    def request(self) -> TraceRequest:
        return TraceRequest(self.timestamp / 1000.0, self.input_length, self.output_length, self.hash_ids)


def read_trace(path: Path) -> list[TraceRequest]:
    """The requests of a file by arrival, the first at 0 s or later. Raises ``ConfigError`` naming file and line."""
    lines = _read_lines(path)
    if lines and lines[0].strip() == _AZURE_HEADER:
        requests = list(_azure_requests(path, lines[1:]))
    else:
        requests = list(_json_requests(path, lines))
    if not requests:
        raise ConfigError(f"{path} has no requests; a trace has one JSON object a line", "trace")
    requests.sort(key=lambda request: request.arrival_s)
    return _with_block_tokens(path, requests)


def _read_lines(path: Path) -> list[str]:
    try:
        data = path.read_bytes()
        text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode()
    except OSError as error:
        raise ConfigError(f"cannot read the trace {path}: {error.strerror or error}", "trace") from error
    except (EOFError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not a trace: it is not text ({type(error).__name__})", "trace") from error
    return text.splitlines()


def _json_requests(path: Path, lines: Iterable[str]) -> Iterator[TraceRequest]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        row_type: type[_Row | _MooncakeRow] = _MooncakeRow if '"hash_ids"' in line else _Row
        try:
            yield msgspec.json.decode(line, type=row_type).request()
        except msgspec.MsgspecError as error:
            raise ConfigError(f"{path} line {number}: {error}", "trace") from error


def _azure_requests(path: Path, lines: Iterable[str]) -> Iterator[TraceRequest]:
    start: datetime | None = None
    for number, line in enumerate(lines, start=2):
        fields = line.strip().split(",")
        try:
            stamp, num_input, num_output = fields
            moment = datetime.fromisoformat(stamp[:26])  # microseconds; the file has a digit more
            start = start or moment
            arrival_s = (moment - start).total_seconds()
            row = msgspec.convert(
                {"arrival_s": arrival_s, "input_tokens": int(num_input), "output_tokens": int(num_output)}, _Row
            )
        except (ValueError, msgspec.ValidationError) as error:
            raise ConfigError(f"{path} line {number}: {error}; a line is {_AZURE_HEADER}", "trace") from error
        yield row.request()


def _with_block_tokens(path: Path, requests: list[TraceRequest]) -> list[TraceRequest]:
    """The same requests, each told how many tokens its block ids stand for."""
    with_ids = [request for request in requests if request.block_ids]
    if not with_ids:
        return requests
    for size in BLOCK_TOKENS:
        if all(_fits(request, size) for request in with_ids):
            return [replace(request, block_tokens=size) if request.block_ids else request for request in requests]
    longest = max(with_ids, key=lambda request: request.num_input_tokens)
    raise ConfigError(
        f"{path}: {len(longest.block_ids)} block_ids do not cover {longest.num_input_tokens} input tokens; "
        f"a block id stands for a fixed number of tokens, one of {', '.join(map(str, BLOCK_TOKENS))}",
        "trace",
    )


def _fits(request: TraceRequest, block_tokens: int) -> bool:
    """Whether ids stand for blocks of this size: the last, partial block has one or has none."""
    num_full = request.num_input_tokens // block_tokens
    return len(request.block_ids) in (num_full, math.ceil(request.num_input_tokens / block_tokens))

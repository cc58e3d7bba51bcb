"""What turns a share of any workload into something else: several choices, schemas, tools, clients that hang up.

Each takes sessions and gives sessions; which ones are changed is drawn from the seed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from headrace.bench.workload import Session, Turn, decode_line, read_lines
from headrace.core.errors import ConfigError

MAX_SCHEMAS = 4096

TOOLS: list[dict[str, object]] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": {"type": "object", "properties": {key: {"type": kind}}, "required": [key]},
        },
    }
    for name, description, key, kind in (
        ("get_weather", "The weather of a place, now.", "city", "string"),
        ("search_flights", "Flights of a day.", "date", "string"),
        ("convert_currency", "What an amount of money is worth in euros.", "amount", "number"),
        ("set_timer", "Ring after so many seconds.", "seconds", "integer"),
    )
]


class _SchemaLine(msgspec.Struct):
    schema: dict[str, Any] | bool
    id: str = ""


def with_choices(sessions: Iterable[Session], num_choices: int) -> Iterator[Session]:
    """``n`` answers to each request."""
    return (_changed(session, {"n": num_choices}) for session in sessions)


def with_aborts(sessions: Iterable[Session], rate: float, after_chunks: int, seed: int) -> Iterator[Session]:
    """A share of clients that hang up after some chunks of their first turn's answer, and are not seen again."""
    rng = np.random.default_rng([seed, 10])
    for session in sessions:
        if rng.random() < rate:
            first = msgspec.structs.replace(session.turns[0], abort_after_chunks=after_chunks)
            yield msgspec.structs.replace(session, turns=[first], group=session.group or "aborting")
        else:
            yield session


def with_schemas(sessions: Iterable[Session], rate: float, path: Path, seed: int) -> Iterator[Session]:
    """A share of requests that must be answered by JSON of a schema out of a file of ``{"schema": ...}`` lines."""
    schemas = _read_schemas(path)
    rng = np.random.default_rng([seed, 11])
    for session in sessions:
        if rng.random() < rate:
            schema = schemas[int(rng.integers(len(schemas)))]
            named = {"name": "answer", "schema": schema}
            yield _changed(session, {"response_format": {"type": "json_schema", "json_schema": named}}, "structured")
        else:
            yield session


def with_tools(sessions: Iterable[Session], rate: float, seed: int) -> Iterator[Session]:
    """A share of requests that offer tools and ask for one to be called."""
    rng = np.random.default_rng([seed, 12])
    for session in sessions:
        if rng.random() < rate:
            yield _changed(session, {"tools": TOOLS, "tool_choice": "required"}, "tools")
        else:
            yield session


def _changed(session: Session, fields: dict[str, object], group: str = "") -> Session:
    turns: list[Turn] = [msgspec.structs.replace(turn, fields={**turn.fields, **fields}) for turn in session.turns]
    return msgspec.structs.replace(session, turns=turns, group=session.group or group)


def _read_schemas(path: Path) -> list[dict[str, Any]]:
    schemas = []
    for number, line in read_lines(path):
        schema = decode_line(line, _SchemaLine, path, number).schema
        if isinstance(schema, dict):
            schemas.append(schema)
        if len(schemas) == MAX_SCHEMAS:
            break
    if not schemas:
        raise ConfigError(f"{path} has no schema; a line is an object with schema")
    return schemas

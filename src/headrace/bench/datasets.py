"""Workloads out of files that others write: ShareGPT, OpenAI's batch files, vLLM's custom JSONL.

Every reader goes through its file piece by piece and names the line or entry that it cannot take.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from headrace.bench.workload import Message, Session, Turn, WorkloadSource, decode_line, read_lines
from headrace.core.errors import ConfigError

DEFAULT_OUTPUT_TOKENS = 256
_PIECE_CHARS = 1 << 20
_MAX_ENTRY_CHARS = 64 << 20
_HUMAN = ("human", "user")
_SAMPLING_FIELDS_OF_THE_RUN = ("model", "stream", "stream_options", "max_tokens", "max_completion_tokens")


@dataclass(frozen=True, slots=True)
class FileOptions:
    """``output_len`` overrides the lengths the file has or implies; ``max_turns`` cuts conversations."""

    path: Path
    num_prompts: int
    output_len: int | None = None
    max_turns: int = 1


class _ShareGptMessage(msgspec.Struct):
    value: str
    sender: str = msgspec.field(name="from")


class _ShareGptEntry(msgspec.Struct):
    conversations: list[_ShareGptMessage] | None = None
    conversation: list[_ShareGptMessage] | None = None


class _BatchLine(msgspec.Struct):
    body: dict[str, Any]
    custom_id: str = ""
    url: str = ""


class _CustomLine(msgspec.Struct):
    prompt: str
    output_tokens: int | None = None


def sharegpt(options: FileOptions, seed: int) -> WorkloadSource:
    """Conversations that begin with a person; the person's words are asked, the server gives the answers.

    An answer may be as long as the file's, counted in words, at least 4.
    """
    return _source("sharegpt", options, seed, _sharegpt(options))


def openai_batch(options: FileOptions, seed: int) -> WorkloadSource:
    """Lines of OpenAI's batch API: each body is sent as it is, except the model and streaming."""
    return _source("openai", options, seed, _openai_batch(options))


def custom(options: FileOptions, seed: int) -> WorkloadSource:
    """``{"prompt": TEXT, "output_tokens": N}`` a line."""
    return _source("custom", options, seed, _custom(options))


def _source(name: str, options: FileOptions, seed: int, sessions: Iterator[Session]) -> WorkloadSource:
    return WorkloadSource(
        name=name,
        seed=seed,
        sessions=islice(sessions, options.num_prompts),
        options={"file": options.path.name, "output_len": options.output_len, "max_turns": options.max_turns},
    )


def _sharegpt(options: FileOptions) -> Iterator[Session]:
    for number, value in enumerate(json_entries(options.path), start=1):
        try:
            entry = msgspec.convert(value, _ShareGptEntry)
        except msgspec.ValidationError as error:
            raise ConfigError(
                f"{options.path} entry {number} is not ShareGPT's format: {error}; an entry has conversations, a list "
                "of objects with from and value"
            ) from error
        turns = _turns(entry.conversations or entry.conversation or [], options)
        if turns:
            yield Session(turns=turns)


def _turns(messages: list[_ShareGptMessage], options: FileOptions) -> list[Turn]:
    """Pairs of a person's message and the answer after it, from the start of the conversation."""
    turns: list[Turn] = []
    for asked, answered in zip(messages[::2], messages[1::2], strict=False):
        if asked.sender not in _HUMAN or len(turns) == options.max_turns or not asked.value.strip():
            break
        length = options.output_len or max(4, len(answered.value.split()))
        turns.append(Turn(text=asked.value, max_tokens=length))
    return turns


def _openai_batch(options: FileOptions) -> Iterator[Session]:
    for number, line in read_lines(options.path):
        entry = decode_line(line, _BatchLine, options.path, number)
        body = entry.body
        max_tokens = options.output_len or body.get("max_completion_tokens") or body.get("max_tokens")
        fields = {name: value for name, value in body.items() if name not in _SAMPLING_FIELDS_OF_THE_RUN}
        messages: list[Message] = fields.pop("messages", [])
        prompt = fields.pop("prompt", None)
        if not messages and not isinstance(prompt, str | list):
            raise ConfigError(
                f"{options.path} line {number} has no messages and no prompt; correct or remove that line"
            )
        turn = Turn(text=prompt, messages=messages, max_tokens=int(max_tokens or DEFAULT_OUTPUT_TOKENS), fields=fields)
        yield Session(turns=[turn])


def _custom(options: FileOptions) -> Iterator[Session]:
    for number, line in read_lines(options.path):
        entry = decode_line(line, _CustomLine, options.path, number)
        length = options.output_len or entry.output_tokens or DEFAULT_OUTPUT_TOKENS
        yield Session(turns=[Turn(text=entry.prompt, max_tokens=length)])


def json_entries(path: Path) -> Iterator[object]:
    """Entries of a JSON array, or of a JSONL file, without ever holding the whole file. Raises ``ConfigError``."""
    decoder = json.JSONDecoder()
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(_PIECE_CHARS).lstrip("\ufeff \t\r\n").removeprefix("[")
            number = 0
            while True:
                text = text.lstrip(" \t\r\n,")
                if not text or text[0] == "]":
                    more = file.read(_PIECE_CHARS) if not text else ""
                    if not more:
                        return
                    text = more
                    continue
                number += 1
                value, text = _next_entry(decoder, text, file, f"{path} entry {number}")
                yield value
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"cannot read {path}: {reason}; --dataset-path names the file") from error


def _next_entry(decoder: json.JSONDecoder, text: str, file: Any, where: str) -> tuple[object, str]:
    """The entry at the start of ``text`` and what follows, reading on while it is not whole."""
    while True:
        try:
            value, end = decoder.raw_decode(text)
        except json.JSONDecodeError as error:
            more = file.read(max(_PIECE_CHARS, len(text)))
            if not more or len(text) > _MAX_ENTRY_CHARS:
                raise ConfigError(f"{where} is malformed: {error.msg}; correct or remove it") from error
            text += more
        else:
            return value, text[end:]

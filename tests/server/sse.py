"""A checker of event streams: every stream in these tests is read through it, so every stream is held to it.

Rules (OpenAI's, and WHATWG HTML 9.2): clean UTF-8; only ``data:`` events and comments; one head (id, created,
model) throughout; the role first and once per chat choice; exactly one finish reason per choice and nothing
of that choice after it; usage in one trailing event with empty ``choices`` only when asked for (or in every
event when asked for that); exactly one ``[DONE]``, last; or one error event, last, and no ``[DONE]``.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any


@dataclass
class ParsedStream:
    """What a valid stream said. ``texts``, ``finish_reasons`` and ``token_ids`` are by choice index."""

    chunks: list[dict[str, Any]] = field(default_factory=list)
    texts: dict[int, str] = field(default_factory=dict)
    finish_reasons: dict[int, str] = field(default_factory=dict)
    stop_reasons: dict[int, object] = field(default_factory=dict)
    token_ids: dict[int, list[int]] = field(default_factory=dict)
    logprobs: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    usage: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    num_comments: int = 0
    num_deltas: dict[int, int] = field(default_factory=dict)


def check_stream(
    body: bytes, *, include_usage: bool = False, continuous_usage: bool = False, num_choices: int = 1
) -> ParsedStream:
    """Hold a whole stream's body to the rules and return what it said."""
    stream = ParsedStream()
    events = _events(body, stream)
    is_done = events[-1] == "[DONE]"
    assert events.count("[DONE]") == int(is_done), "exactly one [DONE], at the end"
    payloads = [json.loads(event, parse_constant=_no_constant) for event in events[: len(events) - int(is_done)]]
    if "error" in payloads[-1]:
        assert not is_done, "no [DONE] after an error"
        stream.error = payloads.pop()["error"]
        assert set(stream.error) == {"message", "type", "param", "code"}
    else:
        assert is_done, "a stream without error ends with [DONE]"
    assert all("error" not in payload for payload in payloads), "an error is the last event"
    if include_usage and stream.error is None:
        last = payloads[-1]
        assert last["choices"] == [], "usage comes in one trailing event without choices"
        stream.usage = last["usage"]
        assert isinstance(stream.usage, dict)
    _check_heads(payloads)
    for payload in payloads:
        _take(payload, stream, include_usage, continuous_usage)
    if stream.error is None:
        assert set(stream.finish_reasons) == set(range(num_choices)), "every choice ends once"
    return stream


def _events(body: bytes, stream: ParsedStream) -> list[str]:
    assert body.endswith(b"\n\n"), "a stream ends with a whole event"
    events = []
    for block in body.decode("utf-8").removesuffix("\n\n").split("\n\n"):
        assert "\n" not in block, "one line per event"
        if block.startswith(":"):
            stream.num_comments += 1
            continue
        assert block.startswith("data: "), block
        events.append(block.removeprefix("data: "))
    return events


def _no_constant(name: str) -> object:
    raise AssertionError(f"{name} is not JSON")


def _check_heads(payloads: list[dict[str, Any]]) -> None:
    heads = {(p["id"], p["object"], p["created"], p["model"]) for p in payloads}
    assert len(heads) == 1, heads
    assert next(iter(heads))[1] in ("chat.completion.chunk", "text_completion")


def _take(payload: dict[str, Any], stream: ParsedStream, include_usage: bool, continuous_usage: bool) -> None:
    stream.chunks.append(payload)
    if continuous_usage:
        assert isinstance(payload["usage"], dict)
    elif not payload["choices"]:
        assert include_usage
    elif include_usage:
        assert payload["usage"] is None
    else:
        assert "usage" not in payload
    for choice in payload["choices"]:
        _take_choice(choice, stream, is_chat=payload["object"] == "chat.completion.chunk")


def _take_choice(choice: dict[str, Any], stream: ParsedStream, is_chat: bool) -> None:
    index = choice["index"]
    assert index not in stream.finish_reasons, "nothing of a choice after its finish reason"
    is_first = index not in stream.texts
    if is_chat:
        assert (choice["delta"].get("role") == "assistant") == is_first, "the role comes first and once"
        text = choice["delta"].get("content", "")
    else:
        text = choice["text"]
    stream.texts[index] = stream.texts.get(index, "") + text
    stream.num_deltas[index] = stream.num_deltas.get(index, 0) + bool(text)
    stream.token_ids.setdefault(index, []).extend(choice.get("token_ids", []))
    if choice.get("logprobs"):
        stream.logprobs.setdefault(index, []).append(choice["logprobs"])
    if choice["finish_reason"] is not None:
        stream.finish_reasons[index] = choice["finish_reason"]
        stream.stop_reasons[index] = choice.get("stop_reason")

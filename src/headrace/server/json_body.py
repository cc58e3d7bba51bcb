"""Request bodies: read whole within limits, checked before decoding, decoded strictly.

Owns everything between the bytes of a body and a typed value: encoding, nesting, control characters, strict
types, and the names of fields nobody knows. It does not know any dialect; a ``BodyType`` says what to decode.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec
import numpy as np

from headrace.core.errors import InvalidRequest

S = TypeVar("S", bound=msgspec.Struct)
T_co = TypeVar("T_co", bound=msgspec.Struct, covariant=True)

MAX_IGNORED_FIELDS = 16
MAX_IGNORED_FIELD_CHARS = 64

_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_SOUND_ESCAPES = re.compile(
    rb"(?:[^\\]++"
    rb"|\\[^u]"
    rb"|\\u(?!0000|[dD][89a-fA-F])"
    rb"|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})*+",
    re.DOTALL,
)
"""The longest start of a body in which no escape spells NUL or half of a surrogate pair."""
_PATH = re.compile(r" - at `(?:key` in `)?\$\.?([^`]*)`$")
_MISSING = re.compile(r"missing required field `([^`]+)`")
_UNSAFE_NAME = re.compile(r"[^A-Za-z0-9._-]")
_SCAN_BYTES = 1 << 20
_DEPTH_CHANGE = np.zeros(256, dtype=np.int8)
_DEPTH_CHANGE[[ord("["), ord("{")]] = 1
_DEPTH_CHANGE[[ord("]"), ord("}")]] = -1
_DEPTH_CHANGE.flags.writeable = False


@dataclass(frozen=True, slots=True)
class Unsupported:
    """A field of the dialect that this server knows and does not do.

    Only ``neutral`` values, which ask for nothing, are taken; ``remedy`` tells what to do instead.
    """

    remedy: str
    neutral: tuple[object, ...] = (None, False)


@dataclass(frozen=True)
class Body(Generic[T_co]):
    """A decoded body and the top-level fields in it that nobody knows."""

    value: T_co
    ignored_fields: tuple[str, ...]


class BodyType(Generic[S]):
    """How to decode one kind of body: its struct, and the known fields it does not support."""

    def __init__(self, struct: type[S], unsupported: Mapping[str, Unsupported] | None = None) -> None:
        self.struct = struct
        self._unsupported = dict(unsupported or {})
        self._decoder = msgspec.json.Decoder(struct)
        self._known = frozenset(field.encode_name for field in msgspec.structs.fields(struct))

    def knows(self, name: str) -> bool:
        """Whether a field is honoured or refused, rather than ignored."""
        return name in self._known or name in self._unsupported

    def decode(self, body: bytes, max_depth: int) -> Body[S]:
        """Decode strictly. Raises ``InvalidRequest`` naming the field or the byte offset. Cost O(body)."""
        check_json(body, max_depth)
        fields = _decode(_OBJECT, body)
        self._refuse_unsupported(fields)
        value = _decode(self._decoder, body)
        ignored = [name for name in fields if not self.knows(name)]
        return Body(value, _header_safe(ignored))

    def _refuse_unsupported(self, fields: Mapping[str, msgspec.Raw]) -> None:
        for name in fields.keys() & self._unsupported.keys():
            rule = self._unsupported[name]
            if not any(_is_same(msgspec.json.decode(fields[name]), neutral) for neutral in rule.neutral):
                raise InvalidRequest(f"{name} is not supported here; {rule.remedy}", name)


def ignored_fields_headers(names: tuple[str, ...]) -> list[tuple[bytes, bytes]]:
    """One header naming the fields that nobody knows; none if all are known."""
    return [(b"x-ignored-fields", ", ".join(names).encode("ascii"))] if names else []


_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])


def check_json(body: bytes, max_depth: int) -> None:
    """Refuse bodies that are empty, not UTF-8, too deeply nested, or that spell characters no text has.

    NUL and lone surrogates (RFC 8259 section 8.2) are refused with the byte offset of their escape, before
    any of it can reach a tokenizer or a reply.
    """
    if not body:
        raise InvalidRequest("the body is empty; send a JSON object")
    if body.startswith(b"\xef\xbb\xbf"):
        raise InvalidRequest("the body starts with a byte order mark at byte 0; send plain UTF-8 without it")
    try:
        body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"the body is not valid UTF-8 at byte {error.start}; send UTF-8") from None
    _check_depth(body, max_depth)
    if b"\\u" in body:
        _check_escapes(body)


def _check_depth(body: bytes, max_depth: int) -> None:
    if body.count(b"[") + body.count(b"{") <= max_depth:
        return
    structure = _STRING.sub(b"", body)
    depth = 0
    for start in range(0, len(structure), _SCAN_BYTES):
        codes = np.frombuffer(structure, dtype=np.uint8, count=min(_SCAN_BYTES, len(structure) - start), offset=start)
        depths = depth + np.cumsum(_DEPTH_CHANGE[codes], dtype=np.int64)
        if depths.max() > max_depth:
            raise InvalidRequest(f"the body is nested deeper than {max_depth} levels; flatten it")
        depth = int(depths[-1])


def _check_escapes(body: bytes) -> None:
    sound = _SOUND_ESCAPES.match(body)
    end = 0 if sound is None else sound.end()
    if end == len(body):
        return
    what = "a NUL character" if body[end : end + 6] == b"\\u0000" else "a lone surrogate"
    raise InvalidRequest(f"the body spells {what} at byte {end}, which no text contains; remove it")


V = TypeVar("V")


def _decode(decoder: msgspec.json.Decoder[V], body: bytes) -> V:
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise _invalid(str(error)) from None
    except msgspec.DecodeError as error:
        raise InvalidRequest(f"the body is not valid JSON: {error}") from None
    except RecursionError:
        raise InvalidRequest("the body is nested too deeply; flatten it") from None


def _invalid(message: str) -> InvalidRequest:
    """Turn a decoder's complaint into ours: ``max_tokens: expected int, got str``."""
    path = _PATH.search(message)
    where = path[1] if path else ""
    what = message[: path.start()] if path else message
    missing = _MISSING.search(what)
    if missing:
        where = f"{where}.{missing[1]}" if where else missing[1]
        return InvalidRequest(f"{where} is missing; it is required", where)
    what = what.replace("`", "").replace("Expected", "expected", 1)
    return InvalidRequest(f"{where}: {what}" if where else f"the body: {what}", where or None)


def _is_same(value: object, neutral: object) -> bool:
    """Equality that keeps ``False`` apart from ``0``."""
    return type(value) is type(neutral) and value == neutral


def _header_safe(names: list[str]) -> tuple[str, ...]:
    """Field names as a header may carry them: few, short, and of plain letters."""
    safe = [_UNSAFE_NAME.sub("_", name[:MAX_IGNORED_FIELD_CHARS]) or "_" for name in names[:MAX_IGNORED_FIELDS]]
    if len(names) > MAX_IGNORED_FIELDS:
        safe.append("...")
    return tuple(safe)

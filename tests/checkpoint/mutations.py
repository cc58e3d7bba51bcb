"""Damage done to files at random, reproducibly: what bit rot, truncation and an attacker's hand do."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable

INTERESTING = [0, 1, 0x7F, 0x80, 0xFF]
WIDE = [0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**60, 2**63 - 1, 2**63, 2**64 - 1]
TEXTS = [b"{", b"}", b"[", b"]", b'"', b",", b":", b"-1", b"1e999", b"null", b"\\", b"\\ud800", b"99999999999999999999"]


def flip(data: bytearray, rng: random.Random) -> None:
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def set_byte(data: bytearray, rng: random.Random) -> None:
    data[rng.randrange(len(data))] = rng.choice(INTERESTING)


def set_wide(data: bytearray, rng: random.Random) -> None:
    position = rng.randrange(max(1, len(data) - 8))
    data[position : position + 8] = struct.pack("<Q", rng.choice(WIDE))


def insert_text(data: bytearray, rng: random.Random) -> None:
    position = rng.randrange(len(data))
    data[position : position + rng.randrange(3)] = rng.choice(TEXTS)


def cut(data: bytearray, rng: random.Random) -> None:
    del data[rng.randrange(len(data)) :]


def remove(data: bytearray, rng: random.Random) -> None:
    position = rng.randrange(len(data))
    del data[position : position + rng.randrange(1, 9)]


def repeat(data: bytearray, rng: random.Random) -> None:
    start = rng.randrange(len(data))
    piece = data[start : start + rng.randrange(1, 64)]
    data[start:start] = piece * rng.randrange(1, 4)


MUTATIONS: list[Callable[[bytearray, random.Random], None]] = [
    flip,
    set_byte,
    set_wide,
    insert_text,
    cut,
    remove,
    repeat,
]


def mutant(whole: bytes, rng: random.Random) -> bytes:
    data = bytearray(whole)
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        if data:
            rng.choice(MUTATIONS)(data, rng)
    return bytes(data)

"""Numbers as people write them: ``2GiB``, ``32k``, ``500ms``; and bytes as people read them."""

from __future__ import annotations

import re
from fractions import Fraction

_PREFIXES = "kmgtp"
_DURATION = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?) ?(ms|s|m|)")
_DURATION_UNITS = {"": Fraction(1), "ms": Fraction(1, 1000), "s": Fraction(1), "m": Fraction(60)}
_SIZE = re.compile(r"([0-9]{1,30}(?:\.[0-9]{1,9})?) ?([A-Za-z]{0,3})")


def parse_size(text: str) -> int:
    """Whole number written plainly or with a unit.

    ``k m g t p`` count in thousands and ``K M G T P`` in 1024s (vLLM's rule); ``KiB`` or ``Ki`` is always
    1024-based and ``KB`` or ``kB`` always 1000-based. Raises ``ValueError`` on anything else, and when the
    result is not whole.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a number")
    amount = Fraction(match[1]) * _multiplier(match[2])
    if amount.denominator != 1:
        raise ValueError(f"{text!r} is not a whole number")
    return int(amount)


def _multiplier(unit: str) -> int:
    if unit in ("", "B"):
        return 1
    power = _PREFIXES.find(unit[0].lower()) + 1
    rest = unit[1:]
    if power == 0 or rest not in ("", "i", "iB", "B"):
        raise ValueError(f"{unit!r} is not a unit; units are KiB, MiB, GiB (1024) and kB, MB, GB (1000)")
    if rest.startswith("i") or (rest == "" and unit.isupper()):
        return int(1024**power)
    return int(1000**power)


def parse_duration_s(text: str) -> float:
    """Seconds from ``0.5``, ``500ms``, ``2s`` or ``5m``; a bare number is in seconds. Raises ``ValueError``."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a duration; write it as 500ms, 2s, 5m, or a number of seconds")
    return float(Fraction(match[1]) * _DURATION_UNITS[match[2]])


def exact_size(number: int) -> str:
    """``33554432`` as ``32MiB`` where that is exact, else the digits; ``parse_size`` reads it back."""
    units = ("", "KiB", "MiB", "GiB", "TiB", "PiB")
    power = 0
    while number and number % 1024 == 0 and power < len(units) - 1:
        number //= 1024
        power += 1
    return f"{number}{units[power]}"


def format_count(number: int) -> str:
    """``134515008`` as ``134.5 M``."""
    for unit, size in (("B", 10**9), ("M", 10**6), ("k", 10**3)):
        if number >= size:
            return f"{number / size:.1f} {unit}"
    return str(number)


def format_bytes(num_bytes: float) -> str:
    """``3221225472`` as ``3.0 GiB``."""
    amount = float(num_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(amount) < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"

"""Sizes are read as people write them and shown so that they can be read back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.units import exact_size, format_bytes, format_count, parse_size


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0", 0),
        ("4096", 4096),
        ("2GiB", 2 << 30),
        ("2 GiB", 2 << 30),
        ("2Gi", 2 << 30),
        ("2G", 2 << 30),
        ("2GB", 2_000_000_000),
        ("2g", 2_000_000_000),
        ("32k", 32_000),
        ("32K", 32_768),
        ("32kB", 32_000),
        ("32KB", 32_000),
        ("1.5MiB", 3 << 19),
        ("25.6k", 25_600),
        ("7B", 7),
        ("1P", 1 << 50),
    ],
)
def test_a_unit_multiplies(text: str, number: int) -> None:
    assert parse_size(text) == number


@pytest.mark.parametrize(
    "text", ["", "k", "GiB", "1 000", "1e3", "-1", "0x10", "1_000", "2QiB", "2Gib!", "1.", ".5", "٣"]
)
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a"):
        parse_size(text)


def test_a_fraction_of_a_byte_is_refused() -> None:
    with pytest.raises(ValueError, match="not a whole number"):
        parse_size("1.0001k")


@given(st.integers(0, 1 << 60))
def test_what_is_shown_exactly_reads_back(number: int) -> None:
    assert parse_size(exact_size(number)) == number


def test_counts_are_shown_with_one_decimal() -> None:
    shown = [format_count(n) for n in (0, 999, 1000, 134_515_008, 70_000_000_000)]
    assert shown == ["0", "999", "1.0 k", "134.5 M", "70.0 B"]


def test_bytes_are_shown_with_one_decimal() -> None:
    shown = [format_bytes(n) for n in (0, 1023, 1024, 3 << 30, 5 << 40, 5 << 50)]
    assert shown == ["0 B", "1023 B", "1.0 KiB", "3.0 GiB", "5.0 TiB", "5120.0 TiB"]

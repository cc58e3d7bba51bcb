"""The types of the native module are those the module has."""

from __future__ import annotations

from pathlib import Path

from nanobind.stubgen import StubGen

from headrace.native import _native

STUB = Path(__file__).parents[2] / "src" / "headrace" / "native" / "_native.pyi"


def test_the_stub_is_what_the_module_says() -> None:
    generator = StubGen(_native)
    generator.put(_native)
    assert STUB.read_text() == generator.get(), "run: make stubs"

"""Marks of tests that not every interpreter can run."""

from __future__ import annotations

import pytest

needs_asserts = pytest.mark.skipif(not __debug__, reason="asserts of the source do not run under python -O")
"""For tests of our own invariants; what guards a limit is never an assert and is tested under -O too."""

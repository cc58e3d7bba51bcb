"""The shared test data, where they are."""

from __future__ import annotations

from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[3] / "shared" / "data"
needs_shared_data = pytest.mark.skipif(not FOLDER.is_dir(), reason="there are no test data at ../shared/data")

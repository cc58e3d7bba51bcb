from __future__ import annotations

from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from headrace.engine.metrics import Metrics
from headrace.engine.metrics_reference import render_reference

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"


def test_the_metrics_page_is_up_to_date() -> None:
    assert PAGE.read_text() == render_reference(), (
        "run: python -m headrace.engine.metrics_reference > docs/reference/metrics.md"
    )


def test_every_exported_metric_is_on_the_page() -> None:
    body, _ = Metrics("m").render("")
    page = render_reference()
    for family in text_string_to_metric_families(body.decode()):
        if family.name.startswith("headrace_") and not family.name.endswith("_created"):
            name = f"{family.name}_total" if family.type == "counter" else family.name
            assert f"`{name}`" in page

"""What the server says of itself, held against what it does: schemathesis over ``/openapi.json``.

Half of the cases fit the description and half break it; an answer must fit it either way and never be a 500.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from dataclasses import dataclass, field

import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.failures import Failure, FailureGroup
from schemathesis.specs.openapi.checks import content_type_conformance, response_schema_conformance

CHECKS = [not_a_server_error, content_type_conformance, response_schema_conformance]
NOT_READY = frozenset({503})
TIMEOUT_S = 60.0


@dataclass
class OpenApiReport:
    """Cases by status, and those that were not answered as described."""

    statuses: Counter[int] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)


def check_description(root: str, examples: int, seed: int | None = None) -> OpenApiReport:
    """Send ``examples`` cases of each kind to every operation of the server at ``root``; without a seed, the same."""
    report = OpenApiReport()
    schema = schemathesis.openapi.from_url(f"{root}/openapi.json")
    for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
        for found in schema.get_all_operations():
            _check_operation(found.ok(), mode, root, examples, seed, report)
    return report


def _check_operation(
    operation: schemathesis.schemas.APIOperation,
    mode: GenerationMode,
    root: str,
    examples: int,
    seed: int | None,
    report: OpenApiReport,
) -> None:
    @settings(
        max_examples=examples,
        derandomize=seed is None,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def ask(case: schemathesis.Case) -> None:
        response = case.call(base_url=root, timeout=TIMEOUT_S)
        report.statuses[response.status_code] += 1
        try:
            case.validate_response(response, checks=CHECKS)
        except (Failure, FailureGroup) as error:
            report.failures.append(f"{case.method} {case.path} {case.body!r:.200}: {error!s:.400}")

    with contextlib.suppress(Unsatisfiable):  # what takes nothing cannot be given anything wrong
        ask()

"""How soon a request wants its tokens, and the named classes such wishes come in.

Owns the targets and their bounds. It does not know what a scheduler makes of them, nor which key or request
belongs to which class.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import msgspec

from headrace.core.errors import InvalidRequest
from headrace.core.program_place import ProgramPlace

MIN_TARGET_S: Final = 0.001
MAX_TARGET_S: Final = 7 * 86400.0


class ServiceLevel(msgspec.Struct, frozen=True, omit_defaults=True):
    """Targets of one request in seconds; infinity means "no target".

    ``ttft_s`` is the time from arrival to the first token, ``tpot_s`` the mean time per token after it,
    ``deadline_s`` the time from arrival to the last one, after which the answer is worthless and the request is
    ended. With ``may_be_late`` a request whose first token cannot come in time is served late instead of being
    refused.
    """

    ttft_s: float = math.inf
    tpot_s: float = math.inf
    deadline_s: float = math.inf
    may_be_late: bool = False

    def __post_init__(self) -> None:
        for name, value in (("ttft_s", self.ttft_s), ("tpot_s", self.tpot_s), ("deadline_s", self.deadline_s)):
            if not (MIN_TARGET_S <= value <= MAX_TARGET_S or value == math.inf):
                raise InvalidRequest(
                    f"{name} is {value:g} but must be from {MIN_TARGET_S:g} to {MAX_TARGET_S:g} seconds; "
                    "leave it out for no target",
                    name,
                )

    @property
    def has_targets(self) -> bool:
        return min(self.ttft_s, self.tpot_s) < math.inf


NO_TARGETS: Final = ServiceLevel()

DEFAULT_CLASS: Final = "default"
"""Name of the class of requests that name none and whose key names none: no targets."""

STANDARD_CLASSES: Final[Mapping[str, ServiceLevel]] = MappingProxyType(
    {
        DEFAULT_CLASS: NO_TARGETS,
        "interactive": ServiceLevel(ttft_s=0.5, tpot_s=0.033),
        "standard": ServiceLevel(ttft_s=2.0, tpot_s=0.050),
        "batch": ServiceLevel(ttft_s=30.0, tpot_s=0.200, may_be_late=True),
    }
)
"""The classes there are unless a config file says otherwise."""


class ServiceTerms(msgspec.Struct, frozen=True):
    """How a request is to be served, besides what it asks of the model; see ``core.request.Request``."""

    level: ServiceLevel = NO_TARGETS
    service_class: str = DEFAULT_CLASS
    tenant: str = ""
    weight: float = 1.0
    priority: int = 0
    program: ProgramPlace | None = None


DEFAULT_TERMS: Final = ServiceTerms()


def terms_of(level: ServiceLevel | str | None, priority: int = 0) -> ServiceTerms:
    """Terms from targets or the name of a standard class. Raises ``InvalidRequest`` for another name."""
    if level is None:
        return ServiceTerms(priority=priority)
    if isinstance(level, ServiceLevel):
        return ServiceTerms(level, priority=priority)
    if level not in STANDARD_CLASSES:
        raise InvalidRequest(
            f"service_level is {level!r} but must be a ServiceLevel or one of {', '.join(STANDARD_CLASSES)}",
            "service_level",
        )
    return ServiceTerms(STANDARD_CLASSES[level], level, priority=priority)

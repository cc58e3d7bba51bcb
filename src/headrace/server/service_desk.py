"""On what terms a request is served: its targets, its class, whose share it uses.

Owns the reading of ``slo``, ``service_tier``, ``priority``, ``user``, the ``x-request-timeout`` header and the
key into ``ServiceTerms``. It does not check keys (``auth.py`` did) and does not know what a scheduler makes of
the terms.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from headrace.core.config import ServeConfig
from headrace.core.errors import InvalidRequest
from headrace.core.service_config import Tenant, parse_classes, parse_tenants
from headrace.core.service_level import DEFAULT_CLASS, ServiceLevel, ServiceTerms
from headrace.core.units import parse_duration_s
from headrace.server.auth import presented_key
from headrace.server.protocol_common import GenerationFields, SloFields

TIMEOUT_HEADER: Final = b"x-request-timeout"

OPENAI_TIERS: Final = {"flex": "batch", "priority": "interactive", "scale": "interactive"}
"""OpenAI's tiers as our classes; ``auto`` and ``default`` mean the key's own class."""

MAX_USER_CHARS: Final = 64
_KEY_DIGITS: Final = 8

Headers = Iterable[tuple[bytes, bytes]]


class ServiceDesk:
    """Says on what terms requests are served; immutable, safe to share between threads."""

    def __init__(self, classes: Mapping[str, ServiceLevel], tenants: Iterable[Tenant], *, has_keys: bool) -> None:
        self._classes = dict(classes)
        self._has_keys = has_keys
        self._tenants = {_digest(tenant.key.encode()): tenant for tenant in tenants}

    @classmethod
    def of(cls, config: ServeConfig) -> ServiceDesk:
        classes = parse_classes(config.service_class)
        return cls(classes, parse_tenants(config.tenant, classes), has_keys=config.has_keys)

    def terms(self, fields: GenerationFields, headers: Headers) -> ServiceTerms:
        """The terms of one request. Raises ``InvalidRequest`` naming the field, the value and the remedy.

        The tenant is the key's owner; where no keys are asked for, the ``user`` a request names.
        """
        headers = list(headers)
        tenant = self._tenant(fields, headers)
        service_class = self._class(fields.service_tier, tenant.service_class)
        level = self._classes[service_class]
        if fields.slo is not None:
            level = _with_targets(level, fields.slo)
        timeout_s = _timeout_s(headers)
        if timeout_s is not None:
            level = msgspec.structs.replace(level, deadline_s=min(timeout_s, level.deadline_s))
        return ServiceTerms(level, service_class, tenant.name, tenant.weight, fields.priority or 0)

    def viewer(self, headers: Headers) -> str | None:
        """Whose requests the caller may look at: his tenant's; ``None`` for anybody's, where no keys are asked for."""
        key = presented_key(list(headers)) if self._has_keys else None
        return None if key is None else self._tenant_of(key).name

    def _tenant(self, fields: GenerationFields, headers: list[tuple[bytes, bytes]]) -> Tenant:
        key = presented_key(headers) if self._has_keys else None
        if key is None:
            return Tenant((fields.user or "")[:MAX_USER_CHARS], "")
        return self._tenant_of(key)

    def _tenant_of(self, key: bytes) -> Tenant:
        digest = _digest(key)
        return self._tenants.get(digest) or Tenant(f"key-{digest[:_KEY_DIGITS]}", "")

    def _class(self, tier: str | None, default: str) -> str:
        if tier is None or tier in ("auto", "default"):
            return default
        name = tier if tier in self._classes else OPENAI_TIERS.get(tier, tier)
        if name not in self._classes:
            shown = tier if len(tier) <= 64 else tier[:64] + "..."
            raise InvalidRequest(
                f"service_tier is {shown!r} but must be auto, default, flex, priority, or a class of this server: "
                f"{', '.join(name for name in self._classes if name != DEFAULT_CLASS)}",
                "service_tier",
            )
        return name


def _with_targets(level: ServiceLevel, slo: SloFields) -> ServiceLevel:
    """``level`` with the targets the request names in place of the class's."""
    named = {"ttft_s": slo.ttft_ms, "tpot_s": slo.tpot_ms, "deadline_s": slo.deadline_ms}
    targets = {name: value / 1000 for name, value in named.items() if value is not None}
    may_be_late = level.may_be_late if slo.may_be_late is None else slo.may_be_late
    try:
        return ServiceLevel(
            ttft_s=targets.get("ttft_s", level.ttft_s),
            tpot_s=targets.get("tpot_s", level.tpot_s),
            deadline_s=targets.get("deadline_s", level.deadline_s),
            may_be_late=may_be_late,
        )
    except InvalidRequest as error:
        raise InvalidRequest(f"slo: {error.message}", "slo") from None


def _timeout_s(headers: Iterable[tuple[bytes, bytes]]) -> float | None:
    for name, value in headers:
        if name == TIMEOUT_HEADER:
            return _checked_timeout_s(value.decode("latin-1"))
    return None


def _checked_timeout_s(text: str) -> float:
    try:
        return ServiceLevel(deadline_s=parse_duration_s(text)).deadline_s
    except ValueError:
        rule = "must be a duration such as 30, 30s or 1500ms"
    except InvalidRequest as error:
        rule = error.message
    raise InvalidRequest(f"the header x-request-timeout is {text[:40]!r}: {rule}", "x-request-timeout")


def _digest(key: bytes) -> str:
    return hashlib.sha256(key).hexdigest()

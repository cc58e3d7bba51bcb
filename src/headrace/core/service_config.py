"""Service classes and tenants as they are written in a config, and what they mean.

Owns the one-line form of both (``gold ttft=300ms tpot=25ms``, ``search key=SECRET class=gold weight=3``), which
a flag, a variable and a file can all hold. It does not know requests, nor how a key is checked.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping

import msgspec

from headrace.core.errors import ConfigError, InvalidRequest
from headrace.core.service_level import DEFAULT_CLASS, STANDARD_CLASSES, ServiceLevel
from headrace.core.units import parse_duration_s

MAX_WEIGHT = 1000.0
MIN_WEIGHT = 0.001
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_TARGETS = {"ttft": "ttft_s", "tpot": "tpot_s", "deadline": "deadline_s"}
_MAY_BE_LATE = "late"


class Tenant(msgspec.Struct, frozen=True):
    """Who a key belongs to: the class of its requests that name none, and its share relative to others'."""

    name: str
    key: str
    service_class: str = DEFAULT_CLASS
    weight: float = 1.0


def parse_classes(lines: Iterable[str]) -> dict[str, ServiceLevel]:
    """The standard classes and those written as ``NAME [ttft=T] [tpot=T] [deadline=T] [late]``, which win."""
    classes = dict(STANDARD_CLASSES)
    for line in lines:
        name, *words = line.split() or [""]
        _check_name(name, line, "service_class")
        classes[name] = _level(words, line)
    return classes


def parse_tenants(lines: Iterable[str], classes: Mapping[str, ServiceLevel]) -> list[Tenant]:
    """Tenants written as ``NAME key=KEY [class=CLASS] [weight=W]``; no name and no key twice."""
    tenants: list[Tenant] = []
    for line in lines:
        tenant = _tenant(line, classes)
        for other in tenants:
            if tenant.name == other.name or tenant.key == other.key:
                raise ConfigError(f"tenants {other.name!r} and {tenant.name!r} share a name or a key", "tenant")
        tenants.append(tenant)
    return tenants


def _level(words: list[str], line: str) -> ServiceLevel:
    targets = {"ttft_s": math.inf, "tpot_s": math.inf, "deadline_s": math.inf}
    for word in words:
        target, _, value = word.partition("=")
        if target in _TARGETS:
            targets[_TARGETS[target]] = _duration_s(value, line)
        elif word != _MAY_BE_LATE:
            raise ConfigError(
                f"service_class {line!r} has {word!r}; it takes ttft=, tpot= and deadline= with a duration, and late",
                "service_class",
            )
    try:
        return ServiceLevel(**targets, may_be_late=_MAY_BE_LATE in words)
    except InvalidRequest as error:
        raise ConfigError(f"service_class {line!r}: {error.message}", "service_class") from None


def _tenant(line: str, classes: Mapping[str, ServiceLevel]) -> Tenant:
    """Messages never repeat the line: it holds a key."""
    name, *words = line.split() or [""]
    _check_name(name, name, "tenant")
    values: dict[str, str] = {}
    for word in words:
        field, _, value = word.partition("=")
        if field not in ("key", "class", "weight") or not value or field in values:
            raise ConfigError(
                f"tenant {name!r} is written as NAME key=KEY [class=CLASS] [weight=W], each once", "tenant"
            )
        values[field] = value
    if "key" not in values:
        raise ConfigError(f"tenant {name!r} has no key=, so no request could be known as its", "tenant")
    service_class = values.get("class", DEFAULT_CLASS)
    if service_class not in classes:
        raise ConfigError(
            f"tenant {name!r} has the class {service_class!r}, but there are only {', '.join(classes)}", "tenant"
        )
    return Tenant(name, values["key"], service_class, _weight(name, values.get("weight", "1")))


def _weight(name: str, text: str) -> float:
    try:
        weight = float(text)
    except ValueError:
        weight = math.nan
    if not MIN_WEIGHT <= weight <= MAX_WEIGHT:
        raise ConfigError(
            f"tenant {name!r} has the weight {text!r} but it must be a number from {MIN_WEIGHT} to {MAX_WEIGHT:g}",
            "tenant",
        )
    return weight


def _duration_s(text: str, line: str) -> float:
    try:
        return parse_duration_s(text)
    except ValueError as error:
        raise ConfigError(f"service_class {line!r}: {error}", "service_class") from None


def _check_name(name: str, shown: str, field: str) -> None:
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"{field} {shown!r} must begin with a name of at most 64 letters, digits, dots, dashes and underscores",
            field,
        )

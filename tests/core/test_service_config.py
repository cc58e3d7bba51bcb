"""Classes and tenants as people write them."""

from __future__ import annotations

import math

import pytest

from headrace.core.config import ServeConfig
from headrace.core.errors import ConfigError
from headrace.core.service_config import Tenant, parse_classes, parse_tenants
from headrace.core.service_level import STANDARD_CLASSES, ServiceLevel


def test_a_class_is_a_name_and_its_targets():
    classes = parse_classes(["gold ttft=300ms tpot=25ms deadline=2m", "slow late"])
    assert classes["gold"] == ServiceLevel(ttft_s=0.3, tpot_s=0.025, deadline_s=120.0)
    assert classes["slow"] == ServiceLevel(may_be_late=True)
    assert classes["batch"] == STANDARD_CLASSES["batch"]


def test_a_standard_class_can_be_given_other_targets():
    assert parse_classes(["batch ttft=5m late"])["batch"] == ServiceLevel(ttft_s=300.0, may_be_late=True)


def test_a_tenant_is_the_owner_of_a_key_with_a_class_and_a_share():
    classes = parse_classes([])
    tenants = parse_tenants(["search key=a=b class=interactive weight=2.5", "rest key=c"], classes)
    assert tenants == [Tenant("search", "a=b", "interactive", 2.5), Tenant("rest", "c", "default", 1.0)]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("", "must begin with a name"),
        ("a/b", "must begin with a name"),
        ("gold ttft", "is not a duration"),
        ("gold ttft=fast", "is not a duration"),
        ("gold ttft=0", "must be from 0.001"),
        ("gold ttft=1s speed=2", "'speed=2'"),
    ],
)
def test_a_class_that_makes_no_sense_is_refused_in_words(line, said):
    with pytest.raises(ConfigError, match=said):
        parse_classes([line])


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("a", "has no key="),
        ("a key=", "is written as"),
        ("a key=SECRET key=SECRET", "is written as"),
        ("a key=SECRET class=golden", "there are only default, interactive"),
        ("a key=SECRET weight=0", "must be a number from 0.001"),
        ("a key=SECRET weight=nan", "must be a number from 0.001"),
        ("a key=SECRET colour=blue", "is written as"),
    ],
)
def test_a_tenant_that_makes_no_sense_is_refused_without_showing_its_key(line, said):
    with pytest.raises(ConfigError, match=said) as caught:
        parse_tenants([line], STANDARD_CLASSES)
    assert "SECRET" not in caught.value.message


@pytest.mark.parametrize("lines", [("a key=1", "a key=2"), ("a key=1", "b key=1")])
def test_two_tenants_share_neither_name_nor_key(lines):
    with pytest.raises(ConfigError, match="share a name or a key"):
        parse_tenants(lines, STANDARD_CLASSES)


def test_a_config_refuses_what_its_lines_get_wrong_and_knows_every_key():
    with pytest.raises(ConfigError, match="there are only"):
        ServeConfig(tenant=("a key=1 class=gold",))
    config = ServeConfig(api_key=("plain",), tenant=("a key=1 class=gold",), service_class=("gold ttft=1s",))
    assert config.all_keys == ("plain", "1")


def test_no_target_is_infinite():
    assert ServiceLevel().ttft_s == math.inf
    assert not ServiceLevel(deadline_s=5.0).has_targets
    assert ServiceLevel(tpot_s=0.1).has_targets

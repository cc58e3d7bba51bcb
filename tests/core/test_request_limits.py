"""What an operator lets clients ask for: each limit at its edge, and one past it."""

from __future__ import annotations

import pytest

from headrace.core.config import ServeConfig
from headrace.core.errors import InvalidRequest
from headrace.core.request_limits import RequestLimits
from headrace.core.sampling import SamplingParams

LIMITS = RequestLimits(max_n=3, max_logprobs=2, max_stop_strings=2, max_stop_chars=4, max_cache_salt_chars=5)


@pytest.mark.parametrize(
    ("field", "at_limit", "beyond", "setting"),
    [
        ("n", 3, 4, "max_n"),
        ("logprobs", 2, 3, "max_logprobs"),
        ("prompt_logprobs", 2, 3, "max_logprobs"),
        ("stop", ["a", "b"], ["a", "b", "c"], "max_stop_strings"),
        ("stop", ["a", "four"], ["a", "fives"], "max_stop_chars"),
    ],
)
def test_a_value_at_its_limit_passes_and_one_more_is_told_the_flag(
    field: str, at_limit: object, beyond: object, setting: str
) -> None:
    LIMITS.check(SamplingParams(**{field: at_limit}), "")  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest) as caught:
        LIMITS.check(SamplingParams(**{field: beyond}), "")  # type: ignore[arg-type]
    assert caught.value.param == field
    assert "--" + setting.replace("_", "-") in caught.value.message


def test_a_salt_has_a_length() -> None:
    LIMITS.check(SamplingParams(), "12345")
    with pytest.raises(InvalidRequest, match="cache_salt has 6 characters but at most 5"):
        LIMITS.check(SamplingParams(), "123456")


def test_by_default_only_the_bounds_hold() -> None:
    RequestLimits().check(SamplingParams(n=128, logprobs=100, stop=("x" * 4096,) * 64), "s" * 4096)


def test_every_limit_is_a_setting_within_its_bounds() -> None:
    config, bounds = ServeConfig(), RequestLimits()
    for name in RequestLimits.__struct_fields__:
        assert 0 < getattr(config, name) < getattr(bounds, name)

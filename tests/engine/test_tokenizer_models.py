from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import tokenizers

from headrace.checkpoint.model_cache import ModelCache
from headrace.checkpoint.reference import cache_folder, locate_model, resolve_model
from headrace.core.errors import ConfigError
from headrace.core.progress import NullProgress
from headrace.engine.tokenizer import Tokenizer, load_tokenizer
from tests.engine.vocabularies import CORPUS, SAMPLES, random_texts

pytestmark = pytest.mark.model

TEXTS = [*SAMPLES, *CORPUS, *random_texts(3000, seed=3)]


@functools.cache
def default_model() -> Path:
    return resolve_model("smollm2", NullProgress())


@pytest.fixture(scope="module")
def smollm2() -> Tokenizer:
    return load_tokenizer(default_model())


@pytest.fixture(scope="module")
def reference_encode() -> Callable[[str], list[int]]:
    """The same file read by transformers, with the digit splitting of the published tokenizer.json.

    Transformers takes vocabulary and merges from a GGUF file but not ``tokenizer.ggml.pre``.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers import AutoTokenizer

        path = default_model()
        reference = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    pre = tokenizers.pre_tokenizers
    digits, words = pre.Digits(individual_digits=True), pre.ByteLevel(add_prefix_space=False)
    reference.backend_tokenizer.pre_tokenizer = pre.Sequence([digits, words])
    return lambda text: list(reference.encode(text))


def test_tokens_are_those_of_transformers(smollm2: Tokenizer, reference_encode: Callable[[str], list[int]]) -> None:
    for text in TEXTS:
        assert smollm2.encode(text) == reference_encode(text), text


def test_text_survives_the_round_trip(smollm2: Tokenizer) -> None:
    for text in TEXTS:
        assert smollm2.decode(smollm2.encode_text(text)) == text


def test_detokenizing_one_by_one_gives_the_text(smollm2: Tokenizer) -> None:
    for text in TEXTS[:300]:
        detokenizer = smollm2.detokenizer()
        parts = [detokenizer.push(token_id) for token_id in smollm2.encode_text(text)]
        assert "".join(parts) + detokenizer.flush() == text
        assert "�" not in "".join(parts)


def test_the_default_model_declares_its_tokens(smollm2: Tokenizer) -> None:
    assert smollm2.vocab_size == 49152
    assert smollm2.bos_token_id == 1
    assert smollm2.eos_token_ids == {0, 2}
    assert smollm2.eos_token_id == 2
    assert smollm2.special_token_ids == set(range(17))
    assert smollm2.chat_template is not None
    assert smollm2.encode("") == []


def test_gemma_3_tokens_are_those_of_transformers() -> None:
    """Read from a GGUF file with scores; needs the model in the cache, for it is too big to fetch for a test."""
    try:
        path = locate_model("gemma3-270m", ModelCache(cache_folder()))
    except ConfigError as error:
        pytest.skip(error.message)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers import AutoTokenizer

        reference = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    gemma = load_tokenizer(path)
    assert gemma.eos_token_ids == {1, 106}
    for text in TEXTS[:1500]:
        ids = gemma.encode(text)
        assert ids == list(reference.encode(text)), text
        assert gemma.decode(ids) == text

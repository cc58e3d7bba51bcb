from __future__ import annotations

import msgspec
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.errors import ConfigError
from headrace.engine.gguf_tokenizer import read_gguf_tokenizer
from headrace.engine.pre_tokenizers import PRE_TOKENIZERS
from headrace.engine.tokenizer import Tokenizer
from tests.engine.vocabularies import (
    CORPUS,
    SAMPLES,
    byte_level_metadata,
    random_texts,
    sentencepiece_metadata,
    train_byte_level,
    train_sentencepiece,
)

TEXTS = [*SAMPLES, *CORPUS, *random_texts(400, seed=1)]
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def tokenizer_of(metadata: dict[str, object]) -> Tokenizer:
    return Tokenizer(read_gguf_tokenizer(metadata))


def split_on(*patterns: str) -> tokenizers.pre_tokenizers.PreTokenizer:
    pre = tokenizers.pre_tokenizers
    splits = [pre.Split(tokenizers.Regex(pattern), "isolated") for pattern in patterns]
    return pre.Sequence([*splits, pre.ByteLevel(add_prefix_space=False, use_regex=False)])


@pytest.fixture(scope="module")
def gpt2_words() -> dict[str, object]:
    lib = train_byte_level(tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False), SPECIALS)
    return byte_level_metadata(lib, "gpt-2")


@pytest.mark.parametrize("add_dummy_prefix", [True, False])
def test_sentencepiece_tokens_are_those_of_the_sentencepiece_library(add_dummy_prefix: bool) -> None:
    model = train_sentencepiece(add_dummy_prefix=add_dummy_prefix)
    metadata = sentencepiece_metadata(model) | {"tokenizer.ggml.add_space_prefix": add_dummy_prefix}
    tokenizer = tokenizer_of(metadata)
    for text in TEXTS:
        ids = tokenizer.encode(text)
        assert ids == [model.bos_id(), *model.encode(text)], text
        assert tokenizer.decode(ids) == text


def test_sentencepiece_bytes_decode_as_python_does() -> None:
    model = train_sentencepiece()
    tokenizer = tokenizer_of(sentencepiece_metadata(model))
    first_byte = model.piece_to_id("<0x00>")
    ids = [first_byte + byte for byte in b"\xf0\x9f\x99a\xe2\x82\xffb"]
    assert tokenizer.decode(ids) == b"\xf0\x9f\x99a\xe2\x82\xffb".decode("utf-8", "replace")


def test_output_after_a_prompt_keeps_its_leading_space() -> None:
    tokenizer = tokenizer_of(sentencepiece_metadata(train_sentencepiece()))
    ids = tokenizer.encode("quick fox", add_special_tokens=False)
    detokenizer = tokenizer.detokenizer()
    pushed = "".join(detokenizer.push(token_id) for token_id in ids) + detokenizer.flush()
    assert pushed == tokenizer.decode_continuation(ids) == " quick fox"
    assert tokenizer.decode(ids) == "quick fox"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("gpt-2", tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)),
        (
            "smollm",
            tokenizers.pre_tokenizers.Sequence(
                [
                    tokenizers.pre_tokenizers.Digits(individual_digits=True),
                    tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False),
                ]
            ),
        ),
        (
            "llama-bpe",
            split_on(
                r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
                r"|\s*[\r\n]+|\s+(?!\S)|\s+"
            ),
        ),
        (
            "qwen2",
            split_on(
                r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
                r"|\s*[\r\n]+|\s+(?!\S)|\s+"
            ),
        ),
    ],
)
def test_byte_level_tokens_are_those_of_the_published_pre_tokenizer(
    name: str, words: tokenizers.pre_tokenizers.PreTokenizer
) -> None:
    lib = train_byte_level(words, SPECIALS)
    tokenizer = tokenizer_of(byte_level_metadata(lib, name) | {"tokenizer.ggml.bos_token_id": 0})
    for text in TEXTS:
        # ignore_merges (llama-bpe) changes nothing here: every trained token is what its merges make
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert ids == lib.encode(text).ids, text
        assert tokenizer.decode(ids) == text


@pytest.mark.parametrize("name", sorted(PRE_TOKENIZERS))
def test_every_known_pre_tokenizer_keeps_every_character(name: str, gpt2_words: dict[str, object]) -> None:
    tokenizer = tokenizer_of(
        gpt2_words | {"tokenizer.ggml.pre": name, "tokenizer.ggml.add_bos_token": False},
    )
    for text in TEXTS[:120]:
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_an_unknown_pre_tokenizer_is_named_and_never_replaced(gpt2_words: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="'made-up'") as caught:
        tokenizer_of(gpt2_words | {"tokenizer.ggml.pre": "made-up"})
    assert caught.value.field == "tokenizer.ggml.pre"


@pytest.mark.parametrize("kind", ["bert", "t5", "rwkv", "none"])
def test_an_unsupported_model_kind_is_named(kind: str, gpt2_words: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=f"'{kind}'") as caught:
        tokenizer_of(gpt2_words | {"tokenizer.ggml.model": kind})
    assert caught.value.field == "tokenizer.ggml.model"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("tokenizer.ggml.tokens", []),
        ("tokenizer.ggml.tokens", "abc"),
        ("tokenizer.ggml.tokens", ["a", 1]),
        ("tokenizer.ggml.token_type", [1, 1]),
        ("tokenizer.ggml.token_type", [1.5] * 500),
        ("tokenizer.ggml.merges", ["ab"]),
        ("tokenizer.ggml.merges", ["a "]),
        ("tokenizer.ggml.merges", [3]),
        ("tokenizer.ggml.bos_token_id", 500),
        ("tokenizer.ggml.eos_token_id", -1),
        ("tokenizer.ggml.eot_token_id", 2**63),
        ("tokenizer.ggml.unknown_token_id", "1"),
        ("tokenizer.ggml.padding_token_id", True),
        ("tokenizer.ggml.add_bos_token", 1),
        ("tokenizer.chat_template", ["x"]),
        ("tokenizer.ggml.pre", 7),
        ("tokenizer.ggml.model", None),
    ],
)
def test_a_lying_value_is_refused_by_its_key(key: str, value: object, gpt2_words: dict[str, object]) -> None:
    with pytest.raises(ConfigError) as caught:
        tokenizer_of(gpt2_words | {key: value})
    assert caught.value.field == key


@pytest.mark.parametrize("key", ["tokens", "merges", "pre", "model"])
def test_a_missing_key_is_named(key: str, gpt2_words: dict[str, object]) -> None:
    name = f"tokenizer.ggml.{key}"
    with pytest.raises(ConfigError, match=name):
        tokenizer_of({each: value for each, value in gpt2_words.items() if each != name})


def test_merges_of_unknown_tokens_are_refused(gpt2_words: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="not valid"):
        tokenizer_of(gpt2_words | {"tokenizer.ggml.merges": ["nope nada"]})


def test_scores_must_be_finite_and_one_per_piece() -> None:
    metadata = sentencepiece_metadata(train_sentencepiece())
    for scores in ([0.0], [float("nan")] * 450):
        with pytest.raises(ConfigError) as caught:
            tokenizer_of(metadata | {"tokenizer.ggml.scores": scores})
        assert caught.value.field == "tokenizer.ggml.scores"


def test_a_piece_too_long_to_split_is_refused() -> None:
    metadata = sentencepiece_metadata(train_sentencepiece())
    pieces = metadata["tokenizer.ggml.tokens"]
    assert isinstance(pieces, list)
    with pytest.raises(ConfigError, match="1000000 characters"):
        tokenizer_of(metadata | {"tokenizer.ggml.tokens": [*pieces[:-1], "x" * 1_000_000]})


JUNK = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.lists(st.integers(), max_size=3)
)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_mutated_metadata_is_refused_or_works(gpt2_words: dict[str, object], data: st.DataObject) -> None:
    key = data.draw(st.sampled_from([*sorted(gpt2_words), "tokenizer.ggml.bos_token_id", "tokenizer.chat_templates"]))
    try:
        tokenizer = tokenizer_of(gpt2_words | {key: data.draw(JUNK)})
    except ConfigError:
        return
    assert tokenizer.decode(tokenizer.encode("a b")) == "a b"


def test_user_defined_tokens_are_found_in_text_and_are_not_control(gpt2_words: dict[str, object]) -> None:
    tokens, types = gpt2_words["tokenizer.ggml.tokens"], gpt2_words["tokenizer.ggml.token_type"]
    assert isinstance(tokens, list)
    assert isinstance(types, list)
    tokenizer = tokenizer_of(
        gpt2_words | {"tokenizer.ggml.tokens": [*tokens, "<tool é>"], "tokenizer.ggml.token_type": [*types, 4]},
    )
    ids = tokenizer.encode_text("a<tool é>b")
    assert len(tokens) in ids
    assert len(tokens) not in tokenizer.special_token_ids
    assert tokenizer.decode(ids) == "a<tool é>b"


def test_unused_tokens_have_an_id_and_no_text(gpt2_words: dict[str, object]) -> None:
    tokens, types = gpt2_words["tokenizer.ggml.tokens"], gpt2_words["tokenizer.ggml.token_type"]
    assert isinstance(tokens, list)
    assert isinstance(types, list)
    tokenizer = tokenizer_of(
        gpt2_words | {"tokenizer.ggml.tokens": [*tokens, "[PAD]", ""], "tokenizer.ggml.token_type": [*types, 5, 1]},
    )
    assert tokenizer.vocab_size == len(tokens) + 2
    assert tokenizer.token_bytes[-2:] == [b"", b""]
    assert tokenizer.decode(tokenizer.encode("[PAD]")) == "[PAD]"


def test_end_tokens_are_control_tokens_whatever_the_file_says(gpt2_words: dict[str, object]) -> None:
    types = gpt2_words["tokenizer.ggml.token_type"]
    assert isinstance(types, list)
    tokenizer = tokenizer_of(
        gpt2_words | {"tokenizer.ggml.token_type": [1] * len(types), "tokenizer.ggml.eos_token_id": 0},
    )
    assert tokenizer.eos_token_ids == {0, 2}
    assert tokenizer.special_token_ids == {0, 2}


def test_a_padding_token_that_is_a_word_stays_a_word(gpt2_words: dict[str, object]) -> None:
    tokens = gpt2_words["tokenizer.ggml.tokens"]
    assert isinstance(tokens, list)
    tokenizer = tokenizer_of(gpt2_words | {"tokenizer.ggml.padding_token_id": tokens.index("!")})
    assert tokenizer.decode(tokenizer.encode_text("Hi!")) == "Hi!"


def test_a_sentencepiece_file_without_types_still_has_control_tokens() -> None:
    metadata = sentencepiece_metadata(train_sentencepiece())
    del metadata["tokenizer.ggml.token_type"]
    assert tokenizer_of(metadata).special_token_ids == {0, 1, 2}


@pytest.mark.parametrize(
    ("add_bos", "add_eos", "expected"), [(True, True, [1, 2]), (True, False, [1]), (False, True, [2])]
)
def test_begin_and_end_tokens_follow_the_flags(
    add_bos: bool, add_eos: bool, expected: list[int], gpt2_words: dict[str, object]
) -> None:
    tokenizer = tokenizer_of(
        gpt2_words
        | {
            "tokenizer.ggml.bos_token_id": 1,
            "tokenizer.ggml.eos_token_id": 2,
            "tokenizer.ggml.add_bos_token": add_bos,
            "tokenizer.ggml.add_eos_token": add_eos,
        }
    )
    assert tokenizer.encode("") == expected
    assert tokenizer.encode("", add_special_tokens=False) == []


def test_a_begin_token_that_is_wanted_but_missing_is_an_error(gpt2_words: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="add_bos_token"):
        tokenizer_of(gpt2_words | {"tokenizer.ggml.add_bos_token": True})


def test_named_chat_templates_are_read(gpt2_words: dict[str, object]) -> None:
    tokenizer = tokenizer_of(
        gpt2_words
        | {
            "tokenizer.chat_template": "plain",
            "tokenizer.chat_templates": ["default", "tool_use"],
            "tokenizer.chat_template.tool_use": "with tools",
        }
    )
    assert tokenizer.chat_template == "plain"
    assert tokenizer.chat_templates == {"default": "plain", "tool_use": "with tools"}


def test_the_document_is_a_tokenizer_json(gpt2_words: dict[str, object]) -> None:
    document = msgspec.json.decode(read_gguf_tokenizer(gpt2_words).json)
    assert set(document) == {"version", "added_tokens", "pre_tokenizer", "decoder", "model"}

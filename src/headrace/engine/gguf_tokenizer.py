"""From GGUF metadata (``tokenizer.ggml.*``) to a ``TokenizerSpec``.

Owns the two kinds of vocabulary that GGUF files of decoder models carry: byte-level BPE (``gpt2``) and
SentencePiece BPE (``llama``). Writes them down as a ``tokenizer.json``; does not know the library that reads
it. Key meanings: the GGUF specification (ggml-org/ggml, docs/gguf.md), section "Tokenizer".
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from headrace.core.errors import ConfigError
from headrace.engine.gguf_metadata import GgufMetadata
from headrace.engine.pre_tokenizers import find_pre_tokenizer
from headrace.engine.sentencepiece_merges import derive_merges
from headrace.engine.token_table import SPACE_MARK
from headrace.engine.tokenizer_spec import DEFAULT_TEMPLATE, END_TOKENS, TokenizerSpec

_PREFIX = "tokenizer.ggml."
_TEMPLATE = "tokenizer.chat_template"
_SPECIAL_NAMES = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
    "sep_token": "seperator_token_id",  # the specification's own spelling
    "cls_token": "cls_token_id",
    "mask_token": "mask_token_id",
}
_END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
_SENTENCEPIECE_DEFAULTS = {"bos_token": 1, "eos_token": 2, "unk_token": 0}
_NUM_BYTE_PIECES = 256


class TokenType(enum.IntEnum):
    """``tokenizer.ggml.token_type``; SentencePiece's piece types."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, slots=True)
class _Vocabulary:
    """Texts and types by token id, and the ids of the tokens with a role."""

    texts: list[str]
    types: list[TokenType]
    named_ids: Mapping[str, int]

    def vocab(self) -> dict[str, int]:
        """Text to id; of equal texts the first. Unused tokens fill up the table and have no text."""
        vocab: dict[str, int] = {}
        for token_id, (text, kind) in enumerate(zip(self.texts, self.types, strict=True)):
            if text and kind is not TokenType.UNUSED:
                vocab.setdefault(text, token_id)
        return vocab

    def added_tokens(self) -> list[dict[str, object]]:
        """Tokens found in the text before it is cut: control tokens and whole words a user defined."""
        specials = (TokenType.CONTROL, TokenType.UNKNOWN)
        return [
            {
                "id": token_id,
                "content": text,
                "special": self.types[token_id] in specials,
                **dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False),
            }
            for text, token_id in self.vocab().items()
            if self.types[token_id] in (*specials, TokenType.USER_DEFINED)
        ]


def read_gguf_tokenizer(metadata: Mapping[str, object]) -> TokenizerSpec:
    """Build the spec of a GGUF file's tokenizer. Raises ``ConfigError`` naming the key at fault.

    Costs one to two seconds for a SentencePiece vocabulary of 256k pieces, whose merges are derived.
    """
    values = GgufMetadata(metadata)
    model = values.text(_PREFIX + "model")
    match model:
        case "gpt2":
            return _read_byte_level(values)
        case "llama":
            return _read_sentencepiece(values)
    raise ConfigError(
        f"{_PREFIX}model is {model!r} but only 'gpt2' (byte-level BPE) and 'llama' (SentencePiece BPE) can be "
        "read from GGUF; give the model's tokenizer.json with --tokenizer instead",
        _PREFIX + "model",
    )


def _read_byte_level(values: GgufMetadata) -> TokenizerSpec:
    vocabulary = _read_vocabulary(values, defaults={})
    words = find_pre_tokenizer(values.text(_PREFIX + "pre"), _PREFIX + "pre")
    model = {
        "type": "BPE",
        "ignore_merges": words.ignore_merges,
        "vocab": vocabulary.vocab(),
        "merges": _read_merges(values),
    }
    document = {
        "added_tokens": vocabulary.added_tokens(),
        "pre_tokenizer": words.to_json(),
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
        "model": model,
    }
    return _spec(values, vocabulary, document, adds_bos=words.add_bos)


def _read_sentencepiece(values: GgufMetadata) -> TokenizerSpec:
    vocabulary = _read_vocabulary(values, defaults=_SENTENCEPIECE_DEFAULTS)
    scores = values.floats(_PREFIX + "scores", len(vocabulary.texts))
    vocab = vocabulary.vocab()
    normal_ids = [index for text, index in vocab.items() if vocabulary.types[index] is TokenType.NORMAL]
    adds_space = values.flag(_PREFIX + "add_space_prefix") is not False
    model = {
        "type": "BPE",
        "unk_token": vocabulary.texts[vocabulary.named_ids["unk_token"]],
        "fuse_unk": True,
        "byte_fallback": vocabulary.types.count(TokenType.BYTE) == _NUM_BYTE_PIECES,
        "vocab": vocab,
        "merges": derive_merges({vocabulary.texts[index]: scores[index] for index in normal_ids}, _PREFIX + "tokens"),
    }
    document = {
        "added_tokens": vocabulary.added_tokens(),
        "normalizer": _sentencepiece_normalizer(adds_space),
        "decoder": _sentencepiece_decoder(adds_space),
        "model": model,
    }
    return _spec(values, vocabulary, document, adds_bos=True)


def _sentencepiece_normalizer(adds_space: bool) -> dict[str, object]:
    """Write spaces as pieces do; each text between control tokens may begin with one more, as in training."""
    spaces = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE_MARK}
    prefix = [{"type": "Prepend", "prepend": SPACE_MARK}] if adds_space else []
    return {"type": "Sequence", "normalizers": [*prefix, spaces]}


def _sentencepiece_decoder(adds_space: bool) -> dict[str, object]:
    steps: list[dict[str, object]] = [
        {"type": "Replace", "pattern": {"String": SPACE_MARK}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if adds_space:
        steps.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return {"type": "Sequence", "decoders": steps}


def _read_vocabulary(values: GgufMetadata, defaults: Mapping[str, int]) -> _Vocabulary:
    texts = values.texts(_PREFIX + "tokens")
    if not texts:
        raise ConfigError(f"{_PREFIX}tokens is empty", _PREFIX + "tokens")
    named_ids = {name: index for name, index in defaults.items() if index < len(texts)}
    for name, key in _SPECIAL_NAMES.items():
        token_id = values.token_id(_PREFIX + key, len(texts))
        if token_id is not None:
            named_ids[name] = token_id
    types = _read_types(values, len(texts))
    control_ids = [named_ids[name] for name in defaults if name in named_ids]
    control_ids += (index for _, index in _end_tokens(values, len(texts)))
    control_ids += (index for index, text in enumerate(texts) if text in END_TOKENS)
    # older files mark some of these as ordinary tokens; as such they could be typed, and would be shown.
    # Not so for padding: files exist whose padding token is a word
    for token_id in control_ids:
        if types[token_id] is not TokenType.UNKNOWN:
            types[token_id] = TokenType.CONTROL
    return _Vocabulary(texts, types, named_ids)


def _end_tokens(values: GgufMetadata, num_tokens: int) -> list[tuple[str, int]]:
    """The keys that name an end token, with its id."""
    found = [(_PREFIX + key, values.token_id(_PREFIX + key, num_tokens)) for key in _END_KEYS]
    return [(key, token_id) for key, token_id in found if token_id is not None]


def _read_types(values: GgufMetadata, num_tokens: int) -> list[TokenType]:
    key = _PREFIX + "token_type"
    if key not in values:
        return [TokenType.NORMAL] * num_tokens
    by_value = {int(kind): kind for kind in TokenType}
    # 0 is "undefined" in llama.cpp's converter and means nothing special
    return [by_value.get(value, TokenType.NORMAL) for value in values.integers(key, num_tokens)]


def _read_merges(values: GgufMetadata) -> list[tuple[str, str]]:
    """Merges in rank order. Each is ``"left right"``; only a first character may be a space itself."""
    key = _PREFIX + "merges"
    merges = []
    for index, merge in enumerate(values.texts(key)):
        cut = merge.find(" ", 1)
        if cut < 0 or cut == len(merge) - 1:
            raise ConfigError(f"{key}[{index}] is {merge[:40]!r}, not two tokens with a space between them", key)
        merges.append((merge[:cut], merge[cut + 1 :]))
    return merges


def _spec(
    values: GgufMetadata, vocabulary: _Vocabulary, document: Mapping[str, object], adds_bos: bool
) -> TokenizerSpec:
    num_tokens = len(vocabulary.texts)
    ends = _end_tokens(values, num_tokens)
    if not ends and "eos_token" in vocabulary.named_ids:
        ends = [(_PREFIX + "eos_token_id", vocabulary.named_ids["eos_token"])]
    add_bos, add_eos = values.flag(_PREFIX + "add_bos_token"), values.flag(_PREFIX + "add_eos_token")
    return TokenizerSpec(
        json=msgspec.json.encode({"version": "1.0", **document}),
        bos=vocabulary.named_ids.get("bos_token"),
        eos=tuple(ends),
        add_bos=adds_bos if add_bos is None else add_bos,
        add_eos=bool(add_eos),
        special_names={name: vocabulary.texts[index] for name, index in vocabulary.named_ids.items()},
        chat_templates=_read_templates(values),
        min_vocab_size=num_tokens,
    )


def _read_templates(values: GgufMetadata) -> dict[str, str]:
    templates = {}
    if _TEMPLATE in values:
        templates[DEFAULT_TEMPLATE] = values.text(_TEMPLATE)
    names = values.texts(_TEMPLATE + "s") if _TEMPLATE + "s" in values else []
    for name in names:
        if name != DEFAULT_TEMPLATE:
            templates[name] = values.text(f"{_TEMPLATE}.{name}")
    return templates

"""Small vocabularies trained on the spot, and texts to try them on."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Iterable

import sentencepiece
import tokenizers

CORPUS = [
    "The quick brown fox jumps over the lazy dog. It's been 1234 days, 56 hours; we'll see!",
    "def add(left, right):\n    return left + right  # sums 3.14159 and 2.71828\n",
    "Ünïcödé, naïve café, Straße. Привет, мир! こんにちは世界。 你好\uff0c世界\uff01 안녕하세요",
    "emoji 🙂🙃 family 👩‍👩‍👧 flag 🇩🇪 and  double  spaces\tand tabs\n\n\nand newlines",
    '{"name": "value", "list": [1, 2, 3], "nested": {"key": null}} <b>markup</b> & more',
]
SAMPLES = [
    "",
    " ",
    "a",
    "Hello, world!",
    "  two leading, two trailing  ",
    "a\n\n\nb \t c\r\nd",
    "x = [12, 345, 6789]  # it's we'll I'd",
    "日本語とEnglish混ぜ🙂👩‍👩‍👧🇩🇪",
    "e\u0301 combining, \u00a0no-break, \u3000wide, \u200bzero",
    "١٢٣ Ⅷ ½ ²",
    "\x00\x01\x7f control",
]
_ALPHABET = "aeiou the DOG 019 \n\t.,'\"<>|_é語🙂🇩🇪\u00a0\u3000"


def random_texts(count: int, seed: int) -> list[str]:
    """Texts of characters likely to meet pattern edges, and of any characters at all."""
    rng = random.Random(seed)
    edgy = ["".join(rng.choices(_ALPHABET, k=rng.randint(0, 40))) for _ in range(count // 2)]
    blocks = [(0x20, 0x250), (0x370, 0x1200), (0x2000, 0x2C00), (0x3000, 0xD7FF), (0x1F000, 0x1FAFF)]
    wild = ["".join(chr(rng.randint(*rng.choice(blocks))) for _ in range(rng.randint(0, 20))) for _ in edgy]
    return edgy + wild


def train_sentencepiece(add_dummy_prefix: bool = True) -> sentencepiece.SentencePieceProcessor:
    """A byte-fallback BPE model of 450 pieces that changes no text, as LLaMA's."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([line for text in CORPUS * 20 for line in text.split("\n")]),
        model_writer=model,
        vocab_size=450,
        model_type="bpe",
        byte_fallback=True,
        character_coverage=0.98,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        minloglevel=3,
        add_dummy_prefix=add_dummy_prefix,
    )
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


def sentencepiece_metadata(model: sentencepiece.SentencePieceProcessor) -> dict[str, object]:
    """What a converter writes about the model into a GGUF file."""
    ids = range(model.vocab_size())
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [model.id_to_piece(index) for index in ids],
        "tokenizer.ggml.scores": [model.get_score(index) for index in ids],
        "tokenizer.ggml.token_type": [_piece_type(model, index) for index in ids],
        "tokenizer.ggml.unknown_token_id": model.unk_id(),
        "tokenizer.ggml.bos_token_id": model.bos_id(),
        "tokenizer.ggml.eos_token_id": model.eos_id(),
    }


def _piece_type(model: sentencepiece.SentencePieceProcessor, index: int) -> int:
    for kind, is_kind in ((2, model.is_unknown), (3, model.is_control), (6, model.is_byte), (5, model.is_unused)):
        if is_kind(index):
            return kind
    return 1


def train_byte_level(
    pre_tokenizer: tokenizers.pre_tokenizers.PreTokenizer, specials: Iterable[str]
) -> tokenizers.Tokenizer:
    """A byte-level BPE tokenizer of 500 tokens with ``specials`` first."""
    lib = tokenizers.Tokenizer(tokenizers.models.BPE())
    lib.pre_tokenizer = pre_tokenizer
    lib.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=500,
        special_tokens=list(specials),
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    lib.train_from_iterator(CORPUS * 3, trainer)
    return lib


def byte_level_metadata(lib: tokenizers.Tokenizer, pre: str) -> dict[str, object]:
    """What a converter writes about a byte-level tokenizer into a GGUF file."""
    vocab = sorted(lib.get_vocab().items(), key=lambda item: item[1])
    special = {token.content for token in lib.get_added_tokens_decoder().values()}
    merges = json.loads(lib.to_str())["model"]["merges"]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": [text for text, _ in vocab],
        "tokenizer.ggml.token_type": [3 if text in special else 1 for text, _ in vocab],
        "tokenizer.ggml.merges": [" ".join(merge) for merge in merges],
    }

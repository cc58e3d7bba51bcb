"""Small vocabularies whose encodings can be worked out on paper."""

from __future__ import annotations

from headrace.grammar.vocabulary import VocabularyTable

END = 256
OTHER_END = 257
WORDS = (b"true", b"fal", b'{"', b'":', b'"}', b", ", b"name", b"  ")
"""Tokens 258 and up; before them every byte is the token of its own number, then come two end tokens."""

TABLE = VocabularyTable(
    token_bytes=[*(bytes([byte]) for byte in range(256)), b"<|end|>", b"<|other|>", *WORDS],
    special_token_ids=[END, OTHER_END],
    end_token_ids=[END],
)


def encode(text: str) -> list[int]:
    """The vocabulary's own encoding: the longest word that fits, else a byte."""
    data, ids = text.encode(), []
    position = 0
    while position < len(data):
        fitting = [index for index, word in enumerate(WORDS) if data.startswith(word, position)]
        best = max(fitting, key=lambda index: len(WORDS[index]), default=None)
        ids.append(data[position] if best is None else OTHER_END + 1 + best)
        position += 1 if best is None else len(WORDS[best])
    return ids

"""A vocabulary of single bytes, for asking what a grammar allows where no model is at hand."""

from __future__ import annotations

import llguidance

from headrace.grammar.vocabulary import VocabularyTable, library_tokenizer

END_OF_OUTPUT = 256
BYTE_TABLE = VocabularyTable([*(bytes([byte]) for byte in range(256)), b"<|end|>"], [END_OF_OUTPUT], [END_OF_OUTPUT])


def byte_tokenizer() -> llguidance.LLTokenizer:
    """Token ``b`` is the byte ``b``; 256 ends the output."""
    return library_tokenizer(BYTE_TABLE, lambda text: list(text.encode()))

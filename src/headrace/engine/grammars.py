"""A tokenizer's vocabulary given to ``grammar/``: what an engine compiles constraints with."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future
from typing import Protocol

from headrace.core.constraint import Constraint
from headrace.core.errors import InvalidRequest
from headrace.grammar.limits import GrammarLimits
from headrace.grammar.masks import FillingMask, MaskFiller, MaskRows
from headrace.grammar.service import CompileCounts, Grammar, GrammarService
from headrace.grammar.vocabulary import VocabularyTable


class GrammarTokens(Protocol):
    """What constraints are compiled from: a ``Tokenizer``, or ``StoredTokens``."""

    @property
    def has_token_bytes(self) -> bool: ...
    @property
    def special_token_ids(self) -> frozenset[int]: ...
    def shown_bytes(self, token_id: int) -> bytes: ...
    def encode_text(self, text: str) -> list[int]: ...


class TokenizerGrammars:
    """Implements ``constraints.GrammarSource`` for a model of ``vocab_size`` tokens. Costs nothing until it is used."""

    def __init__(
        self,
        tokens: GrammarTokens,
        vocab_size: int,
        eos_token_ids: Iterable[int],
        num_threads: int,
        max_forced_tokens: int,
        limits: GrammarLimits,
    ) -> None:
        self.max_forced_tokens = max_forced_tokens
        self._tokens = tokens
        self._vocab_size = vocab_size
        self._eos_token_ids = eos_token_ids
        self._num_threads = num_threads
        self._limits = limits
        self._service: GrammarService | None = None
        self._may_grow = True
        self._filler: MaskFiller | None = None

    def compile(self, constraint: Constraint) -> Future[Grammar]:
        """See ``GrammarService.compile``. Raises ``InvalidRequest`` for tokens that are not byte strings."""
        if not self._tokens.has_token_bytes:
            raise InvalidRequest(
                "this model's tokens have no bytes of their own (WordPiece and the like), so no constraint can be "
                "followed; leave it out",
                constraint.param,
            )
        if self._service is None:
            table = vocabulary_table(self._tokens, self._vocab_size, self._eos_token_ids)
            self._service = GrammarService(table, self._tokens.encode_text, self._limits)
            if not self._may_grow:
                self._service.stop_growing()
        return self._service.compile(constraint)

    @property
    def compiled(self) -> CompileCounts:
        return CompileCounts() if self._service is None else self._service.counts

    def start_mask(self, rows: MaskRows) -> FillingMask:
        if self._filler is None:
            self._filler = MaskFiller(self._vocab_size, self._num_threads)
        return self._filler.start(rows)

    def stop_growing(self) -> None:
        self._may_grow = False
        if self._service is not None:
            self._service.stop_growing()

    def resume_growing(self) -> None:
        self._may_grow = True
        if self._service is not None:
            self._service.resume_growing()

    def close(self) -> None:
        if self._filler is not None:
            self._filler.close()
        if self._service is not None:
            self._service.close()


def vocabulary_table(tokens: GrammarTokens, vocab_size: int, eos_token_ids: Iterable[int]) -> VocabularyTable:
    """The tokens a model of ``vocab_size`` logits can generate; ids the tokenizer does not know have no bytes."""
    return VocabularyTable(
        token_bytes=[tokens.shown_bytes(token_id) for token_id in range(vocab_size)],
        special_token_ids=sorted(each for each in tokens.special_token_ids if each < vocab_size),
        end_token_ids=sorted(each for each in eos_token_ids if each < vocab_size),
    )

"""Reasoning before an answer: the part of an output that its constraint leaves free.

Owns where the reasoning begins and ends in a row of tokens, and the budget it is held to. The constraint binds what
follows the closing tag and nothing before it; while it has not begun, the sequence cannot end. The tags are found in
the bytes of the output, so a tag that a model spells out counts like one that is a token of its own.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import llguidance

from headrace.core.constraint import Reasoning
from headrace.core.errors import InvalidRequest
from headrace.grammar.matcher import MaskRow, Matcher, allow, forbid
from headrace.grammar.vocabulary import Encode, VocabularyTable

_BETWEEN = b"\n"
"""Blank lines behind the closing tag, in the token that closes it: they are nobody's."""


@dataclass(frozen=True, slots=True)
class ReasoningMarks:
    """The tags of a model's reasoning in its vocabulary.

    ``end_token_ids[k]`` write what is missing of the closing tag once its first ``k`` bytes are there, and the tokens
    ``overrunning[k]`` would do so and begin the answer in the same breath, where nothing has held it to its form.
    """

    token_bytes: Sequence[bytes]
    begin_token_ids: tuple[int, ...]
    end: bytes
    end_token_ids: tuple[tuple[int, ...], ...]
    overrunning: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, reasoning: Reasoning, table: VocabularyTable, encode: Encode) -> ReasoningMarks:
        """Costs a look at every token of the vocabulary: some 10 ms for 50,000."""
        end = reasoning.end.encode()
        return cls(
            token_bytes=table.token_bytes,
            begin_token_ids=_tokens_of(reasoning.begin, table, encode),
            end=end,
            end_token_ids=tuple(
                _tokens_of(end[size:].decode(errors="ignore"), table, encode) for size in range(len(end))
            ),
            overrunning=_overrunning(end, table),
        )


def _tokens_of(tag: str, table: VocabularyTable, encode: Encode) -> tuple[int, ...]:
    """A tag's own token, or those that spell it: ``encode`` reads control tokens as text.

    Where it puts a blank before a text, as some tokenizers do, the longest tokens that fit stand in for it.
    """
    spelling = tag.encode()
    pieces = {data: token_id for token_id, data in enumerate(table.token_bytes) if data and data in spelling}
    if spelling in pieces:
        return (pieces[spelling],)
    spelled = encode(tag)
    if b"".join(table.token_bytes[token_id] for token_id in spelled) == spelling:
        return tuple(spelled)
    return tuple(_cut(spelling, pieces))


def _cut(spelling: bytes, pieces: Mapping[bytes, int]) -> Iterator[int]:
    while spelling:
        longest = max((each for each in pieces if spelling.startswith(each)), key=len, default=b"")
        if not longest:
            raise InvalidRequest("this model's tokens cannot spell the tags of its reasoning; leave the form out")
        yield pieces[longest]
        spelling = spelling[len(longest) :]


def _overrunning(end: bytes, table: VocabularyTable) -> tuple[tuple[int, ...], ...]:
    found: list[list[int]] = [[] for _ in end]
    for token_id, data in enumerate(table.token_bytes):
        if end[-1:] not in data:
            continue
        for size in range(len(end)):
            written = end[:size] + data
            at = written.find(end)
            if at >= 0 and written[at + len(end) :].strip(_BETWEEN):
                found[size].append(token_id)
    return tuple(map(tuple, found))


class _Phase(enum.Enum):
    """``OPENING``: the model may still open its reasoning, or answer at once."""

    OPENING = enum.auto()
    REASONING = enum.auto()
    ANSWER = enum.auto()


class ReasonedMatcher:
    """Follows one sequence through its reasoning and, from the closing tag on, through ``answer``.

    What it allows while the model may still open its reasoning is the opening tag besides what ``answer`` allows. When
    ``max_tokens`` of reasoning are spent, only the closing tag may follow.
    """

    def __init__(
        self, answer: Matcher, marks: ReasoningMarks, reasoning: Reasoning, stop_token_ids: Collection[int]
    ) -> None:
        self._answer = answer
        self._marks = marks
        self._max_tokens = math.inf if reasoning.max_tokens is None else reasoning.max_tokens
        self._barred = frozenset(stop_token_ids).difference(marks.end_token_ids[0])
        self._num_opened = 0  # tokens of the opening tag
        self._fits = True  # whether what has been said of it could also be an answer
        self._num_reasoned = 0
        self._held = 0  # bytes of the closing tag that the reasoning ends in
        self._closing: tuple[int, ...] = ()  # what must follow, once the budget is spent
        self._phase = _Phase.OPENING
        if reasoning.is_open:
            self._begin()
        elif self._max_tokens == 0:
            self._phase = _Phase.ANSWER

    @property
    def library(self) -> llguidance.LLMatcher | None:
        """The library's matcher where it has a say in the next token."""
        is_free = self._phase is _Phase.REASONING or not self._fits
        return None if is_free else self._answer.library

    @property
    def binds(self) -> bool:
        return bool(self._closing) or self._answer.binds

    @property
    def failure(self) -> str:
        return self._answer.failure

    @property
    def must_end(self) -> bool:
        return self._phase is _Phase.ANSWER and self._answer.must_end

    def accept(self, token_id: int) -> bool:
        """Move on by one token; ``False``, with nothing changed, for one that may not come here."""
        match self._phase:
            case _Phase.OPENING:
                return self._open(token_id)
            case _Phase.REASONING:
                return self._close(token_id) if self._closing else self._reason(token_id)
            case _Phase.ANSWER:
                return self._answer.accept(token_id)

    def accept_all(self, token_ids: Sequence[int]) -> int:
        """Move on as far as the tokens may come, across the boundary too; how many were accepted."""
        for index, token_id in enumerate(token_ids):
            if not self.accept(token_id):
                return index
        return len(token_ids)

    def rollback(self, num_tokens: int) -> None:
        """Take back tokens of the answer. There must be that many."""
        assert self._phase is _Phase.ANSWER
        self._answer.rollback(num_tokens)

    def forced_tokens(self) -> list[int]:
        """The closing tag where the budget is spent, and what the answer must begin or go on with."""
        if self._phase is _Phase.ANSWER:
            return self._answer.forced_tokens()
        return [*self._closing, *self._answer.forced_tokens()] if self._closing else []

    def finish_row(self, row: MaskRow) -> None:
        """See ``GrammarMatcher.finish_row``; a row that no library has filled comes with everything allowed."""
        match self._phase:
            case _Phase.ANSWER:
                self._answer.finish_row(row)
            case _Phase.OPENING:
                if self._fits:
                    self._answer.finish_row(row)
                else:
                    row.fill(0)
                allow(row, self._marks.begin_token_ids[self._num_opened : self._num_opened + 1])
            case _Phase.REASONING if self._closing:
                row.fill(0)
                allow(row, self._closing[:1])
            case _Phase.REASONING:
                forbid(row, self._barred)
                forbid(row, self._marks.overrunning[self._held])

    # -- one token in each phase

    def _open(self, token_id: int) -> bool:
        if token_id == self._marks.begin_token_ids[self._num_opened]:
            self._num_opened += 1
            if self._num_opened < len(self._marks.begin_token_ids):
                self._fits = self._fits and self._answer.accept(token_id)
            else:
                self._begin()
            return True
        if not self._fits or not self._answer.accept(token_id):
            return False
        self._phase = _Phase.ANSWER
        return True

    def _begin(self) -> None:
        """The opening tag is complete: what was read of it was no answer."""
        if self._fits and self._num_opened > 1:
            self._answer.rollback(self._num_opened - 1)
        self._fits, self._phase = True, _Phase.REASONING
        self._check_budget()

    def _reason(self, token_id: int) -> bool:
        end = self._marks.end
        written = end[: self._held] + self._marks.token_bytes[token_id]
        at = written.find(end)
        if self._answer.binds and (token_id in self._barred or (at >= 0 and written[at + len(end) :].strip(_BETWEEN))):
            return False
        if at >= 0:
            self._phase = _Phase.ANSWER
            return True
        self._held = _overlap(written, end)
        self._num_reasoned += 1
        self._check_budget()
        return True

    def _close(self, token_id: int) -> bool:
        if token_id != self._closing[0]:
            return False
        self._closing = self._closing[1:]
        if not self._closing:
            self._phase = _Phase.ANSWER
        return True

    def _check_budget(self) -> None:
        if self._num_reasoned >= self._max_tokens:
            self._closing = self._marks.end_token_ids[self._held]


def _overlap(written: bytes, end: bytes) -> int:
    """Length of the longest end of ``written`` that the tag may begin with."""
    return next((size for size in range(len(end) - 1, 0, -1) if written.endswith(end[:size])), 0)

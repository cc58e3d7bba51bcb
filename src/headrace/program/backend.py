"""What a program needs of whatever runs its calls: an engine, a server, another vendor's API.

Owns the words between the interpreter and a backend. It does not know any of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from headrace.core.sampling import SamplingParams
from headrace.program.document import Document

OnText = Callable[[str], None]
"""Hears the text of the first answer as it comes."""


@dataclass(frozen=True, slots=True)
class Form:
    """What form a generated text must have; at most one is given. ``json_schema`` is the text of a schema."""

    regex: str | None = None
    json_schema: str | None = None

    @property
    def is_free(self) -> bool:
        return self.regex is None and self.json_schema is None


FREE = Form()


@dataclass(frozen=True, slots=True)
class Place:
    """Where in a program a call stands.

    ``num_tokens_left`` is how much is to be generated from it on along the longest chain of calls that wait for each
    other, as far as is known. ``wanted`` is kept once it is certain that the call's answer is wanted; without it, it
    always was.
    """

    program_id: str = ""
    num_tokens_left: int = 0
    wanted: asyncio.Future[None] | None = None

    @property
    def is_guess(self) -> bool:
        return self.wanted is not None and not self.wanted.done()


NOWHERE = Place()


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a program: how to sample, what form, and where in the program it stands."""

    sampling: SamplingParams
    form: Form = FREE
    place: Place = NOWHERE


@dataclass(frozen=True, slots=True)
class Generated:
    """The answers of one call, ``n`` of them, with what is known about the first.

    ``num_cached_tokens`` of its prompt came from the prefix cache; backends that do not say give 0.
    """

    texts: tuple[str, ...]
    call_id: str
    finish_reason: str
    stop_reason: str | int | None
    num_prompt_tokens: int
    num_output_tokens: int
    num_cached_tokens: int


@dataclass(frozen=True, slots=True)
class ChoiceScore:
    """How likely a text is after a document: log-probabilities of its tokens over the whole vocabulary.

    A token that spans the seam counts as the text's, so the first tokens of two choices may start at different
    places.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]

    @property
    def total(self) -> float:
        return sum(self.logprobs)


@dataclass(frozen=True, slots=True)
class Scores:
    """Scores of all choices in order, with the counts of the calls that were made for them.

    ``num_cached_before`` is what the call with the fewest found in the cache: tokens that were there before.
    """

    choices: tuple[ChoiceScore, ...]
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_cached_before: int = 0


class Backend(Protocol):
    """Runs calls. All methods belong to one event loop; several calls run at the same time.

    A call on a guess (``Place.is_guess``) may take from no other. Cancelling a call ends it and frees what it held.
    """

    async def generate(self, document: Document, call: Call, on_text: OnText | None) -> Generated:
        """Continue a document; without ``on_text`` nobody reads along. Raises the errors of ``core.errors``."""
        ...

    async def score(self, document: Document, choices: Sequence[str], call: Call) -> Scores:
        """Score ``choices`` as continuations of a document, all at once."""
        ...

    def num_spare_calls(self) -> int:
        """How many more calls would run now at no cost to those that do; 0 where nobody can tell."""
        ...

    def transcript(self, document: Document) -> str:
        """The document as the model sees it, as far as the backend knows."""
        ...

    async def close(self) -> None: ...

"""A backend whose answers can be worked out on paper, and that can be held and asked what it was doing.

The answer to a call is ``<k>`` where ``k`` is the length of the document's transcript, one character per token, ended
as the stop strings and ``max_tokens`` say. The score of a choice is minus its length per token, so that the shortest is
the likeliest, unless ``favourites`` names another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from headrace.core.errors import InvalidRequest
from headrace.program.backend import Call, ChoiceScore, Generated, OnText, Scores
from headrace.program.document import Document
from headrace.program.runtime import Runtime


def length_of(document: Document) -> str:
    return f"<{len(document.transcript())}>"


@dataclass
class PaperBackend:
    """``answer`` writes; a call whose document's transcript ends with ``hold_after`` waits for ``gate``, which opens by
    itself when ``opens_at`` calls run."""

    answer: Callable[[Document], str] = length_of
    favourites: frozenset[str] = frozenset()
    hold_after: str | None = None
    opens_at: int | None = None
    fail_after: str | None = None
    calls: list[tuple[Document, Call]] = field(default_factory=list)
    scored: list[tuple[Document, tuple[str, ...]]] = field(default_factory=list)
    num_spare: int = 0
    num_running: int = 0
    most_running: int = 0
    num_cancelled: int = 0

    def __post_init__(self) -> None:
        self.gate = asyncio.Event()

    async def generate(self, document: Document, call: Call, on_text: OnText | None) -> Generated:
        self.calls.append((document, call))
        self.num_running += 1
        self.most_running = max(self.most_running, self.num_running)
        if self.num_running == self.opens_at:
            self.gate.set()
        try:
            return await self._generate(document, call, on_text)
        except asyncio.CancelledError:
            self.num_cancelled += 1
            raise
        finally:
            self.num_running -= 1

    async def _generate(self, document: Document, call: Call, on_text: OnText | None) -> Generated:
        if self.hold_after is not None and document.transcript().endswith(self.hold_after):
            await self.gate.wait()
        if self.fail_after is not None and document.transcript().endswith(self.fail_after):
            raise InvalidRequest("the prompt is refused")
        text, reason, stop = self.answer(document), "stop", None
        for string in call.sampling.stop:
            if string in text:
                text, stop = text[: text.index(string)], string
        if call.sampling.max_tokens is not None and len(text) > call.sampling.max_tokens:
            text, reason = text[: call.sampling.max_tokens], "length"
        for char in text:
            await asyncio.sleep(0)
            if on_text is not None:
                on_text(char)
        texts = tuple(text + "'" * index for index in range(call.sampling.n))
        return Generated(texts, f"call-{len(self.calls)}", reason, stop, len(document.transcript()), len(text), 0)

    async def score(self, document: Document, choices: Sequence[str], call: Call) -> Scores:
        self.scored.append((document, tuple(choices)))
        await asyncio.sleep(0)
        return Scores(tuple(self._score(choice) for choice in choices), num_prompt_tokens=len(document.transcript()))

    def _score(self, choice: str) -> ChoiceScore:
        value = -0.1 if choice in self.favourites else -float(len(choice))
        return ChoiceScore(tuple(choice.encode()), (value,) * len(choice))

    def num_spare_calls(self) -> int:
        return self.num_spare

    def transcript(self, document: Document) -> str:
        return document.transcript()

    async def close(self) -> None:
        self.gate.set()


def paper_runtime(backend: PaperBackend | None = None) -> Runtime:
    async def opened() -> PaperBackend:
        return backend or PaperBackend()

    return Runtime(opened)

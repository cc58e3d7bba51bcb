"""The text of a program as far as it has come: a plain text, or a conversation whose last turn may be open.

Immutable, so that forks share what they have in common. It does not know tokens, templates or models.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from headrace.core.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class Turn:
    """One message."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Document:
    """Either ``text`` alone, or ``turns`` that have ended and one by ``role`` that is being written."""

    text: str = ""
    turns: tuple[Turn, ...] = ()
    role: str | None = None
    content: str = ""

    @property
    def is_chat(self) -> bool:
        return self.role is not None or bool(self.turns)

    def with_text(self, text: str) -> Document:
        if not text:
            return self
        if self.role is not None:
            return replace(self, content=self.content + text)
        if self.turns:
            raise InvalidRequest(
                "text stands between two messages of a conversation; put it into system(), user() or assistant()"
            )
        return replace(self, text=self.text + text)

    def begin(self, role: str) -> Document:
        if self.role is not None:
            raise InvalidRequest(f"{role} begins inside of {self.role}; end that message first")
        if self.text:
            raise InvalidRequest(
                f"{role} begins after text without a role; put that text into system(), user() or assistant()"
            )
        return replace(self, role=role, content="")

    def end(self) -> Document:
        if self.role is None:
            raise InvalidRequest("a message ends but none was begun")
        return Document(turns=(*self.turns, Turn(self.role, self.content)))

    def messages(self) -> list[dict[str, str]]:
        """All messages, the open one included, as OpenAI's clients write them."""
        turns = self.turns if self.role is None else (*self.turns, Turn(self.role, self.content))
        return [{"role": turn.role, "content": turn.content} for turn in turns]

    def since(self, start: Document) -> str:
        """The text added after ``start``, which this document grew from, within the same open turn."""
        if (self.turns, self.role) != (start.turns, start.role):
            raise InvalidRequest(
                "a message began or ended in between, so what was added is no text of its own; begin and end messages "
                "around a scope or a fork, or join the fork with gather_variable"
            )
        return self.content[len(start.content) :] if self.role is not None else self.text[len(start.text) :]

    def transcript(self) -> str:
        """The document as text; a conversation in ChatML, whatever the model's own template is."""
        ended = "".join(f"<|im_start|>{turn.role}\n{turn.content}<|im_end|>\n" for turn in self.turns)
        return self.text + ended + (f"<|im_start|>{self.role}\n{self.content}" if self.role is not None else "")

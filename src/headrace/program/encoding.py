"""Documents as tokens.

A plain text is encoded whole, a conversation goes through the model's template, so that a program's call is the very
call a client would make by hand, and finds the same cached prefix. Knows no engine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from headrace.core.errors import InvalidRequest
from headrace.program.document import Document
from headrace.program.scoring import Continuation, continuation


class ProgramTokenizer(Protocol):
    """What programs need of a tokenizer; safe to use from several threads."""

    @property
    def bos_token_id(self) -> int | None: ...

    @property
    def eos_token_id(self) -> int | None: ...

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]: ...

    def decode(self, token_ids: Iterable[int], skip_special_tokens: bool = True) -> str: ...


class ProgramChat(Protocol):
    """A chat template with its tokenizer."""

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        add_generation_prompt: bool,
        continue_final_message: bool,
        template_kwargs: Mapping[str, object],
    ) -> list[int]: ...


@dataclass(frozen=True, slots=True)
class DocumentEncoder:
    """Documents as the tokens a model sees. Immutable; its methods may take long and are for worker threads."""

    tokenizer: ProgramTokenizer
    chat: ProgramChat | None

    def encode(self, document: Document) -> list[int]:
        """Tokens of a document up to where it goes on. Raises ``InvalidRequest``."""
        if document.is_chat:
            return self._encode_chat(document)
        if document.text:
            return self.tokenizer.encode(document.text)
        return [self._first_id()]

    def continuations(self, document: Document, choices: Sequence[str]) -> list[Continuation]:
        """Each choice as a continuation of a document."""
        prompt_ids = self.encode(document)
        if document == Document():  # a text of its own would begin with the begin token only where models have one
            return [
                Continuation((*prompt_ids, *self.tokenizer.encode(choice, add_special_tokens=False)), len(prompt_ids))
                for choice in choices
            ]
        return [continuation(prompt_ids, self.encode(document.with_text(choice))) for choice in choices]

    def _encode_chat(self, document: Document) -> list[int]:
        if self.chat is None:
            raise InvalidRequest(
                "this model has no chat template, so a program for it cannot use system(), user() and assistant(); "
                "append plain text, or give the model a template with --chat-template"
            )
        messages = document.messages()
        answers = document.role is None or (document.role == "assistant" and not document.content)
        if document.role is not None and answers:
            messages.pop()
        return self.chat.encode_chat(
            messages, add_generation_prompt=answers, continue_final_message=not answers, template_kwargs={}
        )

    def _first_id(self) -> int:
        """A token to begin a text with: the model's own, or the one that ends the text before."""
        for token_id in (self.tokenizer.bos_token_id, self.tokenizer.eos_token_id):
            if token_id is not None:
                return token_id
        raise InvalidRequest("the program generates before it has any text; append some first")

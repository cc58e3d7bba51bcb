"""What the server as a whole needs of a tokenizer, put together from what its parts need."""

from __future__ import annotations

from typing import Protocol

from headrace.server.logprobs import TokenView
from headrace.server.prompts import TextTokenizer


class ServedTokenizer(TextTokenizer, TokenView, Protocol):
    """A tokenizer that can also say which tokens are special; ``engine.tokenizer.Tokenizer`` is one."""

    @property
    def bos_token_id(self) -> int | None: ...

    @property
    def eos_token_id(self) -> int | None: ...

    @property
    def chat_template(self) -> str | None: ...

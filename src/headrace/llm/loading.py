"""From a config to what offline generation needs: an engine, its tokenizer and its chat template."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from headrace.core.config import EngineConfig
from headrace.core.errors import InvalidRequest
from headrace.core.progress import Progress
from headrace.engine.loop import DrivenEngine
from headrace.engine.reasoning import ReasoningHabit
from headrace.engine.request_builder import RequestBuilder
from headrace.llm.prompts import ChatMessages
from headrace.program.encoding import ProgramChat, ProgramTokenizer


class OfflineTokenizer(ProgramTokenizer, Protocol):
    """What offline generation needs of a tokenizer; thread-safe."""

    def token_text(self, token_id: int) -> str: ...


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model ready to generate; ``chat`` is ``None`` for a base model, ``reasoning`` for one that does not reason."""

    engine: DrivenEngine
    tokenizer: OfflineTokenizer
    chat: ProgramChat | None
    reasoning: ReasoningHabit | None = None

    def request_builder(self, default_seed: int | None) -> RequestBuilder:
        """What makes requests for this model."""
        info = self.engine.info
        return RequestBuilder(
            info.max_model_len, info.vocab_size, self.tokenizer, default_seed, reasoning=self.reasoning
        )

    def chat_token_ids(
        self,
        messages: ChatMessages,
        *,
        continue_final_message: bool = False,
        template_kwargs: Mapping[str, object] | None = None,
    ) -> list[int]:
        """Tokens of a conversation up to where the assistant's answer begins, or goes on. Raises ``InvalidRequest``."""
        if self.chat is None:
            raise InvalidRequest(
                "this model has no chat template; use generate, or give one with chat_template=FILE", "messages"
            )
        return self.chat.encode_chat(
            messages,
            add_generation_prompt=not continue_final_message,
            continue_final_message=continue_final_message,
            template_kwargs=template_kwargs or {},
        )


def load_model(config: EngineConfig, progress: Progress) -> LoadedModel:
    """Fetch, open and load what ``config.model`` names. Raises ``ConfigError``."""
    from headrace.checkpoint.reference import resolve_model
    from headrace.engine.chat_prompt import load_chat_encoder
    from headrace.engine.factory import build_engine
    from headrace.engine.reasoning import reasoning_habit
    from headrace.engine.tokenizer import load_tokenizer

    path = resolve_model(config.model, progress)
    tokenizer = load_tokenizer(path, config.tokenizer)
    chat = load_chat_encoder(tokenizer, config.chat_template)
    reasoning = reasoning_habit(tokenizer.chat_template, tokenizer)
    return LoadedModel(build_engine(config, progress), tokenizer, chat, reasoning)

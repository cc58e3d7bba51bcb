"""From what a client sent to token ids: text, token ids or a conversation.

Owns the forms a prompt may have, the check that refuses a hopelessly long text before time is spent on
tokenizing it, and truncation. Everything here may take long and is called in a worker thread. It does not
know sampling, requests or replies.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from headrace.core.errors import InvalidRequest
from headrace.core.request_limits import RequestLimits, check_limit
from headrace.server.chat_messages import template_messages
from headrace.server.protocol_chat import Message, TemplateValue
from headrace.server.protocol_completions import Prompt

MAX_TEMPLATE_VALUE_CHARS = 256
TEMPLATE_KWARGS = frozenset({"enable_thinking", "thinking", "reasoning_effort", "custom_instructions", "date_string"})
"""Template variables a client may set. Everything else a template reads comes from the server."""

T = TypeVar("T")


class TextTokenizer(Protocol):
    """What prompts need of a tokenizer; safe to use from several threads."""

    @property
    def token_bytes(self) -> Sequence[bytes]: ...

    @property
    def vocab_size(self) -> int: ...

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]: ...

    def decode(self, token_ids: Iterable[int], skip_special_tokens: bool = True) -> str: ...


class ChatEncoder(Protocol):
    """A chat template with its tokenizer. Text of messages never becomes a control token."""

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        add_generation_prompt: bool,
        continue_final_message: bool,
        tools: Sequence[Mapping[str, object]] | None = None,
        template_kwargs: Mapping[str, object],
    ) -> list[int]:
        """Raises ``InvalidRequest`` with the template's own words where it refuses the messages."""
        ...


@dataclass(frozen=True, slots=True)
class Conversation:
    """A chat prompt as the routes take it."""

    messages: Sequence[Message]
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    tools: Sequence[Mapping[str, object]] | None = None
    template_kwargs: Mapping[str, TemplateValue] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PromptTokens:
    """One prompt: its ids, and its text if it came as text."""

    token_ids: list[int]
    text: str | None = None


class PromptReader:
    """Reads prompts for one model. Raises ``InvalidRequest`` naming the field at fault."""

    def __init__(
        self, tokenizer: TextTokenizer, chat: ChatEncoder | None, max_model_len: int, limits: RequestLimits
    ) -> None:
        self.tokenizer = tokenizer
        self._chat = chat
        self._limits = limits
        longest_token_bytes = max(map(len, tokenizer.token_bytes), default=1)
        self._max_text_bytes = max_model_len * max(longest_token_bytes, 1)

    def prompts(self, prompt: Prompt, *, add_special_tokens: bool, is_truncated: bool) -> list[PromptTokens]:
        """Read the ``prompt`` of a completion. ``is_truncated`` lifts the limit on a text's length."""
        items = [prompt] if isinstance(prompt, str) else prompt
        if not items:
            raise InvalidRequest("prompt is an empty list; send at least one prompt or token id", "prompt")
        if token_ids := _all_of(int, items):
            return [PromptTokens(token_ids)]
        check_limit("prompt", "prompt has {} entries", len(items), "max_prompts", self._limits.max_prompts)
        if texts := _all_of(str, items):
            return [self._text(text, add_special_tokens, is_truncated) for text in texts]
        if rows := _all_of(list, items):
            return [PromptTokens(row) for row in rows]
        raise InvalidRequest(
            "prompt mixes texts, token ids and lists; send only texts, only ids or only lists of ids", "prompt"
        )

    def conversation(self, conversation: Conversation, *, is_truncated: bool) -> list[int]:
        """Render and tokenize a chat."""
        if self._chat is None:
            raise InvalidRequest(
                "this model has no chat template; use /v1/completions, or let the operator set --chat-template",
                "messages",
            )
        num_messages = len(conversation.messages)
        check_limit("messages", "messages has {} entries", num_messages, "max_messages", self._limits.max_messages)
        messages = template_messages(conversation.messages)
        if not is_truncated:
            self._check_length(sum(len(str(message["content"]).encode()) for message in messages), "messages")
        return self._chat.encode_chat(
            messages,
            add_generation_prompt=_adds_generation_prompt(conversation),
            continue_final_message=conversation.continue_final_message,
            tools=conversation.tools,
            template_kwargs=_checked_kwargs(conversation.template_kwargs),
        )

    def _text(self, text: str, add_special_tokens: bool, is_truncated: bool) -> PromptTokens:
        if not is_truncated:
            self._check_length(len(text.encode()), "prompt")
        return PromptTokens(self.tokenizer.encode(text, add_special_tokens=add_special_tokens), text)

    def _check_length(self, num_bytes: int, param: str) -> None:
        if num_bytes > self._max_text_bytes:
            raise InvalidRequest(
                f"{param} has {num_bytes} bytes of text but max_model_len tokens hold at most "
                f"{self._max_text_bytes}; shorten it",
                param,
            )


def _all_of(kind: type[T], items: Sequence[object]) -> list[T]:
    """The items if all are of that very type (``True`` is no token id), else none."""
    found = [item for item in items if isinstance(item, kind) and type(item) is kind]
    return found if len(found) == len(items) else []


def truncated(token_ids: list[int], truncate_to: int | None, num_free_tokens: int) -> list[int]:
    """The last tokens of a prompt: ``truncate_to`` of them, or as many as fit if that is -1 (vLLM's rule)."""
    if truncate_to is None:
        return token_ids
    if truncate_to != -1 and truncate_to < 1:
        raise InvalidRequest(
            f"truncate_prompt_tokens is {truncate_to} but must be at least 1, or -1 for as many as fit",
            "truncate_prompt_tokens",
        )
    num_kept = num_free_tokens if truncate_to == -1 else truncate_to
    return token_ids[-max(num_kept, 1) :]


def _adds_generation_prompt(conversation: Conversation) -> bool:
    if conversation.continue_final_message and conversation.add_generation_prompt:
        raise InvalidRequest(
            "continue_final_message and add_generation_prompt exclude each other; set one of them to false",
            "continue_final_message",
        )
    if conversation.add_generation_prompt is None:
        return not conversation.continue_final_message
    return conversation.add_generation_prompt


def _checked_kwargs(kwargs: Mapping[str, TemplateValue]) -> Mapping[str, TemplateValue]:
    for name, value in kwargs.items():
        if name not in TEMPLATE_KWARGS:
            shown = name if len(name) <= 40 else name[:40] + "..."
            raise InvalidRequest(
                f"chat_template_kwargs has {shown!r}; templates here take {', '.join(sorted(TEMPLATE_KWARGS))}",
                "chat_template_kwargs",
            )
        if isinstance(value, str) and len(value) > MAX_TEMPLATE_VALUE_CHARS:
            raise InvalidRequest(
                f"chat_template_kwargs.{name} has {len(value)} characters but at most {MAX_TEMPLATE_VALUE_CHARS} "
                "are allowed",
                "chat_template_kwargs",
            )
    return kwargs

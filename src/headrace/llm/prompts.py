"""The forms a prompt may have offline, as vLLM's users write them, and their tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypedDict

from headrace.core.errors import InvalidRequest


class TextPrompt(TypedDict, total=False):
    """A prompt as text; ``cache_salt`` keeps its cached prefix to requests with the same salt."""

    prompt: str
    cache_salt: str


class TokensPrompt(TypedDict, total=False):
    """A prompt as token ids, used as they are."""

    prompt_token_ids: list[int]
    cache_salt: str


Prompt = str | TextPrompt | TokensPrompt

ChatMessages = Sequence[Mapping[str, object]]
"""One conversation: ``{"role": "user", "content": "..."}`` and so on, oldest first."""


class TextEncoder(Protocol):
    """The one thing needed of a tokenizer here."""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]: ...


@dataclass(frozen=True, slots=True)
class EncodedPrompt:
    """A prompt as the engine takes it; ``text`` is ``None`` when it came as token ids."""

    text: str | None
    token_ids: list[int]
    cache_salt: str = ""


def as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt or several as a list of them."""
    if isinstance(prompts, str | Mapping):
        return [prompts]
    return list(prompts)


def as_conversations(messages: ChatMessages | Sequence[ChatMessages]) -> list[ChatMessages]:
    """One conversation or several as a list of them. Raises ``InvalidRequest`` for what is neither."""
    if not isinstance(messages, list | tuple):
        raise InvalidRequest(f"messages must be a list; got {type(messages).__name__}", "messages")
    if all(isinstance(message, Mapping) for message in messages):
        return [messages]
    return list(messages)


def encode_prompt(prompt: Prompt, encoder: TextEncoder) -> EncodedPrompt:
    """Tokens of one prompt. Raises ``InvalidRequest`` for what is no prompt."""
    if isinstance(prompt, str):
        return EncodedPrompt(prompt, encoder.encode(prompt))
    if not isinstance(prompt, Mapping):
        raise InvalidRequest(
            f"a prompt is text or a dict with 'prompt' or 'prompt_token_ids'; got {type(prompt).__name__}", "prompt"
        )
    salt = prompt.get("cache_salt") or ""
    text, token_ids = prompt.get("prompt"), prompt.get("prompt_token_ids")
    if isinstance(text, str) and token_ids is None:
        return EncodedPrompt(text, encoder.encode(text), salt)
    if isinstance(token_ids, Sequence) and text is None:
        return EncodedPrompt(None, list(token_ids), salt)
    raise InvalidRequest("a prompt dict needs either 'prompt' (text) or 'prompt_token_ids' (a list)", "prompt")


def joined(prompt: Prompt, continuation: Prompt, encoder: TextEncoder) -> tuple[list[int], int]:
    """Tokens of a prompt followed by a continuation, and where the continuation's begin.

    Text is tokenized as one piece, as a model would see it. A token that spans the seam counts as the
    continuation's: its tokens begin where those of the whole first differ from those of the prompt alone.
    """
    if isinstance(prompt, str) and isinstance(continuation, str):
        alone, whole = encoder.encode(prompt), encoder.encode(prompt + continuation)
        same = 0
        while same < min(len(alone), len(whole)) and alone[same] == whole[same]:
            same += 1
        return whole, same
    if isinstance(prompt, str) or isinstance(continuation, str):
        raise InvalidRequest("prompt and continuation must both be text or both be token ids", "continuations")
    first, second = encode_prompt(prompt, encoder), encode_prompt(continuation, encoder)
    return first.token_ids + second.token_ids, len(first.token_ids)

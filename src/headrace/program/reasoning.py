"""Telling what a model thought from what it answered, where it marks the one off from the other.

Owns the marks of model families, under SGLang's names for them. It does not know how text is generated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

import msgspec

from headrace.core.errors import InvalidRequest

REASONING_SUFFIX: Final = "_reasoning_content"
"""What the name of a capture gets for what was thought before it; SGLang's."""


class ReasoningTags(msgspec.Struct, frozen=True):
    """What stands before and after a model's thoughts; templates often write the first themselves."""

    start: str
    end: str


_THINK: Final = ReasoningTags("<think>", "</think>")

REASONING_TAGS: Final[Mapping[str, ReasoningTags]] = MappingProxyType(
    {
        "deepseek-r1": _THINK,
        "deepseek-v3": _THINK,
        "glm45": _THINK,
        "kimi": ReasoningTags("\u25c1think\u25b7", "\u25c1/think\u25b7"),
        "qwen3": _THINK,
        "qwen3-thinking": _THINK,
        "step3": _THINK,
    }
)


def tags_of(model_type: str) -> ReasoningTags:
    """Raises ``InvalidRequest`` for a family that is not known."""
    tags = REASONING_TAGS.get(model_type)
    if tags is None:
        raise InvalidRequest(
            f"model_type is {model_type!r} but must be one of {', '.join(REASONING_TAGS)}", "model_type"
        )
    return tags


def split_all(texts: Sequence[str], tags: ReasoningTags | None) -> tuple[Sequence[str], Sequence[str]]:
    """The thoughts and the answers of some texts; without ``tags`` nothing of them is thought."""
    if tags is None:
        return (), texts
    pairs = [split_reasoning(text, tags) for text in texts]
    return [thoughts for thoughts, _ in pairs], [answer for _, answer in pairs]


def split_reasoning(text: str, tags: ReasoningTags) -> tuple[str, str]:
    """Thoughts and answer of a text that begins with thoughts; all of it is thought if they do not end."""
    thoughts, _, answer = text.lstrip().removeprefix(tags.start).partition(tags.end)
    return thoughts.strip("\n"), answer.lstrip("\n")

"""Scoring given continuations with as little computing as is exact: which calls to make, and what they say.

A continuation's last token is never computed, only looked up: its log-probability stands in the logits of the place
before it. So all continuations of one token are answered by one call, and longer ones cost their length less one.
Owns that plan. It does not know who runs the calls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headrace.core.errors import InvalidRequest
from headrace.program.backend import ChoiceScore


@dataclass(frozen=True, slots=True)
class Continuation:
    """A whole row of tokens; those from ``start`` are scored."""

    token_ids: tuple[int, ...]
    start: int


@dataclass(frozen=True, slots=True)
class ScoreCall:
    """Compute ``token_ids``; report the log-probabilities of those from ``start``, and of ``next_ids`` after them."""

    token_ids: tuple[int, ...]
    start: int
    next_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ScoreReply:
    """``logprobs`` of the call's tokens from its ``start``, and of its ``next_ids``, by id."""

    logprobs: tuple[float, ...]
    next_logprobs: Mapping[int, float]


def continuation(prompt_ids: Sequence[int], whole_ids: Sequence[int]) -> Continuation:
    """What ``whole_ids`` adds to ``prompt_ids``; a token that spans the seam belongs to it.

    Raises ``InvalidRequest`` if nothing is added, or nothing stands before it.
    """
    start = 0
    while start < min(len(prompt_ids), len(whole_ids)) and prompt_ids[start] == whole_ids[start]:
        start += 1
    if start == len(whole_ids):
        raise InvalidRequest("a text to be scored adds no token to what stands before it", "choices")
    if start == 0:
        raise InvalidRequest("there is no token before the text to be scored, so nothing to condition it on", "choices")
    return Continuation(tuple(whole_ids), start)


def plan_calls(continuations: Sequence[Continuation]) -> list[ScoreCall]:
    """The fewest calls that tell everything: one for all continuations that differ in their last token only."""
    groups: dict[tuple[int, ...], list[Continuation]] = {}
    for each in continuations:
        groups.setdefault(each.token_ids[:-1], []).append(each)
    return [
        ScoreCall(
            token_ids=token_ids,
            start=min(each.start for each in group),
            next_ids=tuple(dict.fromkeys(each.token_ids[-1] for each in group)),
        )
        for token_ids, group in groups.items()
    ]


def read_scores(
    continuations: Sequence[Continuation], calls: Sequence[ScoreCall], replies: Sequence[ScoreReply]
) -> tuple[ChoiceScore, ...]:
    """The score of each continuation from the replies to ``plan_calls``."""
    replied = {call.token_ids: (call, reply) for call, reply in zip(calls, replies, strict=True)}
    scores = []
    for each in continuations:
        call, reply = replied[each.token_ids[:-1]]
        logprobs = (*reply.logprobs[each.start - call.start :], reply.next_logprobs[each.token_ids[-1]])
        scores.append(ChoiceScore(each.token_ids[each.start :], logprobs))
    return tuple(scores)

"""Which of several texts a model finds likeliest: the three ways SGLang's programs may ask for.

Pure functions of log-probabilities. They do not know where those come from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.program.backend import ChoiceScore
from headrace.program.ir import ChoiceMethod


@dataclass(frozen=True, slots=True)
class Decision:
    """The chosen index, and by what numbers; higher is better."""

    index: int
    values: tuple[float, ...]


def choose(method: ChoiceMethod, scores: Sequence[ChoiceScore], unconditional: Sequence[ChoiceScore] = ()) -> Decision:
    """Choose by ``method``; ``unconditional`` are the scores without a document, where the method needs them."""
    match method:
        case ChoiceMethod.TOKEN_LENGTH_NORMALIZED:
            return _best([_mean(score.logprobs) for score in scores])
        case ChoiceMethod.GREEDY_TOKEN_SELECTION:
            return _greedy(scores)
        case ChoiceMethod.UNCONDITIONAL_LIKELIHOOD_NORMALIZED:
            pairs = zip(scores, unconditional, strict=True)
            return _best([_mean(score.logprobs) - _mean(alone.logprobs) for score, alone in pairs])


def needs_unconditional(method: ChoiceMethod) -> bool:
    return method is ChoiceMethod.UNCONDITIONAL_LIKELIHOOD_NORMALIZED


def _best(values: list[float]) -> Decision:
    """The largest value, the first if several."""
    return Decision(max(range(len(values)), key=values.__getitem__), tuple(values))


def _greedy(scores: Sequence[ChoiceScore]) -> Decision:
    """Token by token, keep the choices whose token is likeliest; one that has ended counts with its mean.

    The value of a choice is the number of places at which it was still among the likeliest.
    """
    longest = max(len(score.logprobs) for score in scores)
    rows = [[*score.logprobs, *[_mean(score.logprobs)] * (longest - len(score.logprobs))] for score in scores]
    remaining = list(range(len(scores)))
    survived = [0] * len(scores)
    for place in range(longest):
        best = max(rows[index][place] for index in remaining)
        remaining = [index for index in remaining if rows[index][place] == best]
        for index in remaining:
            survived[index] += 1
        if len(remaining) == 1:
            break
    return Decision(remaining[0], tuple(map(float, survived)))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)

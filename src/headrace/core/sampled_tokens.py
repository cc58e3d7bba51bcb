"""What a sampler hands back: the chosen tokens by row, and why a row has none.

Shared by all samplers, so that executors and clients cannot tell them apart. Knows no sequences.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.core.request import TokenLogprobs

NO_TOKEN = -1
"""Stands where a row failed."""

MAX_VOCAB_SIZE = 1 << 22
"""Tokens a vocabulary may have, so that sums of their integer weights are exact in float64."""

NOT_FINITE = "the model's logits are NaN or infinite"
NOTHING_LEFT = (
    "no token is left to choose: the token mask, allowed_token_ids, bad_words and min_tokens together forbid them all"
)


@dataclass(frozen=True, slots=True)
class SampledTokens:
    """Chosen tokens by row; ``failed`` rows hold ``NO_TOKEN`` and say why.

    ``masked_mass`` has for each row how likely a token was, as the model gave it, that the token mask forbids.
    """

    token_ids: list[int]
    logprobs: dict[int, TokenLogprobs] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)
    masked_mass: list[float] = field(default_factory=list)

"""Where the time of one sequence went: what an engine tells of it when it is asked.

Times are seconds, counted from the arrival of the request where they are moments. A sequence's life is a row of spans
without gaps; a span says what the sequence did, what the others did meanwhile and, if it waited, what for.
"""

from __future__ import annotations

import enum

import msgspec


class Phase(enum.Enum):
    """What a sequence is doing."""

    RESTART = "restart"
    """What an earlier engine did for it, and the wait for this one after that was lost."""
    GRAMMAR = "grammar"
    """Waiting for the grammar of its output to be compiled."""
    QUEUE = "queue"
    """Waiting for its first step."""
    PREFILL = "prefill"
    """Having its prompt computed, up to its first token."""
    DECODE = "decode"
    """Getting tokens."""
    PREEMPTED = "preempted"
    """Waiting again, after it had to give its KV blocks to others."""
    RECOMPUTE = "recompute"
    """Having computed again what was lost by that, up to its next token."""


class Neighbour(msgspec.Struct, frozen=True):
    """Another request, and about how many tokens were computed for it in a span; nameless if another tenant's."""

    request_id: str
    num_tokens: int


class SlowestStep(msgspec.Struct, frozen=True):
    """The longest step of a span, and the longest prompt chunk in it: whose it was and of how many tokens."""

    duration_s: float
    num_tokens: int
    num_chunk_tokens: int = 0
    request_id: str = ""


class Span(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One part of a sequence's life.

    ``num_steps`` were executed meanwhile, with ``num_tokens`` of the sequence and ``num_other_tokens`` of others, of
    which ``num_other_prompt_tokens`` in chunks of prompts; ``transfer_s`` of that time went into copies of KV blocks.
    ``chunks`` are the sizes of the sequence's own first chunks. ``reasons`` has the seconds of a wait by what stood in
    the way. ``num_saved_steps`` tokens of it were forced by a grammar and computed with others of its own instead of in
    steps of their own. ``caused_by`` is the request whose need of blocks preempted the sequence. ``num_kept_tokens``
    did not have to be computed again.
    """

    phase: Phase
    start_s: float
    duration_s: float
    num_steps: int = 0
    num_tokens: int = 0
    num_other_tokens: int = 0
    num_other_prompt_tokens: int = 0
    transfer_s: float = 0.0
    chunks: tuple[int, ...] = ()
    reasons: dict[str, float] = {}
    slowest_step: SlowestStep | None = None
    num_saved_steps: int = 0
    behind: tuple[Neighbour, ...] = ()
    caused_by: str = ""
    num_kept_tokens: int = 0


class CacheUse(msgspec.Struct, frozen=True):
    """What a prompt found in the caches when it was started: in the KV cache, and in the tiers below it.

    ``has_parted`` says that other sequences went on differently where the match ended; otherwise nothing beyond it was
    known, or not any more.
    """

    num_cached_tokens: int
    num_restored_tokens: int
    has_parted: bool


class ConstraintUse(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the constraint of a sequence took, and how far it bent the model.

    ``compile_s`` is 0 where its grammar was there already. ``mask_s`` is its share of the time in which masks were
    filled, beside the steps. The masked mass of a step is how likely a token was, as the model gave it, that the mask
    forbade: near 0 the model would have kept the form by itself. ``num_forced_tokens`` had no alternative.
    """

    kind: str
    was_cached: bool
    compile_s: float
    num_masks: int
    mask_s: float
    mean_masked_mass: float
    most_masked_mass: float
    num_forced_tokens: int


class SequenceTimeline(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The life of one sequence so far.

    ``state`` is ``waiting``, ``running`` or how it finished. ``num_waiting`` and ``num_running`` sequences were there
    when it came. ``seconds`` has its age by phase, also of spans that were too many to be listed.
    """

    request_id: str
    index: int
    tenant: str
    service_class: str
    state: str
    age_s: float
    num_prompt_tokens: int
    num_output_tokens: int
    num_waiting: int
    num_running: int
    seconds: dict[str, float]
    cache: CacheUse | None = None
    num_preemptions: int = 0
    spans: tuple[Span, ...] = ()
    num_unlisted_spans: int = 0
    constraint: ConstraintUse | None = None

"""A timeline in sentences: where the time went, and what or who it was spent on. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from headrace.core.timeline import ConstraintUse, Neighbour, Phase, SequenceTimeline, Span

_PHASES: Final = {
    Phase.RESTART: "with an engine that was lost",
    Phase.GRAMMAR: "waiting for its grammar",
    Phase.QUEUE: "in the queue",
    Phase.PREFILL: "computing its prompt",
    Phase.DECODE: "generating",
    Phase.PREEMPTED: "preempted",
    Phase.RECOMPUTE: "computing again after preemption",
}

_REASONS: Final = {
    "kv_blocks": "the KV cache had no room for it",
    "max_num_seqs": "as many sequences ran as may (--max-num-seqs)",
    "token_budget": "the steps were full",
    "shared_prefix": "another request was computing the same prefix, which it then took over",
    "disk": "blocks of it were being read from disk",
    "step_in_progress": "a step was in progress when it came",
}

_ANOTHER: Final = "another tenant's request"
_WORTH_TELLING_S: Final = 0.001


def tell(life: SequenceTimeline) -> list[str]:
    """One sentence on the whole, then one or two on each part that took time."""
    sentences = [_overview(life)]
    for span in life.spans:
        if span.phase is Phase.QUEUE:
            others = _count(life.num_waiting, "other waited", "others waited")
            sentences += _waiting(span, f"It came when {others} and {life.num_running} ran")
        elif span.phase is Phase.PREEMPTED:
            cause = "another's" if not span.caused_by else f"{span.caused_by}'s"
            sentences += _waiting(span, f"It had to give its blocks to make room for {cause} tokens")
        elif span.phase is Phase.PREFILL:
            sentences += _prefill(span, life)
        elif span.phase is Phase.RECOMPUTE:
            sentences.append(_recompute(span))
        elif span.phase is Phase.DECODE:
            sentences += _decode(span)
    if life.constraint is not None:
        sentences.append(_constraint(life.constraint))
    if life.num_unlisted_spans:
        sentences.append(f"{life.num_unlisted_spans} more changes are not listed.")
    return sentences


def _overview(life: SequenceTimeline) -> str:
    verb = "has taken" if life.state in ("waiting", "running") else "took"
    parts = [
        f"{seconds(spent)} ({_percent(spent, life.age_s)}) {_PHASES[phase]}"
        for phase in Phase
        if (spent := life.seconds.get(phase.value, 0.0)) >= _WORTH_TELLING_S
    ]
    shares = f": {_listed(parts)}" if parts else ""
    return f"{life.request_id} ({life.state}) {verb} {seconds(life.age_s)}{shares}."


def _waiting(span: Span, beginning: str) -> list[str]:
    """Why it waited and for whom; nothing of a wait too short to notice."""
    if span.duration_s < _WORTH_TELLING_S:
        return []
    told = sorted(span.reasons.items(), key=lambda item: -item[1])
    reasons = [f"{_REASONS.get(name, name)} ({seconds(spent)})" for name, spent in told if spent >= _WORTH_TELLING_S]
    why = f" and waited {seconds(span.duration_s)}" + (f" because {_listed(reasons)}" if reasons else "")
    return [f"{beginning}{why}.", *_meanwhile(span)]


def _meanwhile(span: Span) -> list[str]:
    if not span.num_other_tokens:
        return []
    whose = f", most of them for {_listed(map(_neighbour, span.behind[:3]))}" if span.behind else ""
    prompts = f" ({span.num_other_prompt_tokens} of prompts)" if span.num_other_prompt_tokens else ""
    steps, tokens = _count(span.num_steps, "step", "steps"), _count(span.num_other_tokens, "token", "tokens")
    return [f"Meanwhile {steps} computed {tokens}{prompts} for others{whose}."]


def _prefill(span: Span, life: SequenceTimeline) -> list[str]:
    sentences = [_cache(life)] if life.cache is not None else []
    sizes = ", ".join(map(str, span.chunks)) + ("..." if sum(span.chunks) < span.num_tokens else "")
    company = f", beside {_count(span.num_other_tokens, 'token', 'tokens')} of others" if span.num_other_tokens else ""
    copies = f", {seconds(span.transfer_s)} of it copying blocks" if span.transfer_s >= _WORTH_TELLING_S else ""
    sentences.append(
        f"{_count(span.num_tokens, 'prompt token was', 'prompt tokens were')} computed in "
        f"{_count(span.num_steps, 'step', 'steps')} (chunks of {sizes}){company}; "
        f"that took {seconds(span.duration_s)}{copies}."
    )
    return sentences


def _cache(life: SequenceTimeline) -> str:
    cache = life.cache
    assert cache is not None
    found = cache.num_cached_tokens + cache.num_restored_tokens
    if found == 0:
        return f"Nothing of its {life.num_prompt_tokens} prompt tokens was cached."
    below = f" and {cache.num_restored_tokens} came back from the host tier" if cache.num_restored_tokens else ""
    why = "others went on differently there" if cache.has_parted else "nothing that follows was cached"
    return (
        f"{cache.num_cached_tokens} of its {life.num_prompt_tokens} prompt tokens were in the KV cache{below}; "
        f"the cached prefix ended at token {found}, as {why}."
    )


def _recompute(span: Span) -> str:
    kept = f"; {span.num_kept_tokens} had been kept" if span.num_kept_tokens else ""
    return f"Then {span.num_tokens} of its tokens were computed again in {seconds(span.duration_s)}{kept}."


def _decode(span: Span) -> list[str]:
    if not span.num_tokens:
        return []
    sentences = [
        f"{_count(span.num_tokens, 'further token', 'further tokens')} came in "
        f"{_count(span.num_steps, 'step', 'steps')}, one every {seconds(span.duration_s / span.num_tokens)}, "
        f"beside {_count(span.num_other_tokens, 'token', 'tokens')} of others."
    ]
    if span.num_saved_steps:
        forced = _count(span.num_saved_steps, "was forced by its grammar", "were forced by its grammar")
        sentences.append(f"Of these {forced}, which saved as many steps.")
    slowest = span.slowest_step
    if slowest is not None and slowest.num_chunk_tokens and span.num_steps > 1:
        whose = slowest.request_id or _ANOTHER
        sentences.append(
            f"Its longest stall was a step of {seconds(slowest.duration_s)}, with {slowest.num_chunk_tokens} prompt "
            f"tokens of {whose} in it."
        )
    return sentences


def _constraint(use: ConstraintUse) -> str:
    compiled = "was known already" if use.was_cached else f"took {seconds(use.compile_s)} to compile"
    return (
        f"Its grammar ({use.kind}) {compiled}; {_count(use.num_masks, 'mask', 'masks')} took {seconds(use.mask_s)} "
        f"beside the steps. They forbade {_percent(use.mean_masked_mass, 1)} of what the model would have said, "
        f"{_percent(use.most_masked_mass, 1)} at most."
    )


def _neighbour(neighbour: Neighbour) -> str:
    return f"{neighbour.request_id or 'other tenants'} ({neighbour.num_tokens})"


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


def _listed(parts: Iterable[str]) -> str:
    *most, last = parts
    return f"{', '.join(most)} and {last}" if most else last


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.0f} %" if whole > 0 else "0 %"


def seconds(amount: float) -> str:
    """``0.0123`` as ``12.3 ms``, ``3.456`` as ``3.46 s``."""
    return f"{amount:.2f} s" if amount >= 1 else f"{amount * 1000:.1f} ms"

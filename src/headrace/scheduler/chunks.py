"""What one sequence's share of a step asks of the executor, and what it owes its caller of the prompt.

Pure functions of a sequence. They do not know the step, the policy or the KV cache.
"""

from __future__ import annotations

from headrace.core.request import TokenLogprobs
from headrace.core.sequence import Sequence
from headrace.core.step import JoinedTokens, PromptLogprobSpec, SampleSpec, ScheduledSequence, StepResult


def scheduled_chunk(seq: Sequence, num_tokens: int, joined: tuple[JoinedTokens, ...]) -> ScheduledSequence:
    """The next ``num_tokens`` of a sequence, with what the executor has to know of them."""
    start = seq.num_computed_tokens
    end = start + num_tokens
    return ScheduledSequence(
        seq_id=seq.seq_id,
        token_ids=seq.token_ids[start:end],
        start=start,
        block_ids=seq.block_table.ids,
        sample=_sample_spec(seq) if end == len(seq.token_ids) else None,
        prompt_logprobs=_prompt_logprob_spec(seq, start, end) if owes_prompt_logprobs(seq) else None,
        joined=joined,
    )


def owes_prompt_logprobs(seq: Sequence) -> bool:
    """Whether log-probabilities of prompt positions were asked for and are not all reported."""
    return seq.request.sampling.prompt_logprobs is not None and seq.num_prompt_logprobs < seq.num_prompt_tokens


def num_matchable_tokens(seq: Sequence) -> int:
    """How many leading tokens may come from the prefix cache.

    One token at least is computed, to have logits; prompt positions whose log-probabilities are still
    owed must be computed too.
    """
    if not owes_prompt_logprobs(seq):
        return seq.num_tokens - 1
    return max(seq.num_prompt_logprobs - 1, 0)


def _sample_spec(seq: Sequence) -> SampleSpec:
    request = seq.request
    sampling = request.sampling
    num_tokens = len(seq.token_ids)
    suppressed: tuple[int, ...] = ()
    if num_tokens - seq.num_prompt_tokens < sampling.min_tokens:
        suppressed = tuple(sorted(seq.eos_token_ids.union(sampling.stop_token_ids)))
    return SampleSpec(
        params=sampling,
        seed=seq.seed,
        position=num_tokens,
        token_ids=seq.token_ids if sampling.needs_history else (),
        num_prompt_tokens=seq.num_prompt_tokens,
        suppressed_token_ids=suppressed,
        bad_word_token_ids=request.bad_word_token_ids,
    )


def _prompt_logprob_spec(seq: Sequence, start: int, end: int) -> PromptLogprobSpec | None:
    """Prompt positions the chunk ``[start, end)`` makes known: its row ``p`` predicts token ``p + 1``."""
    num_top = seq.request.sampling.prompt_logprobs
    assert num_top is not None
    first = max(start + 1, seq.num_prompt_logprobs)
    last = min(end + 1, seq.num_prompt_tokens)
    if first >= last:
        return None
    return PromptLogprobSpec(
        first_row=first - 1 - start, target_token_ids=tuple(seq.token_ids[first:last]), num_top=num_top
    )


def take_prompt_logprobs(
    seq: Sequence, item: ScheduledSequence, result: StepResult
) -> tuple[TokenLogprobs | None, ...]:
    """The prompt positions that became known with a chunk; noted as reported."""
    known: list[TokenLogprobs | None] = list(result.prompt_logprobs.get(item.seq_id, ()))
    if seq.num_prompt_logprobs == 0:
        known.insert(0, None)  # nothing precedes the first token
    seq.num_prompt_logprobs += len(known)
    return tuple(known)

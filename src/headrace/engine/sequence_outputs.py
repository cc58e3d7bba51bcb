"""What an engine says of a sequence: the delta of a step, and the last word."""

from __future__ import annotations

import math
from dataclasses import dataclass

from headrace.core.request import OutputError, RequestOutput, RequestTimes, TokenLogprobs, Usage
from headrace.core.sequence import Sequence
from headrace.scheduler.scheduler import SequenceUpdate


@dataclass(frozen=True, slots=True)
class News:
    """What is new of a sequence: text that became safe, new tokens, the step's update if there was one.

    ``token_ids`` are the sampled token and those a grammar forced after it. ``error`` is set if the sequence failed.
    """

    text: str = ""
    token_ids: tuple[int, ...] = ()
    update: SequenceUpdate | None = None
    error: OutputError | None = None


def delta_output(seq: Sequence, news: News) -> RequestOutput:
    """The output of a sequence that goes on."""
    update = news.update
    return RequestOutput(
        request_id=seq.request.request_id,
        index=seq.index,
        text=news.text,
        token_ids=news.token_ids,
        logprobs=_logprobs(update),
        prompt_logprobs=() if update is None else update.prompt_logprobs,
        usage=_usage(seq),
        times=_times(seq, math.nan, 0.0) if news.token_ids and seq.num_output_tokens == len(news.token_ids) else None,
    )


def warning_output(seq: Sequence, warnings: tuple[str, ...]) -> RequestOutput:
    """Word that a sequence is not quite what was asked for, before it begins."""
    return RequestOutput(request_id=seq.request.request_id, index=seq.index, usage=_usage(seq), warnings=warnings)


def last_output(seq: Sequence, news: News, now: float, preempted_s: float) -> RequestOutput:
    """The output of a sequence that has finished, at ``now`` on the engine's clock."""
    update = news.update
    return RequestOutput(
        request_id=seq.request.request_id,
        index=seq.index,
        text=news.text,
        token_ids=news.token_ids,
        logprobs=_logprobs(update),
        prompt_logprobs=() if update is None else update.prompt_logprobs,
        usage=_usage(seq),
        finish_reason=seq.finish_reason,
        stop_reason=seq.stop_reason,
        times=_times(seq, now, preempted_s),
        error=news.error,
    )


def _logprobs(update: SequenceUpdate | None) -> tuple[TokenLogprobs, ...]:
    return () if update is None or update.logprobs is None else (update.logprobs,)


def _times(seq: Sequence, finished: float, preempted_s: float) -> RequestTimes:
    return RequestTimes(
        arrival=seq.request.arrival_time,
        first_scheduled=seq.first_scheduled_time,
        first_token=seq.first_token_time,
        finished=finished,
        num_preemptions=seq.num_preemptions,
        preempted_s=preempted_s,
    )


def _usage(seq: Sequence) -> Usage:
    return Usage(seq.num_prompt_tokens, seq.num_cached_tokens, seq.num_output_tokens)

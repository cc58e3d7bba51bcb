"""What became of one request: when its tokens came and how it ended. Knows nothing of how it is judged."""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence

from headrace.core.errors import DeadlineExceeded, Overloaded
from headrace.core.request import FinishReason, RequestOutput
from headrace.sim.workload import OfferedRequest


class Outcome(enum.Enum):
    """How a request ended, exactly one for each."""

    SERVED = "served"
    REJECTED = "rejected"
    EXPIRED = "expired"
    ABORTED = "aborted"
    FAILED = "failed"
    TOO_LONG = "too_long"


_OUTCOME_OF_REASON: dict[FinishReason | None, Outcome] = {
    FinishReason.STOP: Outcome.SERVED,
    FinishReason.LENGTH: Outcome.SERVED,
    FinishReason.ABORT: Outcome.ABORTED,
}
_OUTCOME_OF_ERROR = {Overloaded.__name__: Outcome.REJECTED, DeadlineExceeded.__name__: Outcome.EXPIRED}


class RequestRecord:
    """The times of one request, seconds of simulated time; grows token by token."""

    __slots__ = (
        "finished_s",
        "first_token_s",
        "is_admitted",
        "last_token_s",
        "longest_gap_s",
        "num_cached_tokens",
        "num_output_tokens",
        "num_preemptions",
        "offered",
        "outcome",
    )

    def __init__(self, offered: OfferedRequest) -> None:
        self.offered = offered
        self.outcome: Outcome | None = None
        self.is_admitted = False
        self.first_token_s = math.nan
        self.last_token_s = math.nan
        self.longest_gap_s = 0.0
        self.finished_s = math.nan
        self.num_output_tokens = 0
        self.num_cached_tokens = 0
        self.num_preemptions = 0

    def take(self, output: RequestOutput, now: float) -> None:
        """Note an output of the engine that came at ``now``."""
        for _ in output.token_ids:
            self.take_token(now)
        if output.finish_reason is not None:
            self.num_cached_tokens = output.usage.num_cached_tokens
            if output.times is not None:
                self.num_preemptions = output.times.num_preemptions
            self.finished_s = now
            self.end(_outcome(output))

    def take_token(self, now: float) -> None:
        if self.num_output_tokens == 0:
            self.first_token_s = now
        elif now - self.last_token_s > self.longest_gap_s:
            self.longest_gap_s = now - self.last_token_s
        self.last_token_s = now
        self.num_output_tokens += 1

    def take_tokens(self, times: Sequence[float], longest_gap_s: float) -> None:
        """Note one token at each of the times, which are at most ``longest_gap_s`` apart."""
        self.take_token(times[0])
        self.longest_gap_s = max(self.longest_gap_s, longest_gap_s)
        self.last_token_s = times[-1]
        self.num_output_tokens += len(times) - 1

    def end(self, outcome: Outcome) -> None:
        """Say how the request ended; may be called once."""
        assert self.outcome is None, f"request {self.offered.index} ended twice"
        self.outcome = outcome

    @property
    def ttft_s(self) -> float:
        """From arrival to the first token; not a number if none came."""
        return self.first_token_s - self.offered.arrival_s

    @property
    def tpot_s(self) -> float:
        """Mean time between tokens; 0 for an answer of one token."""
        if self.num_output_tokens < 2:
            return 0.0
        return (self.last_token_s - self.first_token_s) / (self.num_output_tokens - 1)

    @property
    def e2e_s(self) -> float:
        return self.finished_s - self.offered.arrival_s


def _outcome(last: RequestOutput) -> Outcome:
    if last.error is not None:
        return _OUTCOME_OF_ERROR.get(last.error.kind, Outcome.FAILED)
    return _OUTCOME_OF_REASON.get(last.finish_reason, Outcome.FAILED)

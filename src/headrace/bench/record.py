"""What happened to one request, as moments and counts; every figure of a report is arithmetic on these.

Moments are seconds from the start of the run, on the client's clock. Latencies count from ``intended_s``, when
the request should have been sent, not from when this client got round to it: otherwise a server that stalls
would also stop the clock of the requests it delays (coordinated omission; Tene, "How NOT to measure latency").
"""

from __future__ import annotations

import enum
from array import array
from dataclasses import dataclass, field


class Outcome(enum.Enum):
    """How a request ended; only OK counts for latencies and throughput."""

    OK = "ok"
    ERROR = "error"
    """The server refused it or said that it failed."""
    INCOMPLETE = "incomplete"
    """The stream ended without saying that it was finished."""
    TIMEOUT = "timeout"
    UNREACHABLE = "unreachable"
    """No connection, or it broke before an answer."""
    ABORTED = "aborted"
    """This client hung up, as the workload had it do."""


FAILURES = (Outcome.ERROR, Outcome.INCOMPLETE, Outcome.TIMEOUT, Outcome.UNREACHABLE)


@dataclass(slots=True)
class RequestRecord:
    """One request. *Mutable* while it runs.

    ``slot_s`` is when a limit on concurrency let it go (``intended_s`` without one), ``sent_s`` when its bytes
    were written. ``arrivals_s`` are the moments of chunks that brought output, of all choices together;
    ``gaps_s`` those between two chunks of the same choice. Token counts are the server's own where it gives them.
    """

    request_id: int
    session: int
    turn: int
    group: str
    intended_s: float
    slot_s: float = 0.0
    sent_s: float = 0.0
    end_s: float = 0.0
    outcome: Outcome = Outcome.ERROR
    error: str = ""
    http_status: int = 0
    finish_reason: str = ""
    num_input_tokens: int = 0
    num_output_tokens: int = 0
    num_cached_tokens: int = 0
    num_choices: int = 1
    max_tokens: int = 0
    arrivals_s: array[float] = field(default_factory=lambda: array("d"))
    gaps_s: array[float] = field(default_factory=lambda: array("d"))
    texts: list[str] = field(default_factory=list)

    @property
    def is_ok(self) -> bool:
        return self.outcome is Outcome.OK

    @property
    def num_chunks(self) -> int:
        return len(self.arrivals_s)

    @property
    def first_s(self) -> float:
        """The first output, or the end of an answer that is empty."""
        return self.arrivals_s[0] if self.arrivals_s else self.end_s

    @property
    def last_s(self) -> float:
        return self.arrivals_s[-1] if self.arrivals_s else self.end_s

    @property
    def ttft_s(self) -> float:
        """Time to first token, from the intended send time."""
        return self.first_s - self.intended_s

    @property
    def e2e_s(self) -> float:
        """From the intended send time to the end of the stream."""
        return self.end_s - self.intended_s

    @property
    def tpot_s(self) -> float | None:
        """Time per output token after the first, of each choice; ``None`` where there is no second token."""
        num_later = self.num_output_tokens / self.num_choices - 1
        return (self.last_s - self.first_s) / num_later if num_later > 0 and self.arrivals_s else None

    @property
    def worst_gap_s(self) -> float | None:
        """The longest silence between two chunks of a choice; ``None`` where there is none."""
        return max(self.gaps_s, default=None)

    @property
    def queue_s(self) -> float:
        """What the limit on concurrency held it back."""
        return self.slot_s - self.intended_s

    @property
    def lag_s(self) -> float:
        """What this client was late by its own fault."""
        return self.sent_s - self.slot_s

"""When a sequence's next token is due.

Pure functions of a sequence: the targets of its request against what it has got so far. They do not know the
queue, the batch or the machine.

A token's due time is cumulative, ``first token + PACE * tpot * tokens so far``: a stream that runs ahead has
credit, and a step may take as long as the least credit in it allows.
"""

from __future__ import annotations

import math
from typing import Final

from headrace.core.sequence import Sequence

PACE: Final = 0.95
"""Share of a TPOT target that is aimed at; the rest is margin."""

TTFT_MARGIN: Final = 0.06
"""Share of a TTFT target kept free by whoever is taken in: a first token comes at the end of a step, up to a step later
than its prompt's share of the work says, and one that is late was work for nothing."""

NOMINAL_TTFT_S: Final = 30.0
"""When a request without a TTFT target counts as due in the order of work; nobody waits behind newcomers for ever."""

PRIORITY_STEP_S: Final = 1.0
"""One step of ``Request.priority`` moves a request by so much in the order of work."""

MAX_PRIORITY_STEPS: Final = 30


def first_token_deadline(seq: Sequence) -> float:
    """When the first token must be out for the target to be met; infinite without a target."""
    request = seq.request
    return request.arrival_time + request.service_level.ttft_s


def first_token_margin_s(seq: Sequence) -> float:
    """How long before a finite deadline the first token is to be foretold, where it can be foretold at all."""
    return TTFT_MARGIN * seq.request.service_level.ttft_s


def next_token_due(seq: Sequence) -> float:
    """When the next token should be out; for the order of work, so never infinite."""
    request = seq.request
    level = request.service_level
    num_output = len(seq.token_ids) - seq.num_prompt_tokens
    if num_output > 0 and level.tpot_s < math.inf:
        return seq.first_token_time + PACE * level.tpot_s * num_output
    steps = min(max(request.priority, -MAX_PRIORITY_STEPS), MAX_PRIORITY_STEPS)
    since = request.arrival_time if level.ttft_s < math.inf else request.order_time
    return since + min(level.ttft_s, NOMINAL_TTFT_S) + steps * PRIORITY_STEP_S

"""What a sampled token does to its sequence: the text it adds, the stop string it completes, the grammar it moves.

Where a grammar leaves only one way on, the tokens of that way are appended at once, as pending tokens that the next
step computes together (jump-forward). They are the ones the mask would have left, so the sequence is the same with and
without; what is saved is a step for each.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from headrace.core.request import FinishReason
from headrace.core.sequence import Sequence
from headrace.engine.constraints import Constraints
from headrace.engine.text_stream import TextStream
from headrace.scheduler.scheduler import Scheduler

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Taken:
    """New text and the tokens behind it, forced ones included; ``failure`` says why the sequence cannot go on."""

    text: str
    token_ids: tuple[int, ...]
    failure: str = ""


class Continuation:
    """Takes in the tokens of an engine's sequences. Ends those that a stop string or a grammar ends."""

    def __init__(self, scheduler: Scheduler, constraints: Constraints) -> None:
        self._scheduler = scheduler
        self._constraints = constraints

    def take(self, seq: Sequence, stream: TextStream, token_id: int) -> Taken:
        """Take in a token that the scheduler has appended to ``seq``. What goes wrong ends that sequence alone."""
        try:
            return self._take(seq, stream, token_id)
        except Exception as error:
            logger.exception("a token of request %s could not be taken in; only it fails", seq.request.request_id)
            self._scheduler.finish(seq, FinishReason.ERROR)
            seq.finish_reason = FinishReason.ERROR  # also where a stop string had ended it by then
            return Taken("", (), f"a token of this request could not be taken in ({type(error).__name__})")

    def _take(self, seq: Sequence, stream: TextStream, token_id: int) -> Taken:
        text = self._push_text(seq, stream, token_id)
        if _has_ended(seq):
            return Taken(text, (token_id,))
        progress = self._constraints.advance(seq, token_id)
        if progress.failure:
            self._scheduler.finish(seq, FinishReason.ERROR)
            return Taken("", (), progress.failure)
        token_ids = [token_id]
        for forced in progress.forced_token_ids:
            token_ids.append(forced)
            text += self._append_forced(seq, stream, forced)
            if _has_ended(seq):
                return Taken(text, tuple(token_ids))
        if progress.must_end:
            self._scheduler.finish(seq, FinishReason.STOP)
        return Taken(text, tuple(token_ids))

    def _append_forced(self, seq: Sequence, stream: TextStream, token_id: int) -> str:
        """Append a token that needs no sampling: one more pending token of the one scheduling rule."""
        seq.token_ids.append(token_id)
        if len(seq.token_ids) >= seq.length_limit:
            self._scheduler.finish(seq, FinishReason.LENGTH)
        return self._push_text(seq, stream, token_id)

    def _push_text(self, seq: Sequence, stream: TextStream, token_id: int) -> str:
        """Text that became safe with ``token_id``; a stop string in it ends the sequence."""
        ended_by_token = seq.finish_reason is FinishReason.STOP
        if ended_by_token and not seq.request.sampling.include_stop_str_in_output:
            return ""
        delta = stream.push(token_id)
        if delta.stop is not None:
            self._scheduler.finish(seq, FinishReason.STOP)
            # also when the same token reached the length limit: the stop string is the better reason
            seq.finish_reason, seq.stop_reason = FinishReason.STOP, delta.stop
        return delta.text


def _has_ended(seq: Sequence) -> bool:
    """Asked again after calls that may have ended it."""
    return seq.is_finished

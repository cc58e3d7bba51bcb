"""The text of one generated sequence, ready to be sent: tokens in, safe text out, ended by stop strings.

Joins a detokenizer and a stop matcher; owns the order of the two, what a stop string leaves of the text, and
the rule that the first ``min_tokens`` tokens cannot end a sequence. It knows nothing of end-of-sequence
tokens: whoever drives it does not push a token whose text should not show.
"""

from __future__ import annotations

import msgspec

from headrace.engine.detokenizer import Detokenizer
from headrace.engine.stop_matcher import StopMatch, StopMatcher, StopStrings


class TextDelta(msgspec.Struct, frozen=True, gc=False):
    """New text, and the stop string that ended the sequence if one did."""

    text: str
    stop: str | None = None


class TextStream:
    """Text of one sequence. The deltas plus ``finish()`` are the whole text, however it was cut.

    ``include_stop`` keeps the stop string at the end of the text (vLLM's ``include_stop_str_in_output``).
    Text that only ``finish`` brings to light, the U+FFFD of a broken last character, is not searched.
    """

    __slots__ = ("_detokenizer", "_include_stop", "_matcher", "_num_unchecked_tokens")

    def __init__(
        self, detokenizer: Detokenizer, stops: StopStrings, include_stop: bool = False, min_tokens: int = 0
    ) -> None:
        self._detokenizer = detokenizer
        self._include_stop = include_stop
        self._matcher = StopMatcher(stops) if stops else None
        self._num_unchecked_tokens = min_tokens

    def push(self, token_id: int) -> TextDelta:
        """Add a token. After a delta with a ``stop`` nothing may be pushed."""
        text = self._detokenizer.push(token_id)
        if self._matcher is None:
            return TextDelta(text)
        if self._num_unchecked_tokens > 0:
            self._num_unchecked_tokens -= 1
            return TextDelta(self._matcher.push_unchecked(text))
        found = self._matcher.push(text)
        if isinstance(found, StopMatch):
            return self._stopped(found)
        return TextDelta(found)

    def finish(self) -> str:
        """Return the text still held back: the sequence ended otherwise than by a stop string."""
        held = "" if self._matcher is None else self._matcher.flush()
        return held + self._detokenizer.flush()

    def _stopped(self, match: StopMatch) -> TextDelta:
        self._detokenizer.flush()  # bytes after the stop string are not part of the answer
        return TextDelta(match.before + match.stop if self._include_stop else match.before, match.stop)

"""An answer on the terminal: text as it comes, made safe for a screen, and what it took."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TextIO

from headrace.core.errors import RequestFailed
from headrace.core.request import RequestOutput, Usage

_REPLACED = {code: "\N{REPLACEMENT CHARACTER}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}
"""Control characters: on a terminal a model's output must not be able to do more than show text."""


class AnswerWriter:
    """Writes the deltas of one answer and keeps count. Times are in seconds."""

    def __init__(self, screen: TextIO) -> None:
        self._screen = screen
        self._is_terminal = screen.isatty()
        self._started = time.perf_counter()
        self._first_token_s: float | None = None
        self._usage = Usage(0, 0, 0)
        self._finish = "aborted"
        self._at_line_start = True
        self.text = ""

    def write(self, outputs: Iterable[RequestOutput]) -> None:
        """Write all of an answer, then end the line. Raises ``RequestFailed`` if the engine could not go on."""
        try:
            for output in outputs:
                self._write(output)
        finally:
            if not self._at_line_start:
                self._screen.write("\n")
            self._screen.flush()

    def summary(self) -> str:
        """One line: tokens, times, why it ended."""
        elapsed_s = time.perf_counter() - self._started
        first_s = elapsed_s if self._first_token_s is None else self._first_token_s
        num_later = max(self._usage.num_output_tokens - 1, 0)
        rate = num_later / (elapsed_s - first_s) if num_later and elapsed_s > first_s else 0.0
        return (
            f"prompt {self._usage.num_prompt_tokens} tokens ({self._usage.num_cached_tokens} cached), "
            f"output {self._usage.num_output_tokens} tokens in {elapsed_s:.2f} s; "
            f"first after {first_s:.2f} s, then {rate:.1f} tokens/s; finish: {self._finish}"
        )

    def _write(self, output: RequestOutput) -> None:
        self._usage = output.usage
        if self._first_token_s is None and output.token_ids:
            self._first_token_s = time.perf_counter() - self._started
        if output.finish_reason is not None:
            self._finish = output.finish_reason.value
        if output.error is not None:
            raise RequestFailed(output.error.message)
        if output.text:
            self.text += output.text
            self._at_line_start = output.text.endswith("\n")
            self._screen.write(output.text.translate(_REPLACED) if self._is_terminal else output.text)
            self._screen.flush()

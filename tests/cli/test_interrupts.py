"""Ctrl-C waits where it would do harm, and is not lost."""

from __future__ import annotations

import os
import signal

import pytest

from headrace.cli.interrupts import held_interrupts


def test_an_interrupt_waits_for_the_end_of_the_block() -> None:
    steps = []

    def interrupted_inside() -> None:
        with held_interrupts():
            os.kill(os.getpid(), signal.SIGINT)
            steps.append("inside")

    with pytest.raises(KeyboardInterrupt):
        interrupted_inside()
    assert steps == ["inside"]


def test_interrupts_come_at_once_again_afterwards() -> None:
    with held_interrupts():
        pass
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)

"""The first Ctrl-C waits for a safe place, the second does not; where there is no such handler, nothing changes."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from headrace.llm.interrupts import DeferredInterrupt


def press_ctrl_c() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_the_first_is_noted_and_the_second_raised() -> None:
    with DeferredInterrupt() as interrupt:
        assert not interrupt.is_pending
        press_ctrl_c()
        assert interrupt.is_pending
        with pytest.raises(KeyboardInterrupt):
            press_ctrl_c()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_afterwards_ctrl_c_is_as_before() -> None:
    with DeferredInterrupt():
        pass
    with pytest.raises(KeyboardInterrupt):
        press_ctrl_c()


def test_another_thread_leaves_the_handler_alone() -> None:
    seen: list[object] = []

    def enter() -> None:
        with DeferredInterrupt():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert seen == [signal.default_int_handler]

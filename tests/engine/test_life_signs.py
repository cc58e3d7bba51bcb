from __future__ import annotations

from headrace.engine.life_signs import LifeSigns


def test_silence_longer_than_the_limit_is_no_life() -> None:
    signs = LifeSigns(30.0)
    signs.note_message(100.0)
    signs.note_tick(0.0, 100.0)
    assert signs.is_alive(130.0)
    assert not signs.is_alive(130.1)
    signs.note_message(131.0)
    signs.note_tick(0.0, 131.0)
    assert signs.is_alive(131.0)


def test_a_talking_process_whose_engine_thread_hangs_is_no_life() -> None:
    signs = LifeSigns(30.0)
    for second in range(40):
        now = 100.0 + second
        signs.note_message(now)
        signs.note_tick(float(second), now)
        assert signs.is_alive(now) == (second <= 30)
    assert signs.tick_age_s() == 39.0


def test_a_step_that_was_foretold_to_be_long_may_be_long_and_not_for_ever() -> None:
    signs = LifeSigns(30.0)
    for second in range(300):
        now = 100.0 + second
        signs.note_message(now)
        signs.note_tick(float(second), now, expected_s=60.0)
        assert signs.is_alive(now) == (second <= 270), "four times a minute, and the limit"

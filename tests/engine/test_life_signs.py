from __future__ import annotations

from headrace.engine.life_signs import LifeSigns


def test_silence_longer_than_the_limit_is_no_life() -> None:
    signs = LifeSigns(30.0)
    signs.note_message(100.0)
    signs.note_tick_age(0.0, 100.0)
    assert signs.is_alive(130.0)
    assert not signs.is_alive(130.1)
    signs.note_message(131.0)
    signs.note_tick_age(0.0, 131.0)
    assert signs.is_alive(131.0)


def test_a_talking_process_whose_engine_thread_hangs_is_no_life() -> None:
    signs = LifeSigns(30.0)
    for second in range(40):
        now = 100.0 + second
        signs.note_message(now)
        signs.note_tick_age(float(second), now)
        assert signs.is_alive(now) == (second <= 30)
    assert signs.tick_age_s() == 39.0

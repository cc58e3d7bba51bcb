from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.engine.stop_matcher import StopMatch, StopMatcher, StopStrings


def first_stop(text: str, stops: list[str]) -> tuple[str, str] | None:
    """The definition: of the matches that end first, the longest; with the text before it."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            stop = max(ending, key=len)
            return text[: end - len(stop)], stop
    return None


def longest_held(text: str, stops: list[str]) -> int:
    lengths = (length for stop in stops for length in range(1, len(stop)) if text.endswith(stop[:length]))
    return max(lengths, default=0)


SMALL_TEXT = st.text(alphabet="ab🙂", max_size=40)
STOPS = st.lists(st.text(alphabet="ab🙂", min_size=1, max_size=6), min_size=1, max_size=5)


@given(SMALL_TEXT, STOPS, st.data())
def test_any_cut_of_any_text_gives_the_whole_text_definition(text: str, stops: list[str], data: st.DataObject) -> None:
    matcher, shown, pushed, match = StopMatcher(StopStrings(stops)), "", 0, None
    while pushed < len(text) and match is None:
        size = data.draw(st.integers(1, len(text) - pushed))
        found = matcher.push(text[pushed : pushed + size])
        pushed += size
        if isinstance(found, StopMatch):
            shown, match = shown + found.before, found.stop
        else:
            shown += found
            assert pushed - len(shown) == longest_held(text[:pushed], stops)
    expected = first_stop(text, stops)
    if expected is None:
        assert match is None
        assert shown + matcher.flush() == text
    else:
        assert (shown, match) == expected


@given(SMALL_TEXT, SMALL_TEXT, STOPS)
def test_unchecked_text_ends_nothing_but_may_begin_a_match(unchecked: str, text: str, stops: list[str]) -> None:
    matcher = StopMatcher(StopStrings(stops))
    shown = matcher.push_unchecked(unchecked)
    found = matcher.push(text)
    ends = [
        (end, len(stop), stop)
        for end in range(len(unchecked) + 1, len(unchecked + text) + 1)
        for stop in stops
        if (unchecked + text)[:end].endswith(stop)
    ]
    if not ends:
        assert isinstance(found, str)
        assert shown + found + matcher.flush() == unchecked + text
        return
    end, length, stop = min(ends, key=lambda item: (item[0], -item[1]))
    assert found == StopMatch((unchecked + text)[len(shown) : end - length], stop)


def test_a_near_miss_is_released_with_the_character_that_breaks_it() -> None:
    matcher = StopMatcher(StopStrings(["DEFGHIJ"]))
    assert [matcher.push(piece) for piece in ("ABC", "D", "EF", "X")] == ["ABC", "", "", "DEFX"]


def test_a_stop_inside_another_ends_the_text_first() -> None:
    found = StopMatcher(StopStrings(["abcdef", "cd"])).push("xabcdef")
    assert found == StopMatch("xab", "cd")


def test_stops_that_end_together_give_the_longest() -> None:
    found = StopMatcher(StopStrings(["c", "abc"])).push("xabc")
    assert found == StopMatch("x", "abc")


def test_adversarial_text_costs_a_bounded_number_of_steps_per_character() -> None:
    stops = StopStrings(["a" * 255 + chr(ord("b") + index) for index in range(16)])
    visits = CountingEdges(stops.edges)
    stops.edges = visits
    matcher = StopMatcher(stops)
    text = ("a" * 255 + "z") * 20
    for char in text:
        matcher.push(char)
    assert visits.num_visits <= 4 * len(text)


class CountingEdges(list[dict[str, int]]):
    """Counts how often an automaton's node is looked at."""

    num_visits = 0

    def __getitem__(self, node: int) -> dict[str, int]:  # type: ignore[override]
        self.num_visits += 1
        return super().__getitem__(node)

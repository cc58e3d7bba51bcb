"""``headrace chat`` remembers what was said, obeys its commands, and Ctrl-C stops the answer, not the program."""

from __future__ import annotations

import io
from collections.abc import Callable

from headrace.cli.chat import HELP, PROMPT, Conversation
from headrace.core.sampling import SamplingParams
from headrace.llm.offline import LLM
from tests.llm.house import EOS, House, answer, text_of
from tests.llm.test_offline import InterruptedHouse

PARAMS = SamplingParams(max_tokens=4)


def talk(
    *lines: str | BaseException, house: House | None = None, system: str | None = None
) -> tuple[str, list[dict[str, str]]]:
    """What the screen shows, and the messages kept; input ends after the last line."""
    screen = io.StringIO()
    conversation = Conversation(LLM.from_loaded((house or House()).loaded), PARAMS, system, screen)
    conversation.hold(reader(*lines), None)
    return screen.getvalue(), conversation.messages


def reader(*lines: str | BaseException) -> Callable[[str], str]:
    remaining = list(lines)

    def read_line(prompt: str) -> str:
        assert prompt == PROMPT
        if not remaining:
            raise EOFError
        line = remaining.pop(0)
        if isinstance(line, BaseException):
            raise line
        return line

    return read_line


def reply(prompt: list[int]) -> str:
    return text_of([token_id for token_id in answer(prompt, 4) if token_id != EOS])


def test_an_answer_follows_the_whole_conversation() -> None:
    shown, messages = talk("CD", "EF")
    first = reply([21, 3, 4, 1])
    prompt = [21, 3, 4, 1, *(ord(char) - 64 for char in first.replace("AB", "|")), 21, 5, 6, 1]
    second = reply(prompt)
    assert shown == f"{first}\n{second}\n\n"
    assert [message["content"] for message in messages] == ["CD", first, "EF", second]
    assert [message["role"] for message in messages] == ["user", "assistant"] * 2


def test_the_system_message_comes_first_and_survives_a_reset() -> None:
    shown, messages = talk("CD", "/reset", system="XY")
    assert messages == [{"role": "system", "content": "XY"}]
    assert shown.endswith("(conversation forgotten)\n\n")


def test_exit_leaves_and_blank_lines_do_nothing() -> None:
    assert talk("", "  ", "/exit", "CD") == ("", [])


def test_commands_are_explained() -> None:
    assert talk("/help") == (HELP + "\n\n", [])
    assert talk("/rest now") == ("(unknown command /rest; /help lists them)\n\n", [])


def test_ctrl_c_at_the_prompt_says_how_to_leave() -> None:
    assert talk(KeyboardInterrupt(), "/exit") == ("\n(/exit or Ctrl-D leaves)\n", [])


def test_ctrl_c_stops_the_answer_and_keeps_what_came() -> None:
    house = InterruptedHouse()
    shown, messages = talk("CD", "/exit", house=house)
    assert shown.endswith("(stopped)\n")
    assert not house.engine.has_work
    kept = messages[-1]["content"]
    assert reply([21, 3, 4, 1]).startswith(kept)
    assert kept in shown


def test_a_conversation_that_no_longer_fits_is_not_kept() -> None:
    shown, messages = talk("C" * 200, "CD")
    assert "the prompt has 202 tokens but max_model_len is 100" in shown
    assert "(/reset begins anew)" in shown
    assert messages[0]["content"] == "CD"


def test_a_summary_follows_each_answer_when_wanted() -> None:
    summaries = io.StringIO()
    Conversation(LLM.from_loaded(House().loaded), PARAMS, None, io.StringIO()).hold(reader("CD"), summaries)
    assert summaries.getvalue().startswith("prompt 4 tokens")

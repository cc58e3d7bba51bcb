"""``headrace chat``: a conversation on the terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TextIO

from headrace.cli.flags import Parser, add_config_flags, print_config, read_config
from headrace.cli.sampling_flags import add_sampling_flags, read_sampling
from headrace.cli.terminal import AnswerWriter
from headrace.core.config import EngineConfig
from headrace.core.errors import ConfigError, InvalidRequest, RequestFailed
from headrace.core.sampling import SamplingParams

if TYPE_CHECKING:
    from headrace.llm.offline import LLM

HELP = """\
/reset  forget the conversation
/help   show this
/exit   leave (so does Ctrl-D)
Ctrl-C stops an answer; the part that came stays in the conversation."""

PROMPT = "> "


def main(argv: Sequence[str]) -> int:
    parser = Parser("chat", "Talk to MODEL. /help inside lists the commands.", "[MODEL]")
    parser.add_argument("--system", metavar="TEXT", help="system message to begin with")
    parser.add_argument("--verbose", action="store_true", help="say after each answer how long it took")
    add_sampling_flags(parser)
    add_config_flags(parser, EngineConfig)
    arguments = parser.parse(argv)
    config = read_config(EngineConfig, arguments, os.environ)
    if arguments.print_config:
        return print_config(config)
    params = read_sampling(arguments)

    import readline  # noqa: F401 - gives input() line editing and history

    from headrace.cli.progress import terminal_progress
    from headrace.llm.loading import load_model
    from headrace.llm.offline import LLM

    with LLM.from_loaded(load_model(config, terminal_progress()), config.seed) as llm:
        if not llm.has_chat_template:
            raise ConfigError(
                f"{config.model} has no chat template; use headrace run, or give one: --chat-template FILE"
            )
        Conversation(llm, params, arguments.system, sys.stdout).hold(input, sys.stderr if arguments.verbose else None)
    return 0


class Conversation:
    """Messages so far, and the loop that adds to them."""

    def __init__(self, llm: LLM, params: SamplingParams, system: str | None, screen: TextIO) -> None:
        self._llm = llm
        self._params = params
        self._screen = screen
        self._opening = [{"role": "system", "content": system}] if system else []
        self.messages = list(self._opening)

    def hold(self, read_line: Callable[[str], str], summaries: TextIO | None) -> None:
        """Read and answer until ``/exit`` or the end of input; ``read_line`` is ``input`` or stands in.

        ``summaries`` gets a line after each answer, if it is given.
        """
        while (line := self._read(read_line)) is not None:
            if line == "/exit":
                return
            if line.startswith("/"):
                self._command(line)
            elif line:
                self._answer(line, summaries)

    def _read(self, read_line: Callable[[str], str]) -> str | None:
        try:
            return read_line(PROMPT).strip()
        except EOFError:
            self._say("")
            return None
        except KeyboardInterrupt:  # at the prompt there is no answer to stop
            self._say("\n(/exit or Ctrl-D leaves)")
            return ""

    def _command(self, line: str) -> None:
        if line == "/reset":
            self.messages = list(self._opening)
            self._say("(conversation forgotten)")
        elif line == "/help":
            self._say(HELP)
        else:
            self._say(f"(unknown command {line.split(maxsplit=1)[0]}; /help lists them)")

    def _answer(self, text: str, summaries: TextIO | None) -> None:
        """Answer ``text``; what could not be answered is not kept in the conversation."""
        messages = [*self.messages, {"role": "user", "content": text}]
        answer = AnswerWriter(self._screen)
        try:
            answer.write(self._llm.stream(self._llm.chat_prompt(messages), self._params))
        except KeyboardInterrupt:
            self._say("(stopped)")
        except (InvalidRequest, RequestFailed) as error:
            self._say(f"error: {error.message}\n(/reset begins anew)")
            return
        self.messages = [*messages, {"role": "assistant", "content": answer.text}]
        if summaries is not None:
            print(answer.summary(), file=summaries)

    def _say(self, text: str) -> None:
        print(text, file=self._screen, flush=True)

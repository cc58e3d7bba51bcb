"""``headrace run``: one prompt, one answer, streamed to the terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from headrace.cli.flags import Parser, add_config_flags, print_config, read_config
from headrace.cli.sampling_flags import add_sampling_flags, read_sampling
from headrace.core.config import EngineConfig
from headrace.core.errors import ConfigError


def main(argv: Sequence[str]) -> int:
    description = "Answer PROMPT with MODEL. Without PROMPT, it is read from standard input."
    parser = Parser("run", description, "MODEL [PROMPT]")
    parser.add_argument("--raw", action="store_true", help="continue PROMPT as it is, without the chat template")
    parser.add_argument("--verbose", action="store_true", help="say afterwards how many tokens and seconds it took")
    add_sampling_flags(parser)
    add_config_flags(parser, EngineConfig)
    parser.add_argument("prompt", nargs="?", metavar="PROMPT", help="what to answer")
    arguments = parser.parse(argv)
    config = read_config(EngineConfig, arguments, os.environ)
    if arguments.print_config:
        return print_config(config)
    params = read_sampling(arguments)
    prompt = _read_prompt() if arguments.prompt is None else arguments.prompt

    from headrace.cli.progress import terminal_progress
    from headrace.cli.terminal import AnswerWriter
    from headrace.llm.loading import load_model
    from headrace.llm.offline import LLM

    with LLM.from_loaded(load_model(config, terminal_progress()), config.seed) as llm:
        is_chat = llm.has_chat_template and not arguments.raw
        tokens = llm.chat_prompt([{"role": "user", "content": prompt}]) if is_chat else prompt
        answer = AnswerWriter(sys.stdout)
        try:
            answer.write(llm.stream(tokens, params))
        finally:
            if arguments.verbose:
                print(answer.summary(), file=sys.stderr)
    return 0


def _read_prompt() -> str:
    if sys.stdin.isatty():
        raise ConfigError('run needs a prompt: headrace run MODEL "prompt"; headrace chat MODEL is for conversations')
    prompt = sys.stdin.read()
    if not prompt.strip():
        raise ConfigError('standard input is empty; run needs a prompt there, or: headrace run MODEL "prompt"')
    return prompt

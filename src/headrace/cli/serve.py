"""``headrace serve``: flags to a ``ServeConfig``, handed to the server."""

from __future__ import annotations

import os
from collections.abc import Sequence

from headrace.cli.flags import Parser, add_config_flags, print_config, read_config
from headrace.cli.interrupts import held_interrupts
from headrace.core.config import ServeConfig


def main(argv: Sequence[str]) -> int:
    parser = Parser("serve", "Serve MODEL over HTTP with OpenAI's API, by default on 127.0.0.1:8000.", "[MODEL]")
    add_config_flags(parser, ServeConfig)
    arguments = parser.parse(argv)
    config = read_config(ServeConfig, arguments, os.environ)
    if arguments.print_config:
        return print_config(config)
    with held_interrupts():
        from headrace.cli.progress import terminal_progress
        from headrace.server.run import serve

    return serve(config, terminal_progress())

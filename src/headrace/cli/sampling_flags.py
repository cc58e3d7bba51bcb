"""Flags for what to sample, shared by the verbs that generate. Bounds are ``SamplingParams``' own."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from headrace.cli.flags import Parser
from headrace.core.errors import ConfigError, InvalidRequest
from headrace.core.sampling import SamplingParams

DEFAULT_TEMPERATURE = 0.7
DEFAULT_TOP_P = 0.95
"""Milder than the API's 1.0: on a terminal people expect sense, also from small models."""


def add_sampling_flags(parser: Parser) -> None:
    flags = parser.add_argument_group("sampling")

    def add(name: str, kind: Callable[[str], object], metavar: str, help_text: str) -> None:
        flags.add_argument(f"--{name}", type=kind, metavar=metavar, default=argparse.SUPPRESS, help=help_text)

    add("max-tokens", int, "N", "most tokens to generate (default: up to the end of the context)")
    add("temperature", float, "X", f"randomness; 0 always takes the likeliest (default: {DEFAULT_TEMPERATURE})")
    add("top-p", float, "X", f"sample from the likeliest tokens of this total probability (default: {DEFAULT_TOP_P})")
    add("top-k", int, "N", "sample from this many likeliest tokens (default: all)")
    add("min-p", float, "X", "sample from tokens at least this likely relative to the likeliest (default: 0)")
    add("presence-penalty", float, "X", "lower tokens that occurred (-2 to 2)")
    add("frequency-penalty", float, "X", "lower tokens by how often they occurred (-2 to 2)")
    add("repetition-penalty", float, "X", "divide the logits of tokens that occurred (default: 1)")
    flags.add_argument(
        "--stop",
        action="append",
        metavar="TEXT",
        default=argparse.SUPPRESS,
        help="end at this text; repeat for several",
    )


def read_sampling(arguments: argparse.Namespace) -> SamplingParams:
    """The parameters that the flags give. Raises ``ConfigError`` in the flags' spelling."""
    given = vars(arguments)
    chosen = {name: given[name] for name in SamplingParams.__struct_fields__ if name in given and name != "seed"}
    defaults = {"temperature": DEFAULT_TEMPERATURE, "top_p": DEFAULT_TOP_P, "max_tokens": None}
    try:
        return SamplingParams(**{**defaults, **chosen})
    except InvalidRequest as error:
        flag = "--" + (error.param or "").replace("_", "-")
        raise ConfigError(error.message.replace(error.param or "", flag, 1), error.param) from error

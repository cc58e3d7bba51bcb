"""A server to be measured: how it is reached and talked to, and the checks before anything is timed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Literal

from headrace.bench.dialect import DIALECTS, BodyOptions
from headrace.bench.http_client import HttpClient, parse_url
from headrace.bench.load_generator import Target
from headrace.bench.pacing import WallPacer
from headrace.bench.prompt_text import DEFAULT_IDS, IdWriter, PromptWriter, WordWriter
from headrace.bench.reply_sink import TokenCounter
from headrace.bench.server_probe import ServerFacts, check_counts, find_server, wait_until_ready
from headrace.bench.token_counts import RemoteCounter, local_counter

AUTO_TOKENIZER = "auto"
NO_TOKENIZER = "words"


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """``name`` is for reports. ``tokenizer`` is a model on this machine, ``auto`` (the server's own, else words) or
    ``words``. ``sampling`` and ``extra_body`` go into every request."""

    base_url: str
    name: str = ""
    endpoint: str = "completions"
    model: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    request_timeout_s: float = 600.0
    is_streamed: bool = True
    ignore_eos: bool = False
    sampling: Mapping[str, object] = field(default_factory=dict)
    extra_body: Mapping[str, object] = field(default_factory=dict)
    tokenizer: str = AUTO_TOKENIZER
    prompt_format: Literal["text", "ids"] = "text"
    id_range: tuple[int, int] = DEFAULT_IDS


@dataclass(frozen=True, slots=True)
class Connection:
    """A server that is there and serves the model. ``count_tokens`` is ``None`` where only the server counts."""

    options: ServerOptions
    target: Target
    facts: ServerFacts
    count_tokens: TokenCounter | None

    def writer(self) -> PromptWriter:
        """Makes prompts whose lengths are as exact as this server allows."""
        if self.options.prompt_format == "ids":
            return IdWriter(*self.options.id_range)
        return WordWriter(self.count_tokens)


@asynccontextmanager
async def connect(options: ServerOptions, ready_timeout_s: float = 0.0) -> AsyncIterator[Connection]:
    """Find the server, waiting for it if it may still be starting, and check that runs against it can mean something.

    Raises ``ConfigError``, ``RequestFailed``.
    """
    origin = parse_url(options.base_url)
    local = None if options.tokenizer in (AUTO_TOKENIZER, NO_TOKENIZER) else local_counter(options.tokenizer)
    client = HttpClient(origin, options.headers, WallPacer())
    try:
        await wait_until_ready(client, ready_timeout_s)
        facts = await find_server(client, options.model)
        body = BodyOptions(facts.model, options.is_streamed, options.ignore_eos, options.sampling, options.extra_body)
        # in a run only a local tokenizer may count: asking the server would be load of its own
        target = Target(client, DIALECTS[options.endpoint], body, options.request_timeout_s, local)
        await check_counts(target)
        count = local
        if options.tokenizer == AUTO_TOKENIZER and options.prompt_format == "text":
            remote = RemoteCounter(origin, options.headers, facts.model)
            count = remote if remote.is_there() else None
        yield Connection(options, target, facts, count)
    finally:
        client.close()

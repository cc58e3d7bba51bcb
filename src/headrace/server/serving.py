"""The part of a running server that does not need an engine to be built: texts, application, HTTP.

A module of its own, so that it can be imported and loaded while the engine process starts: together that takes as
long as the engine needs for a small model.
"""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable
from pathlib import Path

from headrace.core.config import ServeConfig
from headrace.engine.chat_prompt import ChatEncoder, load_chat_encoder
from headrace.engine.compiled_cache import compiled_cache
from headrace.engine.heap import settle_heap
from headrace.engine.metrics import Metrics
from headrace.engine.supervisor import EngineSupervisor
from headrace.engine.tokenizer import Tokenizer, load_tokenizer
from headrace.server.app import app_of, create_context
from headrace.server.http_server import HttpServer
from headrace.server.listener import url_of
from headrace.server.model_names import model_names
from headrace.server.reload import Reloader
from headrace.server.start_block import start_block
from headrace.server.tls import tls_context
from headrace.server.traffic import log_status


class Serving:
    """Serves a started engine over HTTP."""

    def __init__(self, config: ServeConfig, tokenizer: Tokenizer, chat: ChatEncoder | None) -> None:
        self._config = config
        self._tokenizer = tokenizer
        self._chat = chat
        self._tls = tls_context(config)

    @classmethod
    def load(cls, config: ServeConfig, path: Path) -> Serving:
        """Load the tokenizer and the chat template of the model at ``path``. Raises ``ConfigError``."""
        cache = compiled_cache(config)
        tokenizer = cache.opened(path, config.dtype, lambda found: load_tokenizer(found, config.tokenizer))
        chat = load_chat_encoder(tokenizer, config.chat_template)
        settle_heap()
        return cls(config, tokenizer, chat)

    def start_block(self, supervisor: EngineSupervisor, sock: socket.socket) -> str:
        """What to print when everything is up."""
        name = model_names(self._config)[0]
        url = url_of(sock, "http" if self._tls is None else "https")
        return start_block(supervisor.info, self._config, name, url, self._chat is not None)

    async def run(
        self, supervisor: EngineSupervisor, metrics: Metrics, sock: socket.socket, announce: Callable[[], None]
    ) -> None:
        """Serve until told to stop; from ``announce`` on the HTTP server has the signals."""
        context = create_context(supervisor, self._tokenizer, self._chat, self._config, metrics)
        context.drain.when_on(supervisor.begin_drain)
        server = HttpServer(app_of(context), self._config, context.drain, supervisor.close, self._tls)
        status = asyncio.create_task(log_status(context.clock, context.traffic, lambda: supervisor.last_stats))
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):  # replaced, not removed and added: none may fall between
            loop.add_signal_handler(number, server.handle_signal)
        loop.add_signal_handler(signal.SIGHUP, Reloader(self._config, context.keys, self._tls).reload)
        announce()
        try:
            await server.serve(sockets=[sock])
        finally:
            loop.remove_signal_handler(signal.SIGHUP)
            status.cancel()

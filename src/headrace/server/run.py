"""``headrace serve``: from a config to a running server, and to its end.

Owns the order of starting (the socket first, then everything that takes time, side by side) and of stopping.
It does not know routes or what is inside the engine process.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import sys
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import msgspec
import uvloop

from headrace.checkpoint.reference import resolve_model
from headrace.core.config import EngineConfig, ServeConfig
from headrace.core.progress import NullProgress, Progress
from headrace.engine.chat_prompt import ChatEncoder, load_chat_encoder
from headrace.engine.metrics import Metrics
from headrace.engine.supervisor import EngineSupervisor
from headrace.engine.tokenizer import Tokenizer, load_tokenizer
from headrace.server.app import app_of, create_context, default_model_name
from headrace.server.context import ServerContext
from headrace.server.http_protocol import limits_of
from headrace.server.http_server import HttpServer
from headrace.server.listener import listen, url_of
from headrace.server.start_block import start_block
from headrace.server.traffic import log_status

EXIT_TERMINATED = 128 + signal.SIGTERM


def serve(config: ServeConfig, progress: Progress | None = None) -> int:
    """Serve until told to stop, and return the process's exit code.

    Raises ``ConfigError`` or ``EngineDead`` if the server cannot start; nothing is left behind then.
    """
    _configure_logging(config.log_level)
    with listen(config) as sock, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_until_terminated(_serve(config, sock, progress or NullProgress())))


async def _until_terminated(serving: Coroutine[Any, Any, int]) -> int:
    """Run; a SIGTERM while starting ends it in order. Once it serves, the HTTP server takes the signals."""
    terminated = asyncio.Event()
    task = asyncio.create_task(serving)

    def terminate() -> None:
        terminated.set()
        task.cancel()

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, terminate)
    try:
        return await task
    except asyncio.CancelledError:
        if terminated.is_set():
            return EXIT_TERMINATED
        raise


async def _serve(config: ServeConfig, sock: socket.socket, progress: Progress) -> int:
    started = time.monotonic()
    path = await asyncio.to_thread(resolve_model, config.model, progress)
    metrics = Metrics(_model_name(config), config.metrics_compat)
    supervisor = EngineSupervisor(_engine_config(config, path), metrics)
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(supervisor.close)
        tokenizer, chat = await _start(supervisor, config, path, progress)
        context = create_context(supervisor, tokenizer, chat, config, metrics)
        block = start_block(supervisor.info, config, context.model_names[0], url_of(sock), chat is not None)
        print(f"{block}\n\nready in {time.monotonic() - started:.1f} s", flush=True)
        await _serve_until_stopped(context, supervisor, sock)
    return 0


async def _start(
    supervisor: EngineSupervisor, config: ServeConfig, path: Path, progress: Progress
) -> tuple[Tokenizer, ChatEncoder | None]:
    """Start the engine process and load the tokenizer beside it; the first failure ends both."""
    engine = asyncio.create_task(supervisor.start(progress))
    texts = asyncio.create_task(asyncio.to_thread(_load_texts, config, path))
    try:
        done, _ = await asyncio.wait({engine, texts}, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()
    finally:
        engine.cancel()
        texts.cancel()
        await asyncio.gather(engine, texts, return_exceptions=True)
    return texts.result()


async def _serve_until_stopped(context: ServerContext, supervisor: EngineSupervisor, sock: socket.socket) -> None:
    config = context.config
    server = HttpServer(app_of(context), config, limits_of(config), context.drain, supervisor.close)
    status = asyncio.create_task(log_status(context.clock, context.traffic, lambda: supervisor.last_stats))
    asyncio.get_running_loop().remove_signal_handler(signal.SIGTERM)  # the server has its own way to stop
    try:
        await server.serve(sockets=[sock])
    finally:
        status.cancel()


def _load_texts(config: ServeConfig, path: Path) -> tuple[Tokenizer, ChatEncoder | None]:
    tokenizer = load_tokenizer(path, config.tokenizer)
    return tokenizer, load_chat_encoder(tokenizer, config.chat_template)


def _engine_config(config: ServeConfig, path: Path) -> EngineConfig:
    """The part of the settings that the engine process gets: keys and hosts are none of its business."""
    settings = msgspec.structs.asdict(config) | {"model": str(path)}
    return EngineConfig(**{name: settings[name] for name in EngineConfig.__struct_fields__})


def _model_name(config: ServeConfig) -> str:
    return config.served_model_name[0] if config.served_model_name else default_model_name(config.model)


def _configure_logging(level: str) -> None:
    logging.basicConfig(
        stream=sys.stderr, level=level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    if level != "debug":  # what clients send is no news, and its end of the story is in our own log
        logging.getLogger("uvicorn").setLevel(logging.ERROR)
        logging.getLogger("asyncio").setLevel(logging.WARNING)

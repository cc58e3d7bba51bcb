"""The engine process: what ``python -m headrace.engine.process`` does.

Owns the life of a child: greet the parent, build the engine, run it, say why it ends. It decides nothing
about restarts, and it never outlives its parent: the kernel kills it when the parent's process ends, and the
end of the socket ends it as well. The main thread builds the engine and then waits; beside the engine's own
thread one reads, one writes and one waits for SIGTERM.

Exit codes: 0 asked to end, 1 engine failed, 2 could not start, 143 SIGTERM.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import BinaryIO, NoReturn

import msgspec

from headrace.core.client import StepStats
from headrace.core.config import EngineConfig
from headrace.core.errors import EngineDead, InvalidRequest, Overloaded
from headrace.core.log_writer import log_handler
from headrace.core.progress import Progress, ProgressUnit
from headrace.core.request import RequestOutput
from headrace.core.timeline import SequenceTimeline
from headrace.engine.frame_socket import FrameError, FrameSocket
from headrace.engine.heap import settle_heap
from headrace.engine.loop import DrivenEngine, EngineLoop
from headrace.engine.messages import (
    Abort,
    AskTimeline,
    ChildStart,
    ClearCache,
    Confirm,
    Drain,
    Failed,
    FromEngine,
    Hello,
    MalformedMessage,
    Outputs,
    Ping,
    Pong,
    ProgressAdvanced,
    ProgressFinished,
    ProgressStarted,
    Ready,
    Refused,
    Resume,
    Shutdown,
    Submit,
    TimelineAnswer,
    ToEngine,
    decode_to_engine,
    encode,
)
from headrace.engine.parent_death import is_child_of, request_death_with_parent

logger = logging.getLogger(__name__)

EngineBuilder = Callable[[EngineConfig, Progress], DrivenEngine]

EXIT_ENGINE_FAILED = 1
EXIT_NOT_STARTED = 2
EXIT_TERMINATED = 128 + signal.SIGTERM

_MAX_QUEUED_MESSAGES = 1024
_PROGRESS_INTERVAL_S = 0.05


def main() -> int:
    return run_child(_build_engine)


def run_child(build: EngineBuilder) -> int:
    """Live as the child of a supervisor, with the engine that ``build`` makes. Returns the exit code."""
    request_death_with_parent()
    faulthandler.enable()  # a crash in native code says where
    faulthandler.register(signal.SIGUSR1)  # the parent asks for all stacks before it gives a hanging engine up
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to interpret
    # Blocked in every thread, also those of native libraries, and waited for by one of ours: a signal
    # that the kernel hands to a thread in C code would leave the main thread asleep.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    start = _read_start(sys.stdin.buffer)
    if not is_child_of(start.parent_pid):
        return EXIT_NOT_STARTED
    logging.basicConfig(
        handlers=[log_handler(sys.stderr)],
        level=start.log_level,
        format="%(asctime)s %(levelname)s [engine] %(message)s",
    )
    connection = FrameSocket.connect(start.socket_path)
    outbox = Outbox(connection)
    outbox.put(Hello(start.token))
    try:
        return EngineProcess(connection, outbox).run(start.config, build)
    finally:
        outbox.close()


def _leave(exit_code: int) -> NoReturn:
    """End the process from any thread, once the last lines of its log are written."""
    logging.shutdown()
    os._exit(exit_code)


def _build_engine(config: EngineConfig, progress: Progress) -> DrivenEngine:
    # imported late, so that the parent hears from the child before the model libraries are loaded
    from headrace.engine.factory import build_engine, watch_memory

    engine = build_engine(config, progress)
    watch_memory(engine)
    settle_heap()
    return engine


def _read_start(source: BinaryIO) -> ChildStart:
    line = source.readline()
    if not line:
        raise SystemExit(EXIT_NOT_STARTED)
    return msgspec.json.decode(line, type=ChildStart)


class Outbox:
    """Sends messages in order on a thread of its own, several in one write when they pile up.

    Bounded: when the parent stops reading, the engine stops too instead of filling memory. A parent that is
    gone swallows everything; the reader is the one that notices.
    """

    def __init__(self, connection: FrameSocket) -> None:
        self._connection = connection
        self._queue: queue.Queue[FromEngine | None] = queue.Queue(_MAX_QUEUED_MESSAGES)
        self._thread = threading.Thread(target=self._run, name="engine-writer", daemon=True)
        self._thread.start()

    def put(self, message: FromEngine) -> None:
        self._queue.put(message)

    def close(self) -> None:
        """Send what is queued, then end."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        try:
            while self._send(self._take_all()):
                pass
        except Exception:
            # an engine that nobody hears would look alive for ever
            logger.critical("a message to the parent cannot be written; the engine process ends", exc_info=True)
            _leave(EXIT_ENGINE_FAILED)

    def _take_all(self) -> list[FromEngine | None]:
        batch = [self._queue.get()]
        while batch[-1] is not None:
            try:
                batch.append(self._queue.get_nowait())
            except queue.Empty:
                break
        return batch

    def _send(self, batch: list[FromEngine | None]) -> bool:
        """Write a batch; whether more may follow."""
        try:
            self._connection.send([encode(message) for message in batch if message is not None])
        except OSError:
            logger.debug("the parent does not read any more")
        return batch[-1] is not None


class SentProgress:
    """Progress that travels: at most twenty messages a second, however fine the steps."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._unsent = 0
        self._sent_at = 0.0

    def start(self, label: str, total: int | None, unit: ProgressUnit) -> None:
        self._outbox.put(ProgressStarted(label, total, unit))

    def advance(self, amount: int) -> None:
        self._unsent += amount
        if time.monotonic() - self._sent_at >= _PROGRESS_INTERVAL_S:
            self._flush()

    def finish(self) -> None:
        self._flush()
        self._outbox.put(ProgressFinished())

    def _flush(self) -> None:
        if self._unsent:
            self._outbox.put(ProgressAdvanced(self._unsent))
        self._unsent = 0
        self._sent_at = time.monotonic()


class EngineProcess:
    """Wires the socket to an engine loop. Hears the loop as its listener."""

    def __init__(self, connection: FrameSocket, outbox: Outbox) -> None:
        self._connection = connection
        self._outbox = outbox
        self._loop: EngineLoop | None = None
        self._stop_requested = threading.Event()
        self._exit_code = 0

    def run(self, config: EngineConfig, build: EngineBuilder) -> int:
        """Build, serve until told to end, and return the exit code."""
        threading.Thread(target=self._read, name="engine-reader", daemon=True).start()
        threading.Thread(target=self._wait_for_sigterm, name="engine-sigterm", daemon=True).start()
        try:
            engine = build(config, SentProgress(self._outbox))
        except Exception as error:
            logger.debug("the engine could not be built", exc_info=True)
            self._outbox.put(Failed.of(error))
            return EXIT_NOT_STARTED
        self._loop = EngineLoop(engine, self)
        self._loop.start()
        self._outbox.put(Ready(engine.info))
        if self._stop_requested.is_set():
            self._loop.stop()
        self._loop.join()
        return self._exit_code if self._loop.failure is None else EXIT_ENGINE_FAILED

    # LoopListener, on the engine thread

    def on_outputs(self, outputs: list[RequestOutput], stats: StepStats) -> None:
        self._outbox.put(Outputs(outputs, stats))

    def on_refused(self, request_id: str, error: InvalidRequest | Overloaded) -> None:
        self._outbox.put(Refused.of(request_id, error))

    def on_timeline(self, question_id: int, sequences: list[SequenceTimeline]) -> None:
        self._outbox.put(TimelineAnswer(question_id, sequences))

    def on_death(self, error: EngineDead) -> None:
        self._outbox.put(Failed.of(error))

    # the reader thread

    def _read(self) -> None:
        """Handle messages until the parent is gone; without a parent there is nothing left to do or to save."""
        try:
            while (body := self._connection.receive()) is not None:
                self._handle(decode_to_engine(body))
        except (FrameError, MalformedMessage) as error:
            logger.error("the parent sent something that is no message (%s); the engine process ends", error)
        except Exception:
            logger.exception("reading from the parent failed; the engine process ends")
        else:
            logger.info("the parent is gone; the engine process ends")
        _leave(EXIT_ENGINE_FAILED)

    def _handle(self, message: ToEngine) -> None:
        loop = self._loop
        match message:
            case Ping():
                self._outbox.put(Pong(0.0) if loop is None else Pong(*loop.tick, loop.memory))
            case Shutdown():
                self._stop()
            case Drain():
                self._require_loop().drain()
            case Submit(request):
                self._require_loop().submit(request)
            case Resume(request, progress):
                self._require_loop().resume(request, progress)
            case Abort(request_id):
                self._require_loop().abort(request_id)
            case Confirm(request_id):
                self._require_loop().confirm(request_id)
            case ClearCache():
                self._require_loop().clear_prefix_cache()
            case AskTimeline(question_id, request_id):
                self._require_loop().ask_timeline(question_id, request_id)

    def _stop(self) -> None:
        self._stop_requested.set()
        if self._loop is not None:
            self._loop.stop()

    def _wait_for_sigterm(self) -> None:
        signal.sigwait({signal.SIGTERM})
        if self._loop is None:
            _leave(EXIT_TERMINATED)  # loading cannot be interrupted in order, and there is nothing to save
        self._exit_code = EXIT_TERMINATED
        self._stop()

    def _require_loop(self) -> EngineLoop:
        if self._loop is None:
            raise MalformedMessage("a request came before the engine was ready")
        return self._loop


if __name__ == "__main__":
    sys.exit(main())

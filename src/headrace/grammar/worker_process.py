"""The worker process seen from outside: started when it is needed, asked, and replaced when it dies.

One thread owns one ``WorkerProcess``. It knows how a worker ends and what that says about the constraint it was at;
what is inside is ``worker.py``'s business.
"""

from __future__ import annotations

import contextlib
import logging
import select
import signal
import subprocess
import sys
from typing import IO

import msgspec

from headrace.core.constraint import Constraint
from headrace.core.errors import InvalidRequest, RequestFailed
from headrace.grammar.compiler import GrammarText
from headrace.grammar.frames import read_frame, write_frame
from headrace.grammar.limits import GrammarLimits
from headrace.grammar.vocabulary import VocabularyTable
from headrace.grammar.worker import Setup, Verdict

logger = logging.getLogger(__name__)

WORKER_COMMAND = (sys.executable, "-m", "headrace.grammar.worker")
START_TIMEOUT_S = 60.0


class CompileTimeout(InvalidRequest):
    """A constraint took too long; another time, on a quieter machine, it might not."""


class CompileCrash(InvalidRequest):
    """A constraint ended the worker process."""


class WorkerProcess:
    """A worker that is started by the first constraint and again after each death."""

    def __init__(self, table: VocabularyTable, limits: GrammarLimits) -> None:
        self._table = table
        self._limits = limits
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def compile(self, constraint: Constraint) -> GrammarText:
        """Have a constraint tried out. Raises ``InvalidRequest`` with what is wrong with it.

        ``CompileTimeout`` and ``CompileCrash`` are those that cost the worker its life; ``RequestFailed`` means that
        there is no worker to be had.
        """
        process = self._running()
        body = self._ask(process, msgspec.msgpack.encode(constraint), self._limits.wall_s)
        if body is None:
            raise self._end_of(process, constraint)
        verdict = msgspec.msgpack.decode(body, type=Verdict)
        if verdict.grammar is None:
            raise InvalidRequest(verdict.message, verdict.param)
        return verdict.grammar

    def close(self) -> None:
        """End the worker, whatever it is doing."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            _close_pipes(process)
            process.wait()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and module, no shell
                WORKER_COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
            )
            setup = msgspec.msgpack.encode(Setup(self._table, self._limits))
            if self._ask(self._process, setup, START_TIMEOUT_S) is None:
                self.close()
                raise RequestFailed("the process that compiles constraints did not start; the server's log may say why")
        return self._process

    def _ask(self, process: subprocess.Popen[bytes], request: bytes, timeout_s: float) -> bytes | None:
        """The answer to one frame; ``None`` if the worker died or did not answer in time."""
        stdin, stdout = _pipes(process)
        with contextlib.suppress(OSError):
            write_frame(stdin, request)
            if select.select([stdout], [], [], timeout_s)[0]:
                return read_frame(stdout)
        return None

    def _end_of(self, process: subprocess.Popen[bytes], constraint: Constraint) -> InvalidRequest:
        """See a worker off that did not answer, and say what its end means."""
        kind, limits = constraint.kind.value, self._limits
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.05)
        ended_by = -process.returncode if process.returncode is not None else None
        self.close()
        logger.warning("a %s ended the grammar worker (signal %s); the next one gets a new worker", kind, ended_by)
        if ended_by is None:
            return CompileTimeout(f"the {kind} was not compiled within {limits.wall_s:g} s; simplify it or try again")
        if ended_by == signal.SIGPROF:
            return CompileTimeout(f"the {kind} takes more than {limits.cpu_s:g} s to compile; simplify it")
        return CompileCrash(f"the {kind} is too complex for the grammar compiler; simplify it")


def _pipes(process: subprocess.Popen[bytes]) -> tuple[IO[bytes], IO[bytes]]:
    assert process.stdin is not None
    assert process.stdout is not None
    return process.stdin, process.stdout


def _close_pipes(process: subprocess.Popen[bytes]) -> None:
    for pipe in _pipes(process):
        with contextlib.suppress(OSError):
            pipe.close()

"""Running other programs, bounded in time, and servers until they are ready."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence

from contenders.scenario import MeasurementError

TIMEOUT_S = 900.0
START_TIMEOUT_S = 300.0
STOP_TIMEOUT_S = 10.0
PROBE_INTERVAL_S = 0.005
NUM_SHOWN_CHARACTERS = 2000


def run(command: Sequence[str], cwd: str | None = None, env: Mapping[str, str] | None = None) -> str:
    """What ``command`` prints. Raises ``MeasurementError`` with the end of its errors when it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, cwd=cwd, env=env, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MeasurementError(f"{command[0]}: {error}") from error
    if done.returncode != 0:
        raise MeasurementError(f"{command[0]} ended with {done.returncode}: {done.stderr[-NUM_SHOWN_CHARACTERS:]}")
    return done.stdout


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


@contextlib.contextmanager
def server(command: Sequence[str], port: int, probe: str) -> Iterator[float]:
    """Run a server in a process group of its own; yields the seconds from the command to the probe's first 200."""
    with tempfile.TemporaryFile() as log:
        started = time.perf_counter()
        process = subprocess.Popen(command, stdout=log, stderr=log, process_group=0)
        try:
            _wait_until_ready(process, port, probe)
            yield time.perf_counter() - started
        except MeasurementError as error:
            log.seek(0, os.SEEK_END)
            log.seek(max(0, log.tell() - NUM_SHOWN_CHARACTERS))
            raise MeasurementError(f"{error}: {log.read().decode(errors='replace')}") from error
        finally:
            _stop(process)


def _wait_until_ready(process: subprocess.Popen[bytes], port: int, probe: str) -> None:
    deadline = time.perf_counter() + START_TIMEOUT_S
    while time.perf_counter() < deadline:
        if process.poll() is not None:
            raise MeasurementError(f"the server ended with {process.returncode}")
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        try:
            connection.request("GET", probe)
            if connection.getresponse().status == http.client.OK:
                return
        except (OSError, http.client.HTTPException):
            pass  # it does not listen yet
        finally:
            connection.close()
        time.sleep(PROBE_INTERVAL_S)
    raise MeasurementError(f"the server was not ready within {START_TIMEOUT_S:.0f} s")


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Ask, then force: the whole group, since a server may have children."""
    for request in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, request)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_TIMEOUT_S)
            return

"""How a server goes away, and how it takes new keys and certificates without going away."""

from __future__ import annotations

import shutil
import signal
import ssl
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import pytest

from headrace.core.config import ServeConfig
from headrace.core.errors import ConfigError
from headrace.server.key_file import read_key_file
from headrace.server.tls import tls_context
from tests.server.harness import eventually
from tests.server.served_process import ServedProcess, served
from tests.server.sse import check_stream
from tests.tiny_model import write_tiny_model
from tests.torture.cycles import WAYS, run_cycles
from tests.torture.processes import alive, descendants

PATIENCE_S = 120.0
"""These tests start processes and load them: on a busy machine that takes its time. How long a stop takes is measured
by ``make torture WHAT=cycles``."""

LONG = {"prompt": "x", "max_tokens": 400, "ignore_eos": True, "stream": True}
NO_HURRY = ("--drain-timeout", "600")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny"))


class Reply:
    """A request in a thread of its own."""

    def __init__(self, server: ServedProcess, asked: dict[str, object]) -> None:
        self.status = 0
        self.headers: httpx.Headers = httpx.Headers()
        self.body = b""
        self._thread = threading.Thread(target=self._ask, args=(server, asked))
        self._thread.start()

    def finish(self) -> None:
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()

    def _ask(self, server: ServedProcess, asked: dict[str, object]) -> None:
        with httpx.stream("POST", f"{server.url}/completions", json=asked, timeout=PATIENCE_S) as response:
            self.status, self.headers = response.status_code, response.headers
            for part in response.iter_raw():
                self.body += part


def num_waiting(server: ServedProcess) -> float:
    text = httpx.get(f"{server.root}/metrics", timeout=PATIENCE_S).text
    return float(text.partition("\nheadrace_num_requests_waiting ")[2].split()[0])


def test_b10_at_sigterm_what_is_queued_is_refused_and_what_runs_finishes(folder: Path) -> None:
    with served(folder, "--max-num-seqs", "64", "--kv-cache-bytes", "32MiB", *NO_HURRY) as server:
        replies = [Reply(server, {**LONG, "n": 16, "seed": seed}) for seed in range(16)]
        eventually(lambda: num_waiting(server) >= 96, PATIENCE_S)
        below = descendants(server.process.pid)
        server.process.send_signal(signal.SIGTERM)
        for reply in replies:
            reply.finish()
        statuses = [reply.status for reply in replies]
        assert statuses.count(200) >= 4, "64 sequences run"
        assert statuses.count(503) >= 5, "nearly 96 were waiting"
        assert len(statuses) == statuses.count(200) + statuses.count(503)
        for reply in replies:
            if reply.status == 200:
                assert set(check_stream(reply.body, num_choices=16).finish_reasons.values()) == {"length"}
            else:
                assert int(reply.headers["retry-after"]) >= 1
        assert server.process.wait(PATIENCE_S) == 0
        assert alive(below) == []


def test_b10_a_second_sigterm_waits_for_nobody(folder: Path) -> None:
    with served(folder, *NO_HURRY) as server:
        reply = Reply(server, {**LONG, "prompt": ["x"] * 16, "n": 8})
        eventually(lambda: bool(reply.body), PATIENCE_S)
        server.process.send_signal(signal.SIGTERM)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(PATIENCE_S) == 0
        reply.finish()
        assert check_stream(reply.body, num_choices=128).error is not None, "it would have run to its end"


def test_the_drain_timeout_ends_what_still_runs_with_an_error(folder: Path) -> None:
    with served(folder, "--drain-timeout", "0.2", "--max-num-seqs", "128") as server:
        reply = Reply(server, {**LONG, "prompt": ["x"] * 16, "n": 8})
        eventually(lambda: bool(reply.body), PATIENCE_S)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(PATIENCE_S) == 0
        reply.finish()
        error = check_stream(reply.body, num_choices=128).error
        assert error is not None
        assert "shutting down" in error["message"]


SERVE_AND_SAY_SO = "import sys; from headrace.cli.main import main; print('begun', flush=True); sys.exit(main())"
"""Interrupting the interpreter before it runs anything of ours is between it and the user."""


def test_b09_an_interrupt_at_any_moment_of_the_start_leaves_nothing(folder: Path) -> None:
    """``served`` waits for readiness, so the start is watched here by hand: ten moments, 60 ms apart."""
    command = [sys.executable, "-c", SERVE_AND_SAY_SO, "serve", str(folder), "--port", "0", "--threads", "1"]
    for moment in range(10):
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == b"begun\n"
            time.sleep(0.06 * moment)
            below = descendants(child.pid)
            child.send_signal(signal.SIGINT)
            _, said = child.communicate(timeout=PATIENCE_S)
            assert child.returncode in (130, -signal.SIGINT, 0), said
            assert alive(below) == []


def test_one_cycle_of_every_way_to_stop_leaves_nothing(folder: Path) -> None:
    report = run_cycles(len(WAYS), folder)
    assert report.is_clean, report


def test_a_log_that_nobody_reads_stops_nobody(folder: Path) -> None:
    """Two thousand lines of some sixty bytes are more than a pipe takes; nobody reads this one before the end."""
    with served(folder, "--log-requests") as server, httpx.Client(base_url=server.root, timeout=20) as client:
        for number in range(2000):
            assert client.get(f"/v1/models/none-of-this-name-{number}").status_code == 404
        assert client.get("/health").status_code == 200
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(PATIENCE_S) == 0


def test_sighup_reads_the_keys_again_and_keeps_them_where_the_file_is_wrong(folder: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("# of the team\nold-key\n\n")
    with served(folder, "--api-key-file", str(keys)) as server:

        def status(key: str) -> int:
            headers = {"authorization": f"Bearer {key}"}
            return httpx.get(f"{server.url}/models", headers=headers, timeout=PATIENCE_S).status_code

        assert (status("old-key"), status("new-key")) == (200, 401)
        keys.write_text("new-key\n")
        server.process.send_signal(signal.SIGHUP)
        eventually(lambda: status("new-key") == 200, PATIENCE_S)
        assert status("old-key") == 401
        keys.write_text("# nobody\n")
        server.process.send_signal(signal.SIGHUP)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.stderr is not None
        assert server.process.wait(PATIENCE_S) == 0
        assert "API keys stay as they are" in server.process.stderr.read()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes its certificates with openssl")
def test_tls_is_a_flag_and_sighup_brings_the_next_certificate(folder: Path, tmp_path: Path) -> None:
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    make_certificate(certificate, key)
    flags = ("--ssl-certfile", str(certificate), "--ssl-keyfile", str(key))
    with served(folder, *flags) as server:
        assert server.url.startswith("https://127.0.0.1:")
        first = certificate.read_text()
        assert httpx.get(f"{server.root}/livez", verify=trusting(certificate)).status_code == 200
        with pytest.raises(httpx.HTTPError):
            httpx.get(server.root.replace("https", "http") + "/livez")
        make_certificate(certificate, key)
        assert certificate.read_text() != first
        server.process.send_signal(signal.SIGHUP)

        def accepts_new() -> bool:
            try:
                return httpx.get(f"{server.root}/livez", verify=trusting(certificate)).status_code == 200
            except httpx.ConnectError:
                return False

        eventually(accepts_new, PATIENCE_S)


def make_certificate(certificate: Path, key: Path) -> None:
    kind = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1"
    names = "-subj /CN=127.0.0.1 -addext subjectAltName=IP:127.0.0.1"
    command = ["openssl", *kind.split(), *names.split(), "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)


def trusting(certificate: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(certificate))


@pytest.mark.parametrize(
    ("content", "reason"),
    [(b"", "no key"), (b"# only a comment\n", "no key"), (b"\xff\xfe", "UTF-8"), (b"k\n" * (1 << 20), "more than")],
)
def test_a_key_file_without_keys_is_refused(content: bytes, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=reason):
        read_key_file(str(path))


def test_a_missing_key_file_is_refused_and_none_means_no_keys(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_key_file(str(tmp_path / "none"))
    assert read_key_file(None) == ()


def test_wrong_tls_settings_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="without --ssl-certfile"):
        tls_context(ServeConfig(ssl_keyfile="key.pem"))
    with pytest.raises(ConfigError, match="cannot be used"):
        tls_context(ServeConfig(ssl_certfile=str(tmp_path / "none.pem")))
    (tmp_path / "bad.pem").write_text("no certificate")
    with pytest.raises(ConfigError, match="cannot be used"):
        tls_context(ServeConfig(ssl_certfile=str(tmp_path / "bad.pem")))
    assert tls_context(ServeConfig()) is None

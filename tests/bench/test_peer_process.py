"""Servers that are started by a command line: read, waited for, and stopped with everything below them."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from headrace.bench.http_client import parse_url
from headrace.bench.peer_process import parse_command, running
from headrace.bench.process_watch import find_listener, tree_of, usage_of
from headrace.core.errors import ConfigError, RequestFailed

SERVER = """
import http.server, subprocess, sys
subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/v1/models" else 404)
        self.end_headers()
    def log_message(self, *arguments):
        pass
http.server.HTTPServer(("127.0.0.1", int(sys.argv[2])), Handler).serve_forever()
"""


@pytest.fixture(name="server")
def write_server(tmp_path: Path) -> str:
    script = tmp_path / "server.py"
    script.write_text(SERVER)
    return f"tiny={sys.executable} {script} --port {{port}}"


def test_a_server_is_waited_for_measured_and_stopped(server: str) -> None:
    command = parse_command(server)
    assert command.name == "tiny"
    with running(command, timeout_s=30.0) as peer:
        assert peer.start_s > 0
        assert find_listener(parse_url(command.url)) == peer.pid
        usage = usage_of(peer.pid)
        assert usage is not None
        assert usage.num_processes == 2
        assert usage.peak_rss_bytes >= usage.rss_bytes > 1 << 20
        pids = tree_of(peer.pid)
    assert not any(is_alive(pid) for pid in pids)


def test_a_benchmark_that_is_killed_leaves_no_server_behind(server: str) -> None:
    code = "import sys\nfrom headrace.bench.peer_process import parse_command, running\n"
    code += "with running(parse_command(sys.argv[1]), 60.0) as peer:\n  print(peer.pid, flush=True)\n  input()"
    with subprocess.Popen(
        [sys.executable, "-c", code, server], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as benchmark:
        assert benchmark.stdout is not None
        pid = int(benchmark.stdout.readline())
        assert is_alive(pid)
        benchmark.kill()
    deadline = time.monotonic() + 30
    while is_alive(pid):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def is_alive(pid: int) -> bool:
    """Whether it can still run: the dead may wait for whoever reaps them."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_server_that_ends_says_why() -> None:
    command = parse_command(f"{sys.executable} -c 'import sys; sys.exit(\"no such model\")' --port 9")
    with pytest.raises(RequestFailed, match="ended with code 1: no such model"), running(command, timeout_s=30.0):
        pass


def test_a_program_that_is_not_there_is_a_wrong_command() -> None:
    command = parse_command("no-such-program --port 9")
    with pytest.raises(ConfigError, match="cannot start no-such-program: No such file"), running(command, 1.0):
        pass


def test_the_port_is_taken_from_the_command_or_put_into_it() -> None:
    assert parse_command("/usr/bin/llama-server -m x --port 8099").url == "http://127.0.0.1:8099"
    assert parse_command("/usr/bin/llama-server -m x --port 8099").name == "llama-server"
    placed = parse_command("a=serve --listen 127.0.0.1:{port}")
    assert placed.words == ("serve", "--listen", f"127.0.0.1:{placed.port}")


@pytest.mark.parametrize(
    ("text", "message"),
    [("", "is empty"), ("serve model", "does not say on which port"), ("serve 'model", "cannot be read")],
)
def test_a_command_that_cannot_be_used_is_explained(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_command(text)

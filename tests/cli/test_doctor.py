"""``headrace doctor`` reports what would happen, with a remedy wherever something would not work."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from headrace.cli.doctor import CHECKS, Finding, Status, examine, render
from headrace.cli.main import EXIT_FAILURE, EXIT_USAGE, main
from headrace.core.config import ServeConfig


@pytest.fixture(autouse=True)
def cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("HEADRACE_CACHE_DIR", str(folder))
    return folder


def findings(**settings: object) -> dict[str, Finding]:
    return {finding.name: finding for finding in examine(ServeConfig(port=0, **settings))}  # type: ignore[arg-type]


def test_every_check_gives_one_finding_with_a_remedy_unless_all_is_well() -> None:
    found = examine(ServeConfig(port=0))
    assert len(found) == len(CHECKS) == len({finding.name for finding in found})
    for finding in found:
        assert finding.found
        assert bool(finding.remedy) == (finding.status is not Status.OK)


def test_a_missing_default_model_is_a_warning_and_changes_nothing(cache_folder: Path) -> None:
    model = findings()["model"]
    assert (model.status, model.found) == (Status.WARN, "smollm2 is not on this machine yet")
    assert "headrace models pull smollm2" in model.remedy
    assert not cache_folder.exists()


def test_a_cache_one_cannot_look_into_is_reported_and_not_taken_for_an_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_CACHE_DIR", str(tmp_path / ("x" * 300)))  # a name no file system takes
    found = findings()
    assert found["model"].status is Status.FAIL
    assert "cannot be read" in found["model"].remedy
    assert found["cached models"].status is Status.WARN


def test_a_wrong_path_fails_with_the_nearest(tmp_path: Path) -> None:
    (tmp_path / "tiny.gguf").touch()
    model = findings(model=str(tmp_path / "tinny.gguf"))["model"]
    assert model.status is Status.FAIL
    assert "tiny.gguf" in model.remedy
    assert findings(model=str(tmp_path / "tiny.gguf"))["model"].status is Status.OK


def test_more_kv_cache_than_memory_fails_with_the_flag() -> None:
    memory = findings(kv_cache_bytes=1 << 50)["memory"]
    assert memory.status is Status.FAIL
    assert "--kv-cache-bytes" in memory.remedy


def test_more_threads_than_cores_is_a_warning() -> None:
    assert "--threads" in findings(threads=1024)["cpu"].remedy


def test_a_folder_that_cannot_be_written_fails(cache_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache_folder.touch()
    monkeypatch.setenv("HEADRACE_CACHE_DIR", str(cache_folder / "inside"))
    cache = findings()["cache folder"]
    assert cache.status is Status.FAIL
    assert "HEADRACE_CACHE_DIR" in cache.remedy


def test_a_taken_port_fails_and_so_does_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["doctor", "--port", str(port)]) == EXIT_FAILURE
    shown = capsys.readouterr().out
    assert f"fail  port           127.0.0.1:{port}: Address already in use" in shown
    assert "-> choose another with --port" in shown
    assert "headrace cannot run here yet (failures: 1" in shown


def test_a_report_that_is_all_well_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--port", "0"]) == 0
    assert "headrace can run here (failures: 0" in capsys.readouterr().out
    assert render([Finding("cpu", Status.OK, "fine")]) == (
        "ok    cpu  fine\n\nheadrace can run here (failures: 0, warnings: 0)"
    )


def test_the_report_can_be_had_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "report.json"
    assert main(["doctor", "--port", "0", "--json", str(file)]) == 0
    assert "ok    python" in capsys.readouterr().out
    report = json.loads(file.read_text())
    assert report["checks"][0]["name"] == "python"
    assert {check["status"] for check in report["checks"]} <= {"ok", "warn", "fail"}
    assert main(["doctor", "--port", "0", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["checks"]
    assert main(["doctor", "--port", "0", "--json", str(tmp_path)]) == EXIT_USAGE

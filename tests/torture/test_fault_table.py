"""The table of faults names tests that there are, and tells what became of them."""

from __future__ import annotations

from pathlib import Path

from tests.torture.faults import FAULTS, verdict, verdicts

ROOT = Path(__file__).parents[2]

RESULTS = """<testsuites><testsuite>
<testcase classname="tests.a.test_x" name="test_good[1]"/>
<testcase classname="tests.a.test_x" name="test_mixed[1]"/>
<testcase classname="tests.a.test_x" name="test_mixed[2]"><failure/></testcase>
<testcase classname="tests.b.test_y" name="test_skipped"><skipped/></testcase>
</testsuite></testsuites>"""


def test_every_fault_is_made_by_tests_that_exist() -> None:
    for fault, node_ids in FAULTS.items():
        assert node_ids, fault
        for node_id in node_ids:
            path, _, name = node_id.partition("::")
            assert (ROOT / path).exists(), node_id
            assert not name or f"def {name}(" in (ROOT / path).read_text(), node_id


def test_a_fault_holds_only_if_all_of_its_tests_do(tmp_path: Path) -> None:
    (tmp_path / "results.xml").write_text(RESULTS)
    found = verdicts(tmp_path / "results.xml")
    assert verdict(["tests/a/test_x.py::test_good"], found) == "held (1 tests)"
    assert verdict(["tests/a/test_x.py"], found) == "failure (2 tests)"
    assert verdict(["tests/b"], found) == "skipped (1 tests)"
    assert verdict(["tests/c"], found) == "not run"

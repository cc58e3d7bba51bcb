"""The faults that docs/reliability.md lists, each by the tests that make it happen: one table, made by running them."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.torture.figures import print_report

SUPERVISOR: Final = "tests/engine/test_supervisor_faults.py::test_"
MACHINE: Final = "tests/server/test_faults.py::test_"
STOPPING: Final = "tests/server/test_stopping.py::test_"

FAULTS: Final = {
    "SIGKILL of the server": [
        f"{SUPERVISOR}a_parent_killed_while_serving_takes_the_engine_along",
        "tests/engine/test_parent_death.py::test_the_kernel_kills_a_child_that_asked_for_it_when_its_parent_is_killed",
    ],
    "SIGKILL of the engine": [
        "tests/server/test_engine_death.py::"
        "test_b07_a_killed_engine_is_replaced_and_its_streams_go_on_as_if_nothing_had_been",
        f"{SUPERVISOR}a_stream_whose_engine_is_killed_again_and_again_loses_and_repeats_nothing",
    ],
    "SIGSTOP of the engine": [
        f"{SUPERVISOR}b08_a_frozen_engine_is_found_stopped_and_woken_or_else_replaced",
        f"{SUPERVISOR}a_frozen_engine_does_not_keep_close_from_ending_it",
    ],
    "a step that hangs": [f"{SUPERVISOR}a_hanging_step_is_dumped_and_replaced_and_only_its_request_is_given_up"],
    "exception in a forward pass": [
        "tests/engine/test_engine.py::test_a_failed_step_costs_its_own_requests_and_the_next_one_runs",
        "tests/engine/test_failed_steps.py::test_an_executor_that_always_fails_is_the_engines_end",
    ],
    "exception in the taking in of a token": [
        "tests/engine/test_engine.py::test_a_token_that_cannot_be_taken_in_fails_its_sequence_alone"
    ],
    "exception in a tokenizer's worker": ["tests/server/test_errors.py::test_an_unexpected_exception_says_nothing"],
    "crash and time-out of a grammar's worker": [
        "tests/grammar/test_service.py::test_a_crash_costs_one_constraint",
        "tests/grammar/test_service.py::test_a_worker_that_does_not_answer_is_replaced",
    ],
    "a row of NaN": ["tests/server/test_real_engine.py::test_b29_unusable_logits_fail_one_request_of_eight"],
    "no memory in a forward pass": [
        "tests/engine/test_failed_steps.py::test_a_failed_allocation_ends_one_request_and_never_the_engine"
    ],
    "no memory anywhere in the engine": [f"{MACHINE}an_engine_that_gets_no_more_memory_answers_or_is_replaced"],
    "memory that runs short": ["tests/engine/test_relief.py"],
    "the kernel's OOM killer": [
        "tests/engine/test_reentry.py::"
        "test_a_death_from_outside_puts_the_one_on_trial_first_and_only_another_one_ends_it",
        f"{SUPERVISOR}an_engine_that_is_killed_ten_times_serves_after_each",
    ],
    "a full disk under the log": [f"{MACHINE}a_log_on_a_full_disk_stops_nobody"],
    "a log that nobody reads": ["tests/server/test_stopping.py::test_a_log_that_nobody_reads_stops_nobody"],
    "a full disk under the caches": [
        "tests/engine/test_compiled_cache.py::test_what_cannot_be_kept_is_only_logged",
        "tests/engine/test_compiler.py::test_a_disk_that_is_too_small_is_found_out_before_writing",
    ],
    "no file descriptors": [f"{MACHINE}a_server_without_descriptors_serves_those_who_are_in_and_all_others_later"],
    "the port in use": ["tests/server/test_run.py::test_a_port_in_use_is_refused_before_anything_is_loaded"],
    "truncated weights": [
        "tests/checkpoint/test_safetensors.py::test_every_truncation_is_an_error",
        "tests/checkpoint/test_gguf.py::test_every_truncation_is_an_error_or_lacks_nothing",
        "tests/native/test_compiled.py::test_a_truncated_folder_is_refused_wherever_it_ends",
    ],
    "an hour that passes at once": ["tests/simulation"],
    "a reader of one byte at a time": [f"{MACHINE}a_reader_of_one_byte_at_a_time_gets_it_all"],
    "readers that do not read": [f"{MACHINE}readers_that_do_not_read_grow_no_memory_and_delay_nobody"],
    "RST in the middle of a stream": [
        f"{MACHINE}a_connection_that_is_reset_in_the_middle_of_a_stream_ends_its_request"
    ],
    "a thousand disconnects in a row": [f"{MACHINE}a_thousand_disconnects_in_a_row_leave_nothing"],
    "SIGTERM under load": [f"{STOPPING}b10_at_sigterm_what_is_queued_is_refused_and_what_runs_finishes"],
    "a second SIGTERM": [f"{STOPPING}b10_a_second_sigterm_waits_for_nobody"],
}
"""Losses of a tensor-parallel rank and of a replica, and a partition, come with what can be lost."""


def run_tests(node_ids: Sequence[str], results: Path) -> int:
    command = [sys.executable, "-m", "pytest", "-q", "--no-header", f"--junitxml={results}", *node_ids]
    return subprocess.run(command, stdout=sys.stderr, check=False).returncode


def verdicts(results: Path) -> dict[str, str]:
    """What became of each test, by its name without parameters; the worst of its cases."""
    found: dict[str, str] = {}
    for case in ElementTree.parse(results).iter("testcase"):
        where = f"{case.get('classname', '').replace('.', '/')}.py::{case.get('name', '').partition('[')[0]}"
        bad = [child.tag for child in case if child.tag in ("failure", "error", "skipped")]
        found[where] = bad[0] if bad else found.get(where, "held")
    return found


def verdict(node_ids: Sequence[str], found: dict[str, str]) -> str:
    """Of one fault; a file or folder stands for all tests in it."""
    mine = [result for where, result in found.items() if any(where.startswith(node_id) for node_id in node_ids)]
    worst = next((result for result in mine if result != "held"), "held")
    return f"{worst} ({len(mine)} tests)" if mine else "not run"


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="torture faults", description=__doc__)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "results.xml"
        code = run_tests([node_id for node_ids in FAULTS.values() for node_id in node_ids], results)
        found = verdicts(results)
    figures = {fault: verdict(node_ids, found) for fault, node_ids in FAULTS.items()}
    return print_report(figures, arguments.json, is_good=code == 0)

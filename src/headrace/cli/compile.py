"""``headrace compile``: pack, tune and check a model once, into a folder that ``serve``, ``run`` and ``LLM`` load."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from headrace.cli.flags import Parser
from headrace.cli.json_result import JSON_FLAG_HELP, write_json
from headrace.core.config import DEFAULT_MODEL
from headrace.core.errors import ConfigError

REPORT_FILE = "report.html"

_DESCRIPTION = """Compile MODEL into the folder DIR: weights packed for the CPU kernels, matrix products tuned on this
machine, accuracy checked against float32. The folder is a MODEL for serve, run and LLM, and starts without packing."""

_DTYPES = ("auto", "float32", "f32", "bfloat16", "bf16", "float16", "f16", "int8", "int4")


def main(argv: Sequence[str]) -> int:
    parser = Parser("compile", _DESCRIPTION, "[MODEL] -o DIR")
    parser.add_argument("model", nargs="?", default=DEFAULT_MODEL, metavar="MODEL", help=f"default: {DEFAULT_MODEL}")
    parser.add_argument("-o", "--output", metavar="DIR", type=Path, help="folder to write")
    parser.add_argument("--dtype", choices=_DTYPES, default="auto", help="type of the weights; auto keeps the file's")
    parser.add_argument("--threads", type=int, metavar="N", help="threads to tune for; default: all cores")
    parser.add_argument("--no-tune", action="store_true", help="keep what the kernels propose, measure nothing")
    parser.add_argument("--no-check", action="store_true", help="leave out the comparison with float32")
    parser.add_argument("--force", action="store_true", help="replace a compiled folder that exists")
    parser.add_argument("--report", action="store_true", help=f"also write {REPORT_FILE} into the folder")
    parser.add_argument("--json", metavar="FILE", help=JSON_FLAG_HELP)
    arguments = parser.parse(argv)
    if arguments.output is None:
        raise ConfigError("compile needs a folder to write: headrace compile MODEL -o DIR", "output")
    if arguments.threads is not None and not 1 <= arguments.threads <= 1024:
        raise ConfigError(f"--threads is {arguments.threads} but must be between 1 and 1024", "threads")

    from headrace.cli.compile_report import render_html, render_text
    from headrace.cli.progress import terminal_progress
    from headrace.engine.compiler import CompileJob, compile_model

    job = CompileJob(
        model=arguments.model,
        output=arguments.output,
        threads=arguments.threads or len(os.sched_getaffinity(0)),
        dtype=arguments.dtype,
        tuning_budget_s=0.0 if arguments.no_tune else 2.0,
        checks_accuracy=not arguments.no_check,
        replaces=arguments.force,
    )
    manifest = compile_model(job, terminal_progress())
    if arguments.report:
        (job.output / REPORT_FILE).write_text(render_html(manifest), encoding="utf-8")
    if arguments.json:
        write_json(manifest, arguments.json)
    if arguments.json != "-":
        print(render_text(manifest))
        print(f"\nwrote {job.output}; run it with: headrace serve {job.output}")
    return 0

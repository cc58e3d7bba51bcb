"""``headrace schema check FILE``: what of a JSON schema is enforced, what is only an annotation, what is refused."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from headrace.cli.flags import Parser
from headrace.cli.json_result import JSON_FLAG_HELP, write_json
from headrace.core.errors import ConfigError, InvalidRequest
from headrace.grammar.limits import GrammarLimits
from headrace.grammar.schema.findings import Finding, Outcome

_DESCRIPTION = """Say what headrace enforces of the JSON schema in FILE (- is standard input), keyword by keyword. The
exit code is 1 if something cannot be enforced: such a request is a 400."""


class CheckReport(msgspec.Struct, frozen=True):
    """``error`` says what is wrong with a file that is no schema, or that no value satisfies."""

    file: str
    findings: list[Finding]
    error: str = ""

    @property
    def is_enforced(self) -> bool:
        return not self.error and not any(each.outcome is Outcome.REFUSED for each in self.findings)


def main(argv: Sequence[str]) -> int:
    parser = Parser("schema", _DESCRIPTION, "check FILE")
    parser.add_argument("action", choices=["check"], help="the one thing there is to do")
    parser.add_argument("file", metavar="FILE", help="a JSON schema; - reads standard input")
    parser.add_argument("--all", action="store_true", help="also list what is enforced")
    parser.add_argument("--json", metavar="FILE", help=JSON_FLAG_HELP)
    arguments = parser.parse(argv)
    report = check(arguments.file, _read(arguments.file))
    if arguments.json:
        write_json(report, arguments.json)
    if arguments.json != "-":
        print(render(report, shows_all=arguments.all))
    return 0 if report.is_enforced else 1


def check(name: str, source: str) -> CheckReport:
    """Lower a schema and try the result out, as a request with it would be."""
    from headrace.grammar.compiler import read_schema
    from headrace.grammar.schema.lowering import lower
    from headrace.grammar.trial import try_schema

    limits = GrammarLimits()
    findings: list[Finding] = []
    try:
        lowered = lower(read_schema(source, limits), limits.max_properties)
        findings = lowered.findings
        try_schema(lowered.schema)
    except InvalidRequest as error:
        return CheckReport(name, findings, error.message)
    return CheckReport(name, findings)


def render(report: CheckReport, *, shows_all: bool) -> str:
    """One line per keyword worth a word, then the verdict."""
    shown = [each for each in report.findings if shows_all or each.outcome is not Outcome.ENFORCED]
    width = max((len(each.place) for each in shown), default=0)
    lines = [f"{each.outcome.value:<10}  #{each.place:<{width}}  {each.note}".rstrip() for each in shown]
    counts = {outcome: sum(each.outcome is outcome for each in report.findings) for outcome in Outcome}
    lines += [""] if shown else []
    lines.append(", ".join(f"{count} {outcome.value}" for outcome, count in counts.items() if count) or "nothing said")
    if report.error:
        lines.append(f"{report.file} is refused: {report.error}")
    elif report.is_enforced:
        lines.append(f"{report.file} is enforced as it stands")
    else:
        lines.append(f"{report.file} is refused; with enforcement 'best_effort' the refused keywords are left out")
    return "\n".join(lines)


def _read(name: str) -> str:
    try:
        return sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"cannot read the schema {name}: {reason}", "file") from error

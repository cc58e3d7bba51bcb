"""A product of server and client settings: which combinations there are, where each is kept, and the best of them.

Pure but for reading and writing its own files; running a combination is the caller's.
"""

from __future__ import annotations

import csv
import io
import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from headrace.bench.charts import Axis, Series, line_chart
from headrace.bench.figures import serving_figures
from headrace.bench.report import ServingReport, read_report
from headrace.bench.statistics import estimate
from headrace.core.errors import ConfigError
from headrace.core.html_page import page, paragraph, table, title_heading

Scalar = str | int | float | bool
Settings = dict[str, Scalar]

REPORT_FILE = "report.json"
SUMMARY_FILE = "summary.csv"
PAGE_FILE = "pareto.html"
MAX_COMBINATIONS = 4096
_MAX_NAME_CHARS = 150


@dataclass(frozen=True, slots=True)
class Combination:
    """One pair of settings; ``name`` is its folder's."""

    serve: tuple[tuple[str, Scalar], ...]
    bench: tuple[tuple[str, Scalar], ...]

    @property
    def name(self) -> str:
        parts = [f"{key}={value}" for key, value in (*self.serve, *self.bench)]
        return re.sub(r"[^A-Za-z0-9=._+-]+", "_", "--".join(parts))[:_MAX_NAME_CHARS] or "default"


def parse_settings(text: str, flag: str) -> list[Settings]:
    """A file or JSON itself: a list of objects, each a combination, or one object of lists, whose product is meant.

    Raises ``ConfigError``.
    """
    data = text.encode() if text.lstrip().startswith(("{", "[")) else _read(Path(text).expanduser(), flag)
    try:
        found = msgspec.json.decode(data, type=list[Settings] | dict[str, list[Scalar] | Scalar])
    except msgspec.DecodeError as error:
        raise ConfigError(
            f'{flag} is neither a list of settings nor an object of lists, such as {{"max_num_seqs": [8, 32]}}: {error}'
        ) from error
    if isinstance(found, list):
        combined = found
    else:
        lists = [value if isinstance(value, list) else [value] for value in found.values()]
        combined = [dict(zip(found, values, strict=True)) for values in itertools.product(*lists)]
    if not combined:
        raise ConfigError(f"{flag} holds no combination; leave it out or list values")
    return combined


def combinations(serve: Sequence[Settings], bench: Sequence[Settings]) -> list[Combination]:
    """Every pair, those of one server beside each other. Raises ``ConfigError`` for too many or two of one name."""
    if len(serve) * len(bench) > MAX_COMBINATIONS:
        raise ConfigError(f"{len(serve)} x {len(bench)} combinations are more than {MAX_COMBINATIONS}; sweep fewer")
    pairs = [Combination(tuple(s.items()), tuple(b.items())) for s in serve for b in bench]
    names = [pair.name for pair in pairs]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(f"two combinations are called {twice}; leave out the one that is given twice")
    return pairs


def flag_words(settings: Sequence[tuple[str, Scalar]]) -> list[str]:
    """Settings as flags: ``{"max_num_seqs": 8}`` is ``--max-num-seqs 8``; true is the flag alone, false ``--no-``."""
    words = []
    for key, value in settings:
        flag = key.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            words += [f"--{flag}", str(value)]
    return words


def finished(folder: Path, combination: Combination) -> ServingReport | None:
    """The report of a combination that an earlier sweep has measured."""
    path = folder / combination.name / REPORT_FILE
    return read_report(path) if path.exists() else None


def summary_csv(results: Sequence[tuple[Combination, ServingReport]]) -> str:
    """A line for each combination: its settings, then every figure's mean and half its interval."""
    keys = list(dict.fromkeys(f"serve.{key}" for combination, _ in results for key, _ in combination.serve))
    keys += dict.fromkeys(f"bench.{key}" for combination, _ in results for key, _ in combination.bench)
    figures = list(dict.fromkeys(name for _, report in results for name in serving_figures(report)))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    heads = [head for name in figures for head in (name, f"{name} +-")]
    writer.writerow(["name", *keys, *heads])
    for combination, report in results:
        settings = {f"serve.{key}": value for key, value in combination.serve}
        settings |= {f"bench.{key}": value for key, value in combination.bench}
        row: list[object] = [combination.name, *(settings.get(key, "") for key in keys)]
        found = serving_figures(report)
        for name in figures:
            mean = estimate(found[name].values) if name in found else None
            row += ["", ""] if mean is None else [f"{mean.mean:.6g}", f"{mean.half_width or 0.0:.3g}"]
        writer.writerow(row)
    return text.getvalue()


def speed_and_throughput(report: ServingReport) -> tuple[float, float]:
    """What one user sees, in tokens a second (1 / TPOT), and what the server gives in all."""
    tpot = report.over_runs(lambda run: run.tpot.mean).mean
    return (1 / tpot if tpot else 0.0), report.over_runs(lambda run: run.output_rate).mean


def frontier(points: Sequence[tuple[float, float]]) -> list[int]:
    """Indices of points that no other beats in both, from the slowest user to the fastest (Pareto)."""
    order = sorted(range(len(points)), key=lambda index: (-points[index][0], -points[index][1]))
    best, kept = float("-inf"), []
    for index in order:
        if points[index][1] > best:
            best = points[index][1]
            kept.append(index)
    return kept[::-1]


def pareto_page(results: Sequence[tuple[Combination, ServingReport]]) -> str:
    """Throughput against what one user sees, with the combinations that no other beats joined."""
    points = [speed_and_throughput(report) for _, report in results]
    best = frontier(points)
    chart = line_chart(
        "Throughput against speed for one user",
        [
            Series("frontier", [points[index] for index in best], is_marked=True),
            Series("all", sorted(points), is_marked=True, is_joined=False),
        ],
        Axis("tokens/s of one user (1 / TPOT)"),
        Axis("output tokens/s of the server"),
        "Right is better for each user, up is better for the owner; what is below and left of another is beaten.",
    )
    rows = [["combination", "tokens/s of one user", "output tokens/s", "on the frontier"]]
    for index, (combination, _) in enumerate(results):
        speed, rate = points[index]
        rows.append([combination.name, f"{speed:.1f}", f"{rate:.1f}", "yes" if index in best else ""])
    body = [title_heading("Sweep"), paragraph(f"{len(results)} combinations"), '<div class="charts">', chart, "</div>"]
    return page("Sweep", [*body, table(rows)])


def grouped(pairs: Sequence[Combination]) -> Iterator[tuple[tuple[tuple[str, Scalar], ...], list[Combination]]]:
    """Combinations by their server's settings, so that it is started once for all of them."""
    for serve, members in itertools.groupby(pairs, key=lambda pair: pair.serve):
        yield serve, list(members)


def _read(path: Path, flag: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}; {flag} names a JSON file, or is JSON") from error

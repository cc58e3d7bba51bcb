"""What was compiled, as a table for the terminal and as a page that needs nothing but itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.core.html_page import facts, heading, page, paragraph, table, title_heading
from headrace.core.units import format_bytes
from headrace.native.accuracy import Accuracy
from headrace.native.manifest import Manifest
from headrace.native.tuning import ROW_CLASSES, MatrixShape, TunedClass

Rows = list[tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Section:
    """A titled table; the first row is its head."""

    title: str
    rows: Rows
    note: str = ""


def render_text(manifest: Manifest) -> str:
    """The report for a terminal."""
    parts = [_aligned(_facts(manifest))]
    for section in _sections(manifest):
        note = f"\n{section.note}" if section.note else ""
        parts.append(f"{section.title}\n{_aligned(section.rows)}{note}")
    return "\n\n".join(parts)


def render_html(manifest: Manifest) -> str:
    """The report as one HTML file without outside requests, light or dark as the reader's system is."""
    title = f"{manifest.source.reference} compiled"
    body = [title_heading(title), facts(_facts(manifest))]
    for section in _sections(manifest):
        head, *rows = section.rows
        body += [heading(section.title), table([[cell.capitalize() for cell in head], *rows])]
        if section.note:
            body.append(paragraph(section.note))
    return page(title, body)


def _facts(manifest: Manifest) -> Rows:
    source, host, memory = manifest.source, manifest.host, manifest.memory
    files = ", ".join(f"{file.name} ({file.sha256[:12]})" for file in source.files[:4])
    return [
        ("source", f"{source.reference}: {files}{' and more' if len(source.files) > 4 else ''}"),
        ("model", f"{manifest.model.architecture}, {manifest.model.num_parameters / 1e6:.1f} M parameters"),
        ("weights", f"{format_bytes(manifest.weights_bytes)}, --dtype {manifest.dtype}"),
        ("machine", f"{host.cpu}, {host.kernels} kernels, {manifest.tuning.threads} threads"),
        ("build", f"headrace {manifest.version}, kernels {host.build}, weight layout {host.layout}"),
        ("memory", f"{format_bytes(memory.arena_row_bytes)} a token of a step, in one arena; "
                   f"{format_bytes(memory.kv_token_bytes)} a token of context (16 bits)"),
    ]  # fmt: skip


def _sections(manifest: Manifest) -> list[Section]:
    sections = [Section("Layers by shape", _layer_rows(manifest)), _tuning_section(manifest)]
    if manifest.accuracy is not None:
        sections.append(_accuracy_section(manifest.accuracy))
    return sections


def _layer_rows(manifest: Manifest) -> Rows:
    errors = {} if manifest.accuracy is None else {e.name: e.relative_error for e in manifest.accuracy.matrices}
    groups: dict[tuple[str, MatrixShape], list[tuple[str, int]]] = {}
    for m in manifest.matrices:
        group = (m.name.rpartition(".")[2], MatrixShape(m.format, m.num_rows, m.num_columns))
        groups.setdefault(group, []).append((m.name, m.num_bytes))
    rows: Rows = [("LAYER", "COUNT", "FORMAT", "ROWS", "COLUMNS", "SIZE", "ERROR")]
    for (kind, shape), members in groups.items():
        worst = max((errors[name] for name, _ in members if name in errors), default=None)
        rows.append(
            (
                kind,
                f"{len(members)}",
                shape.format.label,
                f"{shape.num_rows}",
                f"{shape.num_columns}",
                format_bytes(sum(size for _, size in members)),
                "-" if worst is None else f"{worst:.2%}",
            )
        )
    return rows


def _tuning_section(manifest: Manifest) -> Section:
    rows: Rows = [("SHAPE", "ROWS", "CHOICE", "TIME", "OF DEFAULT", "TRIED")]
    for tuned in manifest.tuning.shapes:
        for row_class, chosen in zip(ROW_CLASSES, tuned.classes, strict=True):
            rows.append((f"{tuned.shape}", row_class, f"{chosen.tuning}", *_times(tuned.shape, chosen)))
    note = f"Measured in {manifest.tuning.seconds:.1f} s" if manifest.tuning.seconds else "Not measured"
    if not manifest.tuning.is_whole:
        note += "; the machine was too busy to compare every variant"
    return Section("Matrix products: tile as rows x outputs, time of one product", rows, note)


def _times(shape: MatrixShape, chosen: TunedClass) -> tuple[str, str, str]:
    if not chosen.seconds:
        return ("-", "-", "-")
    part = "" if chosen.num_outputs == shape.num_rows else f" ({chosen.num_outputs} outputs)"
    time = f"{chosen.seconds * 1e6:.1f} us for {chosen.num_rows}{part}"
    return (time, f"{chosen.seconds / chosen.default_seconds:.0%}", f"{chosen.num_variants}")


def _accuracy_section(accuracy: Accuracy) -> Section:
    rows: Rows = [
        ("MEASURE", "COMPILED", "FLOAT32"),
        ("perplexity", f"{accuracy.perplexity:.4f}", f"{accuracy.reference_perplexity:.4f}"),
        ("change of perplexity", f"{accuracy.perplexity_change:+.2%}", ""),
        ("same likeliest token", f"{accuracy.top1_agreement:.2%}", ""),
        ("greedy tokens before the first other one", f"{accuracy.num_equal_greedy}", f"of {accuracy.num_greedy}"),
    ]
    note = (
        f"On {accuracy.num_tokens} tokens of prose; ERROR above is of the weights, relative, the worst of its layers."
    )
    return Section("Accuracy", rows, note)


def _aligned(rows: Sequence[tuple[str, ...]]) -> str:
    """Columns two spaces apart, each as wide as its widest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)) for row in rows]
    return "\n".join(line.rstrip() for line in lines)

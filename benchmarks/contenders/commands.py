"""Peers behind a command: ``COMMAND MODEL THREADS KIND PROMPT OUTPUT SEQUENCES DEPTH`` prints tokens per second.

The kind is ``decode``, ``prefill`` or ``batch``, as ``contenders.scenario.Kind`` describes them; the last line
of the output is the number. A command that cannot do one ends with another status than zero, and the reason
on its standard error.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from contenders.programs import run
from contenders.scenario import Kind, MeasurementError, Scenario, Setup, Values

OPENVINO_DRIVER = Path(__file__).with_name("openvino_driver.py")


@dataclass(frozen=True, slots=True)
class CommandPeer:
    """A peer behind ``command``, which a shell would split into words."""

    name: str
    command: str
    version: str = ""

    def takes_part(self, kind: Kind) -> bool:
        return kind in (Kind.DECODE, Kind.PREFILL, Kind.BATCH)

    def measure(self, scenario: Scenario, setup: Setup) -> Values:
        facts = [setup.model, setup.threads, scenario.kind.value]
        facts += [scenario.prompt, scenario.output, scenario.sequences, scenario.depth]
        lines = run([*shlex.split(self.command), *map(str, facts)]).split("\n")
        last = next((line for line in reversed(lines) if line.strip()), "")
        try:
            return {"tokens_per_s": float(last)}
        except ValueError as error:
            raise MeasurementError(f"{self.name} printed {last!r}, not a number") from error


def openvino(python: Path) -> CommandPeer:
    """OpenVINO GenAI as the interpreter ``python`` has it. Raises ``MeasurementError`` if it has none."""
    version = run([str(python), "-c", "import openvino_genai as o; print(o.__version__)"]).strip()
    return CommandPeer("OpenVINO GenAI", shlex.join([str(python), str(OPENVINO_DRIVER)]), version)

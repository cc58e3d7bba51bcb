"""llama.cpp through its own tools: ``llama-bench``, ``llama-batched-bench`` and ``llama-server``."""

from __future__ import annotations

import csv
import io
import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

from contenders.http_load import Server, load_chats, load_streams
from contenders.programs import free_port, run, server
from contenders.scenario import Kind, MeasurementError, Scenario, Setup, Values

MODEL_NAME = "measured"

CONTEXT_MARGIN = 256
"""Tokens of a slot beyond prompt and output: chat templates, and what the tokenizer makes of the words."""


@dataclass(frozen=True, slots=True)
class LlamaTools:
    """``llama-bench`` and ``llama-batched-bench``, whichever is there.

    ``flash_attention`` is ``"0"`` or ``"1"``: which of the two is faster depends on the CPU and the context.
    """

    bench: Path | None
    batched_bench: Path | None
    flash_attention: str

    @property
    def name(self) -> str:
        return "llama.cpp" if self.flash_attention == "1" else "llama.cpp, no FA"

    @property
    def version(self) -> str:
        return _version(self.bench or self.batched_bench)

    def takes_part(self, kind: Kind) -> bool:
        if kind is Kind.BATCH:
            return self.batched_bench is not None
        return self.bench is not None and kind in (Kind.DECODE, Kind.PREFILL)

    def measure(self, scenario: Scenario, setup: Setup) -> Values:
        if scenario.kind is Kind.BATCH:
            return self._measure_batch(scenario, setup)
        tokens = ["-p", str(scenario.prompt), "-n", "0"]
        if scenario.kind is Kind.DECODE:
            tokens = ["-p", "0", "-n", str(scenario.output), "-d", str(scenario.depth)]
        shared = ["-m", str(setup.model), "-t", str(setup.threads), "-fa", self.flash_attention]
        rows = list(csv.DictReader(io.StringIO(run([str(self.bench), *shared, *tokens, "-r", "1", "-o", "csv"]))))
        if len(rows) != 1:
            raise MeasurementError(f"{self.bench} printed {len(rows)} results, not one")
        return {"tokens_per_s": float(rows[0]["avg_ts"])}

    def _measure_batch(self, scenario: Scenario, setup: Setup) -> Values:
        length = scenario.prompt + scenario.output
        command = [str(self.batched_bench), "-m", str(setup.model), "-t", str(setup.threads)]
        command += ["-fa", "on" if self.flash_attention == "1" else "off", "-b", "2048", "-ub", "512"]
        command += ["-npp", str(scenario.prompt), "-ntg", str(scenario.output), "-npl", str(scenario.sequences)]
        command += ["-c", str(scenario.sequences * length), "--output-format", "jsonl"]
        rows = [json.loads(line) for line in run(command).splitlines() if line.startswith("{")]
        if len(rows) != 1:
            raise MeasurementError(f"{self.batched_bench} printed {len(rows)} results, not one")
        return {"tokens_per_s": scenario.sequences * scenario.output / (rows[0]["t_pp"] + rows[0]["t_tg"])}


@dataclass(frozen=True, slots=True)
class LlamaServer:
    """``llama-server`` with ``slots`` slots; ``None`` takes as many as the scenario has sequences.

    Fewer slots than streams cost waiting and gain throughput, so that both deserve a measurement.
    """

    program: Path
    slots: int | None

    @property
    def name(self) -> str:
        return "llama-server" if self.slots is None else f"llama-server, {self.slots} slots"

    @property
    def version(self) -> str:
        return _version(self.program)

    def takes_part(self, kind: Kind) -> bool:
        if kind is Kind.STREAMS:
            return True
        return self.slots is None and kind in (Kind.CHAT, Kind.START)

    def measure(self, scenario: Scenario, setup: Setup) -> Values:
        port = free_port()
        slots = self.slots or scenario.sequences
        length = scenario.prompt + scenario.turns * (scenario.output + CONTEXT_MARGIN)
        command = [str(self.program), "-m", str(setup.model), "-t", str(setup.threads), "-tb", str(setup.threads)]
        command += [
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
            "-np",
            str(slots),
            "-c",
            str(slots * length),
            "--alias",
            MODEL_NAME,
        ]
        with server(command, port, "/health") as ready_s:
            if scenario.kind is Kind.STREAMS:
                return load_streams(Server(port, MODEL_NAME), scenario, seed=1)
            if scenario.kind is Kind.CHAT:
                return load_chats(Server(port, MODEL_NAME), scenario, seed=1)
            return {"ready_s": ready_s}


def _version(program: Path | None) -> str:
    """What ``llama-server`` or ``llama-bench`` says of its build; the path as well, since many builds say nothing."""
    done = subprocess.run([str(program), "--version"], capture_output=True, text=True, timeout=60, check=False)
    said = next((line for line in (done.stderr + done.stdout).splitlines() if line.startswith("version")), "")
    return f"{program} {said}".strip()

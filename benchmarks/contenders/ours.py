"""headrace itself: its engine in a process per measurement, and its own server."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path

from contenders.http_load import Server, load_chats, load_streams
from contenders.programs import free_port, run, server
from contenders.scenario import Kind, Scenario, Setup, Values

BENCHMARKS = Path(__file__).parents[1]
MODEL_NAME = "measured"
SERVE = "import sys; from headrace.cli.main import main; sys.exit(main())"


@dataclass(slots=True)
class Ours:
    """``kernels`` names an instruction set for the in-process scenarios; empty takes the machine's best.

    ``facts`` are filled in by the first in-process measurement.
    """

    kernels: str = ""
    name: str = "headrace"
    version: str = field(default_factory=lambda: version("headrace"))
    facts: dict[str, float | str] = field(default_factory=dict)

    def takes_part(self, kind: Kind) -> bool:
        return not (self.kernels and kind in (Kind.STREAMS, Kind.CHAT, Kind.START))

    def measure(self, scenario: Scenario, setup: Setup) -> Values:
        if scenario.is_http:
            return self._serve(scenario, setup)
        fields = json.dumps(asdict(scenario) | {"kind": scenario.kind.value})
        command = [sys.executable, "-m", "contenders.ours_driver", str(setup.model), str(setup.threads)]
        answer = json.loads(run([*command, self.kernels, fields], cwd=str(BENCHMARKS)).splitlines()[-1])
        self.facts = answer["facts"]
        values: Values = answer["values"]
        return values

    def _serve(self, scenario: Scenario, setup: Setup) -> Values:
        port = free_port()
        command = [sys.executable, "-c", SERVE, "serve", str(setup.model), "--threads", str(setup.threads)]
        command += ["--served-model-name", MODEL_NAME, "--port", str(port)]
        with server(command, port, "/readyz") as ready_s:
            if scenario.kind is Kind.STREAMS:
                return load_streams(Server(port, MODEL_NAME), scenario, seed=1)
            if scenario.kind is Kind.CHAT:
                return load_chats(Server(port, MODEL_NAME), scenario, seed=1)
            return {"ready_s": ready_s}

"""``headrace simulate calibrate``: measure a model's steps on this machine, for ``simulate --device cpu:FILE``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from headrace.cli.flags import Parser, add_config_flags, read_config
from headrace.cli.machine import read_cpu
from headrace.core.config import EngineConfig
from headrace.core.errors import ConfigError

_DESCRIPTION = """Measure what steps of MODEL take on this machine and write that as a profile. Takes the engine's
flags, since they decide what a step is. Keep the machine otherwise idle meanwhile."""


def main(argv: Sequence[str]) -> int:
    parser = Parser("simulate calibrate", _DESCRIPTION, "[MODEL] -o PROFILE.json")
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, help="the profile to write")
    add_config_flags(parser, EngineConfig)
    arguments = parser.parse(argv)
    if arguments.output is None:
        raise ConfigError(
            "calibrate needs a file to write: headrace simulate calibrate MODEL -o PROFILE.json", "output"
        )
    config = read_config(EngineConfig, arguments, os.environ)

    from headrace.cli.progress import terminal_progress
    from headrace.core.clock import WallClock
    from headrace.engine.factory import build_engine
    from headrace.sim.calibration import NUM_ROUNDS, Calibration
    from headrace.sim.cpu_profile import write_profile

    progress = terminal_progress()
    engine = build_engine(config, progress)
    try:
        calibration = Calibration(engine, WallClock())
        progress.start("measuring", NUM_ROUNDS + 1, "items")
        calibration.warm_up()
        progress.advance(1)
        for _ in range(NUM_ROUNDS):
            calibration.measure_round()
            progress.advance(1)
        progress.finish()
        cpu = read_cpu()
        profile = calibration.profile(f"{cpu.name}, {cpu.num_cores:g} cores")
    finally:
        engine.close()
    write_profile(profile, arguments.output)
    per_token_ms = 1e3 * profile.tokens.seconds[-1] / profile.tokens.sizes[-1]
    one_ms = 1e3 * (profile.tokens.at(1) + profile.samples.at(1))
    print(f"{profile.model} on {profile.machine}: {one_ms:.2f} ms a token alone, {per_token_ms:.3f} ms a prompt token")
    print(f"wrote {arguments.output}; use it with: headrace simulate --trace FILE --device cpu:{arguments.output}")
    return 0

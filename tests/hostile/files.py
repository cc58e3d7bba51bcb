"""Model files with damage done to them, opened as a server opens them; each is read or is a typed error.

``python -m tests.hostile.files FIRST COUNT`` opens mutants in this process and prints a report; ``run`` has that done
in processes of their own, so that a native crash is seen, attributed to its mutant and costs nothing else.
"""

from __future__ import annotations

import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

from headrace.core.config import EngineConfig
from headrace.core.errors import ConfigError, InvalidRequest
from headrace.core.progress import NullProgress
from headrace.engine.chat_prompt import load_chat_encoder
from headrace.engine.factory import build_engine, open_model
from headrace.engine.tokenizer import load_tokenizer
from tests.checkpoint.mutations import mutant
from tests.tiny_gguf import write_tiny_gguf
from tests.tiny_model import write_tiny_model

FILES = (
    "tiny.gguf",
    "model.safetensors",
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
)
TIME_LIMIT_S = 1.0
MEMORY_LIMIT_BYTES = 64 << 20
ADDRESS_SPACE_BYTES = 8 << 30
CHUNK = 2_500
HEAD_BYTES = 4096
"""Damage in a weight file's numbers is no news to a reader; most of it is done to the part that is read first."""

_BUILD_EVERY = 50
"""One mutant in so many is built into an engine, weights packed and all."""


@dataclass
class FilesReport:
    """What became of so many mutants; ``failures`` are the seeds of those that were neither read nor refused."""

    num_read: int = 0
    num_refused: int = 0
    failures: list[str] = field(default_factory=list)
    longest_s: float = 0.0
    peak_bytes: int = 0

    @property
    def num_mutants(self) -> int:
        return self.num_read + self.num_refused + len(self.failures)

    def add(self, other: FilesReport) -> None:
        self.num_read += other.num_read
        self.num_refused += other.num_refused
        self.failures += other.failures
        self.longest_s = max(self.longest_s, other.longest_s)
        self.peak_bytes = max(self.peak_bytes, other.peak_bytes)


class Patient:
    """Two tiny models, one file of which is damaged at a time."""

    def __init__(self, folder: Path) -> None:
        self._hf = write_tiny_model(folder / "hf")
        (self._hf / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 0], "temperature": 0.7}))
        self._gguf = write_tiny_gguf(folder / "gguf")
        self._whole = {name: self._path(name).read_bytes() for name in FILES}

    def treat(self, seed: int) -> None:
        """Damage, open, mend. Raises whatever opening raises."""
        rng, name = random.Random(seed), FILES[seed % len(FILES)]
        path, whole = self._path(name), self._whole[name]
        head = HEAD_BYTES if path.suffix in (".gguf", ".safetensors") and rng.random() < 0.9 else len(whole)
        path.write_bytes(mutant(whole[:head], rng) + whole[head:])
        try:
            open_all(self._gguf if name == "tiny.gguf" else self._hf, builds=seed % _BUILD_EVERY < len(FILES))
        finally:
            path.write_bytes(whole)

    def _path(self, name: str) -> Path:
        return self._gguf if name == "tiny.gguf" else self._hf / name


def open_all(path: Path, *, builds: bool) -> None:
    """Read everything there is of a model at ``path``, as far as it lets itself be read."""
    found = open_model(path)
    for tensor in found.source.tensors.values():
        tensor.to_float32()
    tokenizer = load_tokenizer(path)
    tokenizer.decode(tokenizer.encode("<|im_end|> naïve 世界"))
    chat = load_chat_encoder(tokenizer)
    if chat is not None:
        chat.encode_chat([{"role": "user", "content": "x"}], add_generation_prompt=True, template_kwargs={})
    if builds:
        settings = {"kv_cache_bytes": 1 << 20, "threads": 1, "compile_cache": False}
        build_engine(EngineConfig(model=str(path), **settings), NullProgress()).close()


def treat_range(first: int, count: int, progress: Path) -> FilesReport:
    """Treat the mutants ``[first, first + count)``, noting each in ``progress`` before it is opened."""
    report = FilesReport()
    with tempfile.TemporaryDirectory() as folder, progress.open("r+b", buffering=0) as noted:
        patient = Patient(Path(folder))
        for seed in range(max(0, first - len(FILES)), first):  # what the first of a kind imports is nobody's fault
            _outcome(patient, seed, FilesReport())
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for seed in range(first, first + count):
            noted.seek(0)
            noted.write(b"%020d" % seed)
            _outcome(patient, seed, report)
        report.peak_bytes = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    return report


def _outcome(patient: Patient, seed: int, report: FilesReport) -> None:
    started = time.process_time()
    try:
        patient.treat(seed)
        report.num_read += 1
    except (ConfigError, InvalidRequest):
        report.num_refused += 1
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        report.failures.append(f"{FILES[seed % len(FILES)]} {seed}: {type(error).__name__}: {str(error)[:200]}")
    report.longest_s = max(report.longest_s, time.process_time() - started)


def run(first: int, count: int) -> FilesReport:
    """Treat mutants in processes of their own, one after another; a process that dies is a failure of its mutant."""
    whole = FilesReport()
    with tempfile.TemporaryDirectory() as folder:
        progress = Path(folder) / "progress"
        end = first + count
        while first < end:
            size = min(CHUNK, end - first)
            progress.write_bytes(b"%020d" % first)
            command = [sys.executable, "-m", "tests.hostile.files", str(first), str(size), str(progress)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode == 0:
                whole.add(FilesReport(**json.loads(done.stdout)))
                first += size
            else:
                reached = int(progress.read_bytes())
                whole.num_refused += reached - first  # how many of them were read is lost with the process
                whole.failures.append(f"{FILES[reached % len(FILES)]} {reached}: exit {done.returncode}")
                print(done.stderr[-2000:], file=sys.stderr)
                first = reached + 1
    return whole


def main() -> int:
    first, count, progress = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE_BYTES, ADDRESS_SPACE_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    print(json.dumps(asdict(treat_range(first, count, progress))))
    return 0


if __name__ == "__main__":
    sys.exit(main())

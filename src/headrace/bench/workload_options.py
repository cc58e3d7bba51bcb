"""Which workload, from plain options: the one place that knows every kind by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from headrace.bench import datasets, mixes, synthetic
from headrace.bench.lengths import Lengths
from headrace.bench.prompt_text import PromptWriter
from headrace.bench.traces import TraceOptions, trace
from headrace.bench.workload import Session, WorkloadSource
from headrace.core.errors import ConfigError

DEFAULT_INPUT = Lengths("uniform", 256, 256)
DEFAULT_OUTPUT = Lengths("uniform", 128, 128)
DEFAULT_PREFIX = Lengths("uniform", 512, 512)


@dataclass(frozen=True, slots=True)
class MixOptions:
    """Shares in [0, 1] of sessions that are changed, whatever the data set."""

    num_choices: int = 1
    abort_rate: float = 0.0
    abort_after_chunks: int = 8
    structured_rate: float = 0.0
    schema_path: Path | None = None
    tool_rate: float = 0.0


@dataclass(frozen=True, slots=True)
class WorkloadOptions:
    """``num_sessions`` in all; of lengths only those that the data set uses matter.

    ``input_len`` is of a prompt, or of the question where there is a prefix or a conversation.
    """

    dataset: str = "random"
    path: Path | None = None
    num_sessions: int = 100
    seed: int = 0
    input_len: Lengths = DEFAULT_INPUT
    output_len: Lengths | None = None
    prefix_len: Lengths = DEFAULT_PREFIX
    has_prefix: bool = False
    num_groups: int = 8
    zipf: float = 0.0
    num_turns: int = 4
    max_turns: int = 1
    think_s: float = 0.0
    block_tokens: int = 512
    max_input_tokens: int | None = None
    max_output_tokens: int | None = None
    mix: MixOptions = field(default_factory=MixOptions)


Builder = Callable[[WorkloadOptions, PromptWriter], WorkloadSource]


def build_workload(options: WorkloadOptions, writer: PromptWriter) -> WorkloadSource:
    """The sessions that the options describe, made as they are read. Raises ``ConfigError``."""
    source = DATASETS[options.dataset](options, writer)
    return msgspec.structs.replace(source, sessions=_mixed(source.sessions, options), options=_shown(source, options))


def _mixed(sessions: Iterable[Session], options: WorkloadOptions) -> Iterable[Session]:
    mix = options.mix
    if mix.structured_rate:
        if mix.schema_path is None:
            raise ConfigError("--structured-rate needs schemas; name a file of them with --schema-path")
        sessions = mixes.with_schemas(sessions, mix.structured_rate, mix.schema_path, options.seed)
    if mix.tool_rate:
        sessions = mixes.with_tools(sessions, mix.tool_rate, options.seed)
    if mix.num_choices > 1:
        sessions = mixes.with_choices(sessions, mix.num_choices)
    if mix.abort_rate:
        sessions = mixes.with_aborts(sessions, mix.abort_rate, mix.abort_after_chunks, options.seed)
    return sessions


def _shown(source: WorkloadSource, options: WorkloadOptions) -> dict[str, object]:
    mix = options.mix
    changed = {
        "n": mix.num_choices if mix.num_choices > 1 else None,
        "abort_rate": mix.abort_rate or None,
        "structured_rate": mix.structured_rate or None,
        "tool_rate": mix.tool_rate or None,
    }
    return {**source.options, **{name: value for name, value in changed.items() if value is not None}}


def _random(options: WorkloadOptions, writer: PromptWriter) -> WorkloadSource:
    prefix_len = int(options.prefix_len.first) if options.has_prefix else 0
    random = synthetic.RandomOptions(options.input_len, options.output_len or DEFAULT_OUTPUT, prefix_len)
    return synthetic.random_prompts(random, options.num_sessions, writer, options.seed)


def _shared_prefixes(options: WorkloadOptions, writer: PromptWriter) -> WorkloadSource:
    shared = synthetic.SharedPrefixOptions(
        options.num_groups, options.prefix_len, options.input_len, options.output_len or DEFAULT_OUTPUT, options.zipf
    )
    return synthetic.shared_prefixes(shared, options.num_sessions, writer, options.seed)


def _multi_turn(options: WorkloadOptions, writer: PromptWriter) -> WorkloadSource:
    if writer.lengths == "tokens":
        raise ConfigError("a conversation needs text; leave out --prompt-format ids")
    system_len = int(options.prefix_len.first) if options.has_prefix else 0
    chat = synthetic.ConversationOptions(
        options.num_turns, system_len, options.input_len, options.output_len or DEFAULT_OUTPUT, options.think_s
    )
    return synthetic.conversations(chat, options.num_sessions, writer, options.seed)


def _sharegpt(options: WorkloadOptions, writer: PromptWriter) -> WorkloadSource:
    return datasets.sharegpt(_file(options), options.seed)


def _openai(options: WorkloadOptions, writer: PromptWriter) -> WorkloadSource:
    return datasets.openai_batch(_file(options), options.seed)


def _custom(options: WorkloadOptions, writer: PromptWriter) -> WorkloadSource:
    return datasets.custom(_file(options), options.seed)


def _trace(options: WorkloadOptions, writer: PromptWriter) -> WorkloadSource:
    entries = TraceOptions(
        path=_path(options),
        num_prompts=options.num_sessions,
        block_tokens=options.block_tokens,
        max_input_tokens=options.max_input_tokens,
        max_output_tokens=options.max_output_tokens,
    )
    return trace(entries, writer, options.seed)


def _file(options: WorkloadOptions) -> datasets.FileOptions:
    output_len = None if options.output_len is None else int(options.output_len.first)
    return datasets.FileOptions(_path(options), options.num_sessions, output_len, options.max_turns)


def _path(options: WorkloadOptions) -> Path:
    if options.path is None:
        raise ConfigError(f"--dataset-name {options.dataset} is read from a file; name it with --dataset-path FILE")
    return options.path


DATASETS: dict[str, Builder] = {
    "random": _random,
    "generated-shared-prefix": _shared_prefixes,
    "multi-turn": _multi_turn,
    "sharegpt": _sharegpt,
    "openai": _openai,
    "custom": _custom,
    "trace": _trace,
}

DATASET_ALIASES = {
    "prefix_repetition": "generated-shared-prefix",
    "prefix-repetition": "generated-shared-prefix",
    "gsp": "generated-shared-prefix",
    "mooncake": "trace",
    "timed_trace": "trace",
    "azure": "trace",
    "burstgpt": "trace",
    "servegen": "trace",
}
"""What other benchmarks call them."""

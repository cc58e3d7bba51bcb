"""Workloads made from nothing but numbers: random prompts, groups with shared prefixes, conversations.

Each is a function from its options to sessions; equal options and seed give equal sessions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass

import numpy as np

from headrace.bench.lengths import Lengths
from headrace.bench.prompt_text import Prompt, PromptWriter
from headrace.bench.workload import Session, Turn, WorkloadSource


@dataclass(frozen=True, slots=True)
class RandomOptions:
    """Unrelated prompts; ``prefix_len`` tokens in front are the same for all."""

    input_len: Lengths
    output_len: Lengths
    prefix_len: int = 0


@dataclass(frozen=True, slots=True)
class SharedPrefixOptions:
    """``num_groups`` system prompts; each request takes one of them and adds a question.

    Groups are drawn with weights ``1 / rank ** zipf``: 0 is even, 1 makes the first twice as likely as the second.
    """

    num_groups: int
    prefix_len: Lengths
    question_len: Lengths
    output_len: Lengths
    zipf: float = 0.0


@dataclass(frozen=True, slots=True)
class ConversationOptions:
    """Conversations of ``num_turns`` questions behind one system prompt that all share, if ``system_len`` is not 0."""

    num_turns: int
    system_len: int
    question_len: Lengths
    output_len: Lengths
    think_s: float = 0.0


def random_prompts(options: RandomOptions, num_prompts: int, writer: PromptWriter, seed: int) -> WorkloadSource:
    return WorkloadSource(
        name="random",
        seed=seed,
        sessions=_random(options, num_prompts, writer, seed),
        lengths=writer.lengths,
        options=_shown(asdict(options)),
    )


def shared_prefixes(options: SharedPrefixOptions, num_prompts: int, writer: PromptWriter, seed: int) -> WorkloadSource:
    return WorkloadSource(
        name="generated-shared-prefix",
        seed=seed,
        sessions=_shared(options, num_prompts, writer, seed),
        lengths=writer.lengths,
        options=_shown(asdict(options)),
    )


def conversations(options: ConversationOptions, num_sessions: int, writer: PromptWriter, seed: int) -> WorkloadSource:
    return WorkloadSource(
        name="multi-turn",
        seed=seed,
        sessions=_conversations(options, num_sessions, writer, seed),
        lengths=writer.lengths,
        options=_shown(asdict(options)),
    )


def _random(options: RandomOptions, num_prompts: int, writer: PromptWriter, seed: int) -> Iterator[Session]:
    rng = np.random.default_rng([seed, 0])
    prefix = writer.write(options.prefix_len, rng) if options.prefix_len else None
    for _ in range(num_prompts):
        length, max_tokens = options.input_len.draw(rng), options.output_len.draw(rng)
        prompt = writer.write(length, rng)
        text = prompt if prefix is None else writer.join([prefix, prompt])
        yield Session(
            turns=[Turn(text=text, max_tokens=max_tokens, num_input_tokens=length + options.prefix_len)],
        )


def _shared(options: SharedPrefixOptions, num_prompts: int, writer: PromptWriter, seed: int) -> Iterator[Session]:
    rng = np.random.default_rng([seed, 0])
    prefix_lengths = [options.prefix_len.draw(rng) for _ in range(options.num_groups)]
    prefixes: list[Prompt] = [writer.write(length, rng) for length in prefix_lengths]
    weights = 1.0 / np.arange(1, options.num_groups + 1) ** options.zipf
    for _ in range(num_prompts):
        group = int(rng.choice(options.num_groups, p=weights / weights.sum()))
        length, max_tokens = options.question_len.draw(rng), options.output_len.draw(rng)
        text = writer.join([prefixes[group], writer.write(length, rng)])
        turn = Turn(text=text, max_tokens=max_tokens, num_input_tokens=prefix_lengths[group] + length)
        yield Session(turns=[turn], group=f"prefix-{group}")


def _conversations(
    options: ConversationOptions, num_sessions: int, writer: PromptWriter, seed: int
) -> Iterator[Session]:
    rng = np.random.default_rng([seed, 0])
    system = writer.write(options.system_len, rng) if options.system_len else None
    for _ in range(num_sessions):
        turns = []
        for index in range(options.num_turns):
            length = options.question_len.draw(rng)
            turn = Turn(
                text=writer.write(length, rng),
                max_tokens=options.output_len.draw(rng),
                num_input_tokens=length,
                think_s=options.think_s if index else 0.0,
            )
            turns.append(turn)
        yield Session(turns=turns, system=system if isinstance(system, str) else None)


def _shown(options: dict[str, object]) -> dict[str, object]:
    """Options as plain data; a distribution as it is written."""
    return {name: dict(value) if isinstance(value, dict) else value for name, value in options.items()}

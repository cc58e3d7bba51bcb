"""``LLM``: generation, chat and scoring in this process, in vLLM's shape.

A facade: prompts become requests, a runner drives the engine, outputs are gathered. It does not know how an
engine works, and there is nothing here that the HTTP server does otherwise.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from headrace.core.clock import WallClock
from headrace.core.config import DEFAULT_MODEL, EngineConfig
from headrace.core.errors import InvalidRequest, RequestFailed
from headrace.core.progress import NullProgress, Progress
from headrace.core.request import RequestOutput
from headrace.core.sampling import SamplingParams
from headrace.core.service_level import DEFAULT_TERMS, ServiceLevel, ServiceTerms, terms_of
from headrace.core.settings import config_from_arguments
from headrace.core.terminal_progress import terminal_progress
from headrace.llm.loading import LoadedModel, load_model
from headrace.llm.outputs import GenerationOutput, OutputCollector, ScoreOutput
from headrace.llm.prompts import (
    ChatMessages,
    EncodedPrompt,
    Prompt,
    TokensPrompt,
    as_conversations,
    as_list,
    encode_prompt,
    joined,
)
from headrace.llm.runner import Runner
from headrace.llm.stepped_client import SteppedClient
from headrace.program.encoding import DocumentEncoder
from headrace.program.engine_backend import EngineBackend
from headrace.program.function import Function
from headrace.program.runtime import Runtime
from headrace.program.state import ProgramState

SamplingChoice = SamplingParams | Sequence[SamplingParams] | None


class LLM:
    """A loaded model. Use it as a context manager or call ``close``.

    ``settings`` are the engine's (``max_model_len=4096``, ``kv_cache_bytes="2GiB"``): see the settings
    reference. Raises ``ConfigError`` for a wrong one or a model that cannot be loaded. Not thread-safe:
    ``AsyncLLM`` or the server is for concurrent callers. Ctrl-C stops between two steps, ends what is
    running and raises ``KeyboardInterrupt``; the ``LLM`` can be used on.
    """

    def __init__(self, model: str = DEFAULT_MODEL, *, progress: Progress | None = None, **settings: object) -> None:
        config = config_from_arguments(EngineConfig, {"model": model, **settings})
        self._start(load_model(config, progress or terminal_progress()), config.seed)

    @classmethod
    def from_loaded(cls, loaded: LoadedModel, seed: int | None = None) -> LLM:
        """An ``LLM`` over parts that already exist; it closes the engine."""
        llm = cls.__new__(cls)
        llm._start(loaded, seed)
        return llm

    def _start(self, loaded: LoadedModel, seed: int | None) -> None:
        self._loaded = loaded
        self._runner = Runner(loaded.engine)
        self._backend: Runtime | None = None
        self._clock = WallClock()
        self._request_numbers = itertools.count()
        self._builder = loaded.request_builder(seed)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingChoice = None,
        *,
        use_tqdm: bool = True,
        priority: Sequence[int] | None = None,
        service_level: ServiceLevel | str | None = None,
    ) -> list[GenerationOutput]:
        """Complete prompts: text, ``{"prompt": text}`` or ``{"prompt_token_ids": ids}``, one or several.

        ``sampling_params`` is one for all or one per prompt. ``priority`` is one per prompt, lower first, for an
        engine with ``scheduling_policy`` "slo" or "priority". ``service_level`` holds the targets of all of them,
        or is the name of a standard class. A sequence that fails inside the engine or is refused because its
        targets cannot be met has ``finish_reason == "error"`` and the others are unharmed. Raises
        ``InvalidRequest`` before anything is computed. ``use_tqdm`` shows progress on a terminal.
        """
        encoded = [encode_prompt(prompt, self._loaded.tokenizer) for prompt in as_list(prompts)]
        jobs = _jobs(encoded, sampling_params, priority, service_level)
        return self._generate(jobs, terminal_progress() if use_tqdm else NullProgress())

    def chat(
        self,
        messages: ChatMessages | Sequence[ChatMessages],
        sampling_params: SamplingChoice = None,
        *,
        use_tqdm: bool = True,
        continue_final_message: bool = False,
        chat_template_kwargs: Mapping[str, object] | None = None,
    ) -> list[GenerationOutput]:
        """Answer one conversation (a list of ``{"role": ..., "content": ...}``) or several.

        ``continue_final_message`` goes on with the last message instead of answering it;
        ``chat_template_kwargs`` are variables for the template.
        """
        prompts: list[Prompt] = [
            {
                "prompt_token_ids": self._loaded.chat_token_ids(
                    conversation,
                    continue_final_message=continue_final_message,
                    template_kwargs=chat_template_kwargs,
                )
            }
            for conversation in as_conversations(messages)
        ]
        return self.generate(prompts, sampling_params, use_tqdm=use_tqdm)

    @property
    def has_chat_template(self) -> bool:
        return self._loaded.chat is not None

    def chat_prompt(self, messages: ChatMessages) -> TokensPrompt:
        """Put a conversation through the model's chat template. Raises ``InvalidRequest`` if it has none."""
        return {"prompt_token_ids": self._loaded.chat_token_ids(messages)}

    def stream(self, prompt: Prompt, sampling_params: SamplingParams | None = None) -> Iterator[RequestOutput]:
        """Complete one prompt, yielding deltas as they come; closing the iterator ends the request."""
        encoded = encode_prompt(prompt, self._loaded.tokenizer)
        return self._runner.stream(self._collector(_Job(encoded, sampling_params or SamplingParams())))

    def score(
        self, prompts: Prompt | Sequence[Prompt], continuations: Prompt | Sequence[Prompt], *, use_tqdm: bool = True
    ) -> list[ScoreOutput]:
        """How likely each continuation is after its prompt, without generating.

        One prompt with several continuations scores each after it; otherwise both have the same number. Text
        is tokenized with its prompt as one piece; a token across the seam counts as the continuation's.
        """
        pairs = _pairs(as_list(prompts), as_list(continuations))
        seams = [joined(prompt, continuation, self._loaded.tokenizer) for prompt, continuation in pairs]
        for number, (token_ids, start) in enumerate(seams):
            _check_scorable(number, len(token_ids), start)
        jobs = [_Job(EncodedPrompt(None, token_ids), _scoring_from(start)) for token_ids, start in seams]
        outputs = self._generate(jobs, terminal_progress() if use_tqdm else NullProgress())
        return [_score(output, start) for output, (_, start) in zip(outputs, seams, strict=True)]

    def run(self, program: Function, *arguments: Any, **named: Any) -> ProgramState:
        """Run a program of many calls (``headrace.program``) on this model; see ``Function.run``.

        Raises ``ProgramError`` with the program's line and what it had captured.
        """
        return program.run(*arguments, **{**named, "backend": self.backend})

    @property
    def backend(self) -> Runtime:
        """What programs run on here: ``program.run_batch(..., backend=llm.backend)``.

        While a streamed program runs, nothing else may be asked of the ``LLM``.
        """
        if self._backend is None:
            self._backend = Runtime(self._open_backend)
        return self._backend

    async def _open_backend(self) -> EngineBackend:
        encoder = DocumentEncoder(self._loaded.tokenizer, self._loaded.chat)
        client = SteppedClient(self._loaded.engine)
        return EngineBackend(client, encoder, self._builder, self._clock, on_close=client.close)

    def close(self) -> None:
        """Free the model; the ``LLM`` cannot be used afterwards."""
        if self._backend is not None:
            self._backend.close()
        self._loaded.engine.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _generate(self, jobs: Sequence[_Job], progress: Progress) -> list[GenerationOutput]:
        collectors = self._collectors(jobs)
        progress.start("generating", len(collectors), "items")
        try:
            self._runner.run(collectors, lambda: progress.advance(1))
        finally:
            progress.finish()
        return [collector.snapshot() for collector in collectors]

    def _collectors(self, jobs: Sequence[_Job]) -> list[OutputCollector]:
        collectors = []
        for number, job in enumerate(jobs):
            try:
                collectors.append(self._collector(job))
            except InvalidRequest as error:
                raise _numbered(error, number, len(jobs)) from error
        return collectors

    def _collector(self, job: _Job) -> OutputCollector:
        request = self._builder.build(
            f"offline-{next(self._request_numbers)}",
            job.prompt.token_ids,
            job.params,
            arrival_time=self._clock.now(),
            terms=job.terms,
            cache_salt=job.prompt.cache_salt,
        )
        return OutputCollector(request, job.prompt.text, self._loaded.tokenizer.token_text)


@dataclass(frozen=True, slots=True)
class _Job:
    """One prompt with what is asked of it."""

    prompt: EncodedPrompt
    params: SamplingParams
    terms: ServiceTerms = DEFAULT_TERMS


def _jobs(
    prompts: Sequence[EncodedPrompt],
    sampling: SamplingChoice,
    priority: Sequence[int] | None,
    service_level: ServiceLevel | str | None,
) -> list[_Job]:
    if sampling is None or isinstance(sampling, SamplingParams):
        sampling = [sampling or SamplingParams()] * len(prompts)
    priority = [0] * len(prompts) if priority is None else priority
    for name, values in (("sampling_params", sampling), ("priority", priority)):
        if len(values) != len(prompts):
            raise InvalidRequest(
                f"there are {len(prompts)} prompts but {len(values)} {name.replace('_', ' ')}; give one per prompt",
                name,
            )
    return [
        _Job(prompt, params, terms_of(service_level, steps))
        for prompt, params, steps in zip(prompts, sampling, priority, strict=True)
    ]


def _pairs(prompts: list[Prompt], continuations: list[Prompt]) -> list[tuple[Prompt, Prompt]]:
    if len(prompts) == 1:
        prompts = prompts * len(continuations)
    if len(prompts) != len(continuations):
        raise InvalidRequest(
            f"there are {len(prompts)} prompts but {len(continuations)} continuations; "
            "give one prompt for all, or one per continuation",
            "continuations",
        )
    return list(zip(prompts, continuations, strict=True))


def _check_scorable(number: int, num_tokens: int, start: int) -> None:
    if start == num_tokens:
        raise InvalidRequest(f"continuation {number} adds no token to its prompt", "continuations")
    if start == 0:
        raise InvalidRequest(
            f"prompt {number} has no token before its continuation, so there is nothing to condition on; "
            "give a longer prompt",
            "prompts",
        )


def _scoring_from(start: int) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0, prompt_logprobs_start=start)


def _score(output: GenerationOutput, start: int) -> ScoreOutput:
    """Read the continuation's log-probabilities off a finished prompt; its tokens begin at ``start``."""
    completion = output.outputs[0]
    if completion.error is not None:
        raise RequestFailed(completion.error)
    positions = output.prompt_logprobs or []
    token_ids = output.prompt_token_ids[start:]
    chosen = [position[token_id] for position, token_id in zip(positions, token_ids, strict=True) if position]
    logprobs = [entry.logprob for entry in chosen]
    return ScoreOutput(token_ids, logprobs, sum(logprobs), all(entry.rank == 1 for entry in chosen))


def _numbered(error: InvalidRequest, number: int, count: int) -> InvalidRequest:
    return InvalidRequest(f"prompt {number} of {count}: {error.message}" if count > 1 else error.message, error.param)

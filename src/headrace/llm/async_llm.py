"""``AsyncLLM``: generation in this process for asyncio callers, many at once."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncGenerator
from types import TracebackType

from headrace.core.client import EngineInfo
from headrace.core.clock import WallClock
from headrace.core.config import DEFAULT_MODEL, EngineConfig
from headrace.core.progress import Progress
from headrace.core.sampling import SamplingParams
from headrace.core.service_level import ServiceLevel, terms_of
from headrace.core.settings import config_from_arguments
from headrace.core.terminal_progress import terminal_progress
from headrace.engine.inprocess import InProcessClient
from headrace.engine.metrics import Metrics
from headrace.llm.loading import LoadedModel, load_model
from headrace.llm.outputs import GenerationOutput, OutputCollector
from headrace.llm.prompts import ChatMessages, Prompt, TokensPrompt, encode_prompt


class AsyncLLM:
    """A loaded model for one event loop. Use it as an async context manager or call ``close``.

    ``await AsyncLLM.create(model, **settings)`` loads in a worker thread and starts the engine's own.
    """

    def __init__(self, loaded: LoadedModel, seed: int | None = None) -> None:
        info = loaded.engine.info
        self._loaded = loaded
        self._client = InProcessClient(loaded.engine, Metrics(info.model))
        self._builder = loaded.request_builder(seed)
        self._clock = WallClock()
        self._request_numbers = itertools.count()

    @classmethod
    async def create(
        cls, model: str = DEFAULT_MODEL, *, progress: Progress | None = None, **settings: object
    ) -> AsyncLLM:
        """Load a model; ``settings`` are those of ``LLM``. Raises ``ConfigError``."""
        config = config_from_arguments(EngineConfig, {"model": model, **settings})
        llm = cls(await asyncio.to_thread(load_model, config, progress or terminal_progress()), config.seed)
        await llm.start()
        return llm

    async def start(self) -> None:
        """Start the engine's thread; ``create`` has done so already."""
        await self._client.start()

    @property
    def info(self) -> EngineInfo:
        return self._client.info

    async def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        priority: int = 0,
        service_level: ServiceLevel | str | None = None,
    ) -> AsyncGenerator[GenerationOutput, None]:
        """Complete one prompt, yielding everything so far whenever there is more; the last is ``finished``.

        Closing the iterator ends the request. Raises ``InvalidRequest``, ``Overloaded`` when ``max_num_seqs`` plus
        ``max_num_queued_reqs`` sequences are open already or when ``service_level`` (targets, or the name of a
        standard class) cannot be met, and ``EngineDead``.
        """
        encoded = await asyncio.to_thread(encode_prompt, prompt, self._loaded.tokenizer)
        request = self._builder.build(
            request_id or f"async-{next(self._request_numbers)}",
            encoded.token_ids,
            sampling_params or SamplingParams(),
            arrival_time=self._clock.now(),
            terms=terms_of(service_level, priority),
            cache_salt=encoded.cache_salt,
        )
        collector = OutputCollector(request, encoded.text, self._loaded.tokenizer.token_text)
        async with contextlib.aclosing(self._client.generate(request)) as outputs:
            async for output in outputs:
                collector.add(output)
                yield collector.snapshot()

    async def chat_prompt(self, messages: ChatMessages) -> TokensPrompt:
        """Put a conversation through the model's chat template. Raises ``InvalidRequest`` if it has none."""
        return {"prompt_token_ids": await asyncio.to_thread(self._loaded.chat_token_ids, messages)}

    async def abort(self, request_id: str) -> None:
        """End a request; its iterator yields one last output with ``finish_reason == "abort"``."""
        await self._client.abort(request_id)

    async def close(self) -> None:
        """Stop the engine and free the model; open iterators raise ``EngineDead``."""
        await self._client.close()

    async def __aenter__(self) -> AsyncLLM:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

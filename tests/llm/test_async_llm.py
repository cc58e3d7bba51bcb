"""``AsyncLLM``: many callers at once, each with its own growing answer."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Awaitable, Callable

import pytest

from headrace.core.errors import InvalidRequest
from headrace.core.sampling import SamplingParams
from headrace.core.step import PendingMask, StepPlan, StepResult
from headrace.llm.async_llm import AsyncLLM
from headrace.llm.outputs import GenerationOutput
from tests.fakes import ContentExecutor
from tests.llm.house import House, answer

PARAMS = SamplingParams(max_tokens=6)
LONG = SamplingParams(max_tokens=90, ignore_eos=True)


def run(work: Callable[[AsyncLLM], Awaitable[None]], house: House | None = None) -> None:
    async def main() -> None:
        llm = AsyncLLM((house or House()).loaded)
        await llm.start()
        async with llm:
            await asyncio.wait_for(work(llm), 30)

    asyncio.run(main())


async def last(llm: AsyncLLM, prompt: str) -> GenerationOutput:
    outputs = [output async for output in llm.generate(prompt, PARAMS)]
    assert [output.finished for output in outputs] == [False] * (len(outputs) - 1) + [True]
    for before, after in itertools.pairwise(outputs):
        assert after.outputs[0].text.startswith(before.outputs[0].text)
    return outputs[-1]


def test_concurrent_callers_get_their_own_answers() -> None:
    async def work(llm: AsyncLLM) -> None:
        finals = await asyncio.gather(*(last(llm, prompt) for prompt in ("CD", "EF", "GH")))
        assert [final.outputs[0].token_ids for final in finals] == [answer(ids, 6) for ids in ([3, 4], [5, 6], [7, 8])]
        assert [final.prompt for final in finals] == ["CD", "EF", "GH"]

    run(work)


def test_a_conversation_can_be_generated_from() -> None:
    async def work(llm: AsyncLLM) -> None:
        prompt = await llm.chat_prompt([{"role": "user", "content": "CD"}])
        async for output in llm.generate(prompt, PARAMS):
            assert output.prompt_token_ids == [21, 3, 4, 1]

    run(work)


class GatedExecutor(ContentExecutor):
    """Waits with its third step until the gate is opened."""

    gate = threading.Event()

    def execute(self, plan: StepPlan, token_mask: PendingMask | None) -> StepResult:
        if len(self.plans) == 2:
            assert self.gate.wait(30)
        return super().execute(plan, token_mask)


def test_an_abort_ends_the_iterator_with_an_abort() -> None:
    house = House()
    house.executor.__class__ = GatedExecutor

    async def work(llm: AsyncLLM) -> None:
        outputs = []
        async for output in llm.generate("CD", LONG, request_id="mine"):
            if not outputs:
                await llm.abort("mine")
                GatedExecutor.gate.set()
            outputs.append(output)
        assert outputs[-1].outputs[0].finish_reason == "abort"
        assert outputs[-1].outputs[0].token_ids == answer([3, 4], 90)[: len(outputs[-1].outputs[0].token_ids)]

    run(work, house)


def test_a_closed_iterator_leaves_nothing_running() -> None:
    house = House()

    async def work(llm: AsyncLLM) -> None:
        generation = llm.generate("CD", LONG)
        await anext(generation)
        await generation.aclose()
        assert (await last(llm, "EF")).outputs[0].token_ids == answer([5, 6], 6)

    run(work, house)
    assert not house.engine.has_work


def test_a_bad_request_is_refused() -> None:
    async def work(llm: AsyncLLM) -> None:
        with pytest.raises(InvalidRequest, match="the prompt is empty"):
            await anext(llm.generate("", PARAMS))
        with pytest.raises(InvalidRequest, match="lower max_tokens to 98"):
            await anext(llm.generate("CD", SamplingParams(max_tokens=99)))

    run(work)

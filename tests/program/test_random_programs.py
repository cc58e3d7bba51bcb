"""Random programs under random scheduling mean what they mean in order, and leave nothing behind when they are ended.

The engine is real and its executor's tokens are a hash of what the KV memory holds, so a wrong prefix shows.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Mapping, Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.clock import WallClock
from headrace.core.errors import ProgramError
from headrace.engine.request_builder import RequestBuilder
from headrace.llm.stepped_client import SteppedClient
from headrace.program.captures import Capture
from headrace.program.engine_backend import DocumentEncoder, EngineBackend
from headrace.program.interpreter import start
from headrace.program.ir import Fork, Gen, Join, JoinMode, Node, Program, SamplingChoice, Text, Value
from headrace.program.run import Run
from tests.llm.house import INFO, CharTokenizer, House

WORDS = ("CD", "EFG", "H", "IJKL")
DEFAULTS = SamplingChoice(temperature=0.0, max_tokens=3, ignore_eos=True)


class RandomProgram:
    """Grows a program by a seed; every capture has a name of its own."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._num_names = 0
        self._num_forks = 0

    def program(self) -> Program:
        return Program(body=(Text("AC"), *self._body(2)))

    def _body(self, depth: int) -> tuple[Node, ...]:
        nodes: list[Node] = []
        names: list[str] = []
        for _ in range(self._rng.randint(1, 4)):
            kind = self._rng.choice(("text", "gen", "gen", "value", "fork"))
            if kind == "gen":
                self._num_names += 1
                names.append(f"x{self._num_names}")
                nodes.append(Gen(name=names[-1], sampling=SamplingChoice(max_tokens=self._rng.randint(1, 4))))
            elif kind == "value" and names:
                nodes.append(Value(self._rng.choice(names)))
            elif kind == "fork" and depth > 0:
                nodes += self._fork(depth)
            else:
                nodes.append(Text(self._rng.choice(WORDS)))
        return tuple(nodes)

    def _fork(self, depth: int) -> list[Node]:
        self._num_forks += 1
        name = f"f{self._num_forks}"
        fork = Fork(name, tuple(self._body(depth - 1) for _ in range(self._rng.randint(1, 3))))
        joins = [[], [Join(name)], [Join(name, JoinMode.CONCATE_AND_APPEND)]]
        return [fork, *self._rng.choice(joins)]


class InOrder:
    """The meaning of a program: one call after the other, by hand."""

    def __init__(self, backend: EngineBackend) -> None:
        self._backend = backend
        self.captures: dict[str, object] = {}

    async def run(self, body: Sequence[Node], text: str, values: Mapping[str, str], path: str = "") -> str:
        known, forks = dict(values), {}
        for node in body:
            match node:
                case Text():
                    text += node.text
                case Value():
                    text += known[node.name]
                case Gen():
                    answer = await self._answer(text, node)
                    text += answer
                    assert node.name is not None
                    known[node.name] = self.captures[path + node.name] = answer
                case Fork():
                    forks[node.name] = [
                        (await self.run(branch, text, known, f"{path}{node.name}.{i}."))[len(text) :]
                        for i, branch in enumerate(node.branches)
                    ]
                case Join(mode=JoinMode.CONCATE_AND_APPEND):
                    text += "".join(forks[node.fork])
        return text

    async def _answer(self, text: str, node: Gen) -> str:
        from headrace.program.backend import Call
        from headrace.program.calls import sampling_params
        from headrace.program.document import Document

        call = Call(sampling_params(node.sampling.over(DEFAULTS)))
        return (await self._backend.generate(Document(text=text), call, lambda text: None)).texts[0]


def backend_of(house: House) -> tuple[EngineBackend, SteppedClient]:
    client = SteppedClient(house.engine)
    encoder = DocumentEncoder(CharTokenizer(), None)
    builder = RequestBuilder(INFO.max_model_len, INFO.vocab_size, CharTokenizer(), 0)
    return EngineBackend(client, encoder, builder, WallClock()), client


async def run_both(program: Program) -> tuple[Any, Any]:
    house = House(num_blocks=256)
    backend, client = backend_of(house)
    captures: dict[str, object] = {}

    def keep(name: str, capture: Capture) -> None:
        captures[name] = capture.value

    run = Run(backend, DEFAULTS, "p", None, keep)
    stream = start(program, run, {})
    await run.wait()
    together = ((await stream.document()).text, captures)
    ordered = InOrder(backend)
    text = await ordered.run(program.body, "", {})
    await client.close()
    assert house.kv.check() == []
    assert house.kv.num_private_blocks == 0
    return together, (text, ordered.captures)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6))
def test_a_random_program_means_its_calls_in_order(seed: int) -> None:
    together, in_order = asyncio.run(run_both(RandomProgram(seed).program()))
    assert together == in_order


async def submitted(program: Program) -> list[Any]:
    house = House()
    backend, client = backend_of(house)
    requests: list[Any] = []
    submit = house.engine.submit
    house.engine.submit = lambda request: (requests.append(request), submit(request))[1]  # type: ignore[method-assign]
    run = Run(backend, DEFAULTS, "mine")
    start(program, run, {})
    await run.wait()
    await client.close()
    return requests


def test_every_call_says_which_program_it_is_of_and_since_when_that_runs() -> None:
    sampling = SamplingChoice(max_tokens=2)
    body = (Text("AC"), Gen(name="x", sampling=sampling), Text("D"), Gen(name="y", sampling=sampling))
    first, second = asyncio.run(submitted(Program(body=body)))
    assert first.program.program_id == second.program.program_id == "mine"
    assert first.order_time == second.order_time == first.arrival_time < second.arrival_time


async def run_and_end(program: Program, num_turns: int) -> House:
    house = House(num_blocks=256)
    backend, client = backend_of(house)
    run = Run(backend, DEFAULTS, "p")
    start(program, run, {})
    for _ in range(num_turns):
        await asyncio.sleep(0)
    await run.cancel()
    with contextlib.suppress(ProgramError):  # unless it was over by then
        await run.wait()
    await client.close()
    return house


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6), st.integers(0, 400))
def test_a_program_ended_at_any_moment_leaves_no_block_behind(seed: int, num_turns: int) -> None:
    house = asyncio.run(run_and_end(RandomProgram(seed).program(), num_turns))
    assert not house.engine.has_work
    assert house.kv.check() == []
    assert house.kv.num_private_blocks == 0

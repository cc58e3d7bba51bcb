"""Random programs under random scheduling mean what they mean in order, and leave nothing behind when they are ended.

The engine is real and its executor's tokens are a hash of what the KV memory holds, so a wrong prefix shows.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.clock import WallClock
from headrace.core.errors import ProgramError
from headrace.core.sampling import SamplingParams
from headrace.engine.request_builder import RequestBuilder
from headrace.llm.stepped_client import SteppedClient
from headrace.program.backend import Call
from headrace.program.calls import sampling_params
from headrace.program.captures import Capture
from headrace.program.choices import choose
from headrace.program.document import Document
from headrace.program.encoding import DocumentEncoder
from headrace.program.engine_backend import EngineBackend
from headrace.program.interpreter import start
from headrace.program.ir import Branch, Fork, Gen, Join, JoinMode, Node, Program, SamplingChoice, Select, Text, Value
from headrace.program.run import Listeners, Run, RunUsage
from headrace.program.speculation import Speculation
from headrace.scheduler.cost_model import StepCosts
from tests.llm.house import INFO, CharTokenizer, House

WORDS = ("CD", "EFG", "H", "IJKL")
CHOICES = ("K", "LM", "NC")
DEFAULTS = SamplingChoice(temperature=0.0, max_tokens=3, ignore_eos=True)


class RandomProgram:
    """Grows a program by a seed; every capture has a name of its own."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._num_names = 0
        self._num_forks = 0

    def program(self) -> Program:
        return Program(body=(Text("AC"), *self._body(2, "")))

    def _body(self, depth: int, path: str) -> tuple[Node, ...]:
        nodes: list[Node] = []
        names: list[str] = []
        for _ in range(self._rng.randint(1, 4)):
            kind = self._rng.choice(("text", "gen", "gen", "value", "fork", "branch", "aside"))
            if kind == "gen":
                self._num_names += 1
                names.append(f"x{self._num_names}")
                nodes.append(Gen(name=names[-1], sampling=SamplingChoice(max_tokens=self._rng.randint(1, 4))))
            elif kind == "value" and names:
                nodes.append(Value(self._rng.choice(names)))
            elif kind == "fork" and depth > 0:
                nodes += self._fork(depth, path)
            elif kind == "branch" and depth > 0:
                nodes.append(self._branch(self._select(), depth, path))
            elif kind == "aside" and depth > 0:
                nodes += self._aside(depth, path)
            else:
                nodes.append(Text(self._rng.choice(WORDS)))
        return tuple(nodes)

    def _fork(self, depth: int, path: str) -> list[Node]:
        name = self._new_fork()
        branches = [self._body(depth - 1, f"{path}{name}.{index}.") for index in range(self._rng.randint(1, 3))]
        joins = [[], [Join(name)], [Join(name, JoinMode.CONCATE_AND_APPEND)]]
        return [Fork(name, tuple(branches)), *self._rng.choice(joins)]

    def _aside(self, depth: int, path: str) -> list[Node]:
        """A choice that is made in a fork after some thought, and a branch on it."""
        name, select = self._new_fork(), self._select()
        thought = (Text("D"), Gen(sampling=SamplingChoice(max_tokens=self._rng.randint(1, 9))), select)
        return [Fork(name, (thought,)), self._branch(Value(f"{path}{name}.0.{select.name}"), depth, path)]

    def _branch(self, on: Select | Value, depth: int, path: str) -> Branch:
        return Branch(on, {choice: self._body(depth - 1, path) for choice in self._rng.sample(CHOICES, 2)})

    def _select(self) -> Select:
        self._num_names += 1
        return Select(choices=CHOICES, name=f"x{self._num_names}")

    def _new_fork(self) -> str:
        self._num_forks += 1
        return f"f{self._num_forks}"


class InOrder:
    """The meaning of a program: one call after the other, by hand."""

    def __init__(self, backend: EngineBackend) -> None:
        self._backend = backend
        self.captures: dict[str, object] = {}

    async def run(self, body: Sequence[Node], text: str, known: dict[str, str], path: str = "") -> str:
        """The text after ``body``; what it captures is added to ``known``."""
        forks: dict[str, list[str]] = {}
        for node in body:
            match node:
                case Branch():
                    choice = await self._choose(text, node.on, known, path)
                    text += choice if isinstance(node.on, Select) else ""
                    text = await self.run(node.cases.get(choice, ()), text, known, path)
                case Fork():
                    forks[node.name] = await self._fork(node, text, known, path)
                case Join():
                    text += "".join(forks[node.fork]) if node.mode is JoinMode.CONCATE_AND_APPEND else ""
                case _:
                    text += await self._leaf(node, text, known, path)
        return text

    async def _fork(self, node: Fork, text: str, known: dict[str, str], path: str) -> list[str]:
        added = []
        for index, branch in enumerate(node.branches):
            inner, own_path = dict(known), f"{path}{node.name}.{index}."
            added.append((await self.run(branch, text, inner, own_path))[len(text) :])
            known |= {name: value for name, value in inner.items() if name.startswith(own_path)}
        return added

    async def _leaf(self, node: Node, text: str, known: dict[str, str], path: str) -> str:
        match node:
            case Text():
                return node.text
            case Value():
                return known[node.name]
            case Select():
                return await self._choose(text, node, known, path)
        assert isinstance(node, Gen)
        answer = await self._answer(text, node)
        if node.name is not None:
            known[node.name] = known[path + node.name] = self.captures[path + node.name] = answer
        return answer

    async def _choose(self, text: str, node: Select | Value, known: dict[str, str], path: str) -> str:
        if isinstance(node, Value):
            return known[node.name]
        scores = await self._backend.score(Document(text=text), node.choices, Call(SamplingParams()))
        choice = node.choices[choose(node.method, scores.choices).index]
        assert node.name is not None
        known[node.name] = known[path + node.name] = self.captures[path + node.name] = choice
        return choice

    async def _answer(self, text: str, node: Gen) -> str:
        call = Call(sampling_params(node.sampling.over(DEFAULTS)))
        return (await self._backend.generate(Document(text=text), call, lambda text: None)).texts[0]


def backend_of(house: House) -> tuple[EngineBackend, SteppedClient]:
    client = SteppedClient(house.engine)
    encoder = DocumentEncoder(CharTokenizer(), None)
    builder = RequestBuilder(INFO.max_model_len, INFO.vocab_size, CharTokenizer(), 0)
    return EngineBackend(client, encoder, builder, WallClock()), client


ROOMY = StepCosts(fixed_s=1.0, num_free_tokens=64.0, token_s=0.01)
"""A machine on which a few more sequences cost nothing, so that there is always room for guesses."""


async def run_together(
    program: Program, house: House, speculation: Speculation
) -> tuple[str, dict[str, object], RunUsage]:
    backend, client = backend_of(house)
    captures: dict[str, object] = {}

    def keep(name: str, capture: Capture) -> None:
        captures[name] = capture.value

    run = Run(backend, DEFAULTS, "p", Listeners(None, keep), speculation)
    stream = start(program, run, {})
    await run.wait()
    text = (await stream.document()).text
    await client.close()
    assert_nothing_left(house)
    return text, captures, run.usage


async def run_in_order(program: Program) -> tuple[str, dict[str, object]]:
    backend, client = backend_of(House(num_blocks=256))
    ordered = InOrder(backend)
    text = await ordered.run(program.body, "", {})
    await client.close()
    return text, ordered.captures


def assert_nothing_left(house: House) -> None:
    assert not house.engine.has_work
    assert house.kv.check() == []
    assert house.kv.num_private_blocks == 0


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([32, 48, 256]))
def test_a_random_program_means_its_calls_in_order(seed: int, num_blocks: int) -> None:
    program = RandomProgram(seed).program()
    house = House(num_blocks)
    assert asyncio.run(run_together(program, house, Speculation(0)))[:2] == asyncio.run(run_in_order(program))


def test_two_hundred_programs_mean_the_same_whatever_is_begun_on_a_guess() -> None:
    async def run_all() -> RunUsage:
        usage, speculation = RunUsage(), Speculation()
        for seed in range(200):
            program = RandomProgram(seed).program()
            house = House(num_blocks=random.Random(seed).choice([32, 64, 256]), costs=ROOMY)
            *found, cost = await run_together(program, house, speculation)
            assert tuple(found) == await run_in_order(program)
            usage.absorb(cost)
        return usage

    usage = asyncio.run(run_all())
    assert 20 < usage.num_right_guesses < usage.num_guesses - 20


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
    house = House(num_blocks=256, costs=ROOMY)
    backend, client = backend_of(house)
    run = Run(backend, DEFAULTS, "p", speculation=Speculation())
    start(program, run, {})
    for _ in range(num_turns):
        await asyncio.sleep(0)
    await run.cancel()
    with contextlib.suppress(ProgramError):  # unless it was over by then
        await run.wait()
    assert len(asyncio.all_tasks()) == 2  # this one and the client's: nothing goes on behind the run's back
    await client.close()
    return house


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(0, 400))
def test_a_program_ended_at_any_moment_leaves_no_block_behind(seed: int, num_turns: int) -> None:
    assert_nothing_left(asyncio.run(run_and_end(RandomProgram(seed).program(), num_turns)))

"""A server's life without processes, sockets or time: one seed is one life, and a failing seed is a bug report.

The real parts are those that decide: streams and re-entry on the API's side; engine, scheduler, KV cache on the
other; both in one event loop, with a clock that moves only when told to. Between them is a wire that delays. The
seed chooses what clients ask, when they leave, and what goes wrong. In the spirit of FoundationDB's simulation
(Zhou et al., "FoundationDB: A Distributed Unbundled Transactional Key Value Store", SIGMOD 2021).
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from dataclasses import dataclass, field, replace

from headrace.core.errors import EngineDead, HeadraceError, InvalidRequest, Overloaded
from headrace.core.memory_pressure import MemoryState, PressureLevel
from headrace.core.request import FinishReason, Request, RequestOutput
from headrace.core.step import PendingMask, StepPlan, StepResult
from headrace.engine.messages import Abort, Resume, Submit
from headrace.engine.metrics import Metrics
from headrace.engine.reentry import DeathCause, Reentry
from headrace.engine.streams import StreamTable
from tests.engine.house import EOS, VOCAB_SIZE, House
from tests.fakes import ContentExecutor, ManualClock, expected_output, make_request

POISON = VOCAB_SIZE - 1
"""A prompt that begins with this ends the engine, at the token that its second one says."""

HANG_LIMIT_S = 30.0
NUM_TICKS = 60
MAX_TICKS = 1500


class EngineKilled(BaseException):
    """The process is gone in the middle of a step."""


class FaultyExecutor(ContentExecutor):
    """Obeys the faults it is told of, once each, and dies of poison."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.next_error: Exception | None = None
        self.next_seconds = 0.01

    def execute(self, plan: StepPlan, token_mask: PendingMask | None) -> StepResult:
        error, self.next_error = self.next_error, None
        if error is not None and plan.scheduled:
            super().execute(replace(plan, scheduled=()), None)  # blocks are moved before anything is computed
            raise error
        result = super().execute(plan, token_mask)
        for item in plan.scheduled:
            first, second = self._slots[item.block_ids[0], :2]
            if first == POISON and item.end > second:
                raise EngineKilled
        return result


@dataclass
class Client:
    """One request and all that came of it."""

    request: Request
    outputs: list[RequestOutput] = field(default_factory=list)
    error: HeadraceError | None = None
    has_left: bool = False

    @property
    def is_poison(self) -> bool:
        return self.request.prompt_token_ids[0] == POISON

    def tokens(self, index: int) -> list[int]:
        return [token for output in self.outputs if output.index == index for token in output.token_ids]

    def ends(self, index: int) -> list[FinishReason]:
        return [o.finish_reason for o in self.outputs if o.index == index and o.finish_reason is not None]


class World:
    """One life, in ticks. ``history`` is what happened, for reading a failed seed."""

    def __init__(self, seed: int, metrics: Metrics) -> None:
        self.rng = random.Random(seed)
        self.clock = ManualClock()
        self.streams = StreamTable(metrics, self.clock)
        self.reentry = Reentry(self.streams, metrics, max_resumptions=1000)
        self.clients: list[Client] = []
        self.readers: dict[str, asyncio.Task[None]] = {}
        self.history: list[str] = []
        self.num_deaths = 0
        self.num_outside_deaths = 0
        self.num_unexplained_deaths = 0
        self.has_failed_steps = False
        self.has_shed = False
        self.house: House | None = None
        self._to_engine: deque[Submit | Resume | Abort] = deque()
        self._to_api: deque[RequestOutput | tuple[str, HeadraceError]] = deque()
        self._hung = False
        self._heard_at = 0.0
        self._pressure = PressureLevel.CALM
        self._start_engine()

    async def live(self) -> None:
        """Run the life, then let everything come to its end; raises ``AssertionError`` if that does not happen."""
        for _ in range(NUM_TICKS):
            self._disturb()
            await self._tick()
        for _ in range(MAX_TICKS):
            if not self.readers and self.house is not None and not self.house.engine.has_work:
                break
            await self._tick()
        self._check_end()

    def state(self, now: float) -> MemoryState:
        """The engine's watch over memory."""
        return MemoryState(self._pressure, 0)

    # what clients do

    def _new_client(self) -> None:
        rng, number = self.rng, len(self.clients)
        prompt = [rng.randrange(1, POISON) for _ in range(rng.choice((2, 5, 9, 20)))]
        if rng.random() < 0.3 and self.clients:
            prompt = list(rng.choice(self.clients).request.prompt_token_ids)  # a prefix that is cached, perhaps
        if rng.random() < 0.04:
            prompt[:2] = [POISON, rng.randrange(1, 12)]
        request = make_request(
            prompt, f"r{number}", self.clock.now(), n=rng.choice((1, 1, 1, 3)), max_tokens=rng.randrange(1, 16)
        )
        client = Client(request)
        self.clients.append(client)
        self.readers[request.request_id] = reader = asyncio.create_task(self._read(client))
        reader.add_done_callback(lambda _: self.readers.pop(request.request_id))

    def _client(self, request_id: str) -> Client:
        return self.clients[int(request_id.removeprefix("r"))]

    async def _read(self, client: Client) -> None:
        try:
            async for output in self.streams.generate(client.request, self._send):
                client.outputs.append(output)
        except HeadraceError as error:
            client.error = error

    def _send(self, message: Submit | Abort) -> None:
        if isinstance(message, Submit):
            if self.house is None:
                raise EngineDead("the engine is starting")
            self.reentry.submit(message.request)
            return
        self._to_engine.append(message)
        self.reentry.advance()

    # what goes wrong

    def _disturb(self) -> None:
        rng = self.rng
        if rng.random() < 0.5:
            self._new_client()
        if self.readers and rng.random() < 0.05:
            request_id = rng.choice(list(self.readers))
            self._note(f"{request_id} leaves")
            self.readers[request_id].cancel()
            self._client(request_id).has_left = True
        if rng.random() < 0.1:
            self._pressure = PressureLevel.CALM
        if self.house is None or rng.random() > 0.09:
            return
        faults = (self._kill, self._hang, self._slow, self._starve, self._break_step, self._break_row, self._jump)
        rng.choice((*faults, self._squeeze))()

    def _kill(self) -> None:
        self._note("killed from outside")
        self.num_outside_deaths += 1
        self._die(DeathCause.OUTSIDE)

    def _hang(self) -> None:
        if self.reentry.is_settled:  # during a trial the one on it would be blamed, and rightly so
            self._note("hangs")
            self._hung = True

    def _slow(self) -> None:
        self._executor.next_seconds = 20.0

    def _starve(self) -> None:
        self.has_failed_steps = True
        self._executor.next_error = MemoryError()

    def _break_step(self) -> None:
        self.has_failed_steps = True
        self._executor.next_error = ZeroDivisionError()

    def _break_row(self) -> None:
        self.has_failed_steps = True
        self._executor.fail_seq_ids.add(self.rng.randrange(40))

    def _squeeze(self) -> None:
        self._pressure = self.rng.choice(list(PressureLevel))
        self._note(f"memory is {self._pressure.name}")
        self.has_shed |= self._pressure is PressureLevel.CRITICAL

    def _jump(self) -> None:
        self._note("an hour passes")
        self._heard_at = self.clock.now() + 3600.0  # the machine slept; the watchdog's own timer did, too
        self.clock.advance(3600.0)

    # the two sides and the wire

    @property
    def _executor(self) -> FaultyExecutor:
        assert self.house is not None
        assert isinstance(self.house.executor, FaultyExecutor)
        return self.house.executor

    async def _tick(self) -> None:
        self.clock.advance(0.5)
        if self.house is None:
            if self.rng.random() < 0.3:
                self._start_engine()
        elif self._hung:
            if self.clock.now() - self._heard_at > HANG_LIMIT_S:
                self._die(DeathCause.UNKNOWN)
        else:
            self._run_engine()
        self._deliver(self.rng.randrange(len(self._to_api) + 1))
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    def _start_engine(self) -> None:
        executor = FaultyExecutor(24, 4, VOCAB_SIZE)
        self.house = House(num_blocks=24, budget=12, max_num_seqs=4, executor=executor, clock=self.clock)
        self.house.engine.relieve(self)
        self._hung, self._heard_at = False, self.clock.now()
        self._to_engine.clear()
        self.reentry.engine_ready(self._to_engine.append)

    def _run_engine(self) -> None:
        assert self.house is not None
        engine = self.house.engine
        for _ in range(self.rng.randrange(len(self._to_engine) + 1)):
            self._handle(self._to_engine.popleft())
        self._heard_at = self.clock.now()
        if not engine.has_work:
            return
        try:
            self._to_api.extend(engine.step())
        except (EngineKilled, ZeroDivisionError) as error:
            self._note(f"dies of {type(error).__name__}")
            self.num_unexplained_deaths += isinstance(error, ZeroDivisionError)
            self._die(DeathCause.UNKNOWN)
            return
        self.clock.advance(self._executor.next_seconds)
        self._executor.next_seconds = 0.01
        violations = self.house.kv.check()
        assert not violations, violations

    def _handle(self, message: Submit | Resume | Abort) -> None:
        assert self.house is not None
        engine = self.house.engine
        try:
            match message:
                case Submit(request):
                    engine.submit(request)
                case Resume(request, progress):
                    engine.resume(request, progress)
                case Abort(request_id):
                    engine.abort(request_id)
        except (InvalidRequest, Overloaded) as error:
            assert not isinstance(message, Abort)
            self._to_api.append((message.request.request_id, error))

    def _deliver(self, count: int) -> None:
        for _ in range(count):
            news = self._to_api.popleft()
            if isinstance(news, RequestOutput):
                self.streams.deliver([news])
            else:
                self.streams.refuse(*news)
            self.reentry.advance()

    def _die(self, cause: DeathCause) -> None:
        """The process is gone; of what it had written, the socket has some."""
        self._deliver(self.rng.randrange(len(self._to_api) + 1))
        self._to_api.clear()
        self.house, self._hung = None, False
        self.num_deaths += 1
        self.reentry.engine_died(EngineDead("the engine died"), cause)

    def _note(self, what: str) -> None:
        self.history.append(f"{self.clock.now():.1f} {what}")

    # what must hold at the end

    def _check_end(self) -> None:
        assert not self.readers, f"never answered: {sorted(self.readers)}"
        assert len(self.streams) == 0
        assert self.house is not None
        assert not self.house.engine.has_work
        assert self.house.kv.num_private_blocks == 0
        for client in self.clients:
            check_answer(client, self)


def check_answer(client: Client, world: World) -> None:
    """Exactly one end of every sequence, and not a token that one engine alone would not have given."""
    request = client.request
    max_tokens = request.sampling.max_tokens
    assert max_tokens is not None
    oracle = expected_output(request.prompt_token_ids, max_tokens, VOCAB_SIZE, frozenset([EOS]))
    for index in range(request.sampling.n):
        tokens, ends = client.tokens(index), client.ends(index)
        assert tokens == oracle[: len(tokens)], f"{request.request_id}#{index}: {tokens} is not of {oracle}"
        assert len(ends) <= 1, f"{request.request_id}#{index} ended {len(ends)} times"
        if client.has_left or client.error is not None:
            continue
        assert len(ends) == 1, f"{request.request_id}#{index} never ended"
        if ends[0] is FinishReason.ERROR:
            assert world.has_failed_steps or world.has_shed, f"{request.request_id} failed for nothing"
        else:
            assert tokens == oracle, f"{request.request_id}#{index} ended early"
    check_error(client, world)


def check_error(client: Client, world: World) -> None:
    name = type(client.error).__name__
    if client.error is None or client.has_left or name in ("Overloaded", "EngineDead"):
        return
    may_be_quarantined = client.is_poison or world.num_outside_deaths >= 2 or world.num_unexplained_deaths > 0
    assert (name, may_be_quarantined) == ("RequestQuarantined", True), f"{client.request.request_id}: {client.error!r}"

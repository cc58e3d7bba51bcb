"""The load generator against a server with a script: every figure below can be worked out on paper."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from headrace.bench.arrivals import ConstantRate, RandomArrivals, TraceArrivals
from headrace.bench.dialect import DIALECTS, BodyOptions
from headrace.bench.load_generator import ClosedLoop, LoadGenerator, Loop, OpenLoop, RunTimes, Target
from headrace.bench.record import Outcome, RequestRecord
from headrace.bench.server_probe import ask_once, find_server
from headrace.bench.workload import Session, Turn
from headrace.core.errors import ConfigError, RequestFailed
from tests.bench.scripted_server import DONE, Asked, Hangup, Refuse, Script, ScriptedServer, Send, Wait, reply, scripted
from tests.bench.virtual_time import VirtualPacer, run_virtually


@dataclass
class Heard:
    """What a run left behind."""

    records: list[RequestRecord] = field(default_factory=list)
    times: RunTimes | None = None
    server: ScriptedServer | None = None

    def add(self, record: RequestRecord) -> None:
        self.records.append(record)

    @property
    def only(self) -> RequestRecord:
        assert len(self.records) == 1
        return self.records[0]

    @property
    def asked(self) -> list[Asked]:
        assert self.server is not None
        return self.server.asked


def ask(text: str = "hello", at_s: float = 0.0, **turn: object) -> Session:
    return Session(turns=[Turn(text=text, max_tokens=8, **turn)], arrival_s=at_s)  # type: ignore[arg-type]


def run(
    folder: Path,
    script: Script | Callable[[Asked], Script],
    sessions: list[Session] | None = None,
    loop: Loop | None = None,
    dialect: str = "completions",
    max_duration_s: float | None = None,
) -> Heard:
    heard = Heard()

    async def work() -> None:
        play = script if callable(script) else lambda asked: script
        async with scripted(folder, play) as (server, client):
            heard.server = server
            target = Target(client, DIALECTS[dialect], BodyOptions(model="m"), timeout_s=30.0)
            generator = LoadGenerator(target, heard, VirtualPacer(), max_duration_s)
            heard.times = await generator.run(sessions or [ask()], loop or ClosedLoop(1))

    run_virtually(work())
    return heard


def test_a_stream_is_measured_at_its_chunks(tmp_path: Path) -> None:
    heard = run(tmp_path, reply(0.5, 0.1, 0.3, 0.1))
    record = heard.only
    assert record.outcome is Outcome.OK
    assert record.ttft_s == pytest.approx(0.5)
    assert list(record.gaps_s) == pytest.approx([0.1, 0.3, 0.1])
    assert record.worst_gap_s == pytest.approx(0.3)
    assert record.e2e_s == pytest.approx(1.0)
    assert record.tpot_s == pytest.approx(0.5 / 3)
    assert (record.num_input_tokens, record.num_output_tokens, record.num_chunks) == (10, 4, 4)
    assert record.texts == ["t0 t1 t2 t3 "]
    assert heard.times is not None
    assert heard.times.duration_s == pytest.approx(1.0)


def test_several_tokens_in_a_chunk_are_counted_as_the_server_counts_them(tmp_path: Path) -> None:
    record = run(tmp_path, reply(1.0, 0.4, tokens=9)).only
    assert record.num_chunks == 2
    assert record.num_output_tokens == 9
    assert record.tpot_s == pytest.approx(0.4 / 8)
    assert list(record.gaps_s) == pytest.approx([0.4])


def test_chunks_without_text_are_no_tokens_and_start_no_clock(tmp_path: Path) -> None:
    role = Send.text("")
    script = [Wait(0.1), role, Wait(0.4), Send.text("a"), Wait(0.2), role, Wait(0.2), Send.text("b", finish="length")]
    record = run(tmp_path, [*script, Send.usage(3, 2), DONE]).only
    assert record.ttft_s == pytest.approx(0.5)
    assert list(record.gaps_s) == pytest.approx([0.4])
    assert record.num_chunks == 2
    assert record.finish_reason == "length"


def test_an_answer_of_one_token_has_no_time_per_token(tmp_path: Path) -> None:
    record = run(tmp_path, reply(0.5)).only
    assert record.outcome is Outcome.OK
    assert record.tpot_s is None
    assert record.worst_gap_s is None


def test_an_answer_without_text_is_timed_at_its_end(tmp_path: Path) -> None:
    record = run(tmp_path, [Wait(0.7), Send.text("", finish="stop"), Send.usage(3, 1), DONE]).only
    assert record.outcome is Outcome.OK
    assert record.ttft_s == record.e2e_s == pytest.approx(0.7)
    assert record.num_chunks == 0


def test_a_chunk_may_come_in_pieces_and_several_at_once(tmp_path: Path) -> None:
    whole = Send.text("a").data + Send.text("b").data.replace(b"\n", b"\r\n") + Send.text("c", finish="stop").data
    cut = len(Send.text("a").data) + 9
    script = [Wait(1), Send(whole[:cut]), Wait(1), Send(whole[cut:] + b": a comment\n\n"), Send.usage(1, 3), DONE]
    record = run(tmp_path, script).only
    assert record.texts == ["abc"]
    assert record.ttft_s == pytest.approx(1.0)
    assert list(record.gaps_s) == pytest.approx([1.0, 0.0])


def test_each_choice_has_its_own_gaps(tmp_path: Path) -> None:
    script = [
        *(Wait(1), Send.text("a", 0), Wait(1), Send.text("x", 1)),
        *(Wait(1), Send.text("b", 0, "stop"), Wait(1), Send.text("y", 1, "stop"), Send.usage(1, 4), DONE),
    ]
    record = run(tmp_path, script, [ask(fields={"n": 2})]).only
    assert record.texts == ["ab", "xy"]
    assert list(record.gaps_s) == pytest.approx([2.0, 2.0])
    assert record.tpot_s == pytest.approx(3.0)  # two tokens each, the first at 1 s, the last at 4 s


@pytest.mark.parametrize(
    ("script", "outcome", "words"),
    [
        ([Wait(1), Send.text("a"), Wait(1), Hangup()], Outcome.INCOMPLETE, "broke within an answer"),
        ([Wait(1), Hangup()], Outcome.UNREACHABLE, "closed the connection without an answer"),
        ([Wait(1), Send.text("a"), Wait(1)], Outcome.INCOMPLETE, "after 1 chunks without a finish reason"),
        ([Wait(1), Send.text("a"), Wait(60)], Outcome.TIMEOUT, "within 30 s"),
        ([Wait(1), Refuse(429, "too many")], Outcome.ERROR, "HTTP 429: too many"),
        ([Send.text("a"), Send.json({"error": {"message": "broken"}})], Outcome.ERROR, "broken"),
        ([Send.text("a"), Send(b"data: {nonsense\n\n"), Wait(60)], Outcome.ERROR, "chunk that cannot be read"),
        ([Send(b'{"error": "no"}')], Outcome.ERROR, "no"),
    ],
    ids=lambda value: value.value if isinstance(value, Outcome) else "",
)
def test_what_goes_wrong_is_named(tmp_path: Path, script: Script, outcome: Outcome, words: str) -> None:
    record = run(tmp_path, script).only
    assert record.outcome is outcome
    assert words in record.error
    assert not record.is_ok


def test_a_failure_leaves_the_other_requests_alone(tmp_path: Path) -> None:
    def script(asked: Asked) -> Script:
        return [Wait(1), Send.text("a"), Hangup()] if asked.number == 1 else reply(0.5)

    heard = run(tmp_path, script, [ask(), ask(), ask()])
    assert [record.outcome for record in heard.records] == [Outcome.OK, Outcome.INCOMPLETE, Outcome.OK]


def test_nothing_is_sent_twice(tmp_path: Path) -> None:
    assert len(run(tmp_path, [Refuse(503, "later")], [ask(), ask()]).asked) == 2


def test_a_server_that_closes_kept_connections_is_met_once_and_not_counted_as_failing(tmp_path: Path) -> None:
    def script(asked: Asked) -> Script:
        return [*reply(1.0), Hangup()]  # the answer ends well, the connection after it

    heard = run(tmp_path, script, [ask() for _ in range(4)])
    assert [record.outcome for record in heard.records] == [Outcome.OK] * 4
    assert [record.ttft_s for record in heard.records] == pytest.approx([1.0] * 4)
    assert len(heard.asked) == 4


def test_a_client_hangs_up_where_the_workload_says(tmp_path: Path) -> None:
    heard = run(tmp_path, reply(1, 1, 1, 1, 1), [ask(abort_after_chunks=2), ask()])
    aborted, whole = heard.records
    assert aborted.outcome is Outcome.ABORTED
    assert aborted.num_chunks == 2
    assert aborted.e2e_s == pytest.approx(2.0)
    assert whole.outcome is Outcome.OK


def test_an_open_loop_sends_on_time_while_the_server_stalls(tmp_path: Path) -> None:
    sessions = [ask(at_s=second) for second in (5.0, 6.0, 7.0)]
    heard = run(tmp_path, reply(10.0), sessions, OpenLoop(TraceArrivals()))
    assert [asked.at_s for asked in heard.asked] == pytest.approx([0.0, 1.0, 2.0])
    assert [record.ttft_s for record in heard.records] == pytest.approx([10.0] * 3)


def test_waiting_for_a_slot_counts_as_latency_and_not_as_the_clients_lag(tmp_path: Path) -> None:
    """One slot, ten seconds each, one arrival a second: a client that counted from sending would say 10 s each."""
    sessions = [ask(at_s=second) for second in (0.0, 1.0, 2.0)]
    heard = run(tmp_path, reply(10.0), sessions, OpenLoop(TraceArrivals(), max_concurrency=1))
    assert [record.ttft_s for record in heard.records] == pytest.approx([10.0, 19.0, 28.0])
    assert [record.queue_s for record in heard.records] == pytest.approx([0.0, 9.0, 18.0])
    assert [record.lag_s for record in heard.records] == pytest.approx([0.0] * 3)


def test_a_closed_loop_keeps_so_many_requests_going(tmp_path: Path) -> None:
    heard = run(tmp_path, reply(1.0), [ask() for _ in range(5)], ClosedLoop(2))
    assert [asked.at_s for asked in heard.asked] == pytest.approx([0, 0, 1, 1, 2])
    assert [record.ttft_s for record in heard.records] == pytest.approx([1.0] * 5)
    assert heard.server is not None
    assert heard.server.num_connections == 2


def test_no_session_is_sent_after_the_duration(tmp_path: Path) -> None:
    closed = run(tmp_path, reply(1.0), [ask() for _ in range(9)], ClosedLoop(1), max_duration_s=2.5)
    assert len(closed.records) == 3
    arrivals = RandomArrivals(ConstantRate(10.0), 1e9, 99, seed=1)
    opened = run(tmp_path, reply(1.0), [ask() for _ in range(99)], OpenLoop(arrivals), max_duration_s=0.95)
    assert len(opened.records) == 10


def test_a_conversation_goes_on_with_the_servers_answers(tmp_path: Path) -> None:
    def script(asked: Asked) -> Script:
        delta = {"choices": [{"delta": {"content": f"answer {asked.number}"}, "finish_reason": "stop"}]}
        return [Wait(2.0), Send.json(delta), Send.usage(5, 2), DONE]

    turns = [Turn(text="one", max_tokens=4), Turn(text="two", max_tokens=4, think_s=3.0)]
    heard = run(tmp_path, script, [Session(turns=turns, system="be brief")], dialect="chat")
    first, second = heard.asked
    assert first.body["messages"] == [{"role": "system", "content": "be brief"}, {"role": "user", "content": "one"}]
    assert second.body["messages"] == [
        *first.body["messages"],  # type: ignore[misc]
        {"role": "assistant", "content": "answer 0"},
        {"role": "user", "content": "two"},
    ]
    assert second.at_s == pytest.approx(5.0)
    assert [record.ttft_s for record in heard.records] == pytest.approx([2.0, 2.0])
    assert [record.turn for record in heard.records] == [0, 1]


def test_a_conversation_ends_with_its_first_failure(tmp_path: Path) -> None:
    turns = [Turn(text="one", max_tokens=4), Turn(text="two", max_tokens=4)]
    heard = run(tmp_path, [Refuse(500, "no")], [Session(turns=turns)])
    assert len(heard.records) == 1


def test_a_turn_that_the_endpoint_cannot_take_ends_the_run_with_one_error(tmp_path: Path) -> None:
    session = Session(turns=[Turn(text=[1, 2], max_tokens=4)])
    with pytest.raises(ConfigError, match="use --endpoint completions"):
        run(tmp_path, reply(1.0), [session, session], ClosedLoop(2), dialect="chat")


def test_the_native_dialect_reads_text_that_grows(tmp_path: Path) -> None:
    def chunk(text: str, tokens: int, finish: object = None) -> Send:
        meta = {"prompt_tokens": 7, "completion_tokens": tokens, "cached_tokens": 3, "finish_reason": finish}
        return Send.json({"text": text, "meta_info": meta})

    script = [Wait(1), chunk("a", 1), Wait(1), chunk("abc", 4, {"type": "length"}), DONE]
    heard = run(tmp_path, script, dialect="generate")
    record = heard.only
    assert heard.asked[0].path == "/generate"
    assert heard.asked[0].body == {"text": "hello", "sampling_params": {"max_new_tokens": 8}, "stream": True}
    assert record.texts == ["abc"]
    assert (record.num_input_tokens, record.num_output_tokens, record.num_cached_tokens) == (7, 4, 3)
    assert record.tpot_s == pytest.approx(1 / 3)
    assert record.finish_reason == "length"


def test_a_server_that_does_not_stream_is_timed_at_its_end(tmp_path: Path) -> None:
    whole = {
        "choices": [{"text": "abc", "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 2, "completion_tokens": 3},
    }
    script = [Wait(2.0), Send(Send.json(whole).data[6:])]
    record = run(tmp_path, script).only
    assert record.outcome is Outcome.OK
    assert record.ttft_s == record.e2e_s == pytest.approx(2.0)
    assert record.num_output_tokens == 3


def test_a_lone_request_that_hangs_is_given_up(tmp_path: Path) -> None:
    async def work() -> None:
        async with scripted(tmp_path, lambda asked: [Wait(60.0)]) as (_, client):
            target = Target(client, DIALECTS["completions"], BodyOptions(model="m"), timeout_s=5.0)
            with pytest.raises(RequestFailed, match="not answered within 5 s"):
                await ask_once(target, ask())
            with pytest.raises(ConfigError, match="does not list its models within 30 s"):
                await find_server(client, None)

    run_virtually(work())


def test_a_server_without_a_list_of_models_needs_a_name(tmp_path: Path) -> None:
    async def work() -> None:
        async with scripted(tmp_path, lambda asked: [Refuse(404, "no")]) as (_, client):
            with pytest.raises(ConfigError, match="name one with --model"):
                await find_server(client, None)
            assert (await find_server(client, "mine")).model == "mine"

    run_virtually(work())


def test_token_counts_come_from_the_counter_where_the_server_gives_none(tmp_path: Path) -> None:
    async def work() -> RequestRecord:
        script = [Send.text("one two", finish="stop"), DONE]
        async with scripted(tmp_path, lambda asked: script) as (_, client):
            counter = str.split
            options = BodyOptions(model="m")
            target = Target(client, DIALECTS["completions"], options, 5.0, lambda text: len(counter(text)))
            return await ask_once(target, ask())

    assert run_virtually(work()).num_output_tokens == 2

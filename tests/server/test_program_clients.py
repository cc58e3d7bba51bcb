"""Programs on a server give what they give in this process; of endpoints that only chat the best is made."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from examples.chaired_judge import ESSAYS, chaired_judge
from examples.programs import ARGUMENTS, PROGRAMS

from headrace import program as sgl
from headrace.core.config import EngineConfig
from headrace.core.errors import ProgramError
from headrace.core.sampling import SamplingParams
from headrace.llm.offline import LLM
from headrace.program import OpenAI, RuntimeEndpoint
from headrace.program.api_client import ApiClient, Headers, JsonObject, NoSuchRoute
from headrace.program.backend import Call, Place
from headrace.program.document import Document
from headrace.program.server_backend import ServerBackend
from headrace.program.speculation import Speculation
from tests.server.fakes import ScriptedClient, spelling
from tests.server.harness import MODEL, RunningServer, eventually, running_server
from tests.server.real_engine import TINY_SETTINGS, metric, tiny_backend
from tests.tiny_model import write_tiny_model

NUM_STEP_TOKENS = EngineConfig(model="x").max_num_batched_tokens
SETTINGS: dict[str, Any] = {
    **TINY_SETTINGS,
    "max_model_len": 2048,
    "kv_cache_bytes": 8 << 20,
    "max_num_batched_tokens": NUM_STEP_TOKENS,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_tiny_model(tmp_path_factory.mktemp("remote") / "tiny")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 4096}))
    return folder


@pytest.fixture(scope="module")
def real_server(folder: Path) -> Iterator[RunningServer]:
    with running_server(tiny_backend(folder, **SETTINGS)) as server:
        yield server


@pytest.fixture(scope="module")
def endpoint(real_server: RunningServer) -> Iterator[RuntimeEndpoint]:
    with RuntimeEndpoint(f"{real_server.url}/v1") as endpoint:
        yield endpoint


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_over_http_gives_what_it_gives_here(endpoint: RuntimeEndpoint, folder: Path, name: str) -> None:
    there = PROGRAMS[name].run(**ARGUMENTS[name], temperature=0.0, backend=endpoint)
    with LLM(str(folder), **SETTINGS) as llm:
        here = llm.run(PROGRAMS[name], **ARGUMENTS[name], temperature=0.0)
        assert there.text() == here._sink.view("").document()[0].transcript()
        assert there.ret_value == here.ret_value


def test_choices_are_scored_alike_where_a_server_runs_no_programs(
    endpoint: RuntimeEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen, metas = [], []
    for name in ("tree_of_thought", "extract_json"):
        for hidden in (False, True):
            backend = endpoint.backend
            assert isinstance(backend, ServerBackend)
            backend._scores_by_program = not hidden
            state = PROGRAMS[name].run(**ARGUMENTS[name], temperature=0.0, backend=endpoint)
            chosen.append(state.text())
            if name == "extract_json":
                metas.append(state.get_meta_info("mood")["normalized_prompt_logprobs"])
    assert chosen[0] == chosen[1]
    assert chosen[2] == chosen[3]
    assert metas[0] == pytest.approx(metas[1], abs=1e-4)


def test_a_program_in_a_client_begins_cases_on_a_guess_while_the_server_has_room(
    endpoint: RuntimeEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[httpx.Request] = []

    async def note(request: httpx.Request) -> None:
        sent.append(request)

    assert isinstance(endpoint.backend, ServerBackend)
    endpoint.backend.client.num_spare_sequences = 5
    assert endpoint.backend.num_spare_calls() == 5
    monkeypatch.setattr(endpoint.backend, "num_spare_calls", lambda: 2)  # whatever the server tells meanwhile
    endpoint.backend.client._http.event_hooks = {"request": [note]}
    guessed = chaired_judge.run(ESSAYS[0], temperature=0.0, backend=endpoint)
    endpoint.backend.client._http.event_hooks = {}
    endpoint.speculation = Speculation(0)
    in_order = chaired_judge.run(ESSAYS[0], temperature=0.0, backend=endpoint)
    assert guessed.text() == in_order.text()
    assert (guessed.usage.num_guesses, in_order.usage.num_guesses) == (2, 0)
    assert guessed.usage.num_right_guesses == 1
    guesses = [each.headers["x-request-id"] for each in sent if "x-program-guess" in each.headers]
    confirmed = [each.url.path.split("/")[3] for each in sent if each.url.path.endswith("/confirm")]
    assert len(guesses) == 2
    assert set(confirmed) <= set(guesses)
    assert len({each.headers["x-program-id"] for each in sent if "x-program-id" in each.headers}) == 1


def test_a_guess_is_confirmed_until_the_server_knows_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.program.server_backend._CONFIRM_AGAIN_S", 0.0)
    confirms: list[str] = []

    class Late(ApiClient):
        """A server that a call reaches later than what confirms it, more often than any count of tries."""

        async def post(self, path: str, body: JsonObject, headers: Headers | None = None) -> JsonObject:
            if path.endswith("/confirm"):
                confirms.append(path)
                if len(confirms) < 20:
                    raise NoSuchRoute("no request of yours runs")
                known.set()
                return {}
            await known.wait()
            return {"id": "c", "choices": [{"index": 0, "text": "x", "finish_reason": "stop"}]}

    async def call() -> None:
        backend = ServerBackend(Late("http://127.0.0.1:9"), "m")
        wanted = asyncio.get_running_loop().create_future()
        place = Place("p", 8, wanted)
        asking = asyncio.ensure_future(backend.generate(Document(text="x"), Call(SamplingParams(), place=place), None))
        await asyncio.sleep(0)
        wanted.set_result(None)
        assert (await asking).texts == ("x",)
        await backend.close()

    known = asyncio.Event()
    asyncio.run(call())
    assert len(confirms) == 20
    assert len(set(confirms)) == 1


def test_an_interrupted_program_frees_what_it_holds(endpoint: RuntimeEndpoint, real_server: RunningServer) -> None:
    @sgl.function
    def program(s):
        for branch in s.fork(3):
            branch += "x" + sgl.gen("long", max_tokens=500, ignore_eos=True)
        eventually(lambda: metric(real_server, "headrace_num_requests_running") == 3)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        program.run(backend=endpoint)
    eventually(lambda: metric(real_server, 'headrace_kv_cache_blocks{state="used"}') == 0)


def test_answers_over_http_are_held_to_their_types(endpoint: RuntimeEndpoint) -> None:
    @sgl.function
    def program(s):
        s += "A number: " + sgl.gen_int("number", max_tokens=4)

    assert isinstance(program.run(backend=endpoint)["number"], int)


def test_failures_of_a_server_are_the_programs(endpoint: RuntimeEndpoint) -> None:
    @sgl.function
    def program(s):
        s += "x" * 3000 + sgl.gen("x")

    with pytest.raises(ProgramError, match=r"test_program_clients\.py:\d+ in program: the prompt has"):
        program.run(backend=endpoint)
    with (
        RuntimeEndpoint("http://127.0.0.1:9") as nobody,
        pytest.raises(Exception, match=r"127\.0\.0\.1:9 cannot be reached.*is it running"),
    ):
        program.run(backend=nobody)
    with (
        RuntimeEndpoint(endpoint.backend.client.base_url, model="other") as wrong,
        pytest.raises(ProgramError, match="not served"),
    ):
        program.run(backend=wrong)


def test_a_missing_route_is_told_from_a_refusal(endpoint: RuntimeEndpoint) -> None:
    client = endpoint.backend.client
    with pytest.raises(NoSuchRoute):
        endpoint.wait(client.post("/v1/nothing", {}))


# -- endpoints that only chat ------------------------------------------------------------------------------


@sgl.function
def character(s):
    s += sgl.user("Who? Answer as Name:..., Month:...")
    s += sgl.assistant("Name:" + sgl.gen("name", stop="\n") + "\nMonth:" + sgl.gen("month", stop="\n"))


@pytest.fixture
def chat_only(server: RunningServer) -> Iterator[OpenAI]:
    with OpenAI(MODEL, f"{server.url}/v1") as endpoint:
        yield endpoint


def test_one_call_serves_the_parts_of_a_message(server: RunningServer, chat_only: OpenAI) -> None:
    engine: ScriptedClient = server.engine
    engine.script = spelling("Name:Ann\nMonth:July\nThe end.")
    state = character.run(backend=chat_only)
    assert (state["name"], state["month"]) == ("Ann", "July")
    assert len(engine.seen) == 1
    assert state.messages()[-1]["content"] == "Name:Ann\nMonth:July"


def test_an_answer_in_another_form_is_explained(server: RunningServer, chat_only: OpenAI) -> None:
    server.engine.script = spelling("I am Ann.")
    with pytest.raises(ProgramError, match="does not agree with the program's text"):
        character.run(backend=chat_only)


def test_an_answer_that_ends_too_early_is_explained(server: RunningServer) -> None:
    server.engine.script = spelling("Name:Ann and so on and on without an end", then=ord("."))
    with (
        OpenAI(MODEL, server.url, num_spec_tokens=16) as endpoint,
        pytest.raises(ProgramError, match="raise num_spec_tokens"),
    ):
        character.run(backend=endpoint, max_new_tokens=4)


def test_plain_conversations_need_no_speculation(server: RunningServer, chat_only: OpenAI) -> None:
    @sgl.function
    def program(s):
        s += sgl.user("Hi")
        s += sgl.assistant(sgl.gen("a", max_tokens=4))
        s += sgl.user("Again")
        s += sgl.assistant(sgl.gen("b", max_tokens=3))

    state = program.run(backend=chat_only)
    assert (state["a"], state["b"]) == ("abcd", "abc")
    assert len(server.engine.seen) == 2


def test_text_without_messages_is_refused(chat_only: OpenAI) -> None:
    @sgl.function
    def program(s):
        s += "plain" + sgl.gen("a")

    with pytest.raises(ProgramError, match="answers conversations only"):
        program.run(backend=chat_only)

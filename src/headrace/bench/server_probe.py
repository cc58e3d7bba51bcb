"""What a server is before it is measured: is it there, which model, does it count tokens, whose processes.

Everything that would make a run meaningless is found here and said in one line.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, replace

import msgspec

from headrace.bench.dialect import History
from headrace.bench.http_client import Disconnected, HttpClient, HungUp
from headrace.bench.load_generator import Target
from headrace.bench.record import RequestRecord
from headrace.bench.reply_sink import ReplySink
from headrace.bench.workload import Session, Turn
from headrace.core.errors import ConfigError, RequestFailed
from headrace.core.settings import suggestion

MAX_SHOWN_MODELS = 8
MAX_BODY_BYTES = 4 << 20
PROBE_TIMEOUT_S = 30.0
POLL_S = 0.1


class _Model(msgspec.Struct):
    id: str
    max_model_len: int | None = None


class _ModelList(msgspec.Struct):
    data: list[_Model] = []


class _Version(msgspec.Struct):
    version: str = ""


class WholeBody:
    """Gathers a small body, and no more of it than ``MAX_BODY_BYTES``. *Mutable.*"""

    def __init__(self) -> None:
        self.wants_more = True
        self.status = 0
        self._pieces: list[bytes] = []
        self._num_bytes = 0

    def begin(self, status: int) -> None:
        self.status = status

    def take(self, data: bytes, now: float) -> None:
        if self._num_bytes < MAX_BODY_BYTES:
            self._pieces.append(data)
            self._num_bytes += len(data)

    @property
    def data(self) -> bytes:
        return b"".join(self._pieces)


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """``model`` is the name to ask for; ``version`` is what the server calls itself, empty where it does not."""

    url: str
    model: str
    version: str
    max_model_len: int | None


async def find_server(client: HttpClient, model: str | None) -> ServerFacts:
    """Ask the server for its models. Raises ``ConfigError`` for one that is not there or serves another model."""
    body = WholeBody()
    try:
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            await client.request("GET", "/v1/models", b"", body)
    except Disconnected as error:
        raise ConfigError(f"{error}; start the server, or name another with --base-url") from error
    except TimeoutError:
        raise ConfigError(
            f"{client.origin} does not list its models within {PROBE_TIMEOUT_S:g} s; is it a server of language models?"
        ) from None
    models = _models(body)
    version = await _version(client)
    url = str(client.origin)
    if not models:
        if model is None:
            raise ConfigError(
                f"{url} does not list its models (HTTP {body.status} for /v1/models); name one with --model"
            )
        return ServerFacts(url, model, version, None)
    if model is None:
        return ServerFacts(url, models[0].id, version, models[0].max_model_len)
    for known in models:
        if known.id == model:
            return ServerFacts(url, model, version, known.max_model_len)
    names = [known.id for known in models[:MAX_SHOWN_MODELS]]
    raise ConfigError(
        f"{url} does not serve {model!r}{suggestion(model, names)}; it serves {', '.join(names)}; leave out --model "
        "to take the first"
    )


async def is_ready(client: HttpClient) -> bool:
    """Whether the server answers and says that it is healthy; a server without ``/health`` is asked for its models."""
    for path in ("/health", "/v1/models"):
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_S):
                status = await client.request("GET", path, b"", WholeBody())
        except (Disconnected, TimeoutError):
            return False
        if status != 404:
            return status == 200
    return True


async def wait_until_ready(client: HttpClient, timeout_s: float) -> None:
    """Wait up to ``timeout_s``; then whoever asks next finds out what is wrong."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline and not await is_ready(client):  # noqa: ASYNC110 (a server sets no event)
        await asyncio.sleep(POLL_S)


async def ask_once(target: Target, session: Session) -> RequestRecord:
    """One request, alone. Raises ``RequestFailed`` if it fails, naming what the server said."""
    record = RequestRecord(0, 0, 0, "", 0.0)
    history = History.of(session)
    turn = session.turns[0]
    history.ask(turn)
    sink = ReplySink(record, target.dialect.reader(), 0.0)
    body = target.dialect.body(turn, history, target.options)
    try:
        async with asyncio.timeout(target.timeout_s):
            await target.client.request("POST", target.dialect.path, body, sink)
    except HungUp:
        pass  # a chunk that could not be read; the record says so
    except TimeoutError:
        raise RequestFailed(f"a request alone was not answered within {target.timeout_s:g} s") from None
    except Disconnected as error:
        raise RequestFailed(f"a request alone failed: {error}") from error
    sink.finish(target.count_tokens)
    if not record.is_ok:
        raise RequestFailed(f"a request alone was not answered: {record.error}{_hint(record, target)}")
    return record


async def check_counts(target: Target) -> None:
    """Make sure that output tokens are counted by somebody. Raises ``ConfigError``."""
    if target.count_tokens is not None:
        return
    fields = replace(target.options, ignore_eos=False)
    probe = Session(turns=[Turn(text="Say hello.", max_tokens=4)])
    record = await ask_once(replace(target, options=fields, count_tokens=_nobody), probe)
    if record.num_output_tokens == 0:
        raise ConfigError(
            f"{target.client.origin} sends no usage, so nobody counts its tokens; name the model's tokenizer with "
            "--tokenizer MODEL"
        )


def _nobody(text: str) -> int:
    return 0


def _models(body: WholeBody) -> list[_Model]:
    if body.status != 200:
        return []
    try:
        return msgspec.json.decode(body.data, type=_ModelList).data
    except msgspec.DecodeError:
        return []


async def _version(client: HttpClient) -> str:
    body = WholeBody()
    try:
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            status = await client.request("GET", "/version", b"", body)
        return msgspec.json.decode(body.data, type=_Version).version if status == 200 else ""
    except (Disconnected, TimeoutError, msgspec.DecodeError):
        return ""


def _hint(record: RequestRecord, target: Target) -> str:
    if record.http_status == 404:
        return f"; {target.dialect.path} is not there, try another --endpoint"
    if record.http_status in (401, 403):
        return "; give the key with --api-key or OPENAI_API_KEY"
    return ""

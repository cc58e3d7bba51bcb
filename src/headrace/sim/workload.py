"""From traces to the requests of one simulation: which are kept, when they come, what they ask and want.

Owns the mixing of several traces, the scaling of their rates, and prompts made of tokens that are equal just
where the trace says two prompts are. Everything drawn is drawn from one seed.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from headrace.core.errors import ConfigError
from headrace.core.request import Request
from headrace.core.sampling import SamplingParams
from headrace.core.service_level import STANDARD_CLASSES, ServiceLevel
from headrace.core.settings import suggestion
from headrace.sim.simulated_executor import ScriptedAnswer
from headrace.sim.trace import TraceRequest, read_trace


@dataclass(frozen=True, slots=True)
class TraceSource:
    """A trace file and what to make of it.

    ``share`` of its requests are kept, chosen at random. Arrivals are moved later by up to ``jitter_s``, for traces
    whose times were rounded down to a grid. Prompts are cut to ``max_input_tokens``. A source that ``is_steady``
    keeps its rate whatever the load.
    """

    path: Path
    service_class: str = "interactive"
    share: float = 1.0
    jitter_s: float = 0.0
    max_input_tokens: int | None = None
    is_steady: bool = False


@dataclass(frozen=True, slots=True)
class OfferedRequest:
    """A request that will come. ``index`` counts them by arrival and is its id and its seed.

    ``source`` counts traces: block ids of different traces have nothing to do with each other.
    """

    index: int
    arrival_s: float
    source: int
    service_class: str
    level: ServiceLevel
    trace: TraceRequest

    @property
    def answer(self) -> ScriptedAnswer:
        return ScriptedAnswer(self.trace.num_output_tokens, _own_token(self.index))

    def request(self) -> Request:
        """The request as a server would get it; how long its answer becomes is not in it."""
        return Request(
            request_id=str(self.index),
            prompt_token_ids=prompt_tokens(self.trace, self.index),
            sampling=SamplingParams(max_tokens=None),
            seed=self.index,
            arrival_time=self.arrival_s,
            cache_salt=str(self.source),
            service_level=self.level,
            service_class=self.service_class,
            tenant=self.trace.tenant,
        )


def prompt_tokens(trace: TraceRequest, index: int) -> list[int]:
    """Tokens equal to another request's just as far as the leading block ids are; the rest is this request's own."""
    tokens: list[int] = []
    for block_id in trace.block_ids:
        tokens += [_block_token(block_id)] * trace.block_tokens
    del tokens[trace.num_input_tokens :]
    tokens += [_own_token(index)] * (trace.num_input_tokens - len(tokens))
    return tokens


def _block_token(block_id: int) -> int:
    return 2 * block_id + 1


def _own_token(index: int) -> int:
    return 2 * index + 2


def offered_requests(
    sources: Sequence[TraceSource],
    load: float = 1.0,
    duration_s: float = math.inf,
    seed: int = 0,
    classes: Mapping[str, ServiceLevel] = STANDARD_CLASSES,
) -> list[OfferedRequest]:
    """What comes within ``duration_s`` when the rates are multiplied by ``load``, by arrival.

    Raises ``ConfigError`` if nothing does, or a source's class is not among ``classes``.
    """
    drawn: list[tuple[float, int, TraceRequest]] = []
    for number, source in enumerate(sources):
        _check_class(source, classes)
        rng = random.Random(f"{seed}/{number}")  # noqa: S311 - nothing here is a secret
        drawn += [(arrival_s, number, request) for arrival_s, request in _draw(source, load, duration_s, rng)]
    if not drawn:
        raise ConfigError(
            f"no request comes within {duration_s:g} s; take a longer duration or a larger share", "trace"
        )
    drawn.sort(key=lambda item: item[:2])
    return [
        OfferedRequest(index, arrival_s, number, name := sources[number].service_class, classes[name], request)
        for index, (arrival_s, number, request) in enumerate(drawn)
    ]


def _draw(
    source: TraceSource, load: float, duration_s: float, rng: random.Random
) -> Iterator[tuple[float, TraceRequest]]:
    """Kept requests with their arrivals; as many numbers are drawn for one that is left out."""
    scale = 1.0 if source.is_steady else load
    for request in read_trace(source.path):
        is_kept = rng.random() < source.share
        arrival_s = (request.arrival_s + rng.random() * source.jitter_s) / scale
        if is_kept and arrival_s < duration_s:
            yield arrival_s, _cut(request, source.max_input_tokens)


def _cut(request: TraceRequest, max_input_tokens: int | None) -> TraceRequest:
    if max_input_tokens is None or request.num_input_tokens <= max_input_tokens:
        return request
    return replace(request, num_input_tokens=max_input_tokens)


def _check_class(source: TraceSource, classes: Mapping[str, ServiceLevel]) -> None:
    if source.service_class not in classes:
        raise ConfigError(
            f"there is no service class {source.service_class!r}"
            f"{suggestion(source.service_class, classes)}; the classes are {', '.join(classes)}",
            "trace",
        )

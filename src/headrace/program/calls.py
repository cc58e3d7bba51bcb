"""The two calls a program makes of a model, generating and selecting, put together from a node and a document.

Owns the defaults of sampling and SGLang's ``meta_info``. It does not know streams or when calls are made.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.core.errors import InvalidRequest
from headrace.core.sampling import SamplingParams
from headrace.program.backend import Call, Form, Generated, OnText, Scores
from headrace.program.choices import Decision, choose, needs_unconditional
from headrace.program.document import Document
from headrace.program.ir import DEFAULT_MAX_TOKENS, Gen, SamplingChoice, Select
from headrace.program.run import Run

_SCORING = SamplingParams(temperature=0.0, max_tokens=1)


@dataclass(frozen=True, slots=True)
class Selection:
    """What was selected, and SGLang's ``meta_info`` about it."""

    choice: str
    meta: dict[str, object]


async def generate(run: Run, node: Gen, document: Document, num_tokens_left: int, on_text: OnText | None) -> Generated:
    """Continue a document as ``node`` says; ``num_tokens_left`` is told to the backend as the call's place."""
    _check_can_write(document, "gen")
    sampling = sampling_params(node.sampling.over(run.defaults))
    call = Call(sampling, Form(node.regex, node.json_schema), run.place(num_tokens_left))
    generated = await run.backend.generate(document, call, on_text)
    run.usage.add(generated.num_prompt_tokens, generated.num_cached_tokens, generated.num_output_tokens)
    return generated


async def select(run: Run, node: Select, document: Document, num_tokens_left: int) -> Selection:
    """Score the choices of ``node`` after a document, and take the best."""
    _check_can_write(document, "select")
    call = Call(_SCORING, place=run.place(num_tokens_left))
    scores = await _score(run, document, node, call)
    alone = await _score(run, Document(), node, call) if needs_unconditional(node.method) else Scores(())
    decision = choose(node.method, scores.choices, alone.choices)
    return Selection(node.choices[decision.index], _selection_meta(scores, decision))


async def _score(run: Run, document: Document, node: Select, call: Call) -> Scores:
    scores = await run.backend.score(document, node.choices, call)
    run.usage.add(scores.num_prompt_tokens, scores.num_cached_tokens)
    return scores


def sampling_params(choice: SamplingChoice) -> SamplingParams:
    """A program's sampling as the engine takes it, vLLM's defaults where it says nothing. Raises ``InvalidRequest``."""
    given = {name: value for name in choice.__struct_fields__ if (value := getattr(choice, name)) is not None}
    return SamplingParams(**{"max_tokens": DEFAULT_MAX_TOKENS, **given})


def generation_meta(generated: Generated) -> dict[str, object]:
    """SGLang's ``meta_info`` of a generation."""
    reason: dict[str, object] = {"type": generated.finish_reason}
    if generated.stop_reason is not None:
        reason["matched"] = generated.stop_reason
    return {
        "id": generated.call_id,
        "finish_reason": reason,
        "prompt_tokens": generated.num_prompt_tokens,
        "completion_tokens": generated.num_output_tokens,
        "cached_tokens": generated.num_cached_tokens,
    }


def _selection_meta(scores: Scores, decision: Decision) -> dict[str, object]:
    rows = [list(zip(score.logprobs, score.token_ids, strict=True)) for score in scores.choices]
    return {
        "normalized_prompt_logprobs": [sum(score.logprobs) / len(score.logprobs) for score in scores.choices],
        "input_token_logprobs": [[(logprob, token_id, None) for logprob, token_id in row] for row in rows],
        "choice_values": list(decision.values),
        "prompt_tokens": scores.num_prompt_tokens,
        "cached_tokens": scores.num_cached_tokens,
    }


def _check_can_write(document: Document, what: str) -> None:
    if document.turns and document.role is None:
        raise InvalidRequest(f"{what} stands between two messages of a conversation; put it into assistant()")

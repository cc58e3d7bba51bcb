"""Deltas add up to vLLM's outputs."""

from __future__ import annotations

from headrace.core.request import FinishReason, OutputError, RequestOutput, TokenLogprobs, Usage
from headrace.llm.outputs import Logprob, OutputCollector
from tests.fakes import make_request


def delta(index: int = 0, text: str = "", tokens: tuple[int, ...] = (), **fields: object) -> RequestOutput:
    return RequestOutput(
        request_id="r",
        index=index,
        text=text,
        token_ids=tokens,
        usage=Usage(2, 1, len(tokens)),
        **fields,  # type: ignore[arg-type]
    )


def collect(sampling: dict[str, object], *outputs: RequestOutput) -> OutputCollector:
    collector = OutputCollector(make_request([8, 9], **sampling), "prompt", lambda token_id: f"<{token_id}>")
    for output in outputs:
        collector.add(output)
    return collector


def test_the_deltas_of_each_sequence_are_concatenated() -> None:
    outputs = (delta(0, "a", (1,)), delta(1, "x", (5,)), delta(0, "b", (2, 3), finish_reason=FinishReason.LENGTH))
    collector = collect({"n": 2}, *outputs)
    snapshot = collector.snapshot()
    assert [(o.index, o.text, o.token_ids, o.finish_reason) for o in snapshot.outputs] == [
        (0, "ab", [1, 2, 3], "length"),
        (1, "x", [5], None),
    ]
    assert (snapshot.finished, snapshot.outputs[0].finished, snapshot.outputs[1].finished) == (False, True, False)
    collector.add(delta(1, "", (), finish_reason=FinishReason.STOP, stop_reason="!"))
    assert collector.is_finished
    assert collector.snapshot().finished
    assert collector.snapshot().outputs[1].stop_reason == "!"


def test_a_snapshot_carries_the_prompt_and_does_not_change() -> None:
    collector = collect({}, delta(0, "a", (1,)))
    before = collector.snapshot()
    collector.add(delta(0, "b", (2,)))
    assert (before.prompt, before.prompt_token_ids, before.num_cached_tokens) == ("prompt", [8, 9], 1)
    assert (before.outputs[0].text, before.outputs[0].token_ids) == ("a", [1])


def test_logprobs_are_there_exactly_when_asked_for() -> None:
    chosen = TokenLogprobs(4, -2.0, 3, ((6, -0.1), (7, -0.2)))
    snapshot = collect({"logprobs": 2}, delta(0, "a", (4,), logprobs=(chosen,))).snapshot()
    assert snapshot.outputs[0].logprobs == [
        {4: Logprob(-2.0, 3, "<4>"), 6: Logprob(-0.1, 1, "<6>"), 7: Logprob(-0.2, 2, "<7>")}
    ]
    assert list((snapshot.outputs[0].logprobs or [])[0]) == [4, 6, 7]
    assert snapshot.outputs[0].cumulative_logprob == -2.0
    assert snapshot.prompt_logprobs is None
    plain = collect({}, delta(0, "a", (4,))).snapshot()
    assert (plain.outputs[0].logprobs, plain.outputs[0].cumulative_logprob) == (None, None)


def test_a_chosen_token_among_the_likeliest_appears_once() -> None:
    chosen = TokenLogprobs(6, -0.1, 1, ((6, -0.1), (7, -0.2)))
    snapshot = collect({"logprobs": 2}, delta(0, "a", (6,), logprobs=(chosen,))).snapshot()
    assert snapshot.outputs[0].logprobs == [{6: Logprob(-0.1, 1, "<6>"), 7: Logprob(-0.2, 2, "<7>")}]


def test_prompt_logprobs_are_taken_from_one_sequence_only() -> None:
    entries = (None, TokenLogprobs(9, -1.0, 1))
    collector = collect(
        {"n": 2, "prompt_logprobs": 0}, delta(0, prompt_logprobs=entries), delta(1, prompt_logprobs=entries)
    )
    assert collector.snapshot().prompt_logprobs == [None, {9: Logprob(-1.0, 1, "<9>")}]


def test_a_failed_sequence_says_why() -> None:
    failed = delta(0, finish_reason=FinishReason.ERROR, error=OutputError("RequestFailed", "logits are not finite"))
    completion = collect({}, failed).snapshot().outputs[0]
    assert (completion.finish_reason, completion.error) == ("error", "logits are not finite")

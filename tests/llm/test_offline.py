"""``LLM`` over the real engine and a fake executor: the right tokens to the right prompt, and nothing left behind."""

from __future__ import annotations

import os
import signal

import pytest

from headrace.core.errors import ConfigError, InvalidRequest, RequestFailed
from headrace.core.sampling import SamplingParams
from headrace.core.step import PendingMask, StepPlan, StepResult
from headrace.llm.offline import LLM
from headrace.llm.outputs import GenerationOutput
from tests.fakes import ContentExecutor
from tests.llm.house import EOS, CharTokenizer, House, answer, text_of

PARAMS = SamplingParams(max_tokens=6)


def open_llm(house: House | None = None) -> LLM:
    return LLM.from_loaded((house or House()).loaded)


def tokens(outputs: list[GenerationOutput]) -> list[list[int]]:
    return [output.outputs[0].token_ids for output in outputs]


class InterruptingExecutor(ContentExecutor):
    """Presses Ctrl-C in the middle of a step, ``times`` times."""

    at_plan = 3
    times = 1

    def execute(self, plan: StepPlan, token_mask: PendingMask | None) -> StepResult:
        if len(self.plans) + 1 == self.at_plan:
            for _ in range(self.times):
                os.kill(os.getpid(), signal.SIGINT)
        return super().execute(plan, token_mask)


class InterruptedHouse(House):
    def __init__(self, times: int = 1) -> None:
        super().__init__()
        self.executor.__class__ = InterruptingExecutor
        self.executor.times = times  # type: ignore[attr-defined]


def test_every_prompt_gets_its_own_answer_in_order() -> None:
    prompts = ["CD", {"prompt": "EFG"}, {"prompt_token_ids": [9, 8, 7]}]
    outputs = open_llm().generate(prompts, PARAMS)  # type: ignore[arg-type]
    assert tokens(outputs) == [answer(ids, 6) for ids in ([3, 4], [5, 6, 7], [9, 8, 7])]
    assert [output.prompt for output in outputs] == ["CD", "EFG", None]
    assert [output.prompt_token_ids for output in outputs] == [[3, 4], [5, 6, 7], [9, 8, 7]]
    assert all(output.finished for output in outputs)
    for output in outputs:
        completion = output.outputs[0]
        ended = completion.token_ids[-1] == EOS
        assert completion.finish_reason == ("stop" if ended else "length")
        assert completion.text == text_of(completion.token_ids[:-1] if ended else completion.token_ids)


def test_one_prompt_is_a_list_of_one_and_none_is_empty() -> None:
    llm = open_llm()
    assert tokens(llm.generate("CD", PARAMS)) == [answer([3, 4], 6)]
    assert llm.generate([], PARAMS) == []


def test_more_prompts_than_run_at_once_all_finish() -> None:
    prompts = [{"prompt_token_ids": [1 + i % 50, 1 + i // 50, 5]} for i in range(100)]
    outputs = open_llm().generate(prompts, PARAMS)  # type: ignore[arg-type]
    assert tokens(outputs) == [answer(list(prompt["prompt_token_ids"]), 6) for prompt in prompts]


def test_each_prompt_may_have_its_own_parameters() -> None:
    outputs = open_llm().generate(["CD", "CD"], [SamplingParams(max_tokens=2), SamplingParams(max_tokens=5, n=2)])
    assert tokens(outputs) == [answer([3, 4], 2), answer([3, 4], 5)]
    assert [len(output.outputs) for output in outputs] == [1, 2]
    with pytest.raises(InvalidRequest, match="2 prompts but 1 sampling params"):
        open_llm().generate(["CD", "CD"], [PARAMS])


def test_priorities_go_to_their_prompts() -> None:
    house = House()
    seen: list[int] = []
    submit = house.engine.submit
    house.engine.submit = lambda request: (seen.append(request.priority), submit(request))[1]  # type: ignore[method-assign]
    llm = open_llm(house)
    llm.generate(["A", "B"], PARAMS, priority=[3, -1])
    llm.generate("C", PARAMS)
    assert seen == [3, -1, 0]
    with pytest.raises(InvalidRequest, match="2 prompts but 3 priority"):
        llm.generate(["A", "B"], PARAMS, priority=[1, 2, 3])


def test_a_chat_can_go_on_with_its_last_message_and_set_template_variables() -> None:
    llm = open_llm()
    messages = [{"role": "user", "content": "C"}, {"role": "assistant", "content": "D"}]
    (answered,) = llm.chat(messages, PARAMS)
    (continued,) = llm.chat(messages, PARAMS, continue_final_message=True, chat_template_kwargs={"note": "E"})
    tokenizer = CharTokenizer()
    assert answered.prompt_token_ids == tokenizer.encode("UCADA")
    assert continued.prompt_token_ids == tokenizer.encode("UCADE")


def test_the_default_is_sixteen_tokens_as_in_vllm() -> None:
    assert tokens(open_llm().generate("CD")) == [answer([3, 4], 16)]


def test_a_conversation_goes_through_the_template() -> None:
    llm = open_llm()
    one = [{"role": "user", "content": "CD"}]
    two = [*one, {"role": "assistant", "content": "E"}, {"role": "user", "content": "F"}]
    assert [output.prompt_token_ids for output in llm.chat(one, PARAMS)] == [[21, 3, 4, 1]]
    assert [o.prompt_token_ids for o in llm.chat([one, two], PARAMS)] == [[21, 3, 4, 1], [21, 3, 4, 1, 5, 21, 6, 1]]


def test_a_bad_prompt_is_named_and_nothing_runs() -> None:
    house = House()
    with pytest.raises(InvalidRequest, match=r"prompt 1 of 3: the prompt is empty") as caught:
        open_llm(house).generate(["CD", "", "EF"], PARAMS)
    assert caught.value.param == "prompt"
    assert house.executor.plans == []


def test_a_prompt_the_engine_cannot_hold_leaves_no_other_behind() -> None:
    house = House(num_blocks=4)
    llm = open_llm(house)
    with pytest.raises(InvalidRequest, match=r"prompt 1 of 2: .*KV cache holds"):
        llm.generate(["CD", "C" * 60], PARAMS)
    assert not house.engine.has_work
    assert tokens(llm.generate("CD", PARAMS)) == [answer([3, 4], 6)]


def test_a_failed_sequence_is_reported_and_the_others_are_unharmed() -> None:
    house = House()
    house.executor.fail_seq_ids = {1}
    outputs = open_llm(house).generate(["CD", "EF", "GH"], PARAMS)
    assert [output.outputs[0].finish_reason == "error" for output in outputs] == [False, True, False]
    assert outputs[1].outputs[0].error == "logits are not finite"
    assert tokens(outputs)[2] == answer([7, 8], 6)


def test_a_stream_gives_the_same_text_in_pieces() -> None:
    llm = open_llm()
    deltas = list(llm.stream("CD", PARAMS))
    whole = llm.generate("CD", PARAMS)[0].outputs[0]
    assert "".join(delta.text for delta in deltas) == whole.text
    assert [token_id for delta in deltas for token_id in delta.token_ids] == whole.token_ids
    assert [delta.finish_reason is not None for delta in deltas] == [False] * (len(deltas) - 1) + [True]


def test_a_stream_left_early_is_aborted() -> None:
    house = House()
    stream = open_llm(house).stream("CD", SamplingParams(max_tokens=50, ignore_eos=True))
    next(stream)
    assert house.engine.has_work
    stream.close()  # type: ignore[attr-defined]
    assert not house.engine.has_work
    assert house.kv.num_free_blocks + house.kv.num_evictable_blocks == house.kv.num_blocks


def test_streams_and_batches_may_be_interleaved() -> None:
    llm = open_llm()
    first, second = llm.stream("CD", PARAMS), llm.stream("EF", PARAMS)
    got = [list(next(first).token_ids), list(next(second).token_ids)]
    assert tokens(llm.generate("GH", PARAMS)) == [answer([7, 8], 6)]
    for tokens_so_far, stream in zip(got, (first, second), strict=True):
        tokens_so_far += [token_id for delta in stream for token_id in delta.token_ids]
    assert got == [answer([3, 4], 6), answer([5, 6], 6)]


def test_ctrl_c_stops_between_two_steps_and_the_llm_goes_on() -> None:
    house = InterruptedHouse()
    llm = open_llm(house)
    with pytest.raises(KeyboardInterrupt):
        llm.generate(["CD", "EF"], SamplingParams(max_tokens=50, ignore_eos=True))
    assert len(house.executor.plans) == InterruptingExecutor.at_plan
    assert not house.engine.has_work
    assert house.kv.num_free_blocks + house.kv.num_evictable_blocks == house.kv.num_blocks
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert tokens(llm.generate("CD", PARAMS)) == [answer([3, 4], 6)]


def test_ctrl_c_ends_a_stream_too() -> None:
    house = InterruptedHouse()
    with pytest.raises(KeyboardInterrupt):
        list(open_llm(house).stream("CD", SamplingParams(max_tokens=50, ignore_eos=True)))
    assert not house.engine.has_work


def test_a_second_ctrl_c_does_not_wait_for_the_step() -> None:
    house = InterruptedHouse(times=2)
    with pytest.raises(KeyboardInterrupt):
        open_llm(house).generate("CD", SamplingParams(max_tokens=50, ignore_eos=True))
    assert len(house.executor.plans) < InterruptingExecutor.at_plan


def test_a_program_with_its_own_handler_keeps_it() -> None:
    seen: list[int] = []
    previous = signal.signal(signal.SIGINT, lambda number, frame: seen.append(number))
    try:
        outputs = open_llm(InterruptedHouse()).generate("CD", PARAMS)
    finally:
        signal.signal(signal.SIGINT, previous)
    assert seen == [signal.SIGINT]
    assert tokens(outputs) == [answer([3, 4], 6)]


def test_a_score_covers_the_continuation_only() -> None:
    llm = open_llm()
    (score,) = llm.score("CD", "EFG")
    assert (score.token_ids, score.logprobs, score.total_logprob, score.is_greedy) == (
        [5, 6, 7],
        [-0.5] * 3,
        -1.5,
        True,
    )
    assert [s.token_ids for s in llm.score("CD", ["E", "FG"])] == [[5], [6, 7]]
    assert [s.token_ids for s in llm.score(["CA", "D"], ["BE", "E"])] == [[59, 5], [5]]
    assert [s.token_ids for s in llm.score({"prompt_token_ids": [1]}, {"prompt_token_ids": [2, 3]})] == [[2, 3]]


def test_what_cannot_be_scored_is_refused() -> None:
    llm = open_llm()
    with pytest.raises(InvalidRequest, match="2 prompts but 3 continuations"):
        llm.score(["C", "D"], ["E", "F", "G"])
    with pytest.raises(InvalidRequest, match="continuation 1 adds no token"):
        llm.score("CD", ["E", ""])
    with pytest.raises(InvalidRequest, match="prompt 0 has no token before its continuation"):
        llm.score("", "E")


def test_a_score_that_failed_is_an_error() -> None:
    house = House()
    house.executor.fail_seq_ids = {0}
    with pytest.raises(RequestFailed, match="logits are not finite"):
        open_llm(house).score("CD", "E")


def test_settings_are_checked_before_anything_is_loaded() -> None:
    with pytest.raises(ConfigError, match="unknown setting 'max_len'; did you mean max_model_len"):
        LLM("no-such-model", max_len=5)
    with pytest.raises(ConfigError, match="max_num_seqs is 0 but must be 1 to 65536"):
        LLM("no-such-model", max_num_seqs=0)


def test_closing_closes_the_engine() -> None:
    house = House()
    with open_llm(house) as llm:
        llm.generate("CD", PARAMS)
    with pytest.raises(IndexError):
        house.executor._slots[0, 0]  # the fake's memory is gone

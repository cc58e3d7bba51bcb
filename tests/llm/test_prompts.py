"""Prompts come in vLLM's forms, and a seam between prompt and continuation falls where the tokens say."""

from __future__ import annotations

import pytest

from headrace.core.errors import InvalidRequest
from headrace.llm.prompts import EncodedPrompt, as_conversations, as_list, encode_prompt, joined
from tests.llm.house import CharTokenizer

TOKENIZER = CharTokenizer()


def test_one_prompt_or_several_become_a_list() -> None:
    assert as_list("AC") == ["AC"]
    assert as_list({"prompt": "AC"}) == [{"prompt": "AC"}]
    assert as_list(["A", {"prompt_token_ids": [1]}]) == ["A", {"prompt_token_ids": [1]}]
    assert as_list(("A",)) == ["A"]
    assert as_list([]) == []


def test_each_form_of_a_prompt_has_its_tokens() -> None:
    assert encode_prompt("AC", TOKENIZER) == EncodedPrompt("AC", [1, 3])
    assert encode_prompt({"prompt": "AC", "cache_salt": "s"}, TOKENIZER) == EncodedPrompt("AC", [1, 3], "s")
    assert encode_prompt({"prompt_token_ids": [7]}, TOKENIZER) == EncodedPrompt(None, [7])


@pytest.mark.parametrize("prompt", [1, None, [1, 2], {}, {"prompt": 3}, {"prompt": "A", "prompt_token_ids": [1]}])
def test_what_is_no_prompt_is_refused(prompt: object) -> None:
    with pytest.raises(InvalidRequest) as caught:
        encode_prompt(prompt, TOKENIZER)  # type: ignore[arg-type]
    assert caught.value.param == "prompt"


def test_one_conversation_or_several_become_a_list() -> None:
    one = [{"role": "user", "content": "A"}]
    assert as_conversations(one) == [one]
    assert as_conversations([one, one]) == [one, one]
    with pytest.raises(InvalidRequest):
        as_conversations("A")  # type: ignore[arg-type]


def test_text_is_joined_as_one_piece_and_a_token_across_the_seam_is_the_continuations() -> None:
    assert joined("CD", "EF", TOKENIZER) == ([3, 4, 5, 6], 2)
    assert joined("CA", "BD", TOKENIZER) == ([3, 59, 4], 1)
    assert joined("CD", "", TOKENIZER) == ([3, 4], 2)
    assert joined("", "CD", TOKENIZER) == ([3, 4], 0)


def test_token_ids_are_joined_as_they_are() -> None:
    assert joined({"prompt_token_ids": [1]}, {"prompt_token_ids": [2]}, TOKENIZER) == ([1, 2], 1)
    with pytest.raises(InvalidRequest, match="both be text or both be token ids"):
        joined("A", {"prompt_token_ids": [2]}, TOKENIZER)

"""Sampling parameters and token masks for tests of all samplers."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from headrace.core.sampling import SamplingParams
from headrace.core.step import SampleSpec


@st.composite
def any_spec(draw: st.DrawFn) -> SampleSpec:
    """Any parameters for a vocabulary of 40 tokens."""
    tokens = st.integers(0, 39)
    history = draw(st.lists(tokens, max_size=12))
    has_bad_words = draw(st.booleans())
    params = SamplingParams(
        temperature=draw(st.sampled_from([0.0, 1e-4, 0.2, 1.0, 3.0, 100.0])),
        top_k=draw(st.sampled_from([-1, 0, 1, 2, 7, 39, 40, 1000])),
        top_p=draw(st.sampled_from([1e-4, 0.3, 0.9, 0.999, 1.0])),
        min_p=draw(st.sampled_from([0.0, 1e-3, 0.3, 1.0])),
        presence_penalty=draw(st.sampled_from([0.0, -2.0, 0.5])),
        frequency_penalty=draw(st.sampled_from([0.0, -2.0, 0.25])),
        repetition_penalty=draw(st.sampled_from([1.0, 0.01, 1.25, 100.0])),
        logit_bias=draw(st.dictionaries(tokens, st.sampled_from([-100.0, -1.5, 2.0, 100.0]), max_size=3)),
        allowed_token_ids=tuple(draw(st.one_of(st.just([]), st.lists(tokens, max_size=6)))),
        bad_words=("x",) if has_bad_words else (),
    )
    return SampleSpec(
        params=params,
        seed=draw(st.integers(0, 2**64 - 1)),
        position=draw(st.integers(0, 2**31 - 1)),
        token_ids=history if params.needs_history else (),
        num_prompt_tokens=draw(st.integers(0, len(history))) if params.needs_history else 0,
        suppressed_token_ids=tuple(draw(st.lists(tokens, max_size=3))),
        bad_word_token_ids=tuple(
            tuple(word) for word in draw(st.lists(st.lists(tokens, min_size=1, max_size=2), max_size=3))
        )
        if has_bad_words
        else (),
    )


def bitmask(rows: list[list[bool]]) -> np.ndarray:
    """Bitmask of allowed tokens, built bit by bit."""
    words = np.zeros((len(rows), -(-len(rows[0]) // 32)), dtype=np.uint32)
    for row, allowed in enumerate(rows):
        for token, is_allowed in enumerate(allowed):
            if is_allowed:
                words[row, token // 32] |= np.uint32(1 << (token % 32))
    return words.view(np.int32)

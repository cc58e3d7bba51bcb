"""The sampler's definition once more, one row and one token at a time, as slow and obvious as can be."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from headrace.core.step import SampleSpec
from headrace.model.random_bits import uniforms

F32 = np.float32


@dataclass
class ReferenceRow:
    """What the definition says about one row: edited logits, kept tokens with weights, chosen token."""

    edited: list[np.float32]
    kept: dict[int, int] = field(default_factory=dict)
    token_id: int | None = None


def reference_row(logits: np.ndarray, spec: SampleSpec, allowed_by_mask: list[bool] | None = None) -> ReferenceRow:
    row = ReferenceRow(_edited(logits, spec, allowed_by_mask))
    peak = max(row.edited)
    if math.isnan(sum(map(float, logits))) or not math.isfinite(peak):
        return row
    params = spec.params
    if params.is_greedy:
        row.token_id = row.edited.index(peak)
        return row
    row.kept = _kept(row.edited, spec)
    row.token_id = _drawn(row.kept, spec)
    return row


def _edited(logits: np.ndarray, spec: SampleSpec, allowed_by_mask: list[bool] | None) -> list[np.float32]:
    params = spec.params
    history = list(spec.token_ids)
    output = history[spec.num_prompt_tokens :]
    edited = [F32(x) for x in logits]
    for token in range(len(edited)):
        if allowed_by_mask is not None and not allowed_by_mask[token]:
            edited[token] = F32(-math.inf)
        if params.allowed_token_ids and token not in params.allowed_token_ids:
            edited[token] = F32(-math.inf)
        for word in spec.bad_word_token_ids:
            if [*history, token][-len(word) :] == list(word):
                edited[token] = F32(-math.inf)
        if token in spec.suppressed_token_ids:
            edited[token] = F32(-math.inf)
        edited[token] += F32(params.logit_bias.get(token, 0.0))
        if token in history and params.repetition_penalty != 1.0:
            penalty = F32(params.repetition_penalty)
            edited[token] = edited[token] / penalty if edited[token] > 0 else edited[token] * penalty
        if token in output:
            edited[token] -= F32(params.frequency_penalty) * F32(output.count(token))
            edited[token] -= F32(params.presence_penalty)
    return edited


def _kept(edited: list[np.float32], spec: SampleSpec) -> dict[int, int]:
    params = spec.params
    peak = float(max(edited))
    distances = [(float(x) - peak) / params.temperature for x in edited]
    weights = [round(math.exp(z) * 2**31) for z in distances]
    ranking = sorted(range(len(edited)), key=lambda token: (-edited[token], token))
    if params.min_p > 0.0:
        ranking = [token for token in ranking if distances[token] >= math.log(params.min_p)]
    if params.top_k > 0:
        ranking = ranking[: params.top_k]
    if params.top_p < 1.0:
        limit = params.top_p * sum(weights[token] for token in ranking)
        ranking = [token for i, token in enumerate(ranking) if sum(weights[t] for t in ranking[:i]) < limit]
    return {token: weights[token] for token in sorted(ranking)}


def _drawn(kept: dict[int, int], spec: SampleSpec) -> int:
    total = sum(kept.values())
    target = min(math.floor(float(uniforms([spec.seed], [spec.position])[0]) * total), total - 1)
    running = 0
    for token, weight in kept.items():
        running += weight
        if running > target:
            return token
    raise AssertionError("the target lies below the total")

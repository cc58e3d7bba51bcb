"""What the OpenAI dialect's generation routes share: sampling fields, usage, and what is known but not done.

Owns field names, types and the tables of known fields without support. It does not convert anything;
``sampling_fields.py`` does. Names are OpenAI's, then vLLM's and SGLang's extensions. ``None`` always means
"not given": clients send explicit nulls for most fields.
"""

from __future__ import annotations

import msgspec
from msgspec import UNSET, Raw, UnsetType

from headrace.server.json_body import Unsupported
from headrace.server.protocol_constraints import ResponseFormat, StructuredOutputs, no_json


class StreamOptions(msgspec.Struct, frozen=True):
    """``include_usage`` asks for a last chunk with the usage; vLLM's ``continuous_usage_stats`` for one in each."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class SloFields(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Targets of one request, in place of those of its class."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None
    deadline_ms: float | None = None
    may_be_late: bool | None = None


class WorkBody(msgspec.Struct, frozen=True, kw_only=True):
    """What bodies have in common whose work is many calls: the model asked for, and who may share cached prefixes."""

    model: str | None = None
    cache_salt: str | None = None


class GenerationFields(msgspec.Struct, frozen=True, kw_only=True):
    """Fields that ``/v1/completions`` and ``/v1/chat/completions`` both take."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    # OpenAI's sampling
    n: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    seed: int | None = None
    max_tokens: int | None = None
    stop: str | list[str] | None = None

    # vLLM's and SGLang's sampling
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    no_stop_trim: bool | None = None
    skip_special_tokens: bool | None = None
    bad_words: list[str] | None = None
    allowed_token_ids: list[int] | None = None
    sampling_seed: int | None = None
    thinking_token_budget: int | None = None
    thinking_budget: int | None = None

    # the form of the output: OpenAI's, vLLM's, vLLM's older ones, SGLang's
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: Raw = msgspec.field(default_factory=no_json)
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    guided_whitespace_pattern: str | None = None
    guided_decoding_backend: str | None = None
    json_schema: Raw = msgspec.field(default_factory=no_json)
    regex: str | None = None
    ebnf: str | None = None
    structural_tag: Raw = msgspec.field(default_factory=no_json)

    # vLLM's request handling and reporting
    prompt_logprobs: int | None = None
    return_token_ids: bool | None = None
    cache_salt: str | None = None
    extra_key: str | None = None
    priority: int | None = None
    slo: SloFields | None = None
    service_tier: str | None = None
    user: str | None = None
    truncate_prompt_tokens: int | None = None
    stream_interval: int | None = None
    request_id: str | None = None
    rid: str | None = None

    # taken and without effect here: hints to routers, OpenAI's bookkeeping for its own platform
    session_id: str | None = None
    custom_labels: dict[str, str] | None = None
    metadata: dict[str, str] | None = None
    store: bool | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    safety_identifier: str | None = None


class PromptTokensDetails(msgspec.Struct, frozen=True):
    """``cached_tokens`` of the prompt were found in the prefix cache."""

    cached_tokens: int


class UsageBody(msgspec.Struct, frozen=True):
    """Token counts of a whole reply: every prompt once, every choice's output."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails | UnsetType = UNSET


class PromptLogprob(msgspec.Struct, frozen=True):
    """vLLM's entry of ``prompt_logprobs``, under the token's id."""

    logprob: float
    rank: int
    decoded_token: str


PromptLogprobs = list[dict[str, PromptLogprob] | None]


_BEAM = "beam search is not available; sample with n and pick"
_CODE = "code from requests is never run; leave it out"
_NOT_DONE = "leave it out"
_PLAIN_ROW = "use prompt_logprobs, or echo with logprobs"

UNSUPPORTED_FIELDS = {
    "use_beam_search": Unsupported(_BEAM),
    "beam_width": Unsupported(_BEAM, (None, 1)),
    "length_penalty": Unsupported(_BEAM, (None, 1, 1.0)),
    "early_stopping": Unsupported(_BEAM),
    "stop_regex": Unsupported("use stop strings", (None, [])),
    "logits_processors": Unsupported(_CODE, (None, [])),
    "custom_logit_processor": Unsupported(_CODE, (None,)),
    "custom_params": Unsupported(_CODE, (None, {})),
    "vllm_xargs": Unsupported(_CODE, (None, {})),
    "prompt_embeds": Unsupported("send text or token ids", (None,)),
    "lora_path": Unsupported("adapters are not available", (None,)),
    "lora_request": Unsupported("adapters are not available", (None,)),
    "kv_transfer_params": Unsupported("prefill and decode run in one place here; leave it out", (None,)),
    "logprob_token_ids": Unsupported("use logprobs", (None, [])),
    "token_ids_logprob": Unsupported("use logprobs", (None, [])),
    "return_tokens_as_token_ids": Unsupported("use return_token_ids"),
    "return_hidden_states": Unsupported(_NOT_DONE),
    "return_routed_experts": Unsupported(_NOT_DONE),
    "return_context_logits": Unsupported(_PLAIN_ROW),
    "return_generation_logits": Unsupported("use logprobs"),
    "logprob_start_len": Unsupported(_PLAIN_ROW, (None, -1)),
    "top_p_min": Unsupported(_NOT_DONE, (None, 0, 0.0)),
    "prompt_ignore_length": Unsupported(_NOT_DONE, (None, 0)),
    "truncation_side": Unsupported("truncate_prompt_tokens keeps the end of the prompt", (None, "left")),
    "watermark": Unsupported(_NOT_DONE),
    "repetition_detection": Unsupported(_NOT_DONE, (None,)),
    "spaces_between_special_tokens": Unsupported(_NOT_DONE, (None, True)),
    "session_params": Unsupported(_NOT_DONE, (None,)),
}
"""Fields of either route that change what a reply means and are not done here."""

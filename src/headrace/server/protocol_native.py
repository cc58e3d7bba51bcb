"""SGLang's native dialect: bodies of ``/generate`` and of the routes around it. Owns field names and nothing else."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from headrace.server.json_body import BodyType, Unsupported

TokenLogprob = tuple[float | None, int, str | None]
"""Log-probability, token id, and the token's text if it was asked for."""


class NativeSampling(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """SGLang's ``sampling_params``. A name that is none of them is refused, since here typos would change answers."""

    max_new_tokens: int | None = None
    min_new_tokens: int | None = None
    n: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    stop_regex: str | list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    no_stop_trim: bool | None = None
    logit_bias: dict[str, float] | None = None
    sampling_seed: int | None = None
    json_schema: str | None = None
    regex: str | None = None
    ebnf: str | None = None


class NativeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Body of ``POST /generate``: one prompt or several, as text or as token ids.

    ``logprob_start_len`` is the prompt's position from which log-probabilities are reported; -1 for its end.
    """

    text: str | list[str] | None = None
    input_ids: list[int | list[int]] | None = None
    sampling_params: NativeSampling | list[NativeSampling] | None = None
    rid: str | list[str] | None = None
    return_logprob: bool | list[bool] | None = None
    logprob_start_len: int | list[int] | None = None
    top_logprobs_num: int | list[int] | None = None
    token_ids_logprob: list[int] | None = None
    return_text_in_logprobs: bool | None = None
    stream: bool | None = None
    cache_salt: str | None = None
    extra_key: str | None = None
    priority: int | None = None


class MetaInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What SGLang says about one answer."""

    id: str
    finish_reason: dict[str, Any] | None
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    e2e_latency: float | UnsetType = UNSET
    input_token_logprobs: list[TokenLogprob] | UnsetType = UNSET
    output_token_logprobs: list[TokenLogprob] | UnsetType = UNSET
    output_token_logprobs_length: int | UnsetType = UNSET
    input_top_logprobs: list[list[TokenLogprob] | None] | UnsetType = UNSET
    output_top_logprobs: list[list[TokenLogprob]] | UnsetType = UNSET
    output_token_ids_logprobs: list[list[TokenLogprob]] | UnsetType = UNSET


class NativeResponse(msgspec.Struct, frozen=True, kw_only=True):
    """One answer, whole or, in a stream, as far as it has come."""

    text: str
    output_ids: list[int]
    meta_info: MetaInfo
    index: int | UnsetType = UNSET


class AbortRequest(msgspec.Struct, frozen=True):
    """Body of ``POST /abort_request``: the ``rid`` that a request was sent with, or all of them."""

    rid: str = ""
    abort_all: bool = False


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Reply of ``GET /get_model_info``."""

    model_path: str
    tokenizer_path: str
    served_model_name: str
    is_generation: bool = True


class ServerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Reply of ``GET /server_info``: the settings, except secrets, and what the engine says of itself."""

    version: str
    served_model_name: str
    settings: dict[str, Any]
    engine: dict[str, Any]
    max_total_num_tokens: int


_TEXT_ONLY = "this server takes text and token ids"

NATIVE_BODY = BodyType(
    NativeRequest,
    {
        "image_data": Unsupported(_TEXT_ONLY, (None, [])),
        "video_data": Unsupported(_TEXT_ONLY, (None, [])),
        "audio_data": Unsupported(_TEXT_ONLY, (None, [])),
        "input_embeds": Unsupported(_TEXT_ONLY, (None,)),
        "lora_path": Unsupported("adapters are not available", (None,)),
        "session_params": Unsupported("leave it out", (None,)),
        "custom_logit_processor": Unsupported("code from requests is never run; leave it out", (None,)),
        "return_hidden_states": Unsupported("leave it out"),
    },
)
ABORT_BODY = BodyType(AbortRequest)

"""Tiny random checkpoints of every family, made by transformers, which is also what they are compared with."""

from __future__ import annotations

import copy
from pathlib import Path

import torch
from torch import Tensor
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GraniteConfig,
    GraniteForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Olmo2Config,
    Olmo2ForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

VOCAB_SIZE = 256
WINDOW = 9

_SIZES = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}

_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
_LINEAR_ROPE = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}
_YARN_ROPE = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64}
_GEMMA_ROPES = {
    "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 2.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}


def _gemma3_config(query_pre_attn_scalar: int) -> Gemma3TextConfig:
    return Gemma3TextConfig(
        **_SIZES,
        head_dim=32,
        query_pre_attn_scalar=query_pre_attn_scalar,
        sliding_window=WINDOW,
        sliding_window_pattern=3,
        rope_parameters=copy.deepcopy(_GEMMA_ROPES),
        final_logit_softcapping=5.0,
    )


def _configs() -> dict[str, tuple[type[PreTrainedModel], object]]:
    return {
        "llama2": (LlamaForCausalLM, LlamaConfig(**_SIZES | {"num_key_value_heads": 4})),
        "llama3": (LlamaForCausalLM, LlamaConfig(**_SIZES, rope_parameters=_LLAMA3_ROPE, head_dim=48)),
        "llama-biased-linear-tied": (
            LlamaForCausalLM,
            LlamaConfig(**_SIZES, attention_bias=True, rope_parameters=_LINEAR_ROPE, tie_word_embeddings=True),
        ),
        "llama-yarn": (LlamaForCausalLM, LlamaConfig(**_SIZES, rope_parameters=_YARN_ROPE)),
        "smollm2": (
            LlamaForCausalLM,
            LlamaConfig(
                **_SIZES | {"num_attention_heads": 8}, head_dim=16, rope_theta=100000.0, tie_word_embeddings=True
            ),
        ),
        "mistral": (MistralForCausalLM, MistralConfig(**_SIZES, sliding_window=WINDOW)),
        "qwen2": (Qwen2ForCausalLM, Qwen2Config(**_SIZES, tie_word_embeddings=True)),
        "qwen2-windowed": (
            Qwen2ForCausalLM,
            Qwen2Config(**_SIZES, use_sliding_window=True, sliding_window=WINDOW, max_window_layers=1),
        ),
        "qwen3": (Qwen3ForCausalLM, Qwen3Config(**_SIZES, head_dim=32)),
        "gemma3": (Gemma3ForCausalLM, _gemma3_config(query_pre_attn_scalar=32)),
        "gemma3-rescaled": (Gemma3ForCausalLM, _gemma3_config(query_pre_attn_scalar=20)),
        "granite": (
            GraniteForCausalLM,
            GraniteConfig(
                **_SIZES,
                embedding_multiplier=3.0,
                residual_multiplier=0.4,
                attention_multiplier=0.2,
                logits_scaling=2.0,
                tie_word_embeddings=True,
            ),
        ),
        "olmo2": (Olmo2ForCausalLM, Olmo2Config(**_SIZES)),
    }


FAMILY_CASES = tuple(_configs())


def make_model(case: str) -> PreTrainedModel:
    """The reference model: every weight random, norms and biases too, so that no two can be confused."""
    model_class, config = _configs()[case]
    model = model_class(config).eval()
    generator = torch.Generator().manual_seed(len(case))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if "norm" in name:
                parameter.copy_(parameter + 0.2 * noise)
            else:
                parameter.copy_(noise * (0.3 if parameter.dim() == 1 else parameter.shape[1] ** -0.5))
    return model


def save_model(model: PreTrainedModel, folder: Path) -> Path:
    model.save_pretrained(folder)
    return folder


def reference_logits(model: PreTrainedModel, token_ids: list[int]) -> Tensor:
    """Logits of every position, ``[len(token_ids), vocab_size]``."""
    with torch.inference_mode():
        return model(torch.tensor([token_ids])).logits[0]

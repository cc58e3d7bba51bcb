"""A complete tiny Llama as a Hugging Face folder: random weights, byte-level tokenizer, chat template.

Small enough to run hundreds of steps a second in fp32, real enough to go through every room: checkpoint,
tokenizer, template, executor, engine, server.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

VOCAB_SIZE = 320
HIDDEN_SIZE = 64
NUM_LAYERS = 2
NUM_HEADS = 4
NUM_KV_HEADS = 2
INTERMEDIATE_SIZE = 128
MAX_POSITION = 512
SPECIAL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] "
    "+ '<|im_end|>' + '\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


_TELLS_OF_TOOLS = "{% if tools %}{{ 'call with <tool_call>' }}{% endif %}"

TOOL_TEMPLATE = _TELLS_OF_TOOLS + CHAT_TEMPLATE
"""A template that knows of tools, and tells of them in few words."""

REASONING_TEMPLATE = (
    _TELLS_OF_TOOLS + "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{{ message['content'].split('</think>')[-1] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{% if enable_thinking is defined and not enable_thinking %}{{ '<think>\n\n</think>\n\n' }}"
    "{% else %}{{ '<think>\n' }}{% endif %}{% endif %}"
)
"""A template like those of models that reason before they answer."""


def write_tiny_model(folder: Path, seed: int = 0, chat_template: str = CHAT_TEMPLATE) -> Path:
    """Fill ``folder`` with the model and return it; equal seeds give equal files."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(_weights(np.random.default_rng(seed)), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(_config()))
    _tokenizer().save(str(folder / "tokenizer.json"))
    tokenizer_config = {
        "eos_token": "<|im_end|>",
        "bos_token": "<|endoftext|>",
        "add_bos_token": False,
        "chat_template": chat_template,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer_config))
    return folder


def _config() -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": VOCAB_SIZE,
        "hidden_size": HIDDEN_SIZE,
        "num_hidden_layers": NUM_LAYERS,
        "num_attention_heads": NUM_HEADS,
        "num_key_value_heads": NUM_KV_HEADS,
        "intermediate_size": INTERMEDIATE_SIZE,
        "max_position_embeddings": MAX_POSITION,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "bos_token_id": 0,
        "eos_token_id": 2,
        "torch_dtype": "float32",
    }


def _weights(rng: np.random.Generator) -> dict[str, np.ndarray]:
    def matrix(rows: int, columns: int, scale: float = 0.2) -> np.ndarray:
        return rng.normal(0.0, scale, (rows, columns)).astype(np.float32)

    head_dim = HIDDEN_SIZE // NUM_HEADS
    weights = {
        "model.embed_tokens.weight": matrix(VOCAB_SIZE, HIDDEN_SIZE, 0.5),
        "model.norm.weight": np.ones(HIDDEN_SIZE, np.float32),
    }
    for layer in range(NUM_LAYERS):
        prefix = f"model.layers.{layer}."
        weights |= {
            prefix + "self_attn.q_proj.weight": matrix(NUM_HEADS * head_dim, HIDDEN_SIZE),
            prefix + "self_attn.k_proj.weight": matrix(NUM_KV_HEADS * head_dim, HIDDEN_SIZE),
            prefix + "self_attn.v_proj.weight": matrix(NUM_KV_HEADS * head_dim, HIDDEN_SIZE),
            prefix + "self_attn.o_proj.weight": matrix(HIDDEN_SIZE, NUM_HEADS * head_dim),
            prefix + "mlp.gate_proj.weight": matrix(INTERMEDIATE_SIZE, HIDDEN_SIZE),
            prefix + "mlp.up_proj.weight": matrix(INTERMEDIATE_SIZE, HIDDEN_SIZE),
            prefix + "mlp.down_proj.weight": matrix(HIDDEN_SIZE, INTERMEDIATE_SIZE),
            prefix + "input_layernorm.weight": np.ones(HIDDEN_SIZE, np.float32),
            prefix + "post_attention_layernorm.weight": np.ones(HIDDEN_SIZE, np.float32),
        }
    return weights


def _tokenizer() -> Tokenizer:
    """One token per byte after the special tokens, then a few merges, padded to the vocabulary size."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: i for i, token in enumerate(SPECIAL_TOKENS)}
    for symbol in alphabet:
        vocab[symbol] = len(vocab)
    merges = []
    for pair in [("t", "h"), ("th", "e"), ("Ġ", "the"), ("i", "n"), ("e", "r"), ("a", "n"), ("an", "d"), ("Ġ", "and")]:
        merges.append(pair)
        vocab["".join(pair)] = len(vocab)
    while len(vocab) < VOCAB_SIZE:
        vocab[f"<|pad{len(vocab)}|>"] = len(vocab)
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([*SPECIAL_TOKENS, *(t for t in vocab if t.startswith("<|pad"))])
    return tokenizer

"""The tiny model of ``tests.tiny_model`` as one GGUF file, tokenizer and template included."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np
from safetensors.numpy import load_file

from tests.tiny_model import CHAT_TEMPLATE, NUM_HEADS, NUM_KV_HEADS, write_tiny_model

_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def write_tiny_gguf(folder: Path, matrices: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.Q4_1) -> Path:
    """Write ``folder/tiny.gguf`` with matrices of that type; norms stay in float32."""
    source = write_tiny_model(folder / "source")
    config = json.loads((source / "config.json").read_text())
    path = folder / "tiny.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_vocab_size(config["vocab_size"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(NUM_HEADS)
    writer.add_head_count_kv(NUM_KV_HEADS)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    _add_tokenizer(writer, source)
    for name, values in load_file(source / "model.safetensors").items():
        _add_tensor(writer, name, values, matrices)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_tokenizer(writer: gguf.GGUFWriter, source: Path) -> None:
    document = json.loads((source / "tokenizer.json").read_text())
    vocab = document["model"]["vocab"]
    specials = {token["content"] for token in document["added_tokens"]}
    tokens = sorted(vocab, key=vocab.__getitem__)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in specials else 1 for token in tokens])
    writer.add_token_merges([" ".join(merge) for merge in document["model"]["merges"]])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)


def _add_tensor(writer: gguf.GGUFWriter, name: str, values: np.ndarray, matrices: gguf.GGMLQuantizationType) -> None:
    for theirs, ours in _NAMES.items():
        name = name.replace(theirs, ours)
    name = name.replace("model.layers.", "blk.")
    for part, num_heads in (("attn_q.", NUM_HEADS), ("attn_k.", NUM_KV_HEADS)):
        if part in name:  # GGUF files of this family rotate neighbouring pairs
            pairs = values.reshape(num_heads, 2, -1, values.shape[1])
            values = np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(values.shape)
    if values.ndim == 1:
        writer.add_tensor(name, values)
    else:
        writer.add_tensor(name, gguf.quants.quantize(values, matrices), raw_dtype=matrices)

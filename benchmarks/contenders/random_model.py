"""A 1B-class Llama of random weights as a GGUF file: what its sizes cost, with nothing to download.

The shape is Llama 3.2 1B's; tokenizer and chat template are taken from another GGUF file, so that the head is as
wide as that file's vocabulary. Weights are Q4_0 throughout, small enough that activations stay finite.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

NUM_LAYERS = 16
HIDDEN_SIZE = 2048
INTERMEDIATE_SIZE = 8192
NUM_HEADS = 32
NUM_KV_HEADS = 8
HEAD_DIM = 64
BLOCK_COLUMNS = 32
BLOCK_BYTES = 18
WEIGHT_SCALE = 0.004
"""Of a block; with quarter-bytes around 4.6 it makes weights of about 0.02, as trained ones are."""


def write_one_billion(tokenizer_of: Path, path: Path) -> Path:
    """Write the model to ``path``; needs the ``gguf`` package and 0.6 GB of disk. Returns ``path``."""
    import gguf

    source = gguf.GGUFReader(tokenizer_of)
    vocab_size = len(source.fields["tokenizer.ggml.tokens"].data)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("random 1B")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_0)
    writer.add_block_count(NUM_LAYERS)
    writer.add_context_length(8192)
    writer.add_embedding_length(HIDDEN_SIZE)
    writer.add_feed_forward_length(INTERMEDIATE_SIZE)
    writer.add_head_count(NUM_HEADS)
    writer.add_head_count_kv(NUM_KV_HEADS)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_rope_freq_base(500000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(vocab_size)
    for name, stored in source.fields.items():
        if name.startswith("tokenizer."):
            kind, *inner = stored.types
            writer.add_key_value(name, stored.contents(), kind, inner[-1] if inner else None)
    rng = np.random.default_rng(1)
    for name, rows, columns in matrices(vocab_size):
        writer.add_tensor(name, random_q4_0(rng, rows, columns), raw_dtype=gguf.GGMLQuantizationType.Q4_0)
    for name in norms():
        writer.add_tensor(name, np.ones(HIDDEN_SIZE, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def matrices(vocab_size: int) -> list[tuple[str, int, int]]:
    """Name, rows (outputs) and columns (inputs) of every matrix; the embedding is the head as well."""
    query_size, kv_size = NUM_HEADS * HEAD_DIM, NUM_KV_HEADS * HEAD_DIM
    per_layer = {
        "attn_q": (query_size, HIDDEN_SIZE),
        "attn_k": (kv_size, HIDDEN_SIZE),
        "attn_v": (kv_size, HIDDEN_SIZE),
        "attn_output": (HIDDEN_SIZE, query_size),
        "ffn_gate": (INTERMEDIATE_SIZE, HIDDEN_SIZE),
        "ffn_up": (INTERMEDIATE_SIZE, HIDDEN_SIZE),
        "ffn_down": (HIDDEN_SIZE, INTERMEDIATE_SIZE),
    }
    layers = [
        (f"blk.{layer}.{name}.weight", *shape) for layer in range(NUM_LAYERS) for name, shape in per_layer.items()
    ]
    return [("token_embd.weight", vocab_size, HIDDEN_SIZE), *layers]


def norms() -> list[str]:
    per_layer = [f"blk.{layer}.{name}.weight" for layer in range(NUM_LAYERS) for name in ("attn_norm", "ffn_norm")]
    return ["output_norm.weight", *per_layer]


def random_q4_0(rng: np.random.Generator, rows: int, columns: int) -> NDArray[np.uint8]:
    """Blocks of a half-precision scale and 16 bytes of two weights each, ``[rows, bytes per row]``."""
    blocks = rng.integers(0, 256, (rows, columns // BLOCK_COLUMNS, BLOCK_BYTES), np.uint8)
    blocks[:, :, :2] = np.array([WEIGHT_SCALE], np.float16).view(np.uint8)
    return blocks.reshape(rows, -1)

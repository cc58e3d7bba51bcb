"""Published GGUF models, dequantised to float32, choose the tokens that transformers chooses on the same file.

The reference reads each prompt with our continuation once; at every position its likeliest token must be the
one we chose. That is equal to generating with it, and much faster.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from headrace.checkpoint.model_cache import ModelCache
from headrace.checkpoint.reference import cache_folder, locate_model, resolve_model
from headrace.core.errors import ConfigError
from headrace.core.progress import NullProgress
from headrace.engine.tokenizer import load_tokenizer
from tests.model.paged_run import PagedRun, load_model

# At every step the two likeliest tokens are 0.0028 apart or more, some fifty times what float32 rounding moves.
PROMPTS = (
    "The capital of France is",
    "Once upon a time there was a little girl who",
    "def fibonacci(n):\n    ",
    "The three primary colours are",
    "Water boils at a temperature of",
    "In 1969, the first man on the moon",
    "<|im_start|>user\nWhat is the largest planet?<|im_end|>\n<|im_start|>assistant\n",
    "To make a good cup of tea you need to",
    "The most popular sport in the United States is",
    "import numpy as np\n\n# Compute the mean of each row\n",
    "Dear Sir or Madam,\n\nI am writing to",
    "Q: How many legs does a spider have?\nA:",
    "Photosynthesis is the process by which",
    "She opened the door and saw",
    "1, 2, 4, 8, 16,",
    "El idioma oficial de Brasil es",
    "A triangle has three sides and a square has",
    "List five animals that live in the sea:\n1.",
    "If it rains tomorrow, we will",
    "<|im_start|>user\nWrite a haiku about autumn.<|im_end|>\n<|im_start|>assistant\n",
)


@pytest.mark.model
def test_smollm2_chooses_the_tokens_of_transformers() -> None:
    path = resolve_model("smollm2", NullProgress())
    assert_same_greedy_tokens(path, PROMPTS, num_tokens=64)


@pytest.mark.model
def test_gemma3_chooses_the_tokens_of_transformers() -> None:
    path = cached_or_allowed("gemma3-270m")
    assert_same_greedy_tokens(path, PROMPTS[:10], num_tokens=32)


def cached_or_allowed(alias: str) -> Path:
    """A model too big to fetch for every test run: the cached copy, or a download if that was asked for."""
    if os.environ.get("HEADRACE_TEST_DOWNLOADS") == "1":
        return resolve_model(alias, NullProgress())
    try:
        return locate_model(alias, ModelCache(cache_folder()))
    except ConfigError:
        pytest.skip(f"{alias} is not in the cache; HEADRACE_TEST_DOWNLOADS=1 fetches it")


def assert_same_greedy_tokens(path: Path, prompts: tuple[str, ...], num_tokens: int) -> None:
    torch.set_num_threads(1)  # a second thread only waits where the machine is shared
    tokenizer = load_tokenizer(path)
    prompt_ids = [tokenizer.encode(prompt) for prompt in prompts]
    ours = greedy_together(path, prompt_ids, num_tokens)
    reference = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32).eval()
    for prompt, ids, chosen in zip(prompts, prompt_ids, ours, strict=True):
        with torch.inference_mode():
            logits = reference(torch.tensor([ids + chosen[:-1]]), logits_to_keep=num_tokens).logits[0]
        assert logits.argmax(dim=-1).tolist() == chosen, f"after {prompt!r}"


def greedy_together(path: Path, prompts: list[list[int]], num_tokens: int) -> list[list[int]]:
    """Greedy continuations, all prompts in one batch: chunks of every length, then decodes together."""
    model, config = load_model(path)
    run = PagedRun(model, config, num_blocks=len(prompts) * 8, block_size=16)
    chosen: list[list[int]] = [[] for _ in prompts]
    chunks = dict(enumerate(prompts))
    for _ in range(num_tokens):
        for seq_id, token_id in run.next_tokens(chunks).items():
            chosen[seq_id].append(token_id)
        chunks = {seq_id: tokens[-1:] for seq_id, tokens in enumerate(chosen)}
    return chosen

"""A loaded model whose answers can be computed on paper: token ``i`` is one character, the engine is real."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from headrace.cache.kv_cache import KVCacheManager
from headrace.core.client import EngineInfo
from headrace.core.clock import WallClock
from headrace.engine.constraints import NoGrammars
from headrace.engine.detokenizer import ByteDetokenizer
from headrace.engine.engine import Engine
from headrace.engine.factory import TokenizerTexts
from headrace.llm.loading import LoadedModel
from headrace.scheduler.build import BatchLimits, build_scheduler
from headrace.scheduler.cost_model import StepCostModel, StepCosts
from tests.fakes import ContentExecutor, expected_output

VOCAB_SIZE = 60
EOS = 0
MAX_MODEL_LEN = 100
TOKEN_BYTES = [b"", *(bytes([ord("A") + i]) for i in range(VOCAB_SIZE - 1))]

INFO = EngineInfo(
    model="fake",
    architecture="fake",
    dtype="float32",
    backend="fake",
    num_parameters=0,
    vocab_size=VOCAB_SIZE,
    max_model_len=MAX_MODEL_LEN,
    block_size=4,
    num_blocks=64,
    kv_cache_bytes=0,
    max_num_seqs=8,
    max_num_batched_tokens=16,
    eos_token_ids=[EOS],
)


class CharTokenizer:
    """``A`` is 1, ``B`` is 2; ``AB`` is one token, 59, so that text can merge across a seam."""

    bos_token_id = None
    eos_token_id = EOS

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [59 if char == "|" else ord(char) - 64 for char in text.replace("AB", "|")]

    def token_text(self, token_id: int) -> str:
        return TOKEN_BYTES[token_id].decode()

    def decode(self, token_ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        return b"".join(TOKEN_BYTES[token_id] for token_id in token_ids).decode()

    def detokenizer(self, skip_special_tokens: bool = True) -> ByteDetokenizer:
        return ByteDetokenizer(TOKEN_BYTES)


class RoleChat:
    """A conversation is each role's first letter in upper case followed by the content."""

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        add_generation_prompt: bool,
        continue_final_message: bool,
        template_kwargs: Mapping[str, object],
    ) -> list[int]:
        assert add_generation_prompt != continue_final_message
        text = "".join(f"{str(message['role'])[0].upper()}{message['content']}" for message in messages)
        text += str(template_kwargs.get("note", ""))
        return CharTokenizer().encode(text + "A" if add_generation_prompt else text)


class House:
    """A loaded model with its parts in reach."""

    def __init__(self, num_blocks: int = 64, costs: StepCosts | None = None) -> None:
        self.kv = KVCacheManager(num_blocks, INFO.block_size, enable_prefix_caching=True)
        self.executor = ContentExecutor(num_blocks, INFO.block_size, VOCAB_SIZE)
        limits = BatchLimits(INFO.max_num_seqs, INFO.max_num_batched_tokens, MAX_MODEL_LEN)
        scheduler = build_scheduler("fcfs", self.kv, limits, StepCostModel(costs))
        texts = TokenizerTexts(CharTokenizer(), NoGrammars())  # type: ignore[arg-type]
        self.engine = Engine(scheduler, self.kv, self.executor, texts, WallClock(), INFO)
        self.loaded = LoadedModel(self.engine, CharTokenizer(), RoleChat())


def answer(prompt: list[int], max_tokens: int) -> list[int]:
    """The tokens a request alone must give."""
    return expected_output(prompt, max_tokens, VOCAB_SIZE, frozenset({EOS}))


def text_of(token_ids: list[int]) -> str:
    return b"".join(TOKEN_BYTES[token_id] for token_id in token_ids).decode()

"""An engine over a fake executor with its parts in reach, for tests that can be worked out on paper."""

from __future__ import annotations

from headrace.cache.kv_cache import KVCacheManager
from headrace.core.client import EngineInfo
from headrace.core.request import RequestOutput
from headrace.core.sampling import SamplingParams
from headrace.engine.constraints import GrammarSource, NoGrammars
from headrace.engine.detokenizer import ByteDetokenizer
from headrace.engine.engine import Engine
from headrace.engine.stop_matcher import StopStrings
from headrace.engine.text_stream import TextStream
from headrace.scheduler.policy import FcfsPolicy
from headrace.scheduler.scheduler import BatchLimits, Scheduler
from tests.fakes import ContentExecutor, ManualClock

VOCAB_SIZE = 50
EOS = 0
TOKEN_BYTES = [b"", *(bytes([ord("A") + i]) for i in range(VOCAB_SIZE - 1))]


class ByteTexts:
    """Token ``i`` is the character ``chr(64 + i)``; the end-of-sequence token has no text."""

    grammars: GrammarSource = NoGrammars()

    def text_streams(self, sampling: SamplingParams) -> list[TextStream]:
        stops = StopStrings(sampling.stop)
        return [
            TextStream(ByteDetokenizer(TOKEN_BYTES), stops, sampling.include_stop_str_in_output, sampling.min_tokens)
            for _ in range(sampling.n)
        ]


def text_of(token_ids: list[int]) -> str:
    return b"".join(TOKEN_BYTES[t] for t in token_ids).decode()


class House:
    """An engine with its parts in reach. ``executor`` must have ``num_blocks`` blocks of ``block_size``."""

    def __init__(
        self,
        num_blocks: int = 32,
        block_size: int = 4,
        budget: int = 16,
        max_model_len: int = 100,
        max_num_seqs: int = 8,
        executor: ContentExecutor | None = None,
        texts: ByteTexts | None = None,
        clock: ManualClock | None = None,
    ) -> None:
        self.kv = KVCacheManager(num_blocks, block_size, enable_prefix_caching=True)
        self.executor = ContentExecutor(num_blocks, block_size, VOCAB_SIZE) if executor is None else executor
        self.clock = ManualClock() if clock is None else clock
        self.scheduler = Scheduler(self.kv, FcfsPolicy(budget), BatchLimits(max_num_seqs, budget, max_model_len))
        self.engine = Engine(
            self.scheduler,
            self.kv,
            self.executor,
            ByteTexts() if texts is None else texts,
            self.clock,
            EngineInfo(
                model="fake",
                architecture="fake",
                dtype="float32",
                backend="fake",
                num_parameters=0,
                vocab_size=VOCAB_SIZE,
                max_model_len=max_model_len,
                block_size=block_size,
                num_blocks=num_blocks,
                kv_cache_bytes=0,
                max_num_seqs=max_num_seqs,
                max_num_batched_tokens=budget,
                eos_token_ids=[EOS],
            ),
        )

    def run(self) -> list[RequestOutput]:
        outputs: list[RequestOutput] = []
        for _ in range(1000):
            if not self.engine.has_work:
                return outputs
            self.clock.advance(0.5)
            outputs.extend(self.engine.step())
        raise AssertionError("the engine never became idle")


def joined(outputs: list[RequestOutput], request_id: str = "r", index: int = 0) -> tuple[str, list[int], RequestOutput]:
    """Text, tokens and the one last output of a sequence."""
    own = [o for o in outputs if o.request_id == request_id and o.index == index]
    last = [o for o in own if o.finish_reason is not None]
    assert len(last) == 1, f"{len(last)} last outputs"
    assert own[-1] is last[0], "an output after the last one"
    return "".join(o.text for o in own), [t for o in own for t in o.token_ids], last[0]

"""How byte-level BPE vocabularies cut text into words, by the name GGUF files use (``tokenizer.ggml.pre``).

Owns the table of patterns. A pattern is a fact of the vocabulary it was trained with: with another one the
same text gives other tokens and the model quietly gets worse, so an unknown name is an error, never a default.
Patterns are those of the models' published ``tokenizer.json`` where they are known; several in a row cut one
after the other, each inside the pieces the one before has left.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.core.errors import ConfigError

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_NEWLINES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_CL100K_TAIL = rf" ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_NEWLINES}"
_LLAMA3 = rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_CL100K_TAIL}"
_QWEN2 = rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_CL100K_TAIL}"
_QWEN35 = (
    rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_NEWLINES}"
)
_SEED_CODER = rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_NEWLINES}"
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED_TAIL = rf" ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_NEWLINES}"
_TEKKEN = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|\p{{N}}|{_CASED_TAIL}"
_O200K = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_CONTRACTION}?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_CONTRACTION}?|\p{{N}}{{1,3}}|{_CASED_TAIL}"
)
_ASCII_PUNCTUATION = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"
_DEEPSEEK3 = (
    rf"{_ASCII_PUNCTUATION}[A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_NEWLINES}"
)
_BLOOM = " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"
_THREE_DIGITS = "[0-9][0-9][0-9]"


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """How a vocabulary cuts words.

    ``ignore_merges``: a word that is a token is that token, whatever the merges say. ``add_bos``: prompts
    begin with the begin-of-sequence token unless the file says otherwise.
    """

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    add_bos: bool = False

    def to_json(self) -> dict[str, object]:
        """Return it as the ``pre_tokenizer`` entry of a ``tokenizer.json``."""
        splits: list[dict[str, object]] = [
            {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
            for pattern in self.patterns
        ]
        byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
        return {"type": "Sequence", "pretokenizers": [*splits, byte_level]}


_GPT2_WORDS = PreTokenizer((_GPT2,))
_DIGIT_WORDS = PreTokenizer((r"\p{N}", _GPT2))
_LLAMA3_WORDS = PreTokenizer((_LLAMA3,), ignore_merges=True, add_bos=True)
_CL100K_WORDS = PreTokenizer((_LLAMA3,))
_QWEN2_WORDS = PreTokenizer((_QWEN2,))
_O200K_WORDS = PreTokenizer((_O200K,))
_BLOOM_WORDS = PreTokenizer((_BLOOM,))
_DEEPSEEK3_WORDS = PreTokenizer((r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", _DEEPSEEK3))


def _named(pre_tokenizer: PreTokenizer, names: str) -> dict[str, PreTokenizer]:
    return dict.fromkeys(names.split(), pre_tokenizer)


PRE_TOKENIZERS: Mapping[str, PreTokenizer] = {
    "default": PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", _THREE_DIGITS)),
    "falcon": PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, _THREE_DIGITS)),
    "deepseek-coder": PreTokenizer(
        (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+", r"\p{N}")
    ),
    "viking": PreTokenizer((_BLOOM, r"\p{N}")),
    "qwen35": PreTokenizer((_QWEN35,)),
    "seed-coder": PreTokenizer((_SEED_CODER,)),
    "tekken": PreTokenizer((_TEKKEN,), ignore_merges=True, add_bos=True),
    **_named(
        _GPT2_WORDS,
        "gpt-2 phi-2 mpt olmo jais trillion granite-docling exaone4 jina-es jina-de jina-v2-es jina-v2-de "
        "gigachat a.x-4.0 mellum",
    ),
    **_named(_DIGIT_WORDS, "starcoder refact command-r smollm codeshell exaone minerva-7b"),
    **_named(_LLAMA3_WORDS, "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2"),
    **_named(_CL100K_WORDS, "dbrx smaug-bpe glm4 chatglm-bpe"),
    **_named(_QWEN2_WORDS, "qwen2 stablelm2 deepseek-r1-qwen hunyuan megrez kormo solar-open grok-2"),
    **_named(_O200K_WORDS, "gpt-4o llama4 kanana2 minimax-m2"),
    **_named(_BLOOM_WORDS, "bloom poro-chat gpt3-finnish"),
    **_named(_DEEPSEEK3_WORDS, "deepseek-v3 hunyuan-dense joyai-llm"),
}


def find_pre_tokenizer(name: str, field: str) -> PreTokenizer:
    """Return the entry of ``name``. Raises ``ConfigError`` naming it and ``field`` if there is none."""
    found = PRE_TOKENIZERS.get(name)
    if found is None:
        raise ConfigError(
            f"{field} is {name!r}, a pre-tokenizer headrace does not know "
            f"(known: {', '.join(sorted(PRE_TOKENIZERS))}); give the model's tokenizer.json with --tokenizer instead",
            field,
        )
    return found

"""What a tokenizer is made from, whatever file format described it.

Owns the neutral form between the two readers (HF folder, GGUF metadata) and ``Tokenizer``, and the file a compiled
model keeps it in: deriving it anew can take seconds. Knows no other file format and no tokenizer library.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from headrace.core.errors import ConfigError

TokenRef = int | str
"""A token by id, as GGUF and generation configs name it, or by its text, as tokenizer configs do."""

MAX_SPEC_BYTES = 1 << 30

DEFAULT_TEMPLATE = "default"
TOOL_USE_TEMPLATE = "tool_use"

END_TOKENS = (
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<end_of_turn>",
    "<end_of_utterance>",
    "<\uff5cend\u2581of\u2581sentence\uff5c>",
)
"""Control tokens that end a turn or a document in every family that has them.

Checkpoints often declare only one of the two as end of sequence; without the other, a chat model that closes
its turn is read on into an invented next one.
"""


@dataclass(frozen=True, slots=True)
class TokenizerSpec:
    """Everything about a tokenizer that its checkpoint says.

    ``json`` is the text of a ``tokenizer.json``. ``add_bos`` and ``add_eos`` overrule its post-processor
    where they are not ``None``. ``eos`` pairs each end token with the field that named it, for messages.
    ``special_names`` are the variables a chat template may use (``bos_token``), by name.
    ``min_vocab_size`` counts ids that exist without having a text.
    """

    json: bytes
    bos: TokenRef | None = None
    eos: tuple[tuple[str, TokenRef], ...] = ()
    add_bos: bool | None = None
    add_eos: bool | None = None
    special_names: Mapping[str, str] = field(default_factory=dict)
    chat_templates: Mapping[str, str] = field(default_factory=dict)
    min_vocab_size: int = 0


def write_spec_file(path: Path, spec: TokenizerSpec) -> None:
    path.write_bytes(msgspec.msgpack.encode(spec))


def read_spec_file(path: Path) -> TokenizerSpec:
    """Read what ``write_spec_file`` wrote. Raises ``ConfigError``."""
    try:
        if path.stat().st_size > MAX_SPEC_BYTES:
            raise ConfigError(f"{path} has more than {MAX_SPEC_BYTES} bytes; compile the model again", path.name)
        return msgspec.msgpack.decode(path.read_bytes(), type=TokenizerSpec)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}; compile the model again", path.name) from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise ConfigError(f"{path} is damaged: {error}; compile the model again", path.name) from error

"""Text to token ids and back; the only file that knows the ``tokenizers`` library.

Owns one model's vocabulary. Three ways to encode differ in whether spellings of control tokens in the text
become control tokens: ``encode`` (yes: templates, raw prompts), ``encode_text`` (no: a user's text) and
``encode_guarded`` (a rendered template: the template's yes, the user's no). Immutable and thread-safe; encoding
releases the GIL, so a long prompt in a worker thread stops nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec
import tokenizers

from headrace.checkpoint.open import open_checkpoint
from headrace.core.compiled_files import TOKENIZER_FILE as COMPILED_TOKENIZER_FILE
from headrace.core.compiled_files import is_compiled
from headrace.core.errors import ConfigError, HeadraceError, InvalidRequest
from headrace.engine.detokenizer import ByteDetokenizer, Detokenizer, PrefixDiffDetokenizer
from headrace.engine.gguf_tokenizer import read_gguf_tokenizer
from headrace.engine.hf_tokenizer import TOKENIZER_FILE, read_hf_tokenizer, read_tokenizer_json
from headrace.engine.literal_guard import LiteralGuard
from headrace.engine.token_table import TableDecoder, TokenTable, read_decoder
from headrace.engine.tokenizer_spec import DEFAULT_TEMPLATE, END_TOKENS, TokenizerSpec, TokenRef, read_spec_file

MAX_VOCAB_SIZE = 1 << 22
_MAX_SHOWN_CHARS = 300


class _DecoderOnly(msgspec.Struct):
    """The part of a ``tokenizer.json`` that says what tokens are as bytes."""

    decoder: object = None


class Tokenizer:
    """One model's tokenizer.

    ``vocab_size`` is one more than the largest id. ``special_token_ids`` are the control tokens: they have
    no bytes in ``token_bytes`` and no text unless asked for. ``eos_token_ids`` end a sequence;
    ``eos_token_id`` is the one of them that the model names first.
    ``special_names`` and ``chat_templates`` (by name) are what a chat template needs; ``chat_template`` is the
    default one. Raises ``ConfigError`` for a spec that contradicts itself.
    """

    def __init__(self, spec: TokenizerSpec) -> None:
        self._lib = _parse(spec.json)
        added = self._lib.get_added_tokens_decoder()
        self._pieces = _pieces(self._lib, spec.min_vocab_size)
        self.vocab_size = len(self._pieces)
        self.special_token_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        self.special_names = spec.special_names
        self.chat_templates = spec.chat_templates
        self.guard = LiteralGuard(added[token_id].content for token_id in self.special_token_ids)
        self._guarded = _guarded_twin(self._lib, self.guard)
        # such spellings are found in normalised text, where an unusual form of one may turn into it
        self._has_normalized_specials = any(token.special and token.normalized for token in added.values())

        self.bos_token_id = self._find(spec.bos)
        self.eos_token_ids = self._end_ids(spec.eos)
        declared = self._find(next((ref for _, ref in spec.eos), None))
        self.eos_token_id = min(self.eos_token_ids, default=None) if declared is None else declared
        self._prefix_ids, self._suffix_ids = self._affixes(spec)

        self._decoder = read_decoder(msgspec.json.decode(spec.json, type=_DecoderOnly).decoder)
        self._shown_bytes = _token_bytes(self._decoder, self._pieces, added)
        self.token_bytes = [
            b"" if token_id in self.special_token_ids else data for token_id, data in enumerate(self._shown_bytes)
        ]

    @property
    def has_token_bytes(self) -> bool:
        """Whether ``token_bytes`` is exact: tokens are byte strings, and a text is its tokens' bytes."""
        return self._decoder is not None

    @property
    def table(self) -> TokenTable | None:
        """What an engine needs of the tokens; ``None`` where they are no byte strings."""
        if self._decoder is None:
            return None
        return TokenTable(self._shown_bytes, sorted(self.special_token_ids), sorted(self.eos_token_ids))

    @property
    def chat_template(self) -> str | None:
        """The template of a plain chat; ``None`` for a base model."""
        return self.chat_templates.get(DEFAULT_TEMPLATE)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Tokens of a text in which spellings of control tokens are control tokens.

        ``add_special_tokens`` puts the model's begin and end tokens around it. Raises ``InvalidRequest`` for
        text that is not valid Unicode. Costs about 0.3 us per character.
        """
        ids = _encode(self._lib, text)
        return [*self._prefix_ids, *ids, *self._suffix_ids] if add_special_tokens else ids

    def encode_text(self, text: str) -> list[int]:
        """Tokens of a text in which spellings of control tokens are just text; nothing is put around it."""
        if not self.needs_guard(text):
            return _encode(self._lib, text)
        return _encode(self._guarded, self.guard.escape(text))

    def encode_guarded(self, text: str) -> list[int]:
        """Tokens of a text whose control spellings are control tokens, except those ``guard`` has escaped."""
        return _encode(self._guarded, text)

    def needs_guard(self, text: str) -> bool:
        """Whether ``encode`` might find a control token in the text."""
        return self._has_normalized_specials or self.guard.has_spelling(text)

    def decode(self, token_ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """Text of a whole row of tokens, without the space that encoding put at its front.

        Invalid UTF-8 becomes U+FFFD as in ``bytes.decode("utf-8", "replace")``.
        """
        text = self.decode_continuation(token_ids, skip_special_tokens)
        num_stripped = 0 if self._decoder is None else self._decoder.num_stripped_spaces
        for _ in range(num_stripped):
            text = text.removeprefix(" ")
        return text

    def decode_continuation(self, token_ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """Text that tokens add to what stands before them: a leading space belongs to it.

        Equal to the concatenation of what ``detokenizer`` gives.
        """
        if self._decoder is None:
            return self._lib_decode(list(token_ids), skip_special_tokens)
        table = self.token_bytes if skip_special_tokens else self._shown_bytes
        size = len(table)
        return b"".join(table[token_id] for token_id in token_ids if 0 <= token_id < size).decode("utf-8", "replace")

    def detokenizer(self, skip_special_tokens: bool = True) -> Detokenizer:
        """Return the detokenizer of one new sequence."""
        if self._decoder is None:
            return PrefixDiffDetokenizer(lambda token_ids: self._lib_decode(token_ids, skip_special_tokens))
        return ByteDetokenizer(self.token_bytes if skip_special_tokens else self._shown_bytes)

    def token_text(self, token_id: int) -> str:
        """Text of one token by itself, control tokens included; U+FFFD for part of a character."""
        return self.shown_bytes(token_id).decode("utf-8", "replace")

    def shown_bytes(self, token_id: int) -> bytes:
        """Bytes of one token by itself, control tokens included."""
        return self._shown_bytes[token_id] if 0 <= token_id < self.vocab_size else b""

    def id_to_piece(self, token_id: int) -> str:
        """The vocabulary's own spelling of a token (``Ġthe``, ``▁the``); empty for ids without one."""
        piece = self._pieces[token_id] if 0 <= token_id < self.vocab_size else None
        return "" if piece is None else piece

    def piece_to_id(self, piece: str) -> int | None:
        """Id of a token by the vocabulary's own spelling."""
        token_id: int | None = self._lib.token_to_id(piece)
        return token_id

    def _lib_decode(self, token_ids: list[int], skip_special_tokens: bool) -> str:
        text: str = self._lib.decode(token_ids, skip_special_tokens=skip_special_tokens)
        return text

    def _find(self, ref: TokenRef | None) -> int | None:
        """Id of a token, or ``None`` if the vocabulary does not have it."""
        if isinstance(ref, str):
            return self.piece_to_id(ref)
        return ref if ref is not None and 0 <= ref < self.vocab_size else None

    def _end_ids(self, refs: Iterable[tuple[str, TokenRef]]) -> frozenset[int]:
        ids = {token_id for token_id in self.special_token_ids if self.id_to_piece(token_id) in END_TOKENS}
        for field, ref in refs:
            token_id = self._find(ref)
            if token_id is None:
                raise ConfigError(f"{field} is {ref!r}, which is not in the vocabulary of {self.vocab_size}", field)
            ids.add(token_id)
        return frozenset(ids)

    def _affixes(self, spec: TokenizerSpec) -> tuple[list[int], list[int]]:
        """The ids put before and after a text: the post-processor's, corrected by the spec's flags."""
        with _library_errors(lambda reason: ConfigError(f"the tokenizer does not work: {reason}", "tokenizer")):
            full: list[int] = self._lib.encode("a").ids
            bare: list[int] = self._lib.encode("a", add_special_tokens=False).ids
        starts = [start for start in range(len(full)) if full[start : start + len(bare)] == bare]
        if not starts or not bare:
            raise ConfigError("the post_processor of tokenizer.json does more than add tokens", "post_processor")
        prefix, suffix = full[: starts[0]], full[starts[0] + len(bare) :]
        eos = self._find(next((ref for _, ref in spec.eos), None))
        prefix = _with_token(prefix, self.bos_token_id, spec.add_bos, "add_bos_token")
        # reversed, so that a missing end token goes outermost
        suffix = _with_token(suffix[::-1], eos, spec.add_eos, "add_eos_token")[::-1]
        return prefix, suffix


def load_tokenizer(model_path: Path, override: str | None = None) -> Tokenizer:
    """Load the tokenizer of a model folder or ``.gguf`` file, or of ``override`` if that is given.

    ``override`` is a folder, a ``tokenizer.json`` or a ``.gguf`` file. Raises ``ConfigError``.
    """
    path = model_path if override is None else Path(override).expanduser()
    if not path.exists():
        raise ConfigError(f"there is no tokenizer at {path}; give a folder, a tokenizer.json or a .gguf", "tokenizer")
    spec = read_spec(path)
    try:
        return Tokenizer(spec)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error.message}", error.field) from error


def read_spec(path: Path) -> TokenizerSpec:
    """What the files at ``path``, of whatever kind, say of a tokenizer. Raises ``ConfigError``."""
    if is_compiled(path):
        return read_spec_file(path / COMPILED_TOKENIZER_FILE)
    if path.is_dir() and (path / TOKENIZER_FILE).is_file():
        return read_hf_tokenizer(path)
    if path.name == TOKENIZER_FILE:
        return read_hf_tokenizer(path.parent)
    if path.suffix == ".json":
        return TokenizerSpec(json=read_tokenizer_json(path))
    checkpoint = open_checkpoint(path)
    if checkpoint.format != "gguf":
        raise ConfigError(
            f"{path} has no {TOKENIZER_FILE}, the only tokenizer format headrace reads beside GGUF; save the tokenizer "
            "with transformers' save_pretrained, or name another with --tokenizer",
            "tokenizer",
        )
    return read_gguf_tokenizer(checkpoint.metadata)


@contextmanager
def _library_errors(make_error: Callable[[str], HeadraceError]) -> Iterator[None]:
    """Turn what the library raises into one of ours.

    It raises bare ``Exception`` for bad input, and where it was not prepared for a file its panics surface as
    a ``BaseException`` that cannot be imported.
    """
    try:
        yield
    except (HeadraceError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        raise make_error(str(error)[:_MAX_SHOWN_CHARS]) from error


def _parse(json: bytes) -> tokenizers.Tokenizer:
    with _library_errors(lambda reason: ConfigError(f"the tokenizer is not valid: {reason}", "tokenizer")):
        lib = tokenizers.Tokenizer.from_str(json.decode())
    # a file may carry what its training used; a server cuts no prompt silently and draws no dice
    lib.no_truncation()
    lib.no_padding()
    if isinstance(lib.model, tokenizers.models.BPE):
        lib.model.dropout = None
    return lib


def _guarded_twin(lib: tokenizers.Tokenizer, guard: LiteralGuard) -> tokenizers.Tokenizer:
    """A tokenizer over the same vocabulary (shared, not copied) that reads the guard's marks as text.

    Special tokens are matched before normalisation, where marks become the characters they stand for.
    """
    twin = tokenizers.Tokenizer(lib.model)
    added = sorted(lib.get_added_tokens_decoder().items())
    twin.add_tokens([_matched_raw(token) if token.special else token for _, token in added])
    for token_id, token in added:
        if twin.token_to_id(token.content) != token_id:
            raise ConfigError(f"added token {token.content!r} has id {token_id}, which leaves a gap", "added_tokens")
    unmark = [tokenizers.normalizers.Replace(mark, char) for mark, char in guard.first_char_of.items()]
    twin.normalizer = tokenizers.normalizers.Sequence([*unmark, *([lib.normalizer] if lib.normalizer else [])])
    if lib.pre_tokenizer is not None:
        twin.pre_tokenizer = lib.pre_tokenizer
    return twin


def _matched_raw(token: tokenizers.AddedToken) -> tokenizers.AddedToken:
    """The same token, looked for in the text as it was given."""
    return tokenizers.AddedToken(
        token.content,
        special=token.special,
        normalized=False,
        single_word=token.single_word,
        lstrip=token.lstrip,
        rstrip=token.rstrip,
    )


def _encode(lib: tokenizers.Tokenizer, text: str) -> list[int]:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(
            f"the text has a lone surrogate U+{ord(text[error.start]):04X} at offset {error.start}; send valid Unicode"
        ) from None
    with _library_errors(lambda reason: InvalidRequest(f"the tokenizer cannot encode this text: {reason}")):
        # the batch call releases the GIL and skips the offsets, which nothing here needs
        ids: list[int] = lib.encode_batch_fast([text], add_special_tokens=False)[0].ids
    return ids


def _pieces(lib: tokenizers.Tokenizer, min_size: int) -> list[str | None]:
    """The vocabulary's spellings by id; ``None`` for ids that have none."""
    vocab: Mapping[str, int] = lib.get_vocab(with_added_tokens=True)
    size = max(min_size, 1 + max(vocab.values(), default=-1))
    if size > MAX_VOCAB_SIZE:
        raise ConfigError(f"the tokenizer has token id {size - 1}; the limit is {MAX_VOCAB_SIZE - 1}", "tokenizer")
    pieces: list[str | None] = [None] * size
    for piece, token_id in vocab.items():
        pieces[token_id] = piece
    return pieces


def _token_bytes(
    decoder: TableDecoder | None, pieces: list[str | None], added: Mapping[int, tokenizers.AddedToken]
) -> list[bytes]:
    """Bytes of every token; added tokens are spelled as they are. Without a table decoder, a best guess."""
    if decoder is None:
        table = [b"" if piece is None else piece.encode() for piece in pieces]
    else:
        table = decoder.token_bytes(pieces)
    for token_id, token in added.items():
        table[token_id] = token.content.encode()
    return table


def _with_token(ids: list[int], token_id: int | None, wanted: bool | None, field: str) -> list[int]:
    """``ids`` with the token at the front, without it, or as they are if nothing is wanted."""
    if wanted is None or (token_id is None and not wanted):
        return ids
    if token_id is None:
        raise ConfigError(f"{field} is true but the model names no such token", field)
    rest = [each for each in ids if each != token_id]
    return [token_id, *rest] if wanted else rest

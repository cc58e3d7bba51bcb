"""From messages to the token ids of a prompt: a chat template and a tokenizer put together.

Owns the rule that what a client writes is text, whatever it spells. If any of its strings spells a control
token, all of them are escaped before rendering and the tokenizer reads the escapes as text; usually none
does, and the rendered text is encoded as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from headrace.core.errors import ConfigError, InvalidRequest
from headrace.engine.chat_template import ChatOptions, ChatTemplate
from headrace.engine.literal_guard import LiteralGuard
from headrace.engine.tokenizer import Tokenizer
from headrace.engine.tokenizer_spec import DEFAULT_TEMPLATE

MAX_TEMPLATE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class ChatEncoder:
    """Encodes conversations for one model. Immutable and thread-safe."""

    tokenizer: Tokenizer
    template: ChatTemplate

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, object]] | None = None,
        template_kwargs: Mapping[str, object] | None = None,
    ) -> list[int]:
        """Token ids of a conversation; nothing is put around what the template writes.

        Raises ``InvalidRequest``, with the template's own words where it refuses the messages.
        """
        options = ChatOptions(add_generation_prompt, continue_final_message, tools, template_kwargs or {})
        return encode_chat(self.tokenizer, self.template, messages, options)


def encode_chat(
    tokenizer: Tokenizer,
    template: ChatTemplate | None,
    messages: Sequence[Mapping[str, object]],
    options: ChatOptions,
) -> list[int]:
    """Token ids of a conversation. Raises ``InvalidRequest``, also for a model without a template."""
    if template is None:
        raise InvalidRequest(
            "this model has no chat template; use /v1/completions, or start the server with --chat-template FILE",
            "messages",
        )
    if not _needs_guard(tokenizer, messages, options):
        return tokenizer.encode(template.render(messages, options), add_special_tokens=False)
    guard = tokenizer.guard
    escaped_options = replace(
        options,
        tools=_escaped(options.tools, guard),
        template_kwargs=_escaped(options.template_kwargs, guard),
    )
    text = template.render(_escaped(messages, guard), escaped_options)
    return tokenizer.encode_guarded(guard.from_ascii_json(text))


def load_chat_encoder(tokenizer: Tokenizer, template_file: str | None = None) -> ChatEncoder | None:
    """The encoder of a model, with the operator's template if one is given; ``None`` for a base model.

    Raises ``ConfigError`` for a template that cannot be read or compiled.
    """
    template = load_chat_template(tokenizer, template_file)
    return None if template is None else ChatEncoder(tokenizer, template)


def load_chat_template(tokenizer: Tokenizer, template_file: str | None = None) -> ChatTemplate | None:
    """The operator's template if a file is given, else the model's, else ``None``."""
    sources = tokenizer.chat_templates
    if template_file is not None:
        sources = {DEFAULT_TEMPLATE: _read_template(Path(template_file).expanduser())}
    if not sources:
        return None
    if DEFAULT_TEMPLATE not in sources:
        raise ConfigError(
            f"the model has chat templates named {', '.join(sorted(sources))} but none named 'default'; "
            "give one with --chat-template",
            "chat_template",
        )
    return ChatTemplate(sources, tokenizer.special_names, datetime.now)


def _read_template(path: Path) -> str:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"the chat template {path} cannot be read: {error.strerror}", "chat_template") from error
    if len(data) > MAX_TEMPLATE_BYTES:
        raise ConfigError(f"{path} has {len(data)} bytes; the limit is {MAX_TEMPLATE_BYTES}", "chat_template")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"the chat template {path} is not UTF-8 text: {error}", "chat_template") from error


def _needs_guard(tokenizer: Tokenizer, messages: Sequence[Mapping[str, object]], options: ChatOptions) -> bool:
    """Whether any string of the client spells a control token; refuses those that are not Unicode."""
    written = {"messages": messages, "tools": options.tools, "chat_template_kwargs": options.template_kwargs}
    needed = False
    for where, text in _texts(written, ""):
        _check_unicode(text, where)
        needed = needed or tokenizer.needs_guard(text)
    return needed


def _texts(value: object, where: str) -> Iterator[tuple[str, str]]:
    """Every string in a JSON-like value, keys too, with its place (``messages[0].content``)."""
    match value:
        case str():
            yield where, value
        case Mapping():
            for key, each in value.items():
                yield where, str(key)
                yield from _texts(each, f"{where}.{key}" if where else str(key))
        case list() | tuple():
            for index, each in enumerate(value):
                yield from _texts(each, f"{where}[{index}]")


def _check_unicode(text: str, where: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(
            f"{where} has a lone surrogate U+{ord(text[error.start]):04X} at offset {error.start}; send valid Unicode",
            where,
        ) from None


def _escaped(value: Any, guard: LiteralGuard) -> Any:
    """A copy of a JSON-like value in which no string, keys included, spells a control token."""
    match value:
        case str():
            return guard.escape(value, "messages")
        case Mapping():
            return {guard.escape(str(key), "messages"): _escaped(each, guard) for key, each in value.items()}
        case list() | tuple():
            return [_escaped(each, guard) for each in value]
    return value

"""From the tokenizer files of a Hugging Face model folder to a ``TokenizerSpec``.

Owns which file says what: ``tokenizer.json`` is the tokenizer, ``tokenizer_config.json`` and
``special_tokens_map.json`` name tokens, ``generation_config.json`` and ``config.json`` list end tokens, chat
templates stand in one of four places. Nothing in a folder is executed. Does not know the tokenizer library.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from headrace.core.errors import ConfigError
from headrace.engine.tokenizer_spec import DEFAULT_TEMPLATE, TokenizerSpec, TokenRef

TOKENIZER_FILE = "tokenizer.json"
MAX_TOKENIZER_BYTES = 512 << 20
MAX_CONFIG_BYTES = 32 << 20
MAX_TEMPLATE_BYTES = 1 << 20

_SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


def read_hf_tokenizer(folder: Path) -> TokenizerSpec:
    """Read a folder's tokenizer files. Raises ``ConfigError`` naming the file or field at fault."""
    settings = _read_object(folder / "tokenizer_config.json")
    names = _special_names({**_read_object(folder / "special_tokens_map.json"), **_without_nulls(settings)})
    return TokenizerSpec(
        json=read_tokenizer_json(folder / TOKENIZER_FILE),
        bos=names.get("bos_token"),
        eos=tuple(_end_tokens(folder, names)),
        add_bos=_flag(settings, "add_bos_token"),
        add_eos=_flag(settings, "add_eos_token"),
        special_names=names,
        chat_templates=_read_templates(folder, settings),
    )


def read_tokenizer_json(path: Path) -> bytes:
    """Read a ``tokenizer.json``. Raises ``ConfigError`` if it cannot be read or is too large."""
    return _read_bytes(path, MAX_TOKENIZER_BYTES)


def _end_tokens(folder: Path, names: Mapping[str, str]) -> Iterator[tuple[str, TokenRef]]:
    """Every token any file calls an end of sequence, with the field that says so."""
    if "eos_token" in names:
        yield "eos_token", names["eos_token"]
    for name in ("generation_config.json", "config.json"):
        value = _read_object(folder / name).get("eos_token_id")
        field = f"eos_token_id of {name}"
        for token_id in value if isinstance(value, list) else [value]:
            if token_id is None:
                continue
            if isinstance(token_id, bool) or not isinstance(token_id, int):
                raise ConfigError(f"{field} must be a token id or a list of them; it has {token_id!r}", "eos_token_id")
            yield field, token_id


def _special_names(fields: Mapping[str, object]) -> dict[str, str]:
    """Texts of the named tokens; each is a string or an object with its ``content``."""
    names = {}
    for name in _SPECIAL_NAMES:
        match fields.get(name):
            case str(text) | {"content": str(text)}:
                names[name] = text
            case None:
                pass
            case value:
                raise ConfigError(f"{name} must be a token's text; it is of type {type(value).__name__}", name)
    return names


def _read_templates(folder: Path, settings: Mapping[str, object]) -> dict[str, str]:
    """Chat templates by name; files of their own overrule ``tokenizer_config.json``."""
    templates = _configured_templates(settings.get("chat_template"))
    processor = _read_object(folder / "chat_template.json").get("chat_template")
    if isinstance(processor, str):
        templates.setdefault(DEFAULT_TEMPLATE, processor)
    for path in sorted((folder / "additional_chat_templates").glob("*.jinja")):
        templates[path.stem] = _read_text(path, MAX_TEMPLATE_BYTES)
    if (path := folder / "chat_template.jinja").is_file():
        templates[DEFAULT_TEMPLATE] = _read_text(path, MAX_TEMPLATE_BYTES)
    return templates


def _configured_templates(value: object) -> dict[str, str]:
    match value:
        case None:
            return {}
        case str():
            return {DEFAULT_TEMPLATE: value}
        case [*entries]:
            templates = {}
            for entry in entries:
                match entry:
                    case {"name": str(name), "template": str(template)}:
                        templates[name] = template
                    case _:
                        raise ConfigError("each chat_template needs a name and a template", "chat_template")
            return templates
    raise ConfigError(
        f"chat_template must be a string or a list of named templates; it is of type {type(value).__name__}",
        "chat_template",
    )


def _flag(settings: Mapping[str, object], name: str) -> bool | None:
    value = settings.get(name)
    if value is not None and not isinstance(value, bool):
        raise ConfigError(f"{name} must be true or false; it is of type {type(value).__name__}", name)
    return value


def _without_nulls(fields: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in fields.items() if value is not None}


def _read_object(path: Path) -> dict[str, object]:
    """A JSON object, or an empty one if there is no such file."""
    if not path.is_file():
        return {}
    try:
        return msgspec.json.decode(_read_bytes(path, MAX_CONFIG_BYTES), type=dict[str, object])
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not a JSON object: {error}", path.name) from error


def _read_text(path: Path, limit: int) -> str:
    try:
        return _read_bytes(path, limit).decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text: {error}", path.name) from error


def _read_bytes(path: Path, limit: int) -> bytes:
    try:
        size = path.stat().st_size
        if size > limit:
            raise ConfigError(f"{path} has {size} bytes; the limit is {limit}", path.name)
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}", path.name) from error

"""Finds a model's weights by the names of files alone; opens none of them and loads no array library."""

from __future__ import annotations

from pathlib import Path

from headrace.checkpoint.file_names import INDEX_FILE, shown
from headrace.core.compiled_files import is_compiled
from headrace.core.errors import ConfigError

_PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
_OTHER_WEIGHTS = (".h5", ".msgpack", ".onnx", ".npz", ".tflite", ".ot")
_REMEDY = "convert the model to safetensors (save_pretrained writes it) or GGUF"


def locate_weights(path: Path) -> Path:
    """The ``.gguf`` or ``.safetensors`` file that ``path`` is, or the folder it is, or the only GGUF in it.

    A compiled folder is taken as it is.
    """
    if is_compiled(path):
        return path
    if path.is_dir():
        return _locate_in_folder(path)
    suffix = path.suffix.lower()
    if suffix in _PICKLED:
        raise ConfigError(f"{path} may hold pickled code and is never opened; {_REMEDY}", "model")
    if suffix not in (".gguf", ".safetensors"):
        raise ConfigError(f"{path} is neither a folder nor a .gguf or .safetensors file; give one of these", "model")
    return path


def _locate_in_folder(folder: Path) -> Path:
    try:
        names = sorted(entry.name for entry in folder.iterdir())
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be read: {error.strerror}", "model") from error
    if INDEX_FILE in names or _with_suffix(names, (".safetensors",)):
        return folder
    gguf_names = _with_suffix(names, (".gguf",))
    if len(gguf_names) == 1:
        return folder / gguf_names[0]
    if gguf_names:
        raise ConfigError(f"{folder} has {len(gguf_names)} GGUF files; name one: {_listed(gguf_names)}", "model")
    raise ConfigError(f"{folder} has no .safetensors or .gguf weights{_instead(names)}", "model")


def _instead(names: list[str]) -> str:
    """What a folder without usable weights has, and the way out."""
    pickled = _with_suffix(names, _PICKLED)
    if pickled:
        return f", only {_listed(pickled)}, which may hold pickled code and is never opened; {_REMEDY}"
    others = _with_suffix(names, _OTHER_WEIGHTS)
    if others:
        return f", only {_listed(others)}; {_REMEDY}"
    return "; give the folder or file that holds them"


def _with_suffix(names: list[str], suffixes: tuple[str, ...]) -> list[str]:
    return [name for name in names if name.lower().endswith(suffixes)]


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return ", ".join(map(shown, names[:8])) + more

"""Models from the Hugging Face Hub, where its client library is installed: which files of one to fetch.

The library keeps its own cache, shared with other programs. We choose by name only weights that we read
and the JSON and template files beside them, never code.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from headrace.checkpoint.file_names import INDEX_FILE, SINGLE_FILE, shown
from headrace.core.errors import ConfigError

_REPOSITORY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95}", re.ASCII)
_PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}", re.ASCII)
_COMPANIONS = (".json", ".jinja", ".model")


def fetch_from_hub(repository: str) -> Path:
    """Folder with the files of ``ORG/NAME``, fetched where missing, under the library's own progress display.

    Without a network, what was fetched before is used. Raises ``ConfigError``.
    """
    hub = _library(repository)
    try:
        files = choose_files(repository, hub.HfApi().list_repo_files(repository))
        return Path(hub.snapshot_download(repository, allow_patterns=files))
    except ConfigError:
        raise
    except Exception as error:  # those of the library's HTTP client, which changes between its versions
        found = _find(hub, repository)
        if found is None:
            raise ConfigError(f"hf:{repository} cannot be fetched: {shown(str(error))}", "model") from error
        return found


def find_in_hub_cache(repository: str) -> Path:
    """The folder of what was fetched before; raises ``ConfigError`` if nothing was."""
    found = _find(_library(repository), repository)
    if found is None:
        raise ConfigError(
            f"hf:{repository} is not on this machine; fetch it with: headrace models pull hf:{repository}", "model"
        )
    return found


def _library(repository: str) -> ModuleType:
    if not _REPOSITORY.fullmatch(repository) or ".." in repository or "--" in repository:
        raise ConfigError(f"hf:{shown(repository)} is not of the form hf:ORG/NAME", "model")
    if importlib.util.find_spec("huggingface_hub") is None:
        raise ConfigError(
            f"fetching hf:{repository} needs the hub client; pip install 'headrace[hub]', "
            "or fetch the model elsewhere and give the path of its folder",
            "model",
        )
    import huggingface_hub

    return huggingface_hub


def _find(hub: ModuleType, repository: str) -> Path | None:
    try:
        return Path(hub.snapshot_download(repository, local_files_only=True))
    except (OSError, ValueError):
        return None


def choose_files(repository: str, names: Sequence[str]) -> list[str]:
    """The files of a repository to fetch: one set of weights, and what stands beside it at the top level."""
    plain = [name for name in names if _PLAIN_NAME.fullmatch(name)]
    weights = [name for name in plain if name.endswith(".safetensors")]
    if INDEX_FILE in plain or SINGLE_FILE in plain:
        weights = [name for name in weights if name.startswith("model")]  # not the copies other programs want
    if not weights:
        weights = [name for name in plain if name.lower().endswith(".gguf")]
        if len(weights) != 1:
            raise ConfigError(
                f"hf:{repository} has {len(weights)} GGUF files at its top level and no safetensors weights; "
                "fetch the file you want and give its path",
                "model",
            )
    return weights + [name for name in plain if name.endswith(_COMPANIONS)]

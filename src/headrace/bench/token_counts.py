"""Who counts the tokens of a text: a tokenizer on this machine, the server itself, or nobody."""

from __future__ import annotations

import http.client
from collections.abc import Mapping

import msgspec

from headrace.bench.http_client import Origin
from headrace.bench.reply_sink import TokenCounter
from headrace.core.errors import ConfigError

TIMEOUT_S = 30.0


class _Count(msgspec.Struct):
    count: int | None = None
    tokens: list[int] = []


class RemoteCounter:
    """Counts with vLLM's ``POST /tokenize``. *Mutable*: one connection, for use before a run and not during it."""

    def __init__(self, origin: Origin, headers: Mapping[str, str], model: str) -> None:
        kind = http.client.HTTPSConnection if origin.is_tls else http.client.HTTPConnection
        self._connection = kind(origin.host, origin.port, timeout=TIMEOUT_S)
        self._path = origin.prefix + "/tokenize"
        self._headers = {"Content-Type": "application/json", **headers}
        self._model = model

    def __call__(self, text: str) -> int:
        """Raises ``ConfigError`` if the server stops answering."""
        count = self._ask(text)
        if count is None:
            raise ConfigError(
                "the server no longer answers /tokenize; name a tokenizer with --tokenizer MODEL, or words"
            )
        return count

    def is_there(self) -> bool:
        """Whether the server has such a route, and it counts; others have one of that name with another body."""
        return bool(self._ask("hello"))

    def close(self) -> None:
        self._connection.close()

    def _ask(self, text: str) -> int | None:
        body = msgspec.json.encode({"model": self._model, "prompt": text, "add_special_tokens": False})
        for _ in range(2):  # a connection that has been idle may be closed by the time it is used
            try:
                self._connection.request("POST", self._path, body, self._headers)
                response = self._connection.getresponse()
                data = response.read()
                if response.status != 200:
                    return None
                reply = msgspec.json.decode(data, type=_Count)
            except msgspec.DecodeError:
                return None
            except (OSError, http.client.HTTPException):
                self._connection.close()
            else:
                return reply.count if reply.count is not None else len(reply.tokens)
        return None


def local_counter(reference: str) -> TokenCounter:
    """The tokenizer of a model on this machine. Raises ``ConfigError``."""
    from headrace.checkpoint.model_cache import ModelCache
    from headrace.checkpoint.reference import cache_folder, locate_model
    from headrace.engine.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(locate_model(reference, ModelCache(cache_folder())), None)
    return lambda text: len(tokenizer.encode_text(text))

"""What SIGHUP does: keys and certificates are read again, so that they can be changed without an interruption.

A file that is wrong changes nothing: what was in force stays, and the log says why.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable
from dataclasses import dataclass

from headrace.core.config import ServeConfig
from headrace.core.errors import ConfigError
from headrace.server.auth import KeyRing
from headrace.server.key_file import read_key_file
from headrace.server.tls import load_certificate

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Reloader:
    """The parts of a running server that come from files."""

    config: ServeConfig
    keys: KeyRing
    tls: ssl.SSLContext | None

    def reload(self) -> None:
        """Read every file again."""
        self._attempt("API keys", self._reload_keys)
        self._attempt("TLS certificates", self._reload_certificate)

    def _reload_keys(self) -> bool:
        if self.config.api_key_file is None:
            return False
        self.keys.replace((*self.config.all_keys, *read_key_file(self.config.api_key_file)))
        return True

    def _reload_certificate(self) -> bool:
        if self.tls is None:
            return False
        load_certificate(self.tls, self.config)
        return True

    def _attempt(self, what: str, action: Callable[[], bool]) -> None:
        try:
            if action():
                logger.info("%s were read again", what)
        except ConfigError as error:
            logger.error("%s stay as they are: %s", what, error.message)

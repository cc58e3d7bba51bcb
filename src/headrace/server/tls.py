"""TLS of the listening socket: made from the operator's files, and renewed from them while the server runs."""

from __future__ import annotations

import ssl

from headrace.core.config import ServeConfig
from headrace.core.errors import ConfigError


def tls_context(config: ServeConfig) -> ssl.SSLContext | None:
    """What the socket speaks TLS with, or ``None`` where no certificate is set. Raises ``ConfigError``."""
    if config.ssl_certfile is None:
        if config.ssl_keyfile is not None:
            raise ConfigError("--ssl-keyfile is set without --ssl-certfile; set both", "ssl_certfile")
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    load_certificate(context, config)
    return context


def load_certificate(context: ssl.SSLContext, config: ServeConfig) -> None:
    """Read the files into ``context``; connections made from now on get what they hold. Raises ``ConfigError``."""
    assert config.ssl_certfile is not None
    try:
        context.load_cert_chain(config.ssl_certfile, config.ssl_keyfile, password=_no_password)
    except OSError as error:  # ssl.SSLError is one
        reason = error.strerror or str(error)
        raise ConfigError(
            f"the certificate {config.ssl_certfile} with the key {config.ssl_keyfile or 'in it'} cannot be used: "
            f"{reason}",
            "ssl_certfile",
        ) from None


def _no_password() -> str:
    raise ConfigError("the key of --ssl-keyfile is encrypted; give one without a password", "ssl_keyfile")

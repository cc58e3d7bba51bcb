"""The listening socket: taken before anything is loaded, and never open to the world by accident."""

from __future__ import annotations

import errno
import ipaddress
import socket

from headrace.core.config import ServeConfig
from headrace.core.errors import ConfigError

_BACKLOG = 2048


def listen(config: ServeConfig) -> socket.socket:
    """Listen on the configured address. Raises ``ConfigError`` if it is taken, or open to others without a key."""
    _check_exposure(config)
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    host = config.host.strip("[]")
    try:
        return socket.create_server((host, config.port), family=family, backlog=_BACKLOG)
    except socket.gaierror:
        raise ConfigError(f"host {config.host!r} is not an address of this machine", "host") from None
    except OSError as error:
        raise _config_error(config, error) from None


def url_of(sock: socket.socket, scheme: str = "http") -> str:
    """The URL at which this machine reaches the socket."""
    host, port = sock.getsockname()[:2]
    if host in ("0.0.0.0", "::"):  # noqa: S104 - compared with, not bound to
        host = "127.0.0.1" if host == "0.0.0.0" else "::1"  # noqa: S104
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def _check_exposure(config: ServeConfig) -> None:
    if _is_loopback(config.host) or config.has_keys or config.insecure:
        return
    raise ConfigError(
        f"host {config.host} is reachable from other machines and no API key is set; set one with --api-key, "
        "or say --insecure if everyone there may use this server",
        "api_key",
    )


def _is_loopback(host: str) -> bool:
    """Whether listening on ``host`` is reachable from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _config_error(config: ServeConfig, error: OSError) -> ConfigError:
    where = f"port {config.port} on {config.host}"
    if error.errno == errno.EADDRINUSE:
        return ConfigError(f"{where} is in use; stop the other program or choose another one with --port", "port")
    if error.errno == errno.EACCES:
        return ConfigError(f"{where} needs more rights; choose a port from 1024 on with --port", "port")
    return ConfigError(f"cannot listen on {where}: {error.strerror}", "host")

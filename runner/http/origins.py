"""Which `Host` and `Origin` the HTTP server answers to, against DNS rebinding and foreign web pages.

FastMCP's guard stands in front of its whole application, our own routes included, so this only says
how to set it: always strictly. The server's own address and the loopback names are answered to, and
any origin on this machine may call a loopback host (the MCP Inspector is one); further names are
`allowed_hosts` and `allowed_origins`.

Source: MCP specification 2025-11-25, "Transports", security warning.
"""

from typing import TypedDict

from runner.settings import Settings

__all__ = ["Protection", "protection"]


class Protection(TypedDict):
    """Arguments of FastMCP's `http_app` and `run_http_async`."""

    host_origin_protection: bool
    allowed_hosts: list[str]
    allowed_origins: list[str]


def protection(settings: Settings) -> Protection:
    """Return the arguments that put the guard in place.

    FastMCP's "auto" would leave a server on 0.0.0.0 open to a page that rebinds its name to it.
    """
    own = [] if settings.host in ("0.0.0.0", "::") else [settings.host]  # noqa: S104
    return Protection(
        host_origin_protection=True,
        allowed_hosts=[*own, *settings.allowed_hosts],
        allowed_origins=list(settings.allowed_origins),
    )

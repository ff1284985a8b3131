"""The running Playground of one server: its facts, its second origin, its start key."""

import contextlib
import logging
import os
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import Any

from runner.errors import UsageError
from runner.http.context import Site
from runner.observation.observers import has_collector
from runner.playground.bundle import Bundle
from runner.playground.config import Playground, why_not
from runner.playground.second_origin import make_frames
from runner.playground.start_key import StartKey
from runner.settings.isolation import in_force
from runner.settings.settings import Settings
from runner.system.listening import listen_on, listen_on_loopback, serving_beside
from runner.users.identity import is_loopback
from runner.users.resource import LOGINS

__all__ = ["About", "open_playground"]

log = logging.getLogger(__name__)

# Pages of the second origin are small, and their connections are short.
_MOST_CONNECTIONS = 64
_FRAMES_FIRST, _FRAMES = 10_000, 2_000
_OFF = "or switch the Playground off (playground = false)"
_PORT_SETTING = f"--port, since playground_frames_url leads to the one above it, {_OFF}"


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """A summary of what the server offers.

    Attributes:
        name: The server's own name.
        kind: `tools` for tool files, `proxy` in front of other servers.
        servers: The other servers, by the prefix of their tool names.
        problems: Returns the reason for each unreachable server, by name.
    """

    name: str
    kind: str
    servers: tuple[str, ...] = ()
    problems: Callable[[], Mapping[str, str]] = dict


@asynccontextmanager
async def open_playground(site: Site, about: About, *, port: int) -> AsyncIterator[Playground | None]:
    """Serve the second origin until the block ends; yield None if this server has no Playground.

    Args:
        site: The site of the routes.
        about: Summary of the server.
        port: Port of the server itself.

    Raises:
        UsageError: The port of the second origin cannot be listened on.
    """
    settings = site.settings
    reason = why_not(settings)
    if reason is not None:
        if settings.playground:
            log.warning("playground not available", extra={"reason": reason})
        yield None
        return
    key = StartKey() if settings.auth.kind == "none" else None
    bundle = Bundle()
    async with _frames(settings, bundle, port) as frames_port:
        yield Playground(
            # Computed for each page: limits and times may have been reloaded.
            facts=lambda: _facts(site, about),
            bundle=bundle,
            frames_port=frames_port,
            key=key,
        )


def _facts(site: Site, about: About) -> Mapping[str, Any]:
    settings = site.settings
    return {
        "name": about.name,
        "kind": about.kind,
        "servers": about.servers,
        "problems": dict(about.problems()),
        "tracing": has_collector(os.environ),
        "version": version("toolcell"),
        "tier": (site.tier or in_force(settings)).value,
        "deadlines": asdict(settings.deadlines()),
        "tools": {tool: {"deadlines": asdict(settings.deadlines(tool))} for tool in settings.tools},
        "login": settings.auth.kind != "none",
        "provider": settings.auth.kind in LOGINS,
        "dashboards": list(settings.iframe_origins),
        "upload_max_bytes": settings.max_artifact_bytes,
        "user_max_bytes": settings.max_user_bytes,
    }


@asynccontextmanager
async def _frames(settings: Settings, bundle: Bundle, port: int) -> AsyncIterator[int | None]:
    if settings.playground_frames_url is None and not is_loopback(settings.host):
        yield None
        return
    listeners = _listen(settings, port)
    # A policy cannot name an IPv6 address.
    names = ("127.0.0.1", "localhost")
    embedders = (
        [settings.public_url]
        if settings.public_url
        else [f"{settings.scheme}://{each}:{port}" for each in names]
    )
    frames = make_frames(bundle.frames(), embedders)
    async with serving_beside(frames, listeners, limit_concurrency=_MOST_CONNECTIONS):
        yield listeners[0].getsockname()[1]


def _listen(settings: Settings, port: int) -> list[socket.socket]:
    """Return listening sockets: at the server's address if frames have a public one, else on loopback.

    Args:
        settings: If they name an address of frames, it leads to the port above the server's.
        port: Port of the server, which determines that of the second origin: an open page finds it again
            after a restart. The port is far from those that operators choose.
    """
    if settings.playground_frames_url is not None and not is_loopback(settings.host):
        return [listen_on(settings.host, port + 1, setting=_PORT_SETTING)]
    if settings.playground_frames_url is not None:
        return listen_on_loopback(port + 1, setting=_PORT_SETTING)
    with contextlib.suppress(UsageError):
        return listen_on_loopback(_FRAMES_FIRST + port * 7 % _FRAMES, setting=_OFF, alone=True)
    return listen_on_loopback(0, setting=f"--host, {_OFF}")

"""Decision from the settings, before the server listens, whether and where it offers the Playground.

Source: decision 15: beyond this machine the Playground requires a login.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from runner.playground.bundle import Bundle
from runner.playground.start_key import Passes, StartKey
from runner.settings.parts import ServerSettings
from runner.users.identity import is_loopback

__all__ = ["Playground", "frames_origin", "why_not"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Playground:
    """One server's Playground.

    Attributes:
        facts: Returns the page's data on the server, a JSON object, for each request.
        bundle: The built page.
        frames_port: Port of the second origin on this machine; None if there is none.
        key: The start key; None if all users have tokens.
        passes: The passes for `/mcp`.
    """

    facts: Callable[[], Mapping[str, Any]]
    bundle: Bundle
    frames_port: int | None
    key: StartKey | None
    passes: Passes = field(default_factory=Passes)


def why_not(settings: ServerSettings) -> str | None:
    """Return why a server with these settings has no Playground; None if it has one."""
    if not settings.playground:
        return "it is switched off (playground)"
    if settings.auth.kind == "none" and not is_loopback(settings.host):
        return f"{settings.host} can be reached from other machines, and nobody has to log in (auth.kind)"
    return None


def frames_origin(settings: ServerSettings, host: str, port: int | None) -> str | None:
    """Return the second origin as a browser reaches it; None if it cannot.

    Args:
        settings: The effective settings.
        host: The browser's name of this server: the `Host` of its request.
        port: Port of the second origin on this machine.
    """
    if settings.playground_frames_url is not None:
        return settings.playground_frames_url
    name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
    if port is None or not is_loopback(name.strip("[]")):
        return None
    # Another name of this machine: a separate site for the browser, with its own process and without this
    # page's cookies, which do not distinguish ports.
    return f"http://{'127.0.0.1' if name == 'localhost' else 'localhost'}:{port}"

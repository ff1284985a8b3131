"""`runner proxy`: other MCP servers behind the output guard, over stdio or streamable HTTP."""

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from fastmcp import FastMCP
from fastmcp.client.transports import ClientTransport, SSETransport, StreamableHttpTransport

from runner.protocol.internals.proxy import mend_messages_over_http
from runner.protocol.result_messages import DownloadUrl
from runner.proxy.confined_command import ConfinedTransport, check_command, hint_for, lent_to, tier_of
from runner.proxy.server import make_proxy
from runner.proxy.targets import Target
from runner.proxy.upstreams import Reach, Upstreams, UpstreamSpec
from runner.server.ahead import first_user, transport_of
from runner.server.serve import serve_application
from runner.settings.model import Settings
from runner.users.identity import User, is_loopback

__all__ = ["serve_proxy", "ways_to"]

log = logging.getLogger(__name__)


async def serve_proxy(settings: Settings, targets: Sequence[Target], reread: Callable[[], Settings]) -> int:
    """Serve the proxy until the client leaves or a signal comes; return the exit status.

    Args:
        settings: The effective settings.
        targets: The servers.
        reread: Reads the settings anew.

    Raises:
        UsageError: A command cannot be run, no server can be reached, or the address cannot be listened on.
    """
    transport = transport_of(settings)
    opened = Upstreams.open(settings, ways_to(settings, targets), first_user(settings, transport))

    def make(upstreams: Upstreams, download_url: DownloadUrl | None) -> FastMCP:
        return make_proxy(upstreams, transport=transport, download_url=download_url)

    return await serve_application(settings, transport, opened, make, reread)


def ways_to(settings: Settings, targets: Sequence[Target]) -> list[UpstreamSpec]:
    """Return how each server is reached.

    Raises:
        UsageError: A command cannot be run.
    """
    return [_way(settings, target) for target in targets]


def _way(settings: Settings, target: Target) -> UpstreamSpec:
    contract = target.contract or settings.contract
    if target.url:
        is_near = is_loopback(urlsplit(target.url).hostname or "")
        return UpstreamSpec(
            name=target.name, transport=partial(_over_http, target), contract=contract, is_near=is_near
        )
    program = check_command(target, settings)
    lent = lent_to(target, program, settings)
    tier = tier_of(target, program, lent)

    def start(user: User) -> ClientTransport:
        return ConfinedTransport(target, program, lent, user, tier)

    def start_in_home(user: User, reach: Reach) -> ClientTransport:
        return ConfinedTransport(target, program, lent, user, tier, reach=reach)

    return UpstreamSpec(
        name=target.name,
        transport=start,
        in_home=start_in_home,
        contract=contract,
        is_near=True,
        tier=tier,
        files=tuple(_scripts(target)),
        hint=hint_for(lent, tier),
    )


def _scripts(target: Target) -> Iterator[Path]:
    """Yield the files among the words of a command."""
    for word in target.command[1:]:
        if _is_file(target.folder / word):
            yield target.folder / word


def _is_file(path: Path) -> bool:
    # A word can be a whole program, which is too long for a name.
    try:
        return path.is_file()
    except OSError:
        return False


def _over_http(target: Target, _user: User) -> ClientTransport:
    mend_messages_over_http()
    # The address of the older transport ends like this by custom, which FastMCP follows too.
    kind = SSETransport if target.url.rstrip("/").endswith("/sse") else StreamableHttpTransport
    return kind(target.url, headers=dict(target.headers))

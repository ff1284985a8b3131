"""`runner proxy`: other MCP servers behind the output guard, over stdio or streamable HTTP."""

import asyncio
from collections.abc import Callable, Sequence

from fastmcp import FastMCP

from runner.protocol.result_messages import DownloadUrl
from runner.protocol.stdio import read_first_line
from runner.proxy.first_client import FirstClient
from runner.proxy.server import make_proxy
from runner.proxy.targets import Target
from runner.proxy.upstreams import Upstreams
from runner.proxy.ways import ways_to
from runner.server.ahead import first_user, transport_of
from runner.server.serve import serve_application
from runner.settings.settings import Settings

__all__ = ["serve_proxy"]

# A client sends it as it starts us. Servers that cannot start are named without one, too.
_FIRST_LINE_S = 1.0


async def serve_proxy(settings: Settings, targets: Sequence[Target], reread: Callable[[], Settings]) -> int:
    """Serve the proxy until the client leaves or a signal comes; return the exit status.

    Args:
        settings: The effective settings.
        targets: The servers.
        reread: Reloads the settings.

    Raises:
        UsageError: A command cannot be run, no server can be reached, or the address cannot be listened on.
    """
    transport, read = transport_of(settings), b""
    if transport == "stdio":
        # So that a server is started once, for the client that it will have.
        read = await asyncio.to_thread(read_first_line, _FIRST_LINE_S)
    ways, user = ways_to(settings, targets), first_user(settings, transport)
    opened = Upstreams.open(settings, ways, user, FirstClient.of(read))

    def make(upstreams: Upstreams, download_url: DownloadUrl | None) -> FastMCP:
        return make_proxy(upstreams, transport=transport, download_url=download_url)

    return await serve_application(settings, transport, opened, make, reread, read_ahead=read)

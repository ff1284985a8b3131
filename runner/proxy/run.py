"""`runner proxy`: other MCP servers behind the output guard, over stdio or streamable HTTP."""

from collections.abc import Callable, Sequence

from fastmcp import FastMCP

from runner.protocol.result_messages import DownloadUrl
from runner.proxy.server import make_proxy
from runner.proxy.targets import Target
from runner.proxy.upstreams import Upstreams
from runner.proxy.ways import ways_to
from runner.server.ahead import transport_of
from runner.server.serve import serve_application
from runner.settings.settings import Settings

__all__ = ["serve_proxy"]


async def serve_proxy(settings: Settings, targets: Sequence[Target], reread: Callable[[], Settings]) -> int:
    """Serve the proxy until the client leaves or a signal comes; return the exit status.

    Args:
        settings: The effective settings.
        targets: The servers.
        reread: Reloads the settings.

    Raises:
        UsageError: A command cannot be run, or the address cannot be listened on.
    """
    transport = transport_of(settings)
    opened = Upstreams.open(settings, ways_to(settings, targets))

    def make(upstreams: Upstreams, download_url: DownloadUrl | None) -> FastMCP:
        return make_proxy(upstreams, transport=transport, download_url=download_url)

    return await serve_application(settings, transport, opened, make, reread)

"""The address of its own at which Prometheus finds the metrics.

They name users and tools, so it is no path beside `/mcp`: who may reach it is for the operator's network
to say. A page in a browser cannot read it: it answers to addresses, `localhost` and `allowed_hosts` only.

Source: `docs/operating.md`, "Metrics".
"""

import asyncio
import contextlib
import ipaddress
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from runner.observation.metrics import CONTENT_TYPE, Gauges, Metrics
from runner.system.listening import QuietServer, listen_on

__all__ = ["metrics_served"]

_GRACE_S = 1


@asynccontextmanager
async def metrics_served(
    address: str | None,
    metrics: Metrics | None,
    gauges: Callable[[], Awaitable[Gauges]],
    *,
    hosts: Collection[str] = (),
) -> AsyncIterator[None]:
    """Serve metrics at an address until the block ends; without one, do nothing.

    Args:
        address: HOST:PORT; port 0 takes a free one, and standard error says which.
        metrics: What is served.
        gauges: Says what there is now.
        hosts: Names, beside `localhost` and addresses, that a scraper may know this server by.

    Raises:
        UsageError: The address cannot be listened on.
    """
    if address is None or metrics is None:
        yield
        return
    host, _, port = address.rpartition(":")
    listener = listen_on(host, int(port), setting="metrics_address")

    async def answer(request: Request) -> Response:
        if not _is_known(request.url.hostname, hosts):
            told = "this server does not know itself by that name; an operator adds it to allowed_hosts\n"
            return PlainTextResponse(told, status_code=421)
        return Response(metrics.exposition(await gauges()), headers={"content-type": CONTENT_TYPE})

    web = Starlette(routes=[Route("/metrics", answer, methods=["GET"])])
    config = uvicorn.Config(
        web, ws="none", log_config=None, access_log=False, lifespan="off", timeout_graceful_shutdown=_GRACE_S
    )
    server = QuietServer(config)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    shown = f"{host}:{listener.getsockname()[1]}"
    print(f"metrics at http://{shown}/metrics", file=sys.stderr, flush=True)  # noqa: T201
    try:
        yield
    finally:
        server.should_exit = True
        with contextlib.suppress(Exception):
            await serving


def _is_known(name: str | None, hosts: Collection[str]) -> bool:
    if name is None or name == "localhost" or name in hosts:
        return name is not None
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True

"""The address of the metrics for Prometheus.

Metrics name users and tools, so they are not a path beside `/mcp`: the operator's network decides who
reaches the address. A page in a browser cannot read it: it answers to addresses, `localhost` and
`allowed_hosts` only.

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
        address: HOST:PORT; port 0 takes a free one, which standard error names.
        metrics: The metrics.
        gauges: Returns the load now.
        hosts: Names, beside `localhost` and addresses, that a scraper may use for this server.

    Raises:
        UsageError: The address cannot be listened on.
    """
    if address is None or metrics is None:
        yield
        return
    host, _, port = address.rpartition(":")
    listener = listen_on(host, int(port), setting="metrics_address")

    async def answer(request: Request) -> Response:
        name = (request.url.hostname or "").strip("[]")
        if name != "localhost" and name not in hosts:
            try:
                ipaddress.ip_address(name)
            except ValueError:
                text = "this server does not know itself by that name; an operator adds it to allowed_hosts\n"
                return PlainTextResponse(text, status_code=421)
        return Response(metrics.exposition(await gauges()), headers={"content-type": CONTENT_TYPE})

    web = Starlette(routes=[Route("/metrics", answer, methods=["GET"])])
    config = uvicorn.Config(
        web, ws="none", log_config=None, access_log=False, lifespan="off", timeout_graceful_shutdown=1
    )
    server = QuietServer(config)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    print(f"metrics at http://{host}:{listener.getsockname()[1]}/metrics", file=sys.stderr, flush=True)  # noqa: T201
    try:
        yield
    finally:
        server.should_exit = True
        with contextlib.suppress(Exception):
            await serving

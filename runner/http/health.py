"""`/healthz`: the process answers. `/readyz`: it can take calls.

They say nothing of users, files or tools, so they need no token.
"""

from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

__all__ = ["PATHS", "routes"]

PATHS = ("/healthz", "/readyz")
"""Where they are asked."""

_HEADERS = {"Cache-Control": "no-store"}


def routes(*, tier: str, version: str, ready: Callable[[], bool]) -> list[Route]:
    """Return the two routes.

    Args:
        tier: Isolation tier in force.
        version: Version of the runner.
        ready: Says whether the pool can take a call; asked on every request, so it must be quick.
    """

    async def healthz(_: Request) -> JSONResponse:
        return JSONResponse({"status": "ok", "tier": tier, "version": version}, headers=_HEADERS)

    async def readyz(_: Request) -> JSONResponse:
        if ready():
            return JSONResponse({"status": "ready"}, headers=_HEADERS)
        return JSONResponse({"status": "starting"}, status_code=503, headers={**_HEADERS, "Retry-After": "1"})

    return [Route(path, act, methods=["GET"]) for path, act in zip(PATHS, (healthz, readyz), strict=True)]

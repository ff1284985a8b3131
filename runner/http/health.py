"""`/healthz`: the process answers. `/readyz`: a call would work now, and if not, why.

They say nothing of users, files or tools, so they need no token.
"""

from collections.abc import Awaitable, Callable, Mapping

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

__all__ = ["PATHS", "routes"]

PATHS = ("/healthz", "/readyz")
"""Paths of the health routes."""

_HEADERS = {"Cache-Control": "no-store"}


def routes(*, tier: str, version: str, faults: Callable[[], Awaitable[Mapping[str, str]]]) -> list[Route]:
    """Return the two routes.

    Args:
        tier: Isolation tier in force.
        version: Version of the runner.
        faults: Says what keeps calls from working, by part; asked on every request.
    """

    async def healthz(_: Request) -> JSONResponse:
        return JSONResponse({"status": "ok", "tier": tier, "version": version}, headers=_HEADERS)

    async def readyz(_: Request) -> JSONResponse:
        failed = await faults()
        if not failed:
            return JSONResponse({"status": "ready"}, headers=_HEADERS)
        answer = {"status": "not ready", "failed": dict(failed)}
        return JSONResponse(answer, status_code=503, headers={**_HEADERS, "Retry-After": "1"})

    return [Route(path, act, methods=["GET"]) for path, act in zip(PATHS, (healthz, readyz), strict=True)]

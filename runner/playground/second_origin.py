"""The second origin: empty pages in which what tools made is shown, away from cookies and from MCP.

A widget or a document that a tool made never becomes part of the Playground's own page. It is shown in a
frame within a frame from here, without an origin of its own. The answer's policy says what it may load, its
list of connections whom it may speak to at all, and a prelude takes away what older browsers leave open.
There is nothing here to steal: two pages, no cookie is read, no other route.

Source: the design's notes on the security of shown content (measured); MCP Apps, "Sandbox proxy"; WICG
"Connection Allowlists".
"""

import json
from collections.abc import Iterable, Mapping

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from runner.playground.frame_policy import connections_of, policy_of, without_own

__all__ = ["make_frames"]

_MAX_ASKED = 8192


def make_frames(pages: Mapping[str, bytes], embedders: Iterable[str]) -> Starlette:
    """Return the application of the second origin.

    Args:
        pages: Its pages by path, each whole, with its script inside.
        embedders: Origins whose pages may show them: the Playground's own.
    """
    own = tuple(embedders)
    ancestors = " ".join(own)

    async def frame(request: Request) -> Response:
        page = pages[request.url.path]
        csp = without_own(_read(request.query_params.get("csp", "")), own)
        return Response(
            page,
            media_type="text/html",
            headers={
                "Content-Security-Policy": policy_of(csp, ancestors),
                "Connection-Allowlist": connections_of(csp),
                # A process of its own also where both origins are of one site: what hangs holds up itself.
                "Origin-Agent-Cluster": "?1",
                "X-Content-Type-Options": "nosniff",
                "Referrer-Policy": "no-referrer",
                "X-DNS-Prefetch-Control": "off",
                "Cache-Control": "no-store",
                "Cross-Origin-Resource-Policy": "cross-origin",
                "Permissions-Policy": "camera=(), microphone=(), geolocation=(), display-capture=(), usb=()",
            },
        )

    return Starlette(routes=[Route(path, frame, methods=["GET"]) for path in pages])


def _read(text: str) -> Mapping[str, object]:
    if not text or len(text) > _MAX_ASKED:
        return {}
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}

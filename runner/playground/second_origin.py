"""The second origin: empty pages that show content of tools, separate from cookies and from MCP.

A widget or a document of a tool never becomes part of the Playground's own page. It is shown in a nested
frame from here, with an opaque origin. The response's policy restricts what it may load, the connection
allowlist restricts its connections, and a prelude removes features that older browsers leave open.
There is nothing here to steal: it has two pages, reads no cookie and has no other route.

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
        pages: Its pages by path, each with inline scripts.
        embedders: Origins whose pages may show them: those of the Playground.
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
                # A separate process even if both origins are of one site: a hanging frame blocks only itself.
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

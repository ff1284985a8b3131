"""The built page of the package: read once, served with headers that isolate it.

Source: the design's notes on the security of shown content.
"""

import asyncio
import gzip
import hashlib
import mimetypes
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable

from starlette.requests import Request
from starlette.responses import Response

__all__ = ["Bundle", "page_policy"]

_NEVER = ("q=0", "q=0.0", "q=0.00", "q=0.000")
_YEAR = "public, max-age=31536000, immutable"


@dataclass(slots=True)
class _Asset:
    content: bytes
    media_type: str
    tag: str
    packed: bytes | None = None

    async def gzipped(self) -> bytes:
        """Return the content as gzip; compressed on first use, in a thread."""
        if self.packed is None:
            self.packed = await asyncio.to_thread(gzip.compress, self.content, mtime=0)
        return self.packed


class Bundle:
    """The files of the built page.

    Args:
        folder: Their folder; by default that of the package.
    """

    def __init__(self, folder: Traversable | None = None) -> None:
        folder = folder or files("runner.playground") / "built"
        self._assets = {item.name: _asset(item) for item in folder.iterdir() if item.is_file()}

    def frames(self) -> dict[str, bytes]:
        """Return the pages of the second origin by path: one for widgets, one for documents."""
        widget = files("runner.widgets") / "proxy.html"
        return {"/still": self._assets["still.html"].content, "/widget": widget.read_bytes()}

    def page(self, frames: Iterable[str]) -> Response:
        """Return the page itself.

        Args:
            frames: Origins whose pages it may show: that of the second server, and those of dashboards.
        """
        headers = {"Content-Security-Policy": page_policy(frames), "Cache-Control": "no-cache", **_ALONE}
        return Response(self._assets["index.html"].content, media_type="text/html", headers=headers)

    async def asset(self, request: Request) -> Response | None:
        """Return a file that the page loads, as gzip for clients that accept it; None if there is none."""
        name = request.path_params["name"]
        asset = self._assets.get(name)
        if asset is None or name.endswith(".html"):
            return None
        # Names contain a hash of the content, so a browser may cache them permanently.
        packs = _takes_gzip(request.headers.get("accept-encoding", ""))
        tag = f'"{asset.tag}-gzip"' if packs else f'"{asset.tag}"'
        headers = {"Cache-Control": _YEAR, "ETag": tag, "Vary": "Accept-Encoding", **_ALONE}
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        if not packs:
            return Response(asset.content, media_type=asset.media_type, headers=headers)
        packed = {**headers, "Content-Encoding": "gzip"}
        return Response(await asset.gzipped(), media_type=asset.media_type, headers=packed)


def _takes_gzip(accepted: str) -> bool:
    """Return whether a client accepts gzip (RFC 9110, 12.5.3)."""
    encodings = (each.replace(" ", "").partition(";") for each in accepted.lower().split(","))
    weights = {name: weight for name, _, weight in encodings}
    return weights.get("gzip", weights.get("*", _NEVER[0])) not in _NEVER


_ALONE = {
    "X-Content-Type-Options": "nosniff",
    # A tool's link is not resolved before a user follows it: a DNS name can leak data.
    "X-DNS-Prefetch-Control": "off",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


def page_policy(frames: Iterable[str]) -> str:
    """Return the content security policy of the page: its own files, its own server, named frames."""
    shown = " ".join(frames) or "'none'"
    return "; ".join(
        [
            "default-src 'none'",
            "script-src 'self'",
            "style-src 'self'",
            "img-src 'self' blob:",
            "media-src 'self' blob:",
            "font-src 'self'",
            "connect-src 'self'",
            "worker-src 'self'",
            f"frame-src {shown}",
            "base-uri 'none'",
            "form-action 'none'",
            "object-src 'none'",
            "frame-ancestors 'none'",
        ]
    )


def _asset(item: Traversable) -> _Asset:
    content = item.read_bytes()
    guessed = mimetypes.guess_type(item.name)[0] or "application/octet-stream"
    # The system's table of types may have older names for these.
    media_type = "text/javascript" if item.name.endswith((".js", ".mjs")) else guessed
    return _Asset(content, media_type, hashlib.sha256(content).hexdigest()[:32])

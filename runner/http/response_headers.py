"""Headers of every response that isolate this server from pages of other sites and from plain http.

A page of another site may embed a response that it cannot read: a picture, a script. Without these headers a
browser would load it with the user's cookies.

Source: WHATWG Fetch, "Cross-Origin-Resource-Policy header"; RFC 6797, sections 7.2 and 8.1.
"""

from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from runner.settings.parts import ServerSettings

__all__ = ["ResponseHeaders"]

_POLICY = b"cross-origin-resource-policy"
_OF_THIS_ORIGIN = (_POLICY, b"same-origin")
_BY_HTTPS = (b"strict-transport-security", b"max-age=31536000")


class ResponseHeaders:
    """Middleware that puts these headers on every answer.

    Args:
        app: The application.
        settings: The effective settings.
    """

    def __init__(self, app: ASGIApp, *, settings: ServerSettings) -> None:
        self._app = app
        self._public = urlsplit(settings.public_url or "")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        is_public_https = self._public.scheme == "https"

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = list(message.get("headers", ()))
                if _POLICY not in {name.lower() for name, _ in headers}:
                    headers.append(_OF_THIS_ORIGIN)
                # A server without an https address is meant to be used over plain http.
                if scope["scheme"] == "https" or (is_public_https and self._is_public(scope)):
                    headers = [*(each for each in headers if each[0].lower() != _BY_HTTPS[0]), _BY_HTTPS]
                message = {**message, "headers": headers}
            await send(message)

        await self._app(scope, receive, sent)

    def _is_public(self, scope: Scope) -> bool:
        """Return whether this request went to `public_url`, over https as far as known."""
        headers = Headers(scope=scope)
        # A request for another name bypassed the proxy, and a proxy may serve plain http, too.
        to_public = headers.get("host") == self._public.netloc
        return to_public and headers.get("x-forwarded-proto", "https") == "https"

"""How often one address may begin what a login leaves behind: registrations of clients, and logins.

Nobody is known yet who does, and each leaves a file. `runner.users.login_state` bounds how many there are,
and this how soon one address has pushed out those of others.

Source: RFC 7591, section 5; RFC 6585, section 4 (429).
"""

import time
from collections import Counter
from collections.abc import Callable

from starlette.types import ASGIApp, Receive, Scope, Send

from runner.http.responses import refused
from runner.http.wrong_keys import of_address
from runner.users.resource import PAGE_LOGIN

__all__ = ["LoginPace"]

_PATHS = frozenset({"/register", "/authorize", "/consent", "/auth/callback", PAGE_LOGIN})
_WINDOW_S = 60.0
_MOST = 60


class LoginPace:
    """Middleware that refuses what comes too often.

    Args:
        app: The application.
        clock: Says the time in seconds, from any moment on.
    """

    def __init__(self, app: ASGIApp, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._app = app
        self._clock = clock
        self._since = clock()
        self._came: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] == "http" and scope["path"] in _PATHS and not self._admitted(scope):
            sentence = f"{_MOST} registrations and logins came from your address in a minute; wait for one"
            await refused(429, sentence, {"Retry-After": f"{_WINDOW_S:.0f}"})(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _admitted(self, scope: Scope) -> bool:
        now = self._clock()
        if now - self._since >= _WINDOW_S:
            self._since = now
            self._came.clear()
        address = of_address(scope["client"][0] if scope.get("client") else "")
        self._came[address] += 1
        return self._came[address] <= _MOST

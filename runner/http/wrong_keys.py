"""Wrong tokens and keys: counted by address, told of in the log, and answered ever more slowly.

A right one is never slowed, whoever else is at its address: only then is it known to be right. So an answer
waits only once it says no. What was tried is not kept.

Source: OWASP Authentication Cheat Sheet, "Protect Against Automated Attacks"; RFC 6585, section 4.
"""

import asyncio
import logging
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from ipaddress import IPv6Address, ip_address, ip_network

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from runner.http.answers import refused

__all__ = ["WrongKeys", "WrongOnes", "note_wrong"]

log = logging.getLogger(__name__)

_NOTED = "toolcell.wrong"
_FREE = 5
_FIRST_S = 0.1
_LONGEST_S = 3.0
_FORGOTTEN_S = 600.0
_MOST_ADDRESSES = 4096
_MOST_WAITING = 64
_TELL_S = 10.0
_LAST_DOUBLING = 16


def note_wrong(request: Request, kind: str) -> None:
    """Note that a request came with something wrong, where its answer does not show it.

    Args:
        request: The request.
        kind: What was wrong in one or two words, for the log.
    """
    request.scope.setdefault(_NOTED, []).append(kind)


def of_address(host: str) -> str:
    """Return whom an address stands for: of version 6 whoever has one, has 2**64 of them."""
    try:
        address = ip_address(host)
    except ValueError:
        return host
    return str(ip_network(f"{host}/64", strict=False)) if isinstance(address, IPv6Address) else host


@dataclass(slots=True)
class WrongOnes:
    """How many wrong ones came of late, by address. The time is an argument, in seconds."""

    _of: OrderedDict[str, tuple[int, float]] = field(default_factory=OrderedDict)

    def one_more(self, address: str, *, now: float) -> float:
        """Count one more; return for how many seconds its answer waits."""
        count, last = self._of.pop(address, (0, now))
        count = 1 if now - last > _FORGOTTEN_S else count + 1
        self._of[address] = (count, now)
        while len(self._of) > _MOST_ADDRESSES:
            self._of.popitem(last=False)
        if count <= _FREE:
            return 0.0
        return float(min(_LONGEST_S, _FIRST_S * 2 ** min(count - _FREE - 1, _LAST_DOUBLING)))


@dataclass(slots=True)
class _Told:
    """What the log is told: a line at once, then one for all that came in some seconds."""

    _count: int = 0
    _kinds: Counter[str] = field(default_factory=Counter)
    _addresses: Counter[str] = field(default_factory=Counter)
    _timer: asyncio.TimerHandle | None = None

    def one_more(self, address: str, kind: str) -> None:
        self._count += 1
        self._kinds[kind] += 1
        if address in self._addresses or len(self._addresses) < _MOST_ADDRESSES:
            self._addresses[address] += 1
        if self._timer is None:
            self._tell()

    def _tell(self) -> None:
        self._timer = None
        if not self._count:
            return
        log.warning(
            "wrong tokens or keys",
            extra={
                "count": self._count,
                "kinds": ", ".join(f"{kind} {count}" for kind, count in self._kinds.most_common()),
                "addresses": len(self._addresses),
                "most_from": self._addresses.most_common(1)[0][0],
            },
        )
        self._count, self._kinds, self._addresses = 0, Counter(), Counter()
        self._timer = asyncio.get_running_loop().call_later(_TELL_S, self._tell)


class WrongKeys:
    """Middleware that counts and slows answers to wrong tokens and keys.

    Args:
        app: The application.
        clock: Says the time in seconds, from any moment on.
    """

    def __init__(self, app: ASGIApp, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._app = app
        self._clock = clock
        self._wrong = WrongOnes()
        self._told = _Told()
        self._waiting: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        noted: list[str] = []
        is_refused = False

        async def sent(message: Message) -> None:
            nonlocal is_refused
            if message["type"] == "http.response.start":
                if message["status"] == 401 and any(name == b"authorization" for name, _ in scope["headers"]):
                    noted.append("token")
                is_refused = bool(noted) and not await self._waited(scope, noted[0])
                if is_refused:
                    sentence = (
                        f"{_MOST_WAITING} wrong tokens or keys from your address wait for their answers"
                    )
                    answer = refused(
                        429, f"{sentence}; send a right one", {"Retry-After": f"{_LONGEST_S:.0f}"}
                    )
                    await answer(scope, receive, send)
            if not is_refused:
                await send(message)

        await self._app({**scope, _NOTED: noted}, receive, sent)

    async def _waited(self, scope: Scope, kind: str) -> bool:
        """Wait before an answer to something wrong; False if too many wait."""
        address = of_address(scope["client"][0] if scope.get("client") else "")
        self._told.one_more(address, kind)
        wait_s = self._wrong.one_more(address, now=self._clock())
        if not wait_s:
            return True
        if self._waiting[address] >= _MOST_WAITING:
            return False
        self._waiting[address] += 1
        try:
            await asyncio.sleep(wait_s)
        finally:
            self._waiting[address] -= 1
            if not self._waiting[address]:
                del self._waiting[address]
        return True

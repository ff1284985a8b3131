"""Exponential back-off on failed authentication.

Failures are counted by source address, and by the claimed user or key: so attempts from many addresses are
slowed too. The address is the peer's, or the one forwarded by a proxy on this machine.

Valid credentials are never delayed, even if others fail from that address or for that user: only the refusal
waits. The attempted credentials are not stored.

Source: OWASP Authentication Cheat Sheet, "Protect Against Automated Attacks"; RFC 6585, section 4.
"""

import asyncio
import base64
import json
import logging
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from ipaddress import IPv6Address, ip_address, ip_network

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from runner.formats.terminal_text import one_line
from runner.http.responses import refused
from runner.system.backoff import doubled_s

__all__ = ["WrongKeys", "WrongOnes", "note_wrong", "of_address", "spare_tokens"]

log = logging.getLogger(__name__)

_NOTED = "toolcell.wrong"
_FREE = 5
_FIRST_S = 0.1
_LONGEST_S = 3.0
_FORGOTTEN_S = 600.0
_MOST_ADDRESSES = 4096
_MOST_WAITING = 64
_TELL_S = 10.0
_NAME_CHARS = 64
_TOKEN_BYTES = 16 * 1024
_NO_ADDRESS = "no address"

Hear = Callable[[int, Mapping[str, object]], None]


def note_wrong(request: Request, kind: str, *named: str) -> None:
    """Note that a request came with something wrong, where its answer does not show it.

    Args:
        request: The request.
        kind: What was wrong in one or two words, for the log.
        named: For whom or what it was tried, as far as it says so: users, keys.
    """
    request.scope.setdefault(_NOTED, []).append(_Wrong(kind, named))


def spare_tokens(request: Request) -> None:
    """Let the token of a request count as right, whatever its answer: it let its user in."""
    request.scope.setdefault(_NOTED, []).append(_LET_IN)


def of_address(host: str) -> str:
    """Return the client of an address: an IPv6 client has 2**64 addresses."""
    try:
        address = ip_address(host)
    except ValueError:
        # Any client can send a forwarded address: each text would be a new one.
        return _NO_ADDRESS
    return str(ip_network(f"{host}/64", strict=False)) if isinstance(address, IPv6Address) else host


@dataclass(frozen=True, slots=True)
class _Wrong:
    """Something wrong that a request came with.

    Attributes:
        kind: What, in one or two words.
        named: For whom or what it was tried.
    """

    kind: str
    named: tuple[str, ...] = ()


_LET_IN = None
"""Noted of a request whose token was right. Notes are a plain list, in no circle of ours that would stay."""


@dataclass(slots=True)
class WrongOnes:
    """Recent failures by address, user or key. The time is an argument, in seconds."""

    _of: OrderedDict[str, tuple[int, float]] = field(default_factory=OrderedDict)

    def one_more(self, address: str, *, now: float) -> float:
        """Count one more; return for how many seconds its answer waits."""
        count, last = self._of.pop(address, (0, now))
        count = 1 if now - last > _FORGOTTEN_S else count + 1
        self._of[address] = (count, now)
        while len(self._of) > _MOST_ADDRESSES:
            self._of.popitem(last=False)
        return doubled_s(count - _FREE, first_s=_FIRST_S, most_s=_LONGEST_S)


@dataclass(slots=True)
class _Told:
    """Rate limit of log lines and `hear`: one at once, then a summary after some seconds."""

    hear: Hear
    _count: int = 0
    _kinds: Counter[str] = field(default_factory=Counter)
    _addresses: Counter[str] = field(default_factory=Counter)
    _named: Counter[str] = field(default_factory=Counter)
    _timer: asyncio.TimerHandle | None = None

    def one_more(self, address: str, wrong: _Wrong) -> None:
        self._count += 1
        self._kinds[wrong.kind] += 1
        for counted, one in ((self._addresses, address), *((self._named, name) for name in wrong.named)):
            if one in counted or len(counted) < _MOST_ADDRESSES:
                counted[one] += 1
        if self._timer is None:
            self._tell()

    def _tell(self) -> None:
        self._timer = None
        if not self._count:
            return
        facts = {
            "kinds": ", ".join(f"{kind} {count}" for kind, count in self._kinds.most_common()),
            "addresses": len(self._addresses),
            "most_from": self._addresses.most_common(1)[0][0],
            "named": len(self._named),
            "most_for": ", ".join(name for name, _ in self._named.most_common(1)),
        }
        log.warning("wrong tokens or keys", extra={"count": self._count, **facts})
        self.hear(self._count, facts)
        self._count, self._kinds, self._addresses, self._named = 0, Counter(), Counter(), Counter()
        self._timer = asyncio.get_running_loop().call_later(_TELL_S, self._tell)


class WrongKeys:
    """Middleware that counts and slows answers to wrong tokens and keys.

    Args:
        app: The application.
        claims: Claims of a token that name its user, the first that is there.
        hear: Is told how many came, and what the log is told of them.
        clock: Says the time in seconds, from any moment on.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        claims: Sequence[str] = (),
        hear: Hear = lambda _count, _facts: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._app = app
        self._claims = claims
        self._clock = clock
        self._wrong = WrongOnes()
        self._reporter = _Told(hear)
        self._waiting: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        noted: list[_Wrong | None] = []
        is_refused = False

        async def sent(message: Message) -> None:
            nonlocal is_refused
            # Nearly every answer says that nothing was wrong.
            if message["type"] == "http.response.start" and (noted or message["status"] == 401):
                wrong = [each for each in noted if each is not _LET_IN]
                if message["status"] == 401 and _LET_IN not in noted:
                    wrong.extend(_wrong_tokens(scope, self._claims))
                is_refused = bool(wrong) and not await self._waited(scope, wrong[0])
                if is_refused:
                    sentence = (
                        f"{_MOST_WAITING} wrong tokens or keys from your address, or for this user or key, "
                        "wait for their answers"
                    )
                    answer = refused(
                        429, f"{sentence}; send a right one", {"Retry-After": f"{_LONGEST_S:.0f}"}
                    )
                    await answer(scope, receive, send)
            if not is_refused:
                await send(message)

        await self._app({**scope, _NOTED: noted}, receive, sent)

    async def _waited(self, scope: Scope, wrong: _Wrong) -> bool:
        """Wait before an answer to something wrong; False if too many wait."""
        address = of_address(scope["client"][0] if scope.get("client") else "")
        named = tuple(_short(name) for name in wrong.named)
        self._reporter.one_more(address, replace(wrong, named=named))
        # What is named cannot be taken for an address.
        counted = (address, *(f"{wrong.kind} {name}" for name in named))
        now = self._clock()
        wait_s = max(self._wrong.one_more(each, now=now) for each in counted)
        if not wait_s:
            return True
        if any(self._waiting[each] >= _MOST_WAITING for each in counted):
            return False
        self._waiting.update(counted)
        try:
            await asyncio.sleep(wait_s)
        finally:
            self._waiting.subtract(counted)
            for each in counted:
                if not self._waiting[each]:
                    del self._waiting[each]
        return True


def _wrong_tokens(scope: Scope, claims: Sequence[str]) -> Iterator[_Wrong]:
    """Yield the bearer token of a refused request, if any, with its claimed user."""
    for name, value in scope["headers"]:
        if name == b"authorization":
            yield _Wrong("token", _user_in(value, claims))
            return


def _user_in(authorization: bytes, claims: Sequence[str]) -> tuple[str, ...]:
    """Return the claimed user of a token, unverified."""
    parts = authorization[:_TOKEN_BYTES].split(b".")
    if len(parts) != 3:
        return ()
    try:
        payload = json.loads(base64.urlsafe_b64decode(parts[1] + b"=" * (-len(parts[1]) % 4)))
        users = [payload[claim] for claim in claims if isinstance(payload.get(claim), str)]
    except (ValueError, AttributeError, RecursionError):
        return ()
    return tuple(users[:1])


def _short(name: str) -> str:
    """Return a name as it is counted and logged: of bounded length, in characters that can be seen."""
    return one_line(name[:_NAME_CHARS])

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
from collections.abc import Callable, Mapping, Sequence
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
    """Record a failed authentication that the status of the answer does not show.

    Args:
        request: The request.
        kind: The fault in one or two words, for the log.
        named: The claimed users or keys, if any.
    """
    request.scope.setdefault(_NOTED, []).append(_Wrong(kind, named))


def spare_tokens(scope: Scope) -> None:
    """Count the token of a request as valid, whatever the answer: it authenticated its user."""
    scope.setdefault(_NOTED, []).append(_LET_IN)


def of_address(host: str) -> str:
    """Return the client of an address: for IPv6 its /64 network, since a client has 2**64 addresses."""
    try:
        address = ip_address(host)
    except ValueError:
        # Any client can send a forwarded address, and each text would count as a new client.
        return _NO_ADDRESS
    return str(ip_network(f"{host}/64", strict=False)) if isinstance(address, IPv6Address) else host


@dataclass(frozen=True, slots=True)
class _Wrong:
    """A failed authentication.

    Attributes:
        kind: The fault in one or two words.
        named: The claimed users or keys.
    """

    kind: str
    named: tuple[str, ...] = ()


_LET_IN = None
"""Note on a request whose token was valid. Notes are a plain list, which adds no reference cycle."""


@dataclass(slots=True)
class WrongOnes:
    """Recent failures by address, user or key. The time is an argument, in seconds."""

    _of: OrderedDict[str, tuple[int, float]] = field(default_factory=OrderedDict)

    def one_more(self, address: str, *, now: float) -> float:
        """Count a failure; return the delay of its answer in seconds."""
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
    """Middleware that counts failed authentications and delays their answers.

    Args:
        app: The application.
        claims: Claims of a token that may name its user; the first one present is used.
        hear: Receives the number of failures, and the facts that are logged.
        clock: Returns monotonic time in seconds.
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
            # Nearly every answer is to a valid request, and passes at once.
            if message["type"] == "http.response.start" and (noted or message["status"] == 401):
                wrong = [each for each in noted if each is not _LET_IN]
                if message["status"] == 401 and _LET_IN not in noted:
                    tokens = [value for name, value in scope["headers"] if name == b"authorization"]
                    wrong += [_Wrong("token", _user_in(token, self._claims)) for token in tokens[:1]]
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
        """Delay the answer to a failed authentication; return False if too many wait."""
        address = of_address(scope["client"][0] if scope.get("client") else "")
        # Bounded in length, and in visible characters only.
        named = tuple(one_line(name[:_NAME_CHARS]) for name in wrong.named)
        self._reporter.one_more(address, replace(wrong, named=named))
        # The prefix keeps a claimed name from being counted as an address.
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

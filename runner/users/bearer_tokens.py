"""Bearer tokens that are JSON web tokens, and when they count: not for ever, and not before their time.

FastMCP's verifier checks key, algorithm, issuer and audience, and an end if there is one. A token without an
end would admit anybody who once saw it for ever, so it is refused; so is one that counts only later.

Keys that an issuer publishes are fetched again after a while even where all are known, so that one that the
issuer has withdrawn lets nobody in. A token with a key that is not known has them fetched as well, yet not
more often than the operator says: a stranger can name as many keys as he likes.

Source: RFC 7519, 4.1.4 (exp) and 4.1.5 (nbf); RFC 9700, 2.2 (tokens with a limited life).
"""

import logging
import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import httpx2
from fastmcp.server.auth import AccessToken
from fastmcp.server.auth.providers.jwt import JWTVerifier

from runner.users.issuer_keys import IssuerKeys

__all__ = ["LEEWAY_S", "TimedVerifier", "fault_in_times"]

log = logging.getLogger(__name__)

# How long a withdrawn key may still count, in seconds. A shorter time would ask the issuer in vain.
_KEYS_MAX_AGE_S = 300.0

LEEWAY_S = 60
"""By how many seconds the issuer's clock may be ahead of ours."""


class TimedVerifier(JWTVerifier):
    """FastMCP's verifier, for tokens that say until when they count, and whose they are.

    Args:
        name_of: Returns the name of the user that claims are of, or None. The SDK keeps sessions apart by
            client, issuer and subject: two users whose tokens have no `sub` would be one owner to it.
        keys_from: Who said where the issuer publishes its keys, for the sentence that they cannot be fetched.
        options: FastMCP's own. Scopes that are required are not looked at here but by what answers requests:
            a right token with too few of them is answered 403, not 401.
    """

    def __init__(
        self,
        *,
        name_of: Callable[[Mapping[str, object]], str | None],
        keys_from: str = "auth.keys",
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self._name_of = name_of
        self._keys_from = keys_from
        self._keys = IssuerKeys()
        self._options = {name: value for name, value in options.items() if name != "required_scopes"}
        self._checks = (self._fresh(), time.monotonic())

    async def load_access_token(self, token: str) -> AccessToken | None:
        """Return the claims of a token, or None if it is not valid now."""
        try:
            found = await self._checking().load_access_token(token)
        except OverflowError:
            # An end that no clock reaches.
            return None
        if found is None:
            return None
        fault = fault_in_times(found.claims, now=time.time())
        if fault is not None:
            log.warning("bearer token refused", extra={"problem": fault})
            return None
        name = self._name_of({"client_id": found.client_id, **found.claims})
        return found if name is None else found.model_copy(update={"subject": name})

    async def fault(self) -> str | None:
        """Return the reason why no token can be checked now; None if one can."""
        fault = await self._keys.fault(self.jwks_uri) if self.jwks_uri else None
        return fault and f"the keys of the issuer cannot be fetched from {self._keys_from}: {fault}"

    def _checking(self) -> JWTVerifier:
        """Return FastMCP's verifier with keys that are not too old."""
        checks, since = self._checks
        if self.jwks_uri and time.monotonic() - since > _KEYS_MAX_AGE_S:
            # It keeps keys for an hour and has no argument for that: a new one has none.
            self._checks = checks, since = self._fresh(), time.monotonic()
        return checks

    def _fresh(self) -> JWTVerifier:
        if not self.jwks_uri:
            return JWTVerifier(**self._options)
        return JWTVerifier(**self._options, http_client=httpx2.AsyncClient(transport=self._keys))


def fault_in_times(claims: Mapping[str, object], *, now: float) -> str | None:
    """Return the fault in the times of a token; None if it is valid now.

    Args:
        claims: What it says, its signature checked.
        now: Seconds since the epoch.
    """
    end, begin = claims.get("exp"), claims.get("nbf")
    if end is None:
        return "it has no exp, so it would count for ever; have the issuer give its tokens an end"
    if not _is_time(end):
        return "its exp is not a number of seconds"
    if float(str(end)) <= now:
        return "its exp is over"
    if begin is not None and not _is_time(begin):
        return "its nbf is not a number of seconds"
    if begin is not None and float(str(begin)) > now + LEEWAY_S:
        return "its nbf lies ahead; if it was made just now, set the clocks of issuer and server"
    return None


def _is_time(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)

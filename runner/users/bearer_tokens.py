"""Bearer tokens that are JSON web tokens, with a required expiry and a checked start time.

FastMCP's verifier checks key, algorithm, issuer and audience, and an expiry if there is one. A token without
an expiry would admit forever anybody who once saw it, so it is refused; so is one that is not yet valid.

Source: RFC 7519, 4.1.4 (exp) and 4.1.5 (nbf); RFC 9700, 2.2 (tokens with a limited life).
"""

import logging
import math
import time
from collections.abc import Callable, Mapping
from typing import Any

from fastmcp.server.auth import AccessToken
from fastmcp.server.auth.providers.jwt import JWTVerifier

from runner.users.issuer_keys import IssuerKeys

__all__ = ["LEEWAY_S", "TimedVerifier", "fault_in_times"]

log = logging.getLogger(__name__)

LEEWAY_S = 60
"""Seconds by which the issuer's clock may be ahead of ours."""


class TimedVerifier(JWTVerifier):
    """FastMCP's verifier, for tokens that have an expiry and name a user.

    Args:
        name_of: Returns the name of the user that claims identify, or None. The SDK separates sessions by
            client, issuer and subject: it would treat two users whose tokens have no `sub` as one owner.
        keys_from: Origin of the address of the issuer's keys, for the error that they cannot be fetched.
        options: Options of FastMCP's verifier. Required scopes are not checked here but where requests are
            answered: a valid token with too few of them gets 403, not 401.
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
        options = {name: value for name, value in options.items() if name != "required_scopes"}
        self._verifier = None if self.jwks_uri else JWTVerifier(**options)
        self._keys = IssuerKeys(self.jwks_uri, options) if self.jwks_uri else None

    async def load_access_token(self, token: str) -> AccessToken | None:
        """Return the claims of a token, or None if it is not valid now."""
        verifier = self._verifier if self._keys is None else await self._keys.verifier_of(token)
        try:
            found = None if verifier is None else await verifier.load_access_token(token)
        except OverflowError:
            # An expiry too far in the future to convert.
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
        fault = None if self._keys is None else await self._keys.fault()
        return fault and f"the keys of the issuer cannot be fetched from {self._keys_from}: {fault}"


def fault_in_times(claims: Mapping[str, object], *, now: float) -> str | None:
    """Return the fault in the times of a token; None if it is valid now.

    Args:
        claims: Its claims, after the signature was checked.
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

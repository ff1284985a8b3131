"""Download links: addresses of single stored files, each with a capability token that expires.

A link is a permission. Tools and clients get it; its token is removed from anything shown to people or
logged.

Source: requirements S0-49 to S0-53; rules A2 and A5 of the conformance cases; contradiction C2.
"""

import base64
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from runner.formats.json_walks import map_texts
from runner.users.capability_tokens import Tokens

__all__ = ["DOWNLOAD_PATH", "LINK_S", "PURPOSE", "DownloadLinks", "name_in", "without_tokens"]

DOWNLOAD_PATH = "/api/files/download/"
PURPOSE = "download"
"""Purpose of a link's token. A token for another purpose opens no download."""

LINK_S = 3600.0

_TOKEN = re.compile(r"([?&])(?:token=[^&#\s\"'<>]*(&?))+")


@dataclass(frozen=True, slots=True, kw_only=True)
class DownloadLinks:
    """Creator of download links.

    Attributes:
        tokens: Signer of their tokens.
        base: Address of the server as its users reach it; if empty, links are relative to it.
        ttl_s: Lifetime of a link, in seconds.
        clock: Returns the current time in seconds since the epoch.
    """

    tokens: Tokens
    base: str = ""
    ttl_s: float = LINK_S
    clock: Callable[[], float] = time.time

    def to(self, user: str, key: str, *, name: str = "", once: bool = False) -> str:
        """Return the link to download a file of `user` under a name, perhaps only once."""
        token = self.tokens.sign(
            user=user, key=key, purpose=PURPOSE, now=self.clock(), ttl_s=self.ttl_s, once=once
        )
        if name:
            # Files of equal content share their id. In the token: the address keeps its documented shape.
            token += "." + base64.urlsafe_b64encode(name.encode("utf-8", "replace")).decode().rstrip("=")
        return f"{self.base.rstrip('/')}{DOWNLOAD_PATH}{quote(key, safe='')}?token={token}"


def name_in(token: str) -> str:
    """Return the file name that a link's token carries; empty if it has none. It is not signed."""
    encoded = [*token.split("."), "", ""][2]
    try:
        return base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)).decode()
    except ValueError:
        return ""


def without_tokens(value: Any, secrets: Sequence[str] = ()) -> Any:
    """Return a copy of a JSON value with the tokens of addresses removed from texts and keys.

    Args:
        value: The value. Parts nested too deeply to be read are omitted.
        secrets: Tokens to remove even outside an address.
    """

    def withhold(text: str) -> str:
        if "token=" in text:
            text = _TOKEN.sub(_separator, text)
        for secret in secrets:
            text = text.replace(secret, "withheld")
        return text

    return map_texts(value, withhold)


def _separator(match: re.Match[str]) -> str:
    """Keep the separator before the token if another parameter follows it."""
    return match[1] if match[2] else ""
